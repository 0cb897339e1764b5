"""Write numbers for people: one form of each kind of number in every table, sentence, page and repr."""

import math
from collections.abc import Callable

SMALLEST_PERCENT = 0.001
"""Smaller percentages are written as "below 0.001 %"."""

LONGEST = 1e6
"""Number of steps above which a half-life counts as infinite: no recorded sequence is that long."""

LARGE = 100.0
"""Scores from here on (losses, usually) are written without decimals."""

MISSING = "–"
"""Stands for a number that is unknown, undefined or infinite."""


def percent(fraction: float | None) -> str:
    """Write a fraction in percent with one decimal.

    Below 1 % there are two significant digits, so that small errors can be compared.

    >>> percent(0.926), percent(0.00042), percent(1e-9), percent(None)
    ('92.6 %', '0.042 %', 'below 0.001 %', '–')
    """
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    value = 100 * fraction
    if 0 < value < SMALLEST_PERCENT:
        return f"below {SMALLEST_PERCENT} %"
    if 0 < value < 0.995:
        return f"{value:.2g} %"
    return _with_minus(f"{round(value, 1) + 0.0:,.1f} %")  # adding 0.0 turns -0.0 into 0.0


def confidence(level: float) -> str:
    """Write a confidence level or another chosen limit in percent, without decimals that it does not have.

    >>> confidence(0.95), confidence(0.995)
    ('95 %', '99.5 %')
    """
    return f"{100 * level:.6g} %"


def significant(value: float | None, digits: int = 3) -> str:
    """Write a number with a few significant digits, without an exponent from 0.0001 up to a million.

    >>> significant(0.12345), significant(-12345.6), significant(1234.5, 4), significant(float("nan"))
    ('0.123', '−12,346', '1,234', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if 10 ** (digits - 1) <= abs(value) < 1e6:
        return _with_minus(f"{value:,.0f}")
    return _with_minus(f"{value + 0.0:.{digits}g}")


def fixed(value: float | None) -> str:
    """Write a score with three decimals; numbers of 100 or more without any.

    >>> fixed(0.5), fixed(-0.002), fixed(123.4), fixed(float("inf"))
    ('0.500', '−0.002', '123', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return _with_minus(f"{value:.0f}" if abs(value) >= LARGE else f"{round(value, 3) + 0.0:.3f}")


def signed(value: float, decimals: int = 2) -> str:
    """Write a number with its sign and a few decimals.

    >>> signed(0.5), signed(-1.234)
    ('+0.50', '−1.23')
    """
    return _with_minus(f"{round(value, decimals) + 0.0:+.{decimals}f}")


def _with_minus(text: str) -> str:
    """Write a minus sign, as charts do, where a number begins with a hyphen."""
    return f"−{text[1:]}" if text.startswith("-") else text


def from_to(low: float, high: float, write: Callable[[float], str] = significant) -> str:
    """Write an interval with the function that writes its ends.

    >>> from_to(0.25, 0.5), from_to(0.25, 0.5, percent), from_to(0.25, math.inf)
    ('0.25 to 0.5', '25.0 % to 50.0 %', '0.25 or more')
    """
    return f"{write(low)} or more" if high == math.inf else f"{write(low)} to {write(high)}"


def part_of(part: int, whole: int) -> str:
    """Write a count out of a total.

    >>> part_of(3, 12)
    '3 of 12'
    """
    return f"{part:,} of {whole:,}"


def format_eigenvalue(value: complex | float) -> str:
    """Write an eigenvalue or a conjugate pair with four decimals: .9966 and .9990 differ threefold in half-life.

    >>> format_eigenvalue(-0.98 + 0j), format_eigenvalue(0.98 - 0.1j)
    ('−0.9800', '0.9800 ± 0.1000i')
    """
    return _with_minus(f"{value.real:.4f} ± {abs(value.imag):.4f}i" if value.imag else f"{value.real:.4f}")


def half_life(modulus: float) -> float:
    """Return the number of steps after which half of a mode is left, ln ½ / ln |λ|; infinite if it does not decay.

    >>> half_life(0.5), half_life(1.0)
    (1.0, inf)
    """
    if modulus >= 1:
        return math.inf
    return math.log(0.5) / math.log(modulus) if modulus > 0 else 0.0


def number_of_steps(value: float) -> str:
    """Write a number of steps: two digits below ten, whole numbers above.

    >>> number_of_steps(0.234), number_of_steps(6.93), number_of_steps(1234.5), number_of_steps(float("inf"))
    ('0.23', '6.9', '1,234', '∞')
    """
    if not value < LONGEST:
        return "∞"
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def plural(name: str, value: str) -> str:
    """Write a number with the name of what it counts.

    >>> plural("step", "1"), plural("layer", "6.9")
    ('1 step', '6.9 layers')
    """
    return f"1 {name}" if value == "1" else f"{value} {name}s"


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it.

    >>> duration(0.0042), duration(2.5), duration(300.0), duration(7200.0)
    ('4.2 ms', '2.5 s', '5 min', '2 h')
    """
    for below, size, unit in ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (60.0, 1.0, "s"), (3600.0, 60.0, "min")):
        if seconds < below:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def with_step_name(text: str, step_name: str) -> str:
    """Replace "step" by the name of a step in a sentence of `kann.trust`.

    >>> with_step_name("one step misses 0.1 of it", "layer")
    'one layer misses 0.1 of it'
    """
    return text.replace("one step ", f"one {step_name} ")


def finite_or_none(value: float) -> float | None:
    """Return the number, or None where it is NaN or infinite, which JSON cannot say.

    >>> finite_or_none(2.5), finite_or_none(float("inf"))
    (2.5, None)
    """
    return value if math.isfinite(value) else None

"""Numbers with their units, as people write them: percents, steps, seconds."""

import math

SMALLEST_PERCENT = 0.001
"""Nobody reads smaller percents as numbers."""

LONGEST = 1e6
"""Steps from which on a mode is said not to decay: no sequence is as long."""


def percent(fraction: float | None) -> str:
    """A fraction as people read it: two digits, or whole percents from 100 on.

    >>> percent(0.01234), percent(1.0312), percent(1e-9), percent(None)
    ('1.2 %', '103 %', 'below 0.001 %', '–')
    """
    if fraction is None:
        return "–"
    value = 100 * fraction
    if 0 < value < SMALLEST_PERCENT:
        return f"below {SMALLEST_PERCENT} %"
    if value >= 99.5:  # two digits would be written 1e+02
        return f"{value:.0f} %"
    return f"{value:.2g} %"


def half_life(modulus: float) -> float:
    """After how many steps half of a mode is left: ln ½ / ln |λ|; infinite for one that does not decay.

    >>> half_life(0.5), half_life(1.0)
    (1.0, inf)
    """
    if modulus >= 1:
        return math.inf
    if modulus <= 0:
        return 0.0
    return math.log(0.5) / math.log(modulus)


def number_of_steps(value: float) -> str:
    """So many steps, with two digits below ten and whole numbers from there on.

    >>> number_of_steps(0.234), number_of_steps(6.93), number_of_steps(1234.5), number_of_steps(float("inf"))
    ('0.23', '6.9', '1,234', '∞')
    """
    if not value < LONGEST:
        return "∞"
    if value < 9.95:
        return f"{value:.2g}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A time in the unit in which people would say it.

    >>> duration(0.0042), duration(2.5), duration(300.0), duration(7200.0)
    ('4.2 ms', '2.5 s', '5 min', '2 h')
    """
    for size, unit in ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min")):
        following = {"µs": 1e-3, "ms": 1.0, "s": 60.0, "min": 3600.0}[unit]
        if seconds < following:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def signed(value: float) -> str:
    """A number with its sign and two decimals.

    >>> signed(0.5), signed(-1.234)
    ('+0.50', '−1.23')
    """
    return f"{value:+.2f}".replace("-", "−")


def with_step_name(text: str, step_name: str) -> str:
    """A sentence of `kann.trust` in which a step is called what it is.

    >>> with_step_name("one step misses 0.1 of it", "layer")
    'one layer misses 0.1 of it'
    """
    return text.replace("one step ", f"one {step_name} ")


def plural(name: str, value: str) -> str:
    """A number with what it counts.

    >>> plural("step", "1"), plural("layer", "6.9")
    ('1 step', '6.9 layers')
    """
    if value == "1":
        return f"1 {name}"
    return f"{value} {name}s"

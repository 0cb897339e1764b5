"""What was found, in a few sentences to quote: each is made from figures, and none contradicts another."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann.analysis.coordinates import mode_variances, spread_of
from kann.analysis.live_effects import Effects
from kann.analysis.movers import Movers
from kann.analysis.trust import Trust
from kann.explaining.findings import Findings
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import format_eigenvalue
from kann.reporting.mattering import first_modes, modes_that_matter
from kann.reporting.units import duration, half_life, number_of_steps, plural, with_step_name
from kann.typing import Array, Float, Shaped

ENOUGH, NEARLY_ALL = 0.75, 0.9
"""Fractions of the score: sentences speak of as many coordinates as bring back the first, and the second.

Three quarters leads with the fewest coordinates that do most of the work; it was set after a look at the shipped GRU,
so the second number and principal components stand beside it.
"""

CLEAR_GAP = 0.02
"""Scores that are closer than this are called equal, however many sequences tell them apart."""

MODES_NAMED = 3
"""How many modes sentences speak of one by one."""

NAMES_SHOWN = 4
"""How many tokens or inputs are named that push a mode up, and as many that push it down."""

NEGLIGIBLE = 0.05
"""What pushes a mode by less than this fraction of its strongest push is not named, however sure it is."""

HOLDS_FROM = 0.95
"""From this |λ| on a mode is called a memory: half of it is left after 14 steps."""

GROWS_FROM = 1.0005
"""From this |λ| on a mode is said to grow: less would be written as 0.0 % in a step."""

MOST_REACHING = 4
"""Up to so many modes that reach the outputs are named."""

REACHES = 0.99
"""Modes reach the outputs if together they make this fraction of all contributions to them."""


def sentences_of(found: Findings) -> tuple[str, ...]:
    """Three to five sentences: what decides live, what pushes it and how long it stays, errors, and what not to say."""
    nothing = _nothing(found)
    live = _live(found, is_description=nothing is not None)
    errors = _errors(found)
    if nothing is not None:
        return tuple(filter(None, [nothing, live or _trusted(found.trust), _carrier(found), errors]))
    return tuple(filter(None, [live, _memories(found), _reaching(found), errors, _caution(found)]))


def _nothing(found: Findings) -> str | None:
    """Why nothing can be concluded; None if something can."""
    trust = found.trust
    if found.accuracy is not None and found.accuracy[0] <= found.accuracy[1]:
        return (
            f"Nothing can be concluded about the task: on held-out sequences the network is right in "
            f"{found.accuracy[0]:.0%}, and always giving the most frequent label in {found.accuracy[1]:.0%}."
        )
    effects = found.effects
    if effects is not None and effects.full == effects.none:
        return (
            f"Nothing can be concluded about what the network decides by: with its state held at the mean it decides "
            f"all {len(effects.judged)} held-out sequences as before."
        )
    if trust is None:
        return None
    if not trust.trusted:
        why = with_step_name(trust.modes[0].why.split(";")[0], found.place.step_name)
        return (
            f"Nothing can be concluded about what the network {_remembers(found)}: none of the {len(trust.modes)} "
            f"modes of its operator can be trusted (of mode 0, {why})."
        )
    if trust.learned is not None and not trust.learned:
        return (
            f"Nothing can be concluded about what the network learned: untrained copies of it have "
            f"{_all_of(len(trust.trusted))} that can be trusted just as well."
        )
    return None


def _remembers(found: Findings) -> str:
    if found.place.axis == "depth":
        return "hands on from block to block"
    return "remembers"


def _trusted(trust: Trust | None) -> str | None:
    if trust is None:
        return None
    return f"{len(trust.trusted)} of the {len(trust.modes)} modes of its operator can be trusted."


def _all_of(count: int) -> str:
    if count == 1:
        return "the one mode"
    return f"all {count} modes"


def _live(found: Findings, *, is_description: bool) -> str | None:
    """How many coordinates carry how much of the decisions in the running network, beside PCA and random ones."""
    effects = found.effects
    if effects is None:
        return "What single modes decide was not tested in the running network."
    if effects.full == effects.none:
        return None
    if not _is_compared(effects).any():
        return "The test in the running network was interrupted before modes could be compared with other directions."
    at = _enough_at(effects, ENOUGH)
    count, kept = effects.counts[at], effects.kept
    low, high = effects.interval("modes")[at]
    fitted: Any = found.fitted
    total = fitted.koopman.dim
    others = [f"as many principal components {_score(effects, kept['pca'][at])}"]
    if "random" in kept and np.isfinite(kept["random"][at]):
        others.append(f"random directions {_score(effects, kept['random'][at])}")
    others.append(f"its mean state alone {_score(effects, effects.none)}")
    right = ""
    if found.accuracy is not None:
        right = f"The network is right on {found.accuracy[0]:.1%} of the held-out sequences. "
    sentence = (
        f"{right}In the running network, {_coordinates(count)} of {total} kept after {_kept_after(found)} "
        f"{_carry(count, effects.outputs)} {_score(effects, kept['modes'][at])}{_of_what(effects.outputs)} "
        f"({_interval(effects, low, high)}, "
        f"{len(effects.judged)} sequences that were not fitted); {', '.join(others)}."
    )
    more = _enough_at(effects, NEARLY_ALL)
    if more > at:
        modes, components = (_score(effects, kept[name][more]) for name in ("modes", "pca"))
        sentence += f" With {effects.counts[more]}, modes keep {modes} and principal components {components}."
        if modes == components:
            sentence = sentence.removesuffix(f" and principal components {components}.")
            sentence += ", and principal components as much."
    if is_description:
        return f"{sentence} That says which directions decisions need, and not that training made them."
    doubts = _doubts(found.trust, first_modes(effects.koopman, effects.order, count))
    return f"{sentence} {_beside_pca(effects, at)}{doubts}"


def _is_compared(effects: Effects) -> Shaped[Array, " c"]:
    """For which numbers of coordinates modes and principal components were both tested."""
    return np.isfinite(effects.kept["modes"]) & np.isfinite(effects.kept["pca"])


def _doubts(trust: Trust | None, kept: Sequence[int]) -> str:
    """Which of the modes that were kept cannot be trusted, or were not learned: other modes may be named further on."""
    if trust is None:
        return ""
    parts = []
    not_trusted = [number for number in kept if number not in trust.trusted]
    if not_trusted:
        parts.append(f"{_modes(not_trusted)} cannot be trusted")
    not_learned = [number for number in kept if trust.modes[number].learned is False]
    if not_learned:
        parts.append(f"untrained copies of the network have {_modes(not_learned)} too")
    if not parts:
        return ""
    return f" Of the modes kept here, {' and '.join(parts)}."


def _modes(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"mode {numbers[0]}"
    if len(numbers) <= NAMES_SHOWN:
        return f"modes {', '.join(map(str, numbers))}"
    return f"{len(numbers)} modes"


def _enough_at(effects: Effects, fraction: float) -> int:
    """The place of the smallest number of coordinates that brings back enough, or nearly all that any does."""
    recovered = np.where(_is_compared(effects), effects.recovered["modes"], -np.inf)
    enough = np.flatnonzero(recovered >= min(fraction, float(recovered.max()) - CLEAR_GAP))
    return int(enough[0])


def _kept_after(found: Findings) -> str:
    if found.place.axis == "depth":
        return "its middle block"
    if not found.place.is_fed_back:
        return "every step of what it gives (the state inside goes on untouched)"
    return "every step"


def _coordinates(count: int) -> str:
    if count == 1:
        return "one coordinate"
    return f"{count} coordinates"


def _carry(count: int, outputs: str) -> str:
    verb = "carry"
    if count == 1:
        verb = "carries"
    if outputs == "values":
        return f"{verb} its outputs to an R² of"
    return verb


def _of_what(outputs: str) -> str:
    """What a score is a fraction of; R² is none."""
    return {"class": " of its decisions", "labels": " of its answers", "values": ""}[outputs]


def _score(effects: Effects, value: float) -> str:
    if effects.outputs == "values":
        return f"{round(value, 3) + 0.0:.3f}"  # never -0.000
    return f"{value:.1%}"


def _interval(effects: Effects, low: float, high: float) -> str:
    return f"{effects.level:.0%} interval {_score(effects, low)} to {_score(effects, min(1.0, high))}"


def _beside_pca(effects: Effects, at: int) -> str:
    """Whether modes do better than principal components, in words."""
    modes, pca = effects.interval("modes")[at], effects.interval("pca")[at]
    gap = float(effects.kept["modes"][at] - effects.kept["pca"][at])
    if gap > CLEAR_GAP and modes[0] > pca[1]:
        return (
            f"So, with {_coordinates(effects.counts[at])}, modes say better than variance what this network decides by."
        )
    if gap < -CLEAR_GAP and pca[0] > modes[1]:
        return "So principal components say better than modes what it decides by; do not read modes as its decisions."
    if effects.recovered["modes"][at] <= CLEAR_GAP:
        return "So these modes say no more than the mean state about what it decides by."
    if abs(gap) > CLEAR_GAP:
        return f"These {len(effects.judged)} sequences are too few to tell modes from principal components."
    return "So principal components do as well as modes."


def _memories(found: Findings) -> str | None:
    """The modes that matter: what pushes each and how long it stays."""
    fitted: Any = found.fitted
    koopman: Koopman = fitted.koopman
    holding = _holding(found, koopman)
    parts = []
    for number in _named_modes(found, koopman):
        eigenvalue = format_eigenvalue(koopman.modes[number].eigenvalue)
        stays = f"{_half_life(number, found)}{_turning(number, found)}"
        parts.append(f"mode {number} (λ = {eigenvalue}, {stays}){_pushed(found.movers, number)}")
    if not parts:
        return None
    text = "; ".join(parts)
    sentence = f"{text[0].upper()}{text[1:]}."
    count = sum(len(koopman.modes[number].indices) for number in holding)
    if count > 1:
        moduli = [koopman.modes[number].modulus for number in holding]
        pairs = ""
        if count > len(holding):
            pairs = ", a pair of eigenvalues counts twice"
        sentence = (
            f"{_number_word(count)} memories can be trusted{_how_many_learned(found, koopman, holding)}, coordinates "
            f"that {_what_holds(found)} (|λ| from {min(moduli):.3f} to {max(moduli):.3f}{pairs}). {sentence}"
        )
    return sentence


def _how_many_learned(found: Findings, koopman: Koopman, holding: Sequence[int]) -> str:
    """How many of these memories training made, unless it made all of them or that is not known."""
    if found.trust is None or found.trust.learned is None or set(holding) <= set(found.trust.learned):
        return ""
    learned = [number for number in holding if number in found.trust.learned]
    if not learned:
        return " (none of them learned)"
    count = sum(len(koopman.modes[number].indices) for number in learned)
    return f" ({_number_word(count).lower()} of them learned)"


def _what_holds(found: Findings) -> str:
    if found.place.axis == "depth":
        return "blocks hand on as they are"
    return "hold what was read"


def _number_word(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    if count < len(words):
        return words[count]
    return str(count)


def _holding(found: Findings, koopman: Koopman) -> list[int]:
    """The trusted modes that forget slowly."""
    if found.trust is None:
        return []
    return [number for number in found.trust.trusted if koopman.modes[number].modulus >= HOLDS_FROM]


def _named_modes(found: Findings, koopman: Koopman) -> list[int]:
    """The modes that sentences speak of: those that matter and can be trusted, as far as that is known."""
    matter = modes_that_matter(
        koopman, trust=found.trust, effects=found.effects, movers=found.movers, alone=found.alone
    )
    trusted = matter
    if found.trust is not None:
        own = found.trust.learned or found.trust.trusted  # of modes that training made, if there are such
        trusted = [number for number in matter if number in own]
        if not trusted:  # what decides live is not trusted: speak of the modes that are
            trusted = list(own)
    return trusted[:MODES_NAMED]


def _half_life(number: int, found: Findings) -> str:
    """After how many steps half of a mode is left, in steps and seconds, as far as that is known."""
    fitted: Any = found.fitted
    modulus, step_name = fitted.koopman.modes[number].modulus, found.place.step_name
    low = high = modulus
    if found.trust is not None:
        low, high = found.trust.modes[number].interval
        if low > 1 and modulus >= GROWS_FROM:
            return f"it grows by {modulus - 1:.1%} in a {step_name}"
    if number_of_steps(half_life(low)) == "∞":
        return "no fading was measured"
    if high >= 1:  # it may not fade at all, so that only the least half-life is known
        return f"half of it is left after {_time(low, found)} or more"
    if modulus < 0.5:
        return f"less than half of it is left after one {step_name}"
    return f"half of it is left after {_time(modulus, found)}"


def _turning(number: int, found: Findings) -> str:
    """How long a turn of a memory takes that is a pair of eigenvalues: it comes back, and is not held still."""
    fitted: Any = found.fitted
    mode = fitted.koopman.modes[number]
    if len(mode.indices) == 1 or mode.modulus < HOLDS_FROM:
        return ""
    steps = 2 * np.pi / abs(np.angle(mode.eigenvalue))
    text = plural(found.place.step_name, f"{steps:.3g}")
    if found.options.step_seconds is not None:
        text += f" = {duration(steps * found.options.step_seconds)}"
    return f", it turns once in {text}"


def _time(modulus: float, found: Findings) -> str:
    """A half-life in steps, and in seconds if it is known how long a step lasts."""
    steps = half_life(modulus)
    text = plural(found.place.step_name, number_of_steps(steps))
    if found.options.step_seconds is not None:
        text += f" = {duration(steps * found.options.step_seconds)}"
    return text


def _pushed(movers: Movers | None, number: int) -> str:
    if movers is None or number not in movers.modes or movers.by == "steps":
        return ""
    both = movers.up(number), movers.down(number)
    least = NEGLIGIBLE * max((abs(each.push) for side in both for each in side if each.sure), default=0.0)
    up, down = ([each for each in side if each.sure and abs(each.push) >= least] for side in both)
    sides = []
    if up:
        sides.append(f"up by {_names(up)}")
    if down:
        sides.append(f"down by {_names(down)}")
    if not sides:
        return f", surely pushed by none of the {movers.by}"
    return f" is pushed {' and '.join(sides)}"


def _carrier(found: Findings) -> str | None:
    """What pushes the mode that decides most live, where no mode can be trusted: a description, and nothing more."""
    effects, trust = found.effects, found.trust
    if effects is None or trust is None or trust.trusted or not effects.order:
        return None
    number = effects.order[0]
    pushed = _pushed(found.movers, number)
    if not pushed.startswith(" is pushed"):
        return None
    return f"As a description only: mode {number}, which does most in the running network,{pushed}."


def _names(side: Sequence[Any]) -> str:
    return ", ".join(f"“{each.name}”" for each in side[:NAMES_SHOWN])


def _reaching(found: Findings) -> str | None:
    """Which modes reach the outputs, if these are few."""
    reading, fitted = found.reading, found.fitted
    if reading is None or fitted is None or not reading.is_output or reading.weight is None:
        return None
    koopman = fitted.koopman
    variances = mode_variances(koopman, spread_of(fitted.states), reading.weight)
    if not variances.sum() > 0:  # the readout reads nothing
        return None
    order = np.argsort(-variances, kind="stable")
    fractions: Float[Array, " m"] = np.cumsum(variances[order]) / variances.sum()
    count = int(np.searchsorted(fractions, REACHES)) + 1
    if count > min(MOST_REACHING, max(1, len(order) // 2)):
        return None
    if found.trust is not None and not set(order[:count].tolist()) <= set(found.trust.trusted):
        return None  # nothing follows from modes that are not trusted
    names = [f"{number} (λ = {format_eigenvalue(koopman.modes[number].eigenvalue)})" for number in order[:count]]
    what = f"{_number_word(count)} of {len(order)} modes reach the outputs: {', '.join(names)}"
    if count == 1:
        what = f"Of {len(order)} modes one reaches the outputs: {names[0]}"
    return f"{what}, with {fractions[count - 1]:.1%} of what all modes contribute to them."


def _errors(found: Findings) -> str:
    """Held-out errors beside copying."""
    trust, step_name = found.trust, found.place.step_name
    if trust is None:
        return "How far modes can be trusted was not measured."
    text = (
        f"On held-out sequences{_which_steps(found)} one {step_name} of the operator misses {trust.error[0]:.2%} of "
        f"the states' variance, and copying the previous state {trust.copying_error[0]:.2%}"
    )
    if len(trust.horizons) > 1:
        text += f"; over {trust.horizons[-1]} {step_name}s {trust.error[-1]:.0%} and {trust.copying_error[-1]:.0%}"
    return f"{text}."


def _which_steps(found: Findings) -> str:
    if found.fitted is not None and found.fitted.kind == "quiet":
        return ", where nothing is read,"
    return ""


def _caution(found: Findings) -> str:
    """What must not be concluded."""
    trust = found.trust
    parts = []
    if trust is not None:
        rest = len(trust.modes) - len(trust.trusted)
        if rest:
            parts.append(f"nothing follows from the {rest} of {len(trust.modes)} modes that are not trusted")
        if trust.learned is None:
            parts.append("that training made these modes was not tested")
        elif len(trust.learned) < len(trust.trusted):
            own = len(trust.trusted) - len(trust.learned)
            parts.append(f"training did not make {own} of the trusted modes, which untrained copies have too")
    else:
        parts.append("no mode may be called the network's own, since trust was not measured")
    fitted: Any = found.fitted
    if fitted.kind == "driven" and fitted.gated is None:
        parts.append("half-lives are those of this operator on average over what was read")
    parts.append("figures hold for data like these")
    return f"Not to be concluded from this: {'; '.join(parts)}."

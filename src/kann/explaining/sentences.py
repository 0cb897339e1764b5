"""What was found, in a few sentences to quote: each is made from figures, and none contradicts another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from kann._format import confidence, fixed, format_eigenvalue, percent, with_step_name
from kann.analysis._trust import Trust
from kann.analysis.modes import first_modes, mode_variances
from kann.data.moments import mean_and_covariance
from kann.explaining.context import Findings, Rightness
from kann.explaining.depth_stage import layers_in_words
from kann.explaining.layer_search import Place
from kann.explaining.memory_sentences import NAMES_SHOWN, carrier, decisions, gated_memory, memories, number_word
from kann.live.results import Effects
from kann.typing import Array, Float, Shaped

ENOUGH, NEARLY_ALL = 0.75, 0.9
"""Fractions of the score: sentences speak of as many coordinates as bring back the first, and the second.

Three quarters leads with the fewest coordinates that do most of the work; it was set after a look at the shipped GRU,
so the second number and principal components stand beside it.
"""

CLEAR_GAP = 0.02
"""Scores that are closer than this are called equal, however many sequences tell them apart."""

MOST_REACHING = 4
"""Up to so many modes that reach the outputs are named."""

REACHES = 0.99
"""Modes reach the outputs if together they make this fraction of all contributions to them."""


def sentences_of(found: Findings) -> tuple[str, ...]:
    """A few sentences: what decides live, what pushes it and how long it stays, errors, and what not to say."""
    nothing = _nothing(found)
    live = _live(found, is_description=nothing is not None)
    errors = layers_in_words(found) or _errors(found)
    if nothing is not None:
        return tuple(filter(None, [nothing, live or _trusted(found.trust), carrier(found), errors]))
    about_modes = [memories(found), gated_memory(found), _reaching(found)]
    return tuple(filter(None, [live, *about_modes, errors, _caution(found)]))


def _nothing(found: Findings) -> str | None:
    """Why nothing can be concluded; None if something can."""
    trust = found.trust
    if found.rightness is not None and not found.rightness.is_clear:
        return f"Nothing can be concluded about the task: {_not_right(found.rightness)}."
    effects = found.effects
    if effects is not None and effects.full == effects.none:
        same = f"it decides all {len(effects.judged)} held-out sequences as before"
        if effects.outputs == "values":
            same = f"its outputs for all {len(effects.judged)} held-out sequences stay the same"
        return (
            f"Nothing can be concluded about what the network {_by(effects.outputs)}: with its state"
            f"{_which_part(found.place)} held at the mean {same}.{_try_other_direction(found.place)}"
        )
    if trust is None:
        return None
    if not trust.trusted:
        why = with_step_name(trust.modes[0].why.split(";")[0], found.place.step_name)
        which = f"none of the {len(trust.modes)} modes of its operator can be trusted (of mode 0, {why})"
        if len(trust.modes) == 1:
            which = f"its operator has one mode, which cannot be trusted ({why})"
        return f"Nothing can be concluded about what the network {_remembers(found)}: {which}."
    if trust.learned is not None and not trust.learned:
        return (
            f"Nothing can be concluded about what the network learned: untrained copies of it have "
            f"{_all_of(len(trust.trusted))} that can be trusted just as well."
        )
    return None


def _not_right(found: Rightness) -> str:
    """That the network does no better on held-out sequences than what needs no network."""
    if found.outputs == "values":
        return (
            f"on held-out sequences its outputs match the labels with an R² of {found.score:.2f} (95 % interval "
            f"{found.low:.2f} to {found.high:.2f}), and the mean of the labels does with 0"
        )
    what = "the network is right in"
    if found.outputs == "labels":
        what = "the network's answers are right in"
    return (
        f"on held-out sequences {what} {percent(found.score)} (95 % interval {percent(found.low)} to "
        f"{percent(found.high)}), and always giving the most frequent label in {percent(found.baseline)}"
    )


def _how_right(found: Rightness | None) -> str:
    """How well the network does, as a sentence before others."""
    if found is None:
        return ""
    if found.outputs == "values":
        return f"The network's outputs match the labels of held-out sequences with an R² of {fixed(found.score)}. "
    if found.outputs == "labels":
        return f"The network's answers are right in {percent(found.score)} on the held-out sequences. "
    return f"The network is right on {percent(found.score)} of the held-out sequences. "


def _by(outputs: str) -> str:
    """What modes stand for: decisions, or values."""
    if outputs == "values":
        return "makes its outputs of"
    return "decides by"


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
        return "What single modes do was not tested in the running network."
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
    sentence = (
        f"{_how_right(found.rightness)}In the running network, {_coordinates(count)} of {total} kept after "
        f"{_kept_after(found)} "
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
    sentence += f" {_beside_pca(effects, at)}"
    if is_description:
        return f"{sentence} That says what is enough for its {decisions(effects)}, and not that training made it."
    return sentence + _doubts(found.trust, first_modes(effects.koopman, effects.order, count))


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
    return f"every step{_which_part(found.place)}"


def _which_part(place: Place) -> str:
    """Which layer and direction of a recurrent module is held, and what runs on; nothing if it has no others."""
    if place.target is None or not isinstance(place.target.module, nn.RNNBase):
        return ""
    others = []
    if place.target.module.bidirectional:
        others.append("the other direction")
    if place.target.module.num_layers > 1:
        others.append("the other layers")
    if not others:
        return ""
    return f" of {place.target.name!r} ({' and '.join(others)} untouched)"


def _try_other_direction(place: Place) -> str:
    """What to do where the direction that was held decides nothing."""
    if place.target is None or place.target.reverse or not isinstance(place.target.module, nn.RNNBase):
        return ""
    if not place.target.module.bidirectional:
        return ""
    return f" Pass layer={place.target.name + '_reverse'!r} for the other direction."


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
        return fixed(value)
    return percent(value)


def _interval(effects: Effects, low: float, high: float) -> str:
    return f"{confidence(effects.level)} interval {_score(effects, low)} to {_score(effects, min(1.0, high))}"


def _beside_pca(effects: Effects, at: int) -> str:
    """Whether modes do better than principal components and random directions, in words."""
    modes, pca = effects.interval("modes")[at], effects.interval("pca")[at]
    gap = float(effects.kept["modes"][at] - effects.kept["pca"][at])
    by = _by(effects.outputs)
    if effects.recovered["modes"][at] <= CLEAR_GAP:
        return f"So these modes say no more than the mean state about what it {by}."
    if gap < -CLEAR_GAP and pca[0] > modes[1]:
        return (
            f"So principal components say better than modes what it {by}; do not read modes as its "
            f"{decisions(effects)}."
        )
    is_all = effects.counts[at] >= effects.koopman.dim  # of all coordinates any choice is the same
    if not is_all and "random" in effects.kept and effects.kept["random"][at] >= effects.kept["modes"][at] - CLEAR_GAP:
        return "A draw of random directions does as well, so that nothing follows from these modes in particular."
    if gap > CLEAR_GAP and modes[0] > pca[1]:
        return f"So, with {_coordinates(effects.counts[at])}, modes say better than variance what this network {by}."
    if abs(gap) > CLEAR_GAP:
        return f"These {len(effects.judged)} sequences are too few to tell modes from principal components."
    return "So principal components do as well as modes."


def _reaching(found: Findings) -> str | None:
    """Which modes reach the outputs, if these are few."""
    reading, fitted = found.reading, found.fitted
    if reading is None or fitted is None or not reading.is_output or reading.weight is None:
        return None
    koopman = fitted.koopman
    variances = mode_variances(koopman, mean_and_covariance(fitted.states), reading.weight)
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
    what = f"{number_word(count)} of {len(order)} modes reach the outputs: {', '.join(names)}"
    if count == 1:
        what = f"Of {len(order)} modes one reaches the outputs: {names[0]}"
    return f"{what}, with {percent(fractions[count - 1])} of what all modes contribute to them."


def _errors(found: Findings) -> str:
    """Held-out errors beside copying."""
    trust, step_name = found.trust, found.place.step_name
    if trust is None:
        return "How far modes can be trusted was not measured."
    text = (
        f"On held-out sequences{_which_steps(found)} one {step_name} of the operator misses "
        f"{percent(trust.error[0])} of "
        f"the states' variance, and copying the previous state {percent(trust.copying_error[0])}"
    )
    if len(trust.horizons) > 1:
        text += (
            f"; over {trust.horizons[-1]} {step_name}s {percent(trust.error[-1])} and "
            f"{percent(trust.copying_error[-1])}"
        )
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

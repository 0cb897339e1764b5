"""A card for each mode that matters: how long it remembers, what it does in the running network, and what pushes it."""

from typing import Any

import numpy as np

from kann._format import (
    duration,
    fixed,
    from_to,
    half_life,
    number_of_steps,
    percent,
    plural,
    signed,
    significant,
    with_step_name,
)
from kann.analysis._movers import Mover, Movers, pushes_of
from kann.analysis._trust import ModeTrust
from kann.data.moments import mean_and_covariance
from kann.fitting.spectrum import Mode
from kann.reporting.inputs import ReportInputs
from kann.reporting.sequences import groups_of, output_names
from kann.typing import Array, Float

POINTS = 40
"""Points of a small line."""

MOST_GROUPS = 4
"""More lines than this cannot be told apart in a small picture; then one line stands for all sequences."""

MOST_AVERAGED = 500
"""Number of sequences that are averaged at most: the line would not look different with more."""

FEWEST_SEQUENCES = 3
"""A mean over fewer sequences is no line of a group."""


def _courses_and_pushes(inputs: ReportInputs) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """Compute the coordinate of each mode that matters at each state, and the push of each step beyond decay.

    Both are in standard deviations, and oriented as `kann.movers` orients a mode. Pushes of first states are NaN.
    """
    states, movers = inputs.states, inputs.movers
    # Movers that were found without a readout point as their states let them, which may be other states than these.
    without_readout = movers is not None and movers.outputs is None
    weight = None if without_readout else inputs.readout_weight
    found = pushes_of(inputs.koopman, states, inputs.matter, mean_and_covariance(states), weight)
    courses, pushes = found.real(found.coordinates), np.full((len(states.values), len(inputs.matter)), np.nan)
    pushes[found.rows] = found.real(found.values)
    if movers is not None and without_readout and movers.by == "tokens" and inputs.tokens is not None:
        place_of = {name: place for place, name in enumerate(movers.names)}
        rows = np.array([place_of.get(token, -1) for own in inputs.tokens for token in own])
        for place, number in enumerate(inputs.matter):
            if number in movers.modes:
                expected = np.where(rows < 0, 0.0, movers.push[rows, movers.modes.index(number)])
                sign = -1 if np.nansum(pushes[:, place] * expected) < 0 else 1
                courses[:, place] *= sign
                pushes[:, place] *= sign
    return courses, pushes


def _mean_courses(inputs: ReportInputs, coordinate: Float[Array, " n"], groups: list[str | None]) -> dict[str, Any]:
    """Return the mean course of a mode over the sequences of each group; over all of them if there are many groups.

    Sequences of one length are averaged step by step, others by the fraction of the sequence that was read.
    """
    lengths, groups = inputs.states.lengths[:MOST_AVERAGED], groups[:MOST_AVERAGED]
    same_length = bool((lengths == lengths[0]).all())
    places = np.linspace(0, 1, min(POINTS, int(lengths.max())))
    courses = [coordinate[inputs.states.span(i)] for i in range(len(lengths))]
    lines = np.stack([np.interp(places * (len(own) - 1), np.arange(len(own)), own) for own in courses])
    names = sorted({str(group) for group in groups if group is not None})
    drawn = {}
    if 1 < len(names) <= MOST_GROUPS:
        members = {name: [i for i, group in enumerate(groups) if str(group) == name] for name in names}
        drawn = {name: lines[own].mean(axis=0) for name, own in members.items() if len(own) >= FEWEST_SEQUENCES}
    band: list[list[float]] = []
    if not drawn:
        drawn = {"all sequences": lines.mean(axis=0)}
        band = [np.quantile(lines, edge, axis=0).round(3).tolist() for edge in (0.25, 0.75)]
    return {
        "groups": {name: line.round(3).tolist() for name, line in drawn.items()},
        "band": band,
        "last": float(lengths[0] - 1) if same_length else 100.0,
        "same_length": same_length,
    }


WORDS_BEFORE, WORDS_AFTER = 7, 4
"""Words of context of an example: what was read before it matters more than what came after."""

STEPS_AROUND = 25
"""Steps of a signal to both sides of an example."""

CHANNELS_DRAWN = 4
"""Channels in the small picture of an example."""


def word_example(inputs: ReportInputs, push: Float[Array, " n"], word: str, *, sign: int) -> dict[str, Any] | None:
    """Find where a word pushed the mode most in the direction of ``sign``; None if no sequence shown has it."""
    assert inputs.tokens is not None  # noqa: S101 - only asked for where there are tokens
    is_word = np.array([each == word for own in inputs.tokens for each in own])
    place = _strongest(inputs, np.where(is_word, sign * push, np.nan))
    if place is None:
        return None
    words, step = inputs.tokens[place["sequence"]], place["step"]
    last = step + 1 + WORDS_AFTER
    before = ["…"] * (step > WORDS_BEFORE) + words[max(0, step - WORDS_BEFORE) : step]
    after = words[step + 1 : last] + ["…"] * (last < len(words))
    return place | {"before": " ".join(before), "word": words[step], "after": " ".join(after)}


def signal_example(inputs: ReportInputs, push: Float[Array, " n"], *, sign: int) -> dict[str, Any] | None:
    """Return the place where the mode was pushed most in the direction of ``sign``, with the signal around it."""
    place = _strongest(inputs, sign * push)
    if place is None or inputs.signals is None:
        return place if place is None else place | {"lines": []}
    signal, step = inputs.signals[place["sequence"]], place["step"]
    first = max(0, step - STEPS_AROUND)
    piece = signal[first : step + STEPS_AROUND + 1, :CHANNELS_DRAWN]
    # Each channel between 0, its lowest value, and 1, its highest.
    lines = (piece - piece.min(axis=0)) / np.maximum(np.ptp(piece, axis=0), np.finfo(float).tiny)
    return place | {"lines": lines.T.round(3).tolist(), "mark": (step - first) / max(1, len(piece) - 1)}


def _strongest(inputs: ReportInputs, strength: Float[Array, " n"]) -> dict[str, Any] | None:
    """Return the sequence and the step where a strength is largest; None if it is positive nowhere."""
    row = int(np.argmax(np.nan_to_num(strength, nan=-np.inf)))
    if not strength[row] > 0:
        return None
    sequence = int(np.searchsorted(inputs.states.starts, row, side="right")) - 1
    return {"sequence": sequence, "step": row - int(inputs.states.starts[sequence])}


MOVERS_SHOWN = 5
"""Movers on each side of a card."""

EXAMPLES_SHOWN = 2
"""Examples on each side of a card: those of its first movers that the sequences shown have."""

LEAST_PUSH = 0.005
"""Smaller pushes would be written as 0.00."""

PHRASES_SHOWN = 3
"""Phrases on a card."""

LEAST_DIFFERENCE = 0.1
"""A phrase is named if it differs by so much from the sum of its words, in standard deviations; less is not noticed."""

OUTPUTS_NAMED = 4
"""Of several outputs, the ones that a mode moves most are named."""


def mode_cards(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return words and numbers about each mode that matters, ready to be shown."""
    if not inputs.matter:
        return []
    return [
        _card(inputs, *each)
        for each in zip(inputs.matter, *(own.T for own in _courses_and_pushes(inputs)), strict=True)
    ]


def _card(
    inputs: ReportInputs, number: int, coordinate: Float[Array, " n"], push: Float[Array, " n"]
) -> dict[str, Any]:
    mode, trust, movers = inputs.koopman.modes[number], inputs.known.trust, inputs.movers
    own = None if trust is None else trust.modes[number]
    card: dict[str, Any] = {"number": number, "trusted": None, "why": "", "verdict": "not tested", "movers": None}
    if own is not None:
        verdict = {"yes": "trusted", "learned": "trusted, learned", "no": "not trusted"}.get(own.verdict, own.verdict)
        card |= {"trusted": own.trusted, "why": with_step_name(own.why, inputs.step_name), "verdict": verdict}
    if movers is not None and number in movers.modes:
        card["movers"] = _pushed_by(inputs, movers, number, push)
    course = _mean_courses(inputs, coordinate, groups_of(inputs, number))
    return card | _memory(mode, own, inputs) | {"alone": _alone(inputs, number), "course": course}


def _memory(mode: Mode, own: ModeTrust | None, inputs: ReportInputs) -> dict[str, Any]:
    """Return the eigenvalue and for how long the mode remembers, with intervals where they are known."""
    is_pair = len(mode.indices) > 1
    value = significant(mode.eigenvalue.real, 4) + (f" ± {abs(mode.eigenvalue.imag):.4g}i" if is_pair else "")
    steps, deepest = half_life(mode.modulus), _deepest(inputs)
    decays = number_of_steps(steps) != "∞"
    found: dict[str, Any] = {
        "eigenvalue": value,
        "modulus": f"{mode.modulus:.4g}",
        "pair": is_pair,
        "interval": None,
        "half_life": _number_within(steps, inputs) if decays else "does not decay",
        "half_life_interval": None,
        "seconds": duration(steps * inputs.step_seconds) if inputs.step_seconds is not None and decays else None,
        "turns": _number_within(mode.period, inputs) if is_pair and np.isfinite(mode.period) else None,
    }
    if own is not None and np.isfinite(own.interval[0]):
        if own.interval[0] > 1:
            found["half_life"] = f"grows {percent(mode.modulus - 1)} per {inputs.step_name}"
        found["interval"] = from_to(*own.interval, lambda end: significant(end, 4))
        shortest, longest = (half_life(end) for end in own.interval)
        if number_of_steps(shortest) != "∞" and shortest <= deepest:
            end = "more" if longest > deepest else number_of_steps(longest)
            found["half_life_interval"] = f"{number_of_steps(shortest)} to {end}"
    return found


def _number_within(steps: float, inputs: ReportInputs) -> str:
    """Return a number of steps; along depth never more than the network has."""
    deepest = _deepest(inputs)
    if steps > deepest:
        return f"more than {plural(inputs.step_name, number_of_steps(deepest))}"
    return plural(inputs.step_name, number_of_steps(steps))


def _deepest(inputs: ReportInputs) -> float:
    """Return the number of layers along depth, and infinity along time."""
    return np.inf if inputs.step_name == "step" else float(inputs.states.lengths.max() - 1)


def _alone(inputs: ReportInputs, number: int) -> dict[str, str | None] | None:
    """Return the scores of the running network with this mode alone kept, and with it alone removed."""
    if number not in inputs.alone:
        return None
    effects, (kept, removed) = inputs.effects, inputs.alone[number]
    if effects is None:
        return {"kept": significant(kept), "removed": significant(removed), "none": None, "full": None}
    scores = {"kept": kept, "removed": removed, "none": float(effects.none), "full": float(effects.full)}
    write = percent if effects.is_fraction else fixed
    return {name: write(score) for name, score in scores.items()}


def _pushed_by(inputs: ReportInputs, movers: Movers, number: int, push: Float[Array, " n"]) -> dict[str, Any]:
    """Collect what pushes the mode up and down, with examples, and the outputs that the mode moves most."""
    place = movers.modes.index(number)
    sides = {1: movers.up(number, MOVERS_SHOWN), -1: movers.down(number, MOVERS_SHOWN)}
    largest = max([abs(each.push) for each in (*sides[1], *sides[-1])], default=1.0)
    differ = [
        each for each in movers.phrases[place] if each.sure and abs(each.push - each.expected) >= LEAST_DIFFERENCE
    ]
    moves = []
    if movers.outputs is not None:
        own = movers.outputs[place]
        names, order = output_names(inputs, len(own)), np.argsort(-np.abs(own), kind="stable")[:OUTPUTS_NAMED].tolist()
        moves = [{"name": names[output], "by": signed(float(own[output]))} for output in order]
    return {
        "up": _side(inputs, movers, sides[1], largest, push, sign=1),
        "down": _side(inputs, movers, sides[-1], largest, push, sign=-1),
        "by": movers.by,
        "level": round(100 * movers.level),
        "moves": moves,
        "phrases": [
            {"words": " ".join(each.words), "push": signed(each.push), "expected": signed(each.expected)}
            for each in differ[:PHRASES_SHOWN]
        ],
    }


def _side(
    inputs: ReportInputs, movers: Movers, found: list[Mover], largest: float, push: Float[Array, " n"], *, sign: int
) -> dict[str, Any]:
    """Return the movers of one side as bars, and the places where they pushed most."""
    found = sorted(found, key=lambda each: -abs(each.push))
    examples: list[Any] = []
    if movers.by == "tokens" and inputs.tokens is not None:
        examples = [word_example(inputs, push, each.name, sign=sign) for each in found]
    elif movers.by != "tokens":
        examples = [signal_example(inputs, push, sign=sign)]
    bars = [_bar(each, largest) for each in found if abs(each.push) >= LEAST_PUSH]
    if movers.by == "steps":  # the heading says what is counted, and the column is narrow
        bars = [bar | {"name": bar["name"].removeprefix("steps ").removeprefix("step ")} for bar in bars]
    return {"bars": bars, "examples": [each for each in examples if each is not None][:EXAMPLES_SHOWN]}


def _bar(mover: Mover, largest: float) -> dict[str, Any]:
    """Return a bar from 0 to the push, and its interval, in percents of the width."""
    scale = 80 / max(largest, np.finfo(float).tiny)  # the longest bar leaves room for its interval
    # Ends on the other side of zero than the push are drawn at zero.
    ends = sorted(min(100.0, max(0.0, end * np.sign(mover.push)) * scale) for end in (mover.low, mover.high))
    texts = {name: signed(getattr(mover, name)) for name in ("push", "low", "high")}
    counts = {"count": mover.count, "sequences": mover.sequences, "sure": mover.sure}
    places = {"width": round(abs(mover.push) * scale, 1), "from": round(ends[0], 1), "to": round(ends[1], 1)}
    return {"name": mover.name, **texts, **counts, **places}

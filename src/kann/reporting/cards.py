"""A card for each mode that matters: how long it remembers, what it does in the running network, and what pushes it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann._format import duration, from_to, half_life, number_of_steps, plural, signed, significant, with_step_name
from kann.analysis._movers import Mover, Movers, Phrase, pushes_of
from kann.analysis._trust import ModeTrust
from kann.backends.arrays import as_numpy
from kann.data.moments import mean_and_covariance
from kann.fitting.spectrum import Mode
from kann.reporting.answers import groups_of, output_names
from kann.reporting.curves import written_score
from kann.reporting.inputs import ReportInputs
from kann.typing import Array, Float, Int

POINTS = 40
"""Points of a small line."""

MOST_GROUPS = 4
"""More lines than this cannot be told apart in a small picture; then one line stands for all sequences."""

MOST_AVERAGED = 500
"""Of more sequences, the first so many are averaged: the line would not look different."""

FEWEST_SEQUENCES = 3
"""A mean over fewer sequences is no line of a group."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PushedMode:
    """One mode over the states shown, in standard deviations, oriented as `kann.movers` oriented it."""

    coordinate: Float[Array, " n"]
    """Its coordinate at each state, about the mean."""
    push: Float[Array, " n"]
    """What each step adds beyond the mode's own decay; NaN at first states."""


def pushed_modes(inputs: ReportInputs, numbers: list[int]) -> dict[int, PushedMode]:
    """Coordinates and pushes of some modes, by number."""
    if not numbers:
        return {}
    koopman, states = inputs.koopman, inputs.states
    spread = mean_and_covariance(states)
    pushes = pushes_of(koopman, states, numbers, spread)
    real, coordinates = pushes.real(pushes.values), pushes.real(pushes.coordinates)
    found = {}
    for place, number in enumerate(numbers):
        push = np.full(len(states.values), np.nan)
        push[pushes.rows] = real[:, place]
        sign = _sign(inputs, pushes.effects[place], push, number)
        found[number] = PushedMode(coordinate=sign * coordinates[:, place], push=sign * push)
    return found


def _sign(inputs: ReportInputs, effect: Float[Array, " d"], push: Float[Array, " n"], number: int) -> int:
    """The sign with which the axis points as `kann.movers` lets it point: up raises the output that it moves most."""
    movers, weight = inputs.movers, inputs.readout_weight
    if movers is not None and number in movers.modes and movers.outputs is None:
        return _sign_of(_agreement_with(movers, number, inputs, push))
    if weight is None:
        return 1
    moved = as_numpy(weight).astype(np.float64) @ effect
    return _sign_of(float(moved[np.abs(moved).argmax()]))


def _sign_of(value: float) -> int:
    return -1 if value < 0 else 1


def _agreement_with(movers: Movers, number: int, inputs: ReportInputs, push: Float[Array, " n"]) -> float:
    """The sum over steps of the push here times the mean push that `kann.movers` found for the same name."""
    means = dict(zip(movers.names, movers.push[:, movers.modes.index(number)].tolist(), strict=True))
    if movers.by != "tokens" or inputs.tokens is None:
        return 1.0
    names = [token for own in inputs.tokens for token in own]
    return float(np.nansum(push * np.array([means.get(name, 0.0) for name in names])))


def courses(inputs: ReportInputs, mode: PushedMode, groups: list[str | None]) -> dict[str, Any]:
    """The mean course of a mode over the sequences of each group; over all of them if there are many groups.

    Sequences of one length are averaged step by step, others by the fraction of the sequence that was read.
    """
    lengths = inputs.states.lengths[:MOST_AVERAGED]
    groups = groups[:MOST_AVERAGED]
    same_length = bool((lengths == lengths[0]).all())
    places = np.linspace(0, 1, min(POINTS, int(lengths.max())))
    lines = np.stack([_resampled(mode.coordinate[inputs.states.span(i)], places) for i in range(len(lengths))])
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


def _resampled(values: Float[Array, " t"], places: Float[Array, " k"]) -> Float[Array, " k"]:
    return np.interp(places * (len(values) - 1), np.arange(len(values)), values)


WORDS_BEFORE, WORDS_AFTER = 7, 4
"""Words of context of an example: what was read before it matters more than what came after."""

STEPS_AROUND = 25
"""Steps of a signal to both sides of an example."""

CHANNELS_DRAWN = 4
"""Channels in the small picture of an example."""


def word_example(inputs: ReportInputs, mode: PushedMode, word: str, *, sign: int) -> dict[str, Any] | None:
    """The place where a word pushed the mode most in the direction of ``sign``; None if no sequence shown has it."""
    assert inputs.tokens is not None  # noqa: S101 - only asked for where there are tokens
    rows = _rows_of(inputs, word)
    rows = rows[sign * mode.push[rows] > 0]  # at first states it is NaN, and so not larger
    if not len(rows):
        return None
    sequence, step = _place(inputs, int(rows[np.argmax(sign * mode.push[rows])]))
    words = inputs.tokens[sequence]
    return {
        "sequence": sequence,
        "step": step,
        "before": _context(words[max(0, step - WORDS_BEFORE) : step], cut=step > WORDS_BEFORE, at_start=True),
        "word": words[step],
        "after": _context(
            words[step + 1 : step + 1 + WORDS_AFTER], cut=step + 1 + WORDS_AFTER < len(words), at_start=False
        ),
    }


def _rows_of(inputs: ReportInputs, word: str) -> Int[Array, " k"]:
    """The rows of all states at which a word was read."""
    found = []
    for start, own in zip(inputs.states.starts.tolist(), inputs.tokens or [], strict=True):
        found += [start + step for step, each in enumerate(own) if each == word]
    return np.array(found, dtype=int)


def _context(words: list[str], *, cut: bool, at_start: bool) -> str:
    text = " ".join(words)
    if cut:
        return f"… {text}" if at_start else f"{text} …"
    return text


def signal_example(inputs: ReportInputs, mode: PushedMode, *, sign: int) -> dict[str, Any] | None:
    """The place where the mode was pushed most in the direction of ``sign``, with the signal around it."""
    strength = np.nan_to_num(sign * mode.push, nan=-np.inf)
    row = int(np.argmax(strength))
    if not strength[row] > 0:
        return None
    sequence, step = _place(inputs, row)
    example: dict[str, Any] = {"sequence": sequence, "step": step, "push": float(mode.push[row]), "lines": []}
    if inputs.signals is not None:
        signal = inputs.signals[sequence]
        first, last = max(0, step - STEPS_AROUND), min(len(signal), step + STEPS_AROUND + 1)
        piece = signal[first:last, :CHANNELS_DRAWN]
        example |= {"lines": [_as_path(column) for column in piece.T], "mark": (step - first) / max(1, len(piece) - 1)}
    return example


def _place(inputs: ReportInputs, row: int) -> tuple[int, int]:
    """The sequence and the step of a row of the states."""
    sequence = int(np.searchsorted(inputs.states.starts, row, side="right")) - 1
    return sequence, row - int(inputs.states.starts[sequence])


def _as_path(values: Float[Array, " k"]) -> list[float]:
    """The values between 0, the lowest, and 1, the highest."""
    low, high = float(values.min()), float(values.max())
    return ((values - low) / max(high - low, np.finfo(float).tiny)).round(3).tolist()


MOVERS_SHOWN = 5
"""Movers on each side of a card."""

EXAMPLES_SHOWN = 2
"""Examples on each side of a card: those of its first movers that the sequences shown have."""

PHRASES_SHOWN = 3
"""Phrases on a card."""

LEAST_DIFFERENCE = 0.1
"""A phrase is named if it differs from the sum of its words by so many standard deviations; less is not noticed."""

OUTPUTS_NAMED = 4
"""Of several outputs, the ones that a mode moves most are named."""


def mode_cards(inputs: ReportInputs, outputs: Float[Array, "s ..."] | None) -> list[dict[str, Any]]:
    """Return words and numbers about each mode that matters, ready to be shown.

    ``outputs`` are those of the network at the end of each sequence.
    """
    pushed = pushed_modes(inputs, inputs.matter)
    return [_card(inputs, number, pushed[number], groups_of(inputs, outputs, number)) for number in inputs.matter]


def _card(inputs: ReportInputs, number: int, pushed: PushedMode, groups: list[str | None]) -> dict[str, Any]:
    mode, trust = inputs.koopman.modes[number], inputs.known.trust
    own = None if trust is None else trust.modes[number]
    card = {"number": number, **_memory(mode, own, inputs), **_live(inputs, number), **_standing(own, inputs.step_name)}
    card["course"] = courses(inputs, pushed, groups)
    movers = inputs.movers
    if movers is None or number not in movers.modes:
        return card | {"movers": None}
    return card | {"movers": _pushed_by(inputs, movers, number, pushed)}


def _standing(own: ModeTrust | None, step_name: str) -> dict[str, Any]:
    """Whether the mode is trusted, and why or why not; None if that was not tested."""
    if own is None:
        return {"trusted": None, "why": "", "verdict": "not tested"}
    verdict = {"yes": "trusted", "learned": "trusted, learned", "no": "not trusted"}.get(own.verdict, own.verdict)
    return {"trusted": own.trusted, "why": with_step_name(own.why, step_name), "verdict": verdict}


def _memory(mode: Mode, own: ModeTrust | None, inputs: ReportInputs) -> dict[str, Any]:
    """The eigenvalue and for how long the mode remembers, with intervals where they are known."""
    is_pair = len(mode.indices) > 1
    value = f"{mode.eigenvalue.real:.4g}" + (f" ± {abs(mode.eigenvalue.imag):.4g}i" if is_pair else "")
    steps = half_life(mode.modulus)
    found: dict[str, Any] = {
        "eigenvalue": value,
        "modulus": f"{mode.modulus:.4g}",
        "pair": is_pair,
        "interval": None,
        "half_life": _written_half_life(steps, inputs),
        "half_life_interval": None,
        "seconds": None,
        "turns": None,
    }
    if np.isfinite(mode.period) and is_pair:
        found["turns"] = _number_within(mode.period, inputs)
    if inputs.step_seconds is not None and number_of_steps(steps) != "∞":
        found["seconds"] = duration(steps * inputs.step_seconds)
    if own is not None:
        low, high = own.interval
        found["interval"] = from_to(low, high, lambda end: significant(end, 4))
        ends = [number_of_steps(half_life(end)) for end in (low, high)]
        if half_life(high) > _deepest(inputs):
            ends[1] = "more"
        if ends[0] != "∞" and half_life(low) <= _deepest(inputs):
            found["half_life_interval"] = f"{ends[0]} to {ends[1]}"
    return found


def _written_half_life(steps: float, inputs: ReportInputs) -> str:
    return "does not decay" if number_of_steps(steps) == "∞" else _number_within(steps, inputs)


def _number_within(steps: float, inputs: ReportInputs) -> str:
    """A number of steps; along depth never more than the network has."""
    deepest = _deepest(inputs)
    if steps > deepest:
        return f"more than {plural(inputs.step_name, number_of_steps(deepest))}"
    return plural(inputs.step_name, number_of_steps(steps))


def _deepest(inputs: ReportInputs) -> float:
    """How many layers there are along depth; along time there is no end."""
    return np.inf if inputs.step_name == "step" else float(inputs.states.lengths.max() - 1)


def _live(inputs: ReportInputs, number: int) -> dict[str, Any]:
    """The scores of the running network with this mode alone kept, and with it alone removed."""
    effects = inputs.effects
    if number not in inputs.alone:
        return {"alone": None}
    scores = dict(zip(("kept", "removed"), inputs.alone[number], strict=True))
    if effects is None:
        return {"alone": {name: significant(score) for name, score in scores.items()} | {"none": None, "full": None}}
    scores |= {"none": float(effects.none), "full": float(effects.full)}
    return {"alone": {name: written_score(effects, score) for name, score in scores.items()}}


def _pushed_by(inputs: ReportInputs, movers: Movers, number: int, pushed: PushedMode) -> dict[str, Any]:
    """What pushes the mode up and down, with examples; and which output it moves."""
    up, down = movers.up(number, MOVERS_SHOWN), movers.down(number, MOVERS_SHOWN)
    largest = max([abs(each.push) for each in (*up, *down)], default=1.0)
    sides = {
        "up": _side(inputs, movers, up, largest, pushed, sign=1),
        "down": _side(inputs, movers, down, largest, pushed, sign=-1),
    }
    place = movers.modes.index(number)
    phrases = [each for each in movers.phrases[place] if _differs(each)][:PHRASES_SHOWN]
    return sides | {
        "by": movers.by,
        "level": round(100 * movers.level),
        "moves": _moves(inputs, movers, place),
        "phrases": [
            {"words": " ".join(each.words), "push": signed(each.push), "expected": signed(each.expected)}
            for each in phrases
        ],
    }


def _differs(phrase: Phrase) -> bool:
    return phrase.sure and abs(phrase.push - phrase.expected) >= LEAST_DIFFERENCE


def _side(
    inputs: ReportInputs, movers: Movers, found: list[Mover], largest: float, pushed: PushedMode, *, sign: int
) -> dict[str, Any]:
    """The movers of one side as bars, and the places where they pushed most."""
    found = sorted(found, key=lambda each: -abs(each.push))
    examples: list[Any] = []
    if movers.by == "tokens" and inputs.tokens is not None:
        examples = [word_example(inputs, pushed, each.name, sign=sign) for each in found]
    elif movers.by != "tokens":
        examples = [signal_example(inputs, pushed, sign=sign)]
    return {
        "bars": [_bar(each, largest, inputs.step_name, movers.by) for each in found],
        "examples": [each for each in examples if each is not None][:EXAMPLES_SHOWN],
    }


def _bar(mover: Mover, largest: float, step_name: str, by: str) -> dict[str, Any]:
    """A bar from 0 to the push, and its interval, in percents of the width."""
    scale = 80 / max(largest, np.finfo(float).tiny)  # the longest bar leaves room for its interval
    ends = sorted(_beyond_zero(end, mover.push) * scale for end in (mover.low, mover.high))
    name = mover.name
    if by == "steps":  # the heading says what is counted, and the column is narrow
        name = name.removeprefix("steps ").removeprefix("step ")
    return {
        "name": name,
        "push": signed(mover.push),
        "low": signed(mover.low),
        "high": signed(mover.high),
        "count": mover.count,
        "sequences": mover.sequences,
        "sure": mover.sure,
        "width": round(abs(mover.push) * scale, 1),
        "from": round(min(100.0, ends[0]), 1),
        "to": round(min(100.0, ends[1]), 1),
    }


def _beyond_zero(end: float, push: float) -> float:
    """How far an end of an interval lies on the side of the push; 0 if it is on the other side."""
    return max(0.0, end * float(np.sign(push)))


def _moves(inputs: ReportInputs, movers: Movers, place: int) -> list[dict[str, str]]:
    """Which outputs one standard deviation of the mode moves most, and by how much."""
    if movers.outputs is None:
        return []
    own = movers.outputs[place]
    names, order = output_names(inputs, len(own)), np.argsort(-np.abs(own), kind="stable")[:OUTPUTS_NAMED].tolist()
    return [{"name": names[output], "by": signed(float(own[output]))} for output in order]

"""Set an explanation up: find layer and outputs, hold sequences out, and record the states."""

import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from kann._format import part_of
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.layer_search import (
    LayerWorth,
    Place,
    evenly_spaced,
    find_place,
    most_worth,
)
from kann.explaining.options import Clock, Options
from kann.explaining.outputs import (
    Outputs,
    kind_of_outputs,
    plain_labels,
    require_labels_that_fit,
    without_one_hot,
)
from kann.explaining.readout_search import Reading, find_reading
from kann.explaining.sequences import Sequences, channels_of, require_same_direction, tokens_of
from kann.fitting.folds import HoldoutGroups
from kann.recording._record import record
from kann.recording.sequence_data import require_order
from kann.typing import Array, Int

LEAST_SEQUENCES = 12
"""Fewer sequences cannot be held out in folds, and leave some to be judged live."""

PROBED = 32
"""Sequences that are run first, to see what the outputs are and how long it takes."""

HELD_OUT = 0.4
"""Fraction of the sequences that are held out: coordinates are judged live on them."""

MOST_HELD_OUT = 320
"""More of them would make the live test long: an agreement of 93 % is then known to 3 %."""

LEAST_HELD_OUT, STEPS_HELD_OUT = 120, 50_000
"""Of long sequences fewer are held out, so that they have no more steps than this, but not fewer than these."""

STEPS_FITTED = 150_000
"""Of more steps some sequences are left out: operators of a few coordinates need no more, and states of 256 units would
take more than a gigabyte with their copies in float64."""

SHOWN = 60
"""How many sequences the page shows."""

MOST_STATES_SHOWN = 20_000
"""With more states the page would grow beyond what opens at once."""

RECORDING_MAY_TAKE = 0.25
"""Fraction of the time budget for recording; of more sequences some are left out."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Setup:
    """The network, its data, and the layer that is explained."""

    model: nn.Module
    options: Options
    sequences: Sequences
    clock: Clock
    place: Place
    outputs: Outputs | None
    """None if the model gives none that can be compared."""
    fitted_numbers: Int[Array, " k"]
    """Numbers of the sequences that are fitted."""
    held_out: Int[Array, " h"]
    together: Int[Array, " n"]
    """A number for each sequence, the same for those of one group and those that read the same."""
    shown_numbers: Int[Array, " s"]
    """Those of the held-out sequences that the page shows."""
    channels: tuple[str, ...] | None
    """The names of what is read at each step, if the user gave them."""
    scan: tuple[LayerWorth, ...] = ()
    """Candidate layers and what they are worth."""
    choices: tuple[str, ...] = ()

    def record(self, numbers: Int[Array, " k"], *, inputs: bool) -> States:
        """Record the states of some sequences."""
        data, run = self.sequences.part(numbers)
        where: Any = self.place.recorded | ({"inputs": True} if inputs else {})
        return record(self.model, data, **run, **where)

    def source(self, numbers: Int[Array, " k"]) -> tuple[Any, dict[str, Any]]:
        """Return some sequences, long ones first, and how the network reads them."""
        return self.sequences.part(self.sequences.sorted_by_length(numbers))


def look(model: nn.Module, data: Any, options: Options) -> Setup:
    """Find the layer and what outputs are, and hold sequences out."""
    require_order(data, labels=options.labels, tokens=options.tokens, groups=options.groups)
    clock = Clock(options.seconds)
    sequences = Sequences(model, data, options)
    if sequences.count < LEAST_SEQUENCES:
        raise KannError(
            f"there are {sequences.count} sequences, and whole ones are held out; pass at least {LEAST_SEQUENCES} (cut "
            "long ones)"
        )
    channels = channels_of(options.channels, sequences)
    sequences.require_real_steps()
    sequences.require_finite()
    place = find_place(sequences, options)
    outputs, options, about_outputs = _outputs_and_labels(sequences, options)
    scan: tuple[LayerWorth, ...] = ()
    if outputs is not None and options.layer is None and place.axis == "time":
        place, scan = most_worth(sequences, place, options, outputs)
    asked = min(sequences.count, options.max_sequences or sequences.count)
    usable = _within_time(sequences, asked, clock)
    # Those of one group, and those that read the same, stay together.
    ones = np.ones(sequences.count, dtype=int)
    together = HoldoutGroups.of(ones, groups=options.group_of, repeats=sequences.repeats()).group_of
    wanted = min(int(HELD_OUT * len(usable)), MOST_HELD_OUT)
    if sequences.knows_positions:
        affordable = STEPS_HELD_OUT / max(1.0, float(sequences.positions(usable).mean()))
        wanted = min(wanted, max(LEAST_HELD_OUT, int(affordable)))
    fitted, held_out = _split(usable, together[usable], wanted, options.seed)
    choices, others = [place.why, about_outputs], len(fitted)
    if sequences.knows_positions:
        enough = STEPS_FITTED / max(1.0, float(sequences.positions(fitted).mean()))
        fitted = fitted[evenly_spaced(len(fitted), max(LEAST_SEQUENCES, int(enough)))]
    fitted_of = f"{len(fitted)} of {others}" if len(fitted) < others else str(others)
    if place.axis == "depth" and options.tokens is not None:
        choices.append("tokens= was not used: along depth a step is a layer, and no word is read at it.")
    if sequences.counts_padding:
        choices.append(
            "The model takes lengths, and none were passed: all steps count as real. Pass lengths= if some are padding."
        )
    elif (padded := sequences.ending_in_zeros()) > 0:
        choices.append(
            f"{part_of(padded, sequences.count)} sequences end in rows of zeros, which count as real steps: if they "
            "are padding, pass lengths=, since all results change."
        )
    left_out = asked - len(usable)
    more = f"; {left_out} were left out, since time would not have been enough." if left_out else "."
    choices.append(f"{fitted_of} sequences were fitted, and {len(held_out)} others held out for the live test{more}")
    return Setup(
        model=model,
        options=options,
        sequences=sequences,
        clock=clock,
        place=place,
        outputs=outputs,
        fitted_numbers=sequences.sorted_by_length(fitted),
        held_out=held_out,
        together=together,
        shown_numbers=_to_show(sequences, held_out),
        channels=channels,
        scan=scan,
        choices=tuple(choices),
    )


def _outputs_and_labels(sequences: Sequences, options: Options) -> tuple[Outputs | None, Options, str]:
    """Find the kind of outputs on a few sequences; return also options with plain labels, and a sentence."""
    probed = evenly_spaced(sequences.count, PROBED)
    try:
        given = sequences.outputs(probed)
        options = replace(options, labels=without_one_hot(options.labels, given, options.outputs))
        outputs = kind_of_outputs(given, sequences.steps(0), options)
    except KannError as error:
        return None, options, f"Outputs were not compared: {error}."
    outputs.require_names(options.classes)
    if options.labels is not None:
        plain = plain_labels(options.labels, outputs, sequences, has_steps=given.ndim > 2)
        options = replace(options, labels=plain)
    require_labels_that_fit(options, outputs, given, sequences, probed)
    return outputs, options, outputs.why


def _within_time(sequences: Sequences, count: int, clock: Clock) -> Int[Array, " k"]:
    """Return the numbers of the sequences that can be recorded in time, spread over all of them."""
    if clock.left == float("inf"):
        return np.arange(count)
    numbers, began = evenly_spaced(count, PROBED), time.monotonic()
    with contextlib.suppress(KannError):  # what gives nothing that could be compared runs all the same
        sequences.outputs(numbers)  # it has run before: the first run takes longer than those that follow
    per_sequence = (time.monotonic() - began) / len(numbers)
    affordable = RECORDING_MAY_TAKE * clock.left / max(per_sequence, 1e-6)
    if affordable < LEAST_SEQUENCES:
        clock.require(LEAST_SEQUENCES * per_sequence / RECORDING_MAY_TAKE, f"recording {LEAST_SEQUENCES} sequences")
    return evenly_spaced(count, int(min(count, affordable)))


def _split(
    numbers: Int[Array, " k"], together: Int[Array, " k"], wanted: int, seed: int
) -> tuple[Int[Array, " _"], Int[Array, " _"]]:
    """Return the sequences to fit and those to hold out, at random; all of a group, and all repeats, on one side."""
    rng, is_held = np.random.default_rng(seed), np.zeros(len(numbers), dtype=bool)
    for group in rng.permutation(np.unique(together)):
        if is_held.sum() >= wanted:
            break
        is_held |= together == group
    if is_held.all():
        raise KannError(
            f"all {len(numbers)} sequences would be held out, since those of one group, and those that read the same, "
            "are held out together; pass more different sequences, and more and smaller groups"
        )
    return numbers[~is_held], numbers[is_held]


def _to_show(sequences: Sequences, held_out: Int[Array, " k"]) -> Int[Array, " _"]:
    """Return some of the held-out sequences, up to the number that a person looks at."""
    shown = held_out[:SHOWN]
    sizes = np.cumsum([len(sequences.steps(int(i))) for i in shown])
    return shown[: max(1, int(np.searchsorted(sizes, MOST_STATES_SHOWN)))]


# Record


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recorded:
    """States of the fitted and of the shown sequences, and what reads them."""

    states: States
    shown: States
    tokens: list[list[str]] | None
    """Of the fitted sequences."""
    outputs: Outputs | None
    """None if the outputs turned out not to be comparable."""
    reading: Reading
    groups: Any
    """Number of the group with which each fitted sequence is held out; None if single."""
    choices: tuple[str, ...]


def record_states(setup: Setup) -> Recorded:
    """Record the states of the fitted and of the shown sequences, and find what reads them."""
    place, sequences, numbers, choices = setup.place, setup.sequences, setup.fitted_numbers, list[str]()
    inputs = place.axis == "time"
    try:
        states = setup.record(numbers, inputs=inputs)
    except KannError:
        if not inputs:
            raise
        inputs = False  # a layer of the user's own may read something else than one input a step
        states = setup.record(numbers, inputs=False)
    shown = setup.record(setup.shown_numbers, inputs=inputs)
    tokens = tokens_of(setup.options.tokens, sequences, numbers, states) if place.axis == "time" else None
    if setup.options.tokens is not None and place.axis == "time":
        require_same_direction(tokens or [], sequences, numbers)
    outputs, given = setup.outputs, np.empty((len(setup.shown_numbers), 0))
    if outputs is not None:
        try:
            given = setup.sequences.outputs(setup.shown_numbers)
        except KannError as error:  # one that gives packed sequences may have looked like one row for each
            outputs = None
            choices.append(f"Outputs were not compared after all: {error}.")
    reading = find_reading(setup.model, place, setup.options.readout, shown, given)
    return Recorded(
        states=states,
        shown=shown,
        tokens=tokens,
        outputs=outputs,
        reading=reading,
        groups=groups_of(setup, states),
        choices=(*choices, reading.why),
    )


def groups_of(setup: Setup, states: States) -> Any:
    """Return who each sequence of states comes from: the user's groups, or along depth the sequence itself."""
    numbers, groups = setup.fitted_numbers, setup.options.group_of
    own = None if groups is None else groups[numbers]
    if setup.place.axis == "depth":
        own = np.repeat(numbers if own is None else own, positions_of(setup.sequences, numbers, len(states)))
    return None if own is None else own.tolist()


def positions_of(sequences: Sequences, numbers: Int[Array, " k"], total: int) -> Int[Array, " k"]:
    """Return the number of positions of each sequence along depth, each with separate states."""
    if total % len(numbers) == 0:
        return np.full(len(numbers), total // len(numbers))
    return sequences.positions(numbers)

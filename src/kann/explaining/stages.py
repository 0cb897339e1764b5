"""The stages of an explanation: look at the network, record, fit, test live, ask for trust, find what pushes modes."""

import contextlib
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from kann.analysis._movers import movers
from kann.analysis._trust import trust
from kann.data.states import States
from kann.errors import KannError, UnfinishedWarning
from kann.explaining.accuracy import require_labels_that_fit
from kann.explaining.context import Findings, folds_of
from kann.explaining.depth_stage import map_each_layer
from kann.explaining.layer_search import Probe, evenly_spaced, find_place
from kann.explaining.live_stage import run_live_test
from kann.explaining.operators import choose_operator_held_out
from kann.explaining.options import Clock, Options
from kann.explaining.outputs import Outputs, kind_of_outputs, plain_labels
from kann.explaining.readout_search import find_reading
from kann.explaining.sequences import Sequences
from kann.explaining.tokens import channels_of, reads_channels, require_same_direction, tokens_of
from kann.explaining.untrained_baseline import can_be_drawn_anew, trust_beside_twins
from kann.fitting.folds import HoldoutGroups
from kann.progress import progress as progress_bar
from kann.recording._record import record
from kann.typing import Array, Int

LEAST_SEQUENCES = 12
"""Fewer sequences cannot be held out in folds, and leave some to be judged live."""

PROBED = 32
"""Sequences that are run first, to see what the outputs are and how long it takes."""

HELD_OUT = 0.4
"""Fraction of the sequences that nothing is fitted to: operators are chosen and judged live on them."""

MOST_HELD_OUT = 320
"""More of them would make the live test long. Three in four are judged: an agreement of 93 % is then known to 3 %."""

SHOWN = 60
"""How many sequences the page shows."""

MOST_STATES_SHOWN = 20_000
"""With more states the page would grow beyond what opens at once."""

RECORDING_MAY_TAKE = 0.25
"""Fraction of the time budget for recording; of more sequences some are left out."""

WIDEST_INPUTS_NAMED = 64
"""Inputs are named one by one if there are at most so many."""

RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""What DataLoaders draw sequences with in another order each time."""


def _refuse_shuffled(data: Any, options: Options) -> None:
    """Refuse a DataLoader that gives sequences in another order each time, if something belongs to each of them."""
    beside = [name for name in ("labels", "tokens", "groups") if getattr(options, name) is not None]
    samplers = [getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None)]
    if beside and any(isinstance(sampler, RANDOM_SAMPLERS) for sampler in samplers):
        raise KannError(
            f"the DataLoader shuffles, so {' and '.join(beside)} cannot be told which sequence they belong to; pass "
            "DataLoader(dataset, batch_size=..., shuffle=False)"
        )


def look(model: nn.Module, data: Any, options: Options) -> Findings:
    """Find the layer and what outputs are, and hold sequences out."""
    _refuse_shuffled(data, options)
    clock = Clock(options.seconds)
    sequences = Sequences.of(model, data, options)
    if sequences.count < LEAST_SEQUENCES:
        raise KannError(
            f"there are {sequences.count} sequences, and whole ones are held out; pass at least {LEAST_SEQUENCES}"
        )
    options.require_one_each(sequences.count)
    channels = channels_of(options.channels, sequences)
    sequences.require_real_steps()
    probe = Probe(model, sequences, options)
    place = find_place(probe, options)
    outputs, options, about_outputs = _outputs_and_labels(probe, options)
    usable = _within_time(probe, sequences.count, clock)
    together = _together(sequences, options)
    fitted, held_out = _split(usable, together[usable], options.seed)
    found = Findings(
        model=model,
        options=options,
        sequences=sequences,
        probe=probe,
        clock=clock,
        place=place,
        outputs=outputs,
        together=together,
        fitted_numbers=sequences.sorted_by_length(fitted),
        held_out=held_out,
        shown_numbers=_to_show(sequences, held_out),
        channels=channels,
        choices=[place.why, about_outputs],
    )
    if place.axis == "depth" and options.tokens is not None:
        found.choices.append("tokens= was not used: along depth a step is a layer, and no word is read at it.")
    if sequences.counts_padding:
        found.choices.append(
            "The model takes lengths, and none were passed: all steps count as real. Pass lengths= if some are padding."
        )
    found.choices.append(
        f"{len(fitted)} sequences were fitted, and {len(held_out)} others held out for the live test"
        f"{_left_out(sequences.count - len(usable))}."
    )
    return found


def _outputs_and_labels(probe: Probe, options: Options) -> tuple[Outputs | None, Options, str]:
    """What outputs are, told by those of a few sequences; options with labels as plain as these; and a sentence."""
    sequences = probe.sequences
    probed = evenly_spaced(sequences.count, PROBED)
    try:
        given = probe.outputs(probed)
        outputs = kind_of_outputs(given, sequences.steps(0), options)
    except KannError as error:
        return None, options, f"Outputs were not compared: {error}."
    outputs.require_names(options.classes)
    if options.labels is not None:
        plain = plain_labels(options.labels, outputs, sequences, has_steps=given.ndim > 2)
        options = replace(options, labels=plain)
    require_labels_that_fit(options, outputs, given, sequences, probed)
    return outputs, options, outputs.why


def _left_out(count: int) -> str:
    if not count:
        return ""
    return f"; {count} were left out, since time would not have been enough"


def _within_time(probe: Probe, count: int, clock: Clock) -> Int[Array, " k"]:
    """The numbers of the sequences that can be recorded in time, spread over all of them."""
    every = np.arange(count)
    if clock.left == float("inf"):
        return every
    numbers, began = evenly_spaced(count, PROBED), time.monotonic()
    with contextlib.suppress(KannError):  # what gives nothing that could be compared runs all the same
        probe.outputs(numbers)  # it has run before: the first run takes longer than those that follow
    per_sequence = (time.monotonic() - began) / len(numbers)
    affordable = RECORDING_MAY_TAKE * clock.left / max(per_sequence, 1e-6)
    if affordable < LEAST_SEQUENCES:
        clock.require(LEAST_SEQUENCES * per_sequence / RECORDING_MAY_TAKE, f"recording {LEAST_SEQUENCES} sequences")
    return evenly_spaced(count, int(min(count, affordable)))


def _together(sequences: Sequences, options: Options) -> Int[Array, " n"]:
    """For each sequence a number that it shares with those of its group, and with repeats of it."""
    lengths = np.ones(sequences.count, dtype=int)
    return HoldoutGroups.of(lengths, groups=options.group_of, repeats=sequences.repeats()).group_of


def _split(
    numbers: Int[Array, " k"], together: Int[Array, " k"], seed: int
) -> tuple[Int[Array, " _"], Int[Array, " _"]]:
    """The sequences to fit and those to hold out, at random; all of a group, and all repeats, on one side."""
    rng = np.random.default_rng(seed)
    wanted = min(int(HELD_OUT * len(numbers)), MOST_HELD_OUT)
    is_held = np.zeros(len(numbers), dtype=bool)
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
    """Some of the sequences that were held out: as many as a person looks at."""
    shown = held_out[:SHOWN]
    sizes = np.cumsum([len(sequences.steps(int(i))) for i in shown])
    return shown[: max(1, int(np.searchsorted(sizes, MOST_STATES_SHOWN)))]


def record_states(found: Findings) -> None:
    """Record the states of the fitted and of the shown sequences, and find what reads them."""
    inputs = found.place.axis == "time"
    try:
        found.states = _record(found, found.model, found.fitted_numbers, inputs=inputs)
    except KannError:
        if not inputs:
            raise
        inputs = False  # a layer of the user's own may read something else than one input a step
        found.states = _record(found, found.model, found.fitted_numbers, inputs=False)
    found.shown = _record(found, found.model, found.shown_numbers, inputs=inputs)
    if found.options.tokens is not None and found.place.axis == "time":
        require_same_direction(
            tokens_of(found.options.tokens, found.sequences, found.fitted_numbers, found.states) or [],
            found.sequences,
            found.fitted_numbers,
        )
    if found.place.axis == "time":
        found.tokens = tokens_of(found.options.tokens, found.sequences, found.fitted_numbers, found.states)
    outputs = _outputs_shown(found)
    found.reading = find_reading(found.model, found.place, found.options.readout, found.shown, outputs)
    found.choices.append(found.reading.why)


def _outputs_shown(found: Findings) -> Any:
    """The outputs of the sequences that are shown; empty if they cannot be compared."""
    if found.outputs is not None:
        try:
            return found.probe.outputs(found.shown_numbers)
        except KannError as error:  # one that gives packed sequences may have looked like one row for each
            found.outputs = None
            found.choices.append(f"Outputs were not compared after all: {error}.")
    return np.empty((len(found.shown_numbers), 0))


def _record(found: Findings, model: nn.Module, numbers: Int[Array, " k"], *, inputs: bool) -> States:
    part, options = found.sequences.part(numbers), found.options
    where: Any = found.place.recorded
    if inputs:
        where = {**where, "inputs": True}
    return record(model, part.data, lengths=part.lengths, **options.run, **where)


def fit_operators(found: Findings) -> None:
    """Fit operators of all kinds, and choose one by held-out errors."""
    assert found.states is not None  # noqa: S101  # recorded by the stage before
    found.fitted = choose_operator_held_out(found.states, found.groups)


def ask_for_trust(found: Findings) -> None:
    """How far modes can be trusted, and which of them untrained copies of the network have too."""
    fitted = found.fitted
    assert fitted is not None  # noqa: S101  # fitted by an earlier stage
    data, options = fitted.to_trust(folds_of(fitted), found.options.seed)
    reason = _why_no_copies(found)
    if reason:
        found.trust = trust(fitted.koopman, data, **options)
        found.choices.append(f"The network was not compared with untrained copies: {reason}.")
        return
    has_inputs = found.states is not None and found.states.inputs is not None

    def record_twin(twin: nn.Module) -> States:
        return fitted.cut(_record(found, twin, found.fitted_numbers, inputs=has_inputs))

    try:
        found.trust = trust_beside_twins(found.model, fitted.koopman, data, record_twin, **options)
    except KannError as error:
        found.trust = trust(fitted.koopman, data, **options)
        found.choices.append(f"Untrained copies of the network could not be compared: {error}.")


def _why_no_copies(found: Findings) -> str:
    """Why the network cannot be compared with untrained copies of it; empty if it can."""
    if found.options.forward is not None:
        return "forward= may run the trained network itself, whichever copy it is given"
    if not can_be_drawn_anew(found.model):
        return "it has parameters of its own, and how those began is not known"
    return ""


def find_movers(found: Findings) -> None:
    """Which tokens, inputs or steps push each mode."""
    fitted, states = found.fitted, found.states
    assert fitted is not None  # noqa: S101  # by earlier stages
    assert states is not None  # noqa: S101
    by = "steps"
    if found.tokens is not None:
        by = "tokens"
    elif states.inputs is not None and 1 < states.inputs.shape[1] <= WIDEST_INPUTS_NAMED:
        by = "inputs"
    weight = None
    if found.reading is not None and found.reading.is_output:
        weight = found.reading.weight
    names = None
    if by == "inputs":
        names = _names_of_inputs(found, states)
    found.movers = movers(fitted.koopman, states, found.tokens, readout=weight, by=by, names=names)


def _names_of_inputs(found: Findings, states: States) -> tuple[str, ...] | None:
    """The user's names of channels if the layer reads them as they are; else why they cannot be used is said."""
    if found.channels is None or reads_channels(found.sequences, found.fitted_numbers, states):
        return found.channels
    found.choices.append(
        "The layer does not read the channels themselves, but what other layers make of them; these numbers are called "
        "input 0, input 1 and so on."
    )
    return None


STAGES: dict[str, Callable[[Findings], None]] = {
    "recording": record_states,
    "fitting": fit_operators,
    "fitting a map for each layer": map_each_layer,
    "testing live": run_live_test,
    "asking how far to trust it": ask_for_trust,
    "finding what pushes modes": find_movers,
}
"""What is done after the first look, in this order. Without the first two there is nothing to explain."""

NEEDED = ("recording", "fitting")

ALONG_DEPTH = ("fitting a map for each layer",)
"""What is done along depth alone."""


def run_stages(found: Findings) -> None:
    """Run all stages; after Ctrl-C, or when time is up, keep what is finished."""
    stages = [each for each in STAGES.items() if found.place.axis == "depth" or each[0] not in ALONG_DEPTH]
    steps: Any = stages
    if found.options.progress:
        steps = progress_bar(stages, what="explaining", total=len(stages), unit="stage")
    for name, stage in steps:
        if name in NEEDED:
            found.clock.require(0.0, name)
            stage(found)
            continue
        if found.clock.left <= 0:
            found.choices.append(f"Time was up before {name}: that part is left out.")
            continue
        try:
            stage(found)
        except KannError as error:
            found.choices.append(f"{name[0].upper()}{name[1:]} was left out: {error}.")
        except KeyboardInterrupt:
            found.choices.append(f"Interrupted while {name}: that part and what follows are left out.")
            warnings.warn(f"interrupted while {name}; what was finished is kept", UnfinishedWarning, stacklevel=3)
            return

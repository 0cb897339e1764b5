"""Test modes in the running network: keep and remove them next to other directions."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.modes import mode_directions
from kann.backends.arrays import as_numpy
from kann.data.moments import mean_and_covariance
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.accuracy import measure_rightness
from kann.explaining.context import Findings
from kann.live._effects import Change, effects, run_changes
from kann.live._intervene import replaced, replaced_layer
from kann.live.evaluation import Scorer
from kann.live.mode_selection import modes_that_matter
from kann.live.results import Effects
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData

SIZES = (((1, 2, 3, 4, 8, 16), 1), ((1, 2, 4, 8), 1), ((1, 2, 4), 1), ((1,), 1))
"""Numbers of coordinates and draws of random directions, from the whole test to the smallest that says anything. Each
number has its own draw, kept and removed: where it does as well as modes nothing is concluded from modes."""

METHODS = 3
"""Ways to choose coordinates besides random ones: modes, principal components, the readout."""

MAY_TAKE = 0.7
"""Fraction of the time that is left which the live test may take; trust and movers come after it."""


def run_live_test(found: Findings) -> None:
    """Measure what the modes of the operator keep of the network's decisions on held-out sequences."""
    outputs, fitted = found.outputs, found.fitted
    if outputs is None:
        raise KannError("the network gives no outputs that could be compared")
    assert fitted is not None  # noqa: S101  # by earlier stages
    koopman, numbers = fitted.koopman, found.sequences.sorted_by_length(found.held_out)
    layer, states = _middle_block(found) if found.place.axis == "depth" else (found.place.live_layer, found.states)
    where: Any = {"layer": layer, "state": found.place.state}
    data, run = _data_and_options(found)
    counts, draws = _size_in_time(found, SequenceData(found.model, data, **run), states, where)
    kept = tuple(count for count in counts if count <= koopman.rank)
    judge: Any = {"outputs": outputs.kind, "threshold": outputs.threshold}
    weight = None if found.reading is None else found.reading.weight
    options: Any = {**where, **judge, **run, "readout": weight, "seed": found.options.seed}
    tested = effects(found.model, data, koopman, states, counts=kept, draws=draws, **options)
    found.effects = replace(tested, judged=numbers[tested.judged])
    if len(tested.judged) < len(numbers):
        raise KeyboardInterrupt  # what was finished is kept; the other stages are left out
    found.alone = _first_alone(found.effects)
    modes = modes_that_matter(koopman, effects=found.effects) or [0]
    source = SequenceData(found.model, data, **run)
    found.alone |= _alone(found, source, states, [mode for mode in modes if mode not in found.alone], where)
    try:
        measure_rightness(found, source, numbers)
    except KannError as error:  # the test itself is finished
        found.choices.append(f"How well the network does was not measured: {error}.")


def _data_and_options(found: Findings) -> tuple[Any, dict[str, Any]]:
    """The held-out sequences, long ones first, and how the network reads them."""
    options = found.options
    part = found.sequences.part(found.sequences.sorted_by_length(found.held_out))
    run = {name: getattr(options, name) for name in ("forward", "collate", "batch_size", "device", "progress")}
    return part.data, {**run, "lengths": part.lengths}


def _middle_block(found: Findings) -> tuple[str, States]:
    """The block in the middle, after which modes along depth are kept and removed, and its states."""
    states: Any = found.states
    names = found.place.layer
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise KannError(
            f"the states {names!r} are found in the model's output, where they cannot be replaced; pass layer= the "
            "names of its blocks"
        )
    if len(names) == 1 and states.lengths.max() > 1 + int(found.place.embedding):
        found.choices.append(f"Live, modes along depth were kept and removed after every use of block {names[0]!r}.")
        return names[0], States(values=states.values, lengths=states.lengths)
    at = len(names) // 2
    rows = states.starts + at + int(found.place.embedding)
    found.choices.append(f"Live, modes along depth were kept and removed after block {names[at]!r}, in the middle.")
    return names[at], States(values=as_numpy(states.values)[rows], lengths=np.ones(len(rows), dtype=int))


def _size_in_time(
    found: Findings, source: SequenceData, states: Any, where: Mapping[str, Any]
) -> tuple[tuple[int, ...], int]:
    """The largest test that fits into the time that is left."""
    if found.clock.left == float("inf"):
        return SIZES[0]
    one = _seconds_of_a_run(found, source, states, where)
    for counts, draws in SIZES:
        if len(counts) * 2 * (METHODS + draws) * one <= MAY_TAKE * found.clock.left:
            if (counts, draws) != SIZES[0]:
                found.choices.append(f"The live test was made smaller, to {len(counts)} numbers of coordinates: time.")
            return counts, draws
    raise KannError(f"one run takes {one:.1f} seconds, and {found.clock.left:.0f} are left")


def _seconds_of_a_run(found: Findings, source: SequenceData, states: Any, where: Mapping[str, Any]) -> float:
    """Seconds of one run over all held-out sequences, estimated by the second run of one batch of them.

    The first one takes longer: memory is taken, and the weights of the layer are looked up.
    """
    batches, took = source.groups(), 0.0
    batch = batches[len(batches) // 2]  # they are sorted by length
    target, state = replaced_layer(found.model, where["layer"], where["state"], states.dim)
    for _ in range(2):
        began = time.monotonic()
        with (
            evaluation_mode(found.model),
            replaced(found.model, target, lambda h: h.clone(), state=state, width=states.dim),
        ):
            source.call(batch)
        took = time.monotonic() - began
    return took * sum(map(len, batches)) / len(batch)


def _alone(
    found: Findings, source: SequenceData, states: Any, modes: Sequence[int], where: Mapping[str, Any]
) -> dict[int, tuple[float, float]]:
    """For each of these modes the score with it alone kept, and with it alone removed."""
    if not modes:
        return {}
    fitted, outputs = found.fitted, found.outputs
    assert fitted is not None  # noqa: S101  # by earlier stages
    assert outputs is not None  # noqa: S101
    target, state = replaced_layer(found.model, where["layer"], where["state"], states.dim)
    changes = [
        Change(directions=mode_directions(fitted.koopman, mode), keep=keep) for mode in modes for keep in (True, False)
    ]
    with evaluation_mode(found.model):
        _, scores, _ = run_changes(
            source,
            partial(replaced, found.model, target, state=state, width=states.dim),
            changes,
            states,
            mean_and_covariance(states),
            fill="auto",
            scorer=Scorer.of(outputs=outputs.kind, threshold=outputs.threshold),
        )
    means = scores[1:].mean(axis=1).tolist()
    return {mode: (means[2 * i], means[2 * i + 1]) for i, mode in enumerate(modes)}


def _first_alone(effects: Effects) -> dict[int, tuple[float, float]]:
    """Scores with the first mode alone kept and alone removed, which are those of one coordinate if it is real."""
    first, koopman = effects.order[0], effects.koopman
    if koopman is None or effects.counts[0] != 1 or len(koopman.modes[first].indices) > 1:
        return {}
    return {first: (float(effects.kept["modes"][0]), float(effects.removed["modes"][0]))}

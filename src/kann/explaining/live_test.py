"""Test coordinates in the running network: balanced ones, modes, components, the readout, random directions."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kann._format import plural
from kann.analysis.modes import mode_directions
from kann.backends.arrays import as_numpy
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.layer_search import scores_of
from kann.explaining.operators import Operators
from kann.explaining.setup import Recorded, Setup
from kann.fitting.balance import Balance
from kann.live._balance import balance
from kann.live._effects import Change, effects
from kann.live._intervene import replaced, replaced_layer
from kann.live.evaluation import is_known
from kann.live.results import Effects, modes_that_matter
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.typing import Array, Float

SIZES = ((1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4), (1,))
"""Numbers of coordinates, from the whole test to the smallest useful one. Each number has a separate draw of random
directions, kept and removed: coordinates count only if they beat it."""

WITHOUT_GAP = 3
"""The whole test has the number of coordinates before the gap in the singular values too, or this one without a gap."""

METHODS = 4
"""Ways to choose coordinates besides random ones: balanced, modes, principal components, the readout."""

LIVE_MAY_TAKE = 0.7
"""Fraction of the time that is left which the live test may take."""

NEARLY_BEST = 0.02
"""Without a gap in the singular values the operator has the fewest balanced coordinates whose score is this close to
the best; all of them if these are more than half, which would cut off little but what closes the operator."""


def live_place(setup: Setup, recorded: Recorded) -> tuple[dict[str, Any], States]:
    """Return the layer and state that are replaced, and the states there: along depth of the block in the middle."""
    states, place = recorded.states, setup.place
    if place.axis == "time":
        return {"layer": place.live_layer, "state": place.state}, states
    names: Any = place.layer
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise KannError(
            f"the states {names!r} are found in the model's output, where they cannot be replaced; pass layer= the "
            "names of its blocks"
        )
    if len(names) == 1 and states.lengths.max() > 1 + int(place.embedding):
        return {"layer": names[0], "state": "h"}, States(values=states.values, lengths=states.lengths)
    at = len(names) // 2
    rows = states.starts + at + int(place.embedding)
    middle = States(values=as_numpy(states.values)[rows], lengths=np.ones(len(rows), dtype=int))
    return {"layer": names[at], "state": "h"}, middle


def balance_states(setup: Setup, recorded: Recorded) -> Balance:
    """Find the coordinates that the outputs depend on."""
    where, _ = live_place(setup, recorded)
    if recorded.outputs is None:
        raise KannError("the network gives no outputs that could be compared")
    numbers = setup.sequences.sorted_by_length(setup.fitted_numbers)
    data, run = setup.sequences.part(numbers)
    kind = recorded.outputs.kind
    run |= {"labels": setup.options.labels_that_mark(numbers, kind), "outputs": kind}
    try:
        found = balance(setup.model, data, **where, seed=setup.options.seed, **run)
    except RuntimeError as error:  # torch raises it where outputs have no gradients
        raise KannError(f"the outputs have no gradients ({str(error).splitlines()[0]})") from error
    if found.dim != recorded.states.dim:
        raise KannError(f"no gradients were taken of a state of several axes ({recorded.states.dim} numbers in all)")
    return found


class Scores:
    """Scores the network with directions of its state kept or removed, on held-out sequences."""

    def __init__(self, setup: Setup, recorded: Recorded):
        self.where, self.states = live_place(setup, recorded)
        outputs: Any = recorded.outputs
        if outputs is None:
            raise KannError("the network gives no outputs that could be compared")
        self.outputs = outputs
        self.numbers = setup.sequences.sorted_by_length(setup.held_out)
        self.labels = setup.options.labels_that_mark(self.numbers, outputs.kind)
        self.data, self.run = setup.sequences.part(self.numbers)
        self.source = SequenceData(setup.model, self.data, **self.run)

    def of(self, changes: Sequence[Change]) -> Float[Array, " c"]:
        """Return the mean score of each change."""
        return scores_of(self.source, self.where, self.states, changes, self.outputs, self.labels)

    def seconds_of_a_run(self) -> float:
        """Estimate the seconds of one run over all sequences, by the second run of one batch of them.

        The first one takes longer: memory is taken, and the weights of the layer are looked up.
        """
        model, width, batches = self.source.model, self.states.dim, self.source.groups()
        batch, took = batches[len(batches) // 2], 0.0  # they are sorted by length
        target, state = replaced_layer(model, **self.where, width=width)
        for _ in range(2):
            began = time.monotonic()
            with evaluation_mode(model), replaced(model, target, lambda h: h.clone(), state=state, width=width):
                self.source.call(batch)
            took = time.monotonic() - began
        return took * sum(map(len, batches)) / len(batch)


def count_to_judge(setup: Setup, recorded: Recorded) -> int:
    """Return how many held-out sequences the live test judges if it is not interrupted."""
    kind = "class" if recorded.outputs is None else recorded.outputs.kind
    labels = setup.options.labels_that_mark(setup.held_out, kind)
    return len(setup.held_out) if labels is None else sum(map(is_known, labels))


def operator_size(setup: Setup, recorded: Recorded, found: Balance) -> tuple[int, list[str]]:
    """Return the number of balanced coordinates of the operator, and why."""
    if found.count is not None:
        interval = found.count_interval
        known = f" ({interval[0]} to {interval[1]} over resampled sequences)" if interval else ""
        return found.count, [f"The singular values of its balanced coordinates have a gap after {found.count}{known}."]
    scores = Scores(setup, recorded)
    counts = [count for count in whole_test(found) if count < found.rank]
    if not counts:
        return found.rank, ["All balanced coordinates are used: there is one."]
    if setup.clock.left < 2 * len(counts) * scores.seconds_of_a_run() / LIVE_MAY_TAKE:
        count = min(8, found.rank)
        return count, [f"The singular values have no gap; {count} balanced coordinates are used: time."]
    kept = scores.of([Change(directions=found.directions[:, :count]) for count in counts])
    limit = kept.max() - NEARLY_BEST
    count = counts[int(np.argmax(kept >= limit))]
    if 2 * count > found.rank:
        return found.rank, [f"The singular values have no gap, and all {found.rank} balanced coordinates are used."]
    used = plural("balanced coordinate", str(count))
    text = f"The singular values have no gap; the operator has {used}, the fewest that keep the outputs as any number."
    return count, [text]


def run_live_test(
    setup: Setup, recorded: Recorded, found: Operators, balanced: Balance | None
) -> tuple[tuple[Effects, dict[int, tuple[float, float]]], list[str]]:
    """Measure how well the network does with few coordinates: balanced, modes, components, readout, random.

    Returns for modes that matter the score with each alone kept and alone removed too, unless it was interrupted.
    """
    koopman, scores, choices = found.koopman, Scores(setup, recorded), list[str]()
    if setup.place.axis == "depth":
        block, is_middle = repr(scores.where["layer"]), len(setup.place.layer) > 1
        at = f"after block {block}, in the middle" if is_middle else f"after every use of block {block}"
        choices.append(f"Live, coordinates along depth were kept and removed {at}.")
    counts = size_in_time(setup, scores, balanced, choices)
    limit = max(koopman.rank, 0 if balanced is None else balanced.rank)
    options: Any = {
        **scores.where,
        **scores.run,
        "metric": "agreement",
        "labels": scores.labels,
        "outputs": scores.outputs.kind,
        "threshold": scores.outputs.threshold,
        "readout": recorded.reading.weight,
        "seed": setup.options.seed,
        "counts": tuple(count for count in counts if count <= limit),
        "draws": 1,
    }
    numbers = scores.numbers
    options["groups"] = setup.together[numbers]
    both = koopman if balanced is None else balanced
    tested = effects(setup.model, scores.data, both, scores.states, koopman=koopman, **options)
    tested = replace(tested, judged=numbers[tested.judged])
    if recorded.reading.weight is None:  # the layer that was taken for the readout reads other states
        tables: dict[str, Any] = {name: getattr(tested, name) for name in ("kept_scores", "removed_scores", "fills")}
        others = {name: {m: own[m] for m in own if m != "readout"} for name, own in tables.items()}
        tested = replace(tested, **others)
    alone: dict[int, tuple[float, float]] = {}
    if len(tested.judged) == len(numbers):
        modes = modes_that_matter(koopman, effects=tested) or [0]
        spans = [mode_directions(koopman, mode) for mode in modes]
        means = scores.of([Change(directions=span, keep=keep) for span in spans for keep in (True, False)])
        alone = dict(zip(modes, zip(means[::2].tolist(), means[1::2].tolist(), strict=True), strict=True))
    return (tested, alone), choices


def whole_test(balanced: Balance | None) -> tuple[int, ...]:
    """Return the numbers of coordinates of the whole test, with the one before the gap in the singular values."""
    count = None if balanced is None else balanced.count
    return tuple(sorted({*SIZES[0], WITHOUT_GAP if count is None else count}))


def size_in_time(setup: Setup, scores: Scores, balanced: Balance | None, choices: list[str]) -> tuple[int, ...]:
    """Return the numbers of coordinates of the largest test that fits into the time that is left."""
    sizes = (whole_test(balanced), *SIZES[1:])
    if setup.clock.left == float("inf"):
        return sizes[0]
    one = scores.seconds_of_a_run()
    for counts in sizes:
        if len(counts) * 2 * (METHODS + 1) * one <= LIVE_MAY_TAKE * setup.clock.left:
            if counts != sizes[0]:
                choices.append(f"The live test was made smaller, to {len(counts)} numbers of coordinates: time.")
            return counts
    raise KannError(f"one run takes {one:.1f} seconds, and {setup.clock.left:.0f} are left")

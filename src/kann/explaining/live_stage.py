"""Test modes in the running network: choose the operator, then keep and remove its modes beside other directions."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.accuracy import measure_rightness
from kann.explaining.context import Findings
from kann.explaining.operators import better_live
from kann.fitting.koopman import Koopman
from kann.live._effects import Bench, Live, gather, make_plan, run_jobs, set_apart
from kann.live.directions import one_coordinate
from kann.live.evaluation import Running, Trials
from kann.live.mode_search import Search, choose_operator
from kann.live.mode_selection import modes_that_matter
from kann.live.results import Effects, Tried
from kann.live.scoring import Scorer
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Int

SIZES = (((1, 2, 3, 4, 8, 16), 1), ((1, 2, 4, 8), 1), ((1, 2, 4), 1), ((1,), 1))
"""Numbers of coordinates and draws of random directions, from the whole test to the smallest that says anything. Each
number has a draw of its own, kept and removed: where it does as well as modes nothing is concluded from modes."""

METHODS = 5
"""Ways to choose coordinates besides random ones: three orders of modes, PCA, readout."""

ONLY_KEPT = ("contribution", "slowest")
"""Orders of modes that are compared by what they keep alone. What is left without some modes is asked of one order."""

BATCHES = (2, 3)
"""Batches, at least, of the sequences for choosing, and of those that are judged: operators that do badly on the first
batch are left out, and sequences of like length run together."""

LEAST_IN_BATCH = 32
"""Sequences that a batch holds if it can. Of fewer, a step costs nearly as much: most of it is calls of torch."""

SEARCHING = 40
"""Runs that searching takes, as many as a quarter of the sequences cost: operators, and the order of modes."""

MAY_TAKE = 0.7
"""Fraction of the time that is left which the live test may take; trust and movers come after it."""


def run_live_test(found: Findings) -> None:
    """Choose the operator live, and measure what its modes keep of the network's decisions."""
    if found.outputs is None:
        raise KannError("the network gives no outputs that could be compared")
    with evaluation_mode(found.model):
        bench = _bench(found)
        size = _size_in_time(found, bench)
        tried: list[Tried] = []
        if found.place.axis == "time":
            tried = _choose(found, bench)
        _measure(found, bench, *size, tried=tried)
        try:
            measure_rightness(found, bench)
        except KannError as error:  # the test itself is finished
            found.choices.append(f"How well the network does was not measured: {error}.")


def _bench(found: Findings) -> Bench:
    """The running network, with some of the held-out sequences to choose with and the others to judge on."""
    fitted: Any = found.fitted
    layer, states = found.place.live_layer, found.states
    if found.place.axis == "depth":
        layer, states = _middle_block(found)
    weight = None
    if found.reading is not None:
        weight = found.reading.weight
    live = Live(
        model=found.model,
        states=states,
        width=fitted.koopman.dim,
        readout=weight,
        fill="curve",
        layer=layer,
        state=found.place.state,
    )
    is_for_choosing = set_apart(found.together[found.held_out], seed=found.options.seed)
    parts = found.held_out[is_for_choosing], found.held_out[~is_for_choosing]
    return live.bench(
        *(_trials(found, live, numbers, batches) for numbers, batches in zip(parts, BATCHES, strict=True))
    )


def _trials(found: Findings, live: Live, numbers: Int[Array, " k"], batches: int) -> Trials:
    """The running network with these sequences, which keep their numbers."""
    options, outputs = found.options, found.outputs
    assert outputs is not None  # noqa: S101  # without them there is no live test
    numbers = found.sequences.sorted_by_length(numbers)
    batches = max(1, min(batches, len(numbers) // LEAST_IN_BATCH))
    part = found.sequences.part(numbers, least_batches=batches)
    running = Running(
        lengths=part.lengths,
        forward=options.forward,
        collate=options.collate,
        batch_size=options.batch_size,
        device=options.device,
        least_batches=batches,
    )
    scorer = Scorer.of("agreement", None, outputs=outputs.kind, threshold=outputs.threshold)
    return live.trials(part.data, running, scorer).numbered(numbers)


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


def _size_in_time(found: Findings, bench: Bench) -> tuple[tuple[int, ...], int]:
    """The largest test that fits into the time that is left."""
    if found.clock.left == float("inf"):
        return SIZES[0]
    choosing, judging = (len(part.sequences) for part in (bench.search.trials, bench.judging))
    one = _seconds_of_a_run(bench)
    for counts, draws in SIZES:
        runs = len(counts) * (2 * (METHODS + draws) - len(ONLY_KEPT)) + SEARCHING * choosing / judging
        if runs * one <= MAY_TAKE * found.clock.left:
            if (counts, draws) != SIZES[0]:
                found.choices.append(f"The live test was made smaller, to {len(counts)} numbers of coordinates: time.")
            return counts, draws
    raise KannError(f"one run takes {one:.1f} seconds, and {found.clock.left:.0f} are left")


def _seconds_of_a_run(bench: Bench) -> float:
    """How long one run over the sequences that are judged takes, told by the second run of one group of them.

    The first one takes longer: memory is taken, and what the layer's weights are is looked up.
    """
    group = bench.judging.groups[len(bench.judging.groups) // 2]  # they are sorted by length
    few, nothing, took = replace(bench.judging, groups=[group]), bench.search.nothing_kept(), 0.0
    for _ in range(2):
        began = time.monotonic()
        few.scores(nothing)
        took = time.monotonic() - began
    return took * len(bench.judging.sequences) / len(group)


def _choose(found: Findings, bench: Bench) -> list[Tried]:
    """Compare operators live; the best takes the place of that of held-out errors if it keeps clearly more."""
    fitted, states = found.fitted, found.states
    assert fitted is not None  # noqa: S101  # by earlier stages
    assert states is not None  # noqa: S101
    tried = choose_operator(fitted.koopman, bench.search)
    ours = _own_score(fitted.koopman, tried, bench.search)
    found.fitted = better_live(fitted, tried, ours, states, found.groups)
    return tried


def _own_score(koopman: Koopman, tried: Sequence[Tried], search: Search) -> float:
    """What the better mode of this operator brings back, on as many sequences as the best of all was tested on."""
    own = max((each for each in tried if each.koopman is koopman), key=lambda each: (each.sequences, each.recovered))
    if own.sequences == tried[0].sequences:
        return own.recovered
    return float(search.recovered([one_coordinate(koopman, own.mode)])[0])  # it was left out early


def _measure(found: Findings, bench: Bench, counts: tuple[int, ...], draws: int, *, tried: Sequence[Tried]) -> None:
    """Keep and remove modes beside other directions, and each mode that matters alone."""
    fitted, seed = found.fitted, found.options.seed
    assert fitted is not None  # noqa: S101  # by earlier stages
    koopman = fitted.koopman
    counts = tuple(count for count in counts if count <= koopman.rank)
    plan = make_plan(koopman, bench.search, counts=counts, choose=False, learn=False, draws=draws, seed=seed)
    jobs = [job for job in plan.jobs if job.keep or job.method not in ONLY_KEPT]
    plan = replace(plan, jobs=jobs, tried=tuple(tried))
    results = run_jobs(plan.jobs, bench.judging, bench.search, show_progress=found.options.progress)
    found.effects = gather(plan, results, bench.judging, counts=counts, fill="curve", draws=draws, level=0.95)
    if len(results) < 2 + len(plan.jobs):
        raise KeyboardInterrupt  # run_jobs keeps what it finished; the other stages are left out
    found.alone = _first_alone(found.effects)
    modes = modes_that_matter(koopman, effects=found.effects) or [0]
    found.alone |= bench.alone(koopman, [mode for mode in modes if mode not in found.alone])


def _first_alone(effects: Effects) -> dict[int, tuple[float, float]]:
    """Scores with the first mode alone kept and alone removed, which are those of one coordinate if it is real."""
    first = effects.order[0]
    if effects.counts[0] != 1 or len(effects.koopman.modes[first].indices) > 1:
        return {}
    return {first: (float(effects.kept["modes"][0]), float(effects.removed["modes"][0]))}

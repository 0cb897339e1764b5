"""The stages of an explanation after its set-up: record, balance, fit, test live, ask for trust, find movers."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kann._format import format_eigenvalue, plural
from kann.analysis._movers import Movers, movers
from kann.analysis._trust import ModeTrust, Trust, trust
from kann.analysis.modes import mode_directions
from kann.analysis.trust_rule import SAME_EIGENVALUE, SAME_RATE, SMALLEST_MODULUS
from kann.backends.arrays import as_numpy
from kann.data.states import States
from kann.depth._trust import StepTrust
from kann.depth._trust import trust as trust_of_maps
from kann.depth.maps import fit as fit_maps
from kann.errors import KannError, UnfinishedWarning
from kann.explaining.operators import Operators, fit_operators
from kann.explaining.outputs import Accuracy, Outputs, measure_accuracy
from kann.explaining.readout_search import Reading, find_reading
from kann.explaining.sequences import Sequences, reads_channels, require_same_direction, tokens_of
from kann.explaining.setup import Setup, scores_of
from kann.fitting.balance import Balance
from kann.fitting.folds import FEWEST_FOLDS, FOLDS_TO_JUDGE
from kann.live._balance import balance
from kann.live._effects import Change, effects
from kann.live._intervene import replaced, replaced_layer
from kann.live.mode_selection import modes_that_matter
from kann.live.results import Effects
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.recording.untrained import untrained_twin
from kann.typing import Array, Float, Int

WIDEST_INPUTS_NAMED = 64
"""Inputs are named one by one if there are at most so many."""

SIZES = (((1, 2, 3, 4, 8, 16), 1), ((1, 2, 4, 8), 1), ((1, 2, 4), 1), ((1,), 1))
"""Numbers of coordinates and draws of random directions, from the whole test to the smallest that says anything. Each
number has its own draw, kept and removed: where it does as well, nothing is concluded from the coordinates."""

METHODS = 4
"""Ways to choose coordinates besides random ones: balanced, modes, principal components, the readout."""

LIVE_MAY_TAKE = 0.7
"""Fraction of the time that is left which the live test may take."""

NEARLY_BEST = 0.02
"""Without a gap in the singular values the operator has the fewest balanced coordinates whose score is this close to
the best; all of them if these are more than half, which would cut off little but what closes the operator."""

COPIES = 5
"""Untrained copies that are compared: each draws other eigenvalues, and training made none that lie among them."""

RECORDED_OF_COPIES = 200
"""Sequences that each copy reads."""

AMONG = 3.0
"""A mode lies among those of the copies if one of them decays slower and one faster, by no larger factor than this: the
copies of one network differ by as much."""

SHORTEST_MEMORY = 0.7
"""Below this |λ| half of a mode is left after two steps or fewer, which is no memory."""

MOST_BYTES = 500_000_000
"""Memory for the moments of all folds along depth: for each layer two matrices (units, units) in float64."""

SECONDS_FOR_EACH = 3e-8
"""Seconds for each layer and the cube of its units, on one core: 9 for six layers of 384 units."""

MAPS_MAY_TAKE = 0.5
"""Fraction of the time that is left which maps of layers may take."""


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
    """What each fitted sequence of states is held out with; None if nothing."""
    choices: tuple[str, ...]


def record_states(setup: Setup) -> Recorded:
    """Record the states of the fitted and of the shown sequences, and find what reads them."""
    place, sequences, numbers, choices = setup.place, setup.sequences, setup.fitted_numbers, list[str]()
    inputs = place.axis == "time"
    try:
        states = setup.record(setup.model, numbers, inputs=inputs)
    except KannError:
        if not inputs:
            raise
        inputs = False  # a layer of the user's own may read something else than one input a step
        states = setup.record(setup.model, numbers, inputs=False)
    shown = setup.record(setup.model, setup.shown_numbers, inputs=inputs)
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
        groups=_groups(setup, states),
        choices=(*choices, reading.why),
    )


def _groups(setup: Setup, states: States) -> Any:
    """Return who each sequence of states comes from: the user's groups, or along depth the sequence itself."""
    numbers, groups = setup.fitted_numbers, setup.options.group_of
    own = None if groups is None else groups[numbers]
    if setup.place.axis == "depth":
        own = np.repeat(numbers if own is None else own, positions_of(setup.sequences, numbers, len(states)))
    return None if own is None else own.tolist()


def positions_of(sequences: Sequences, numbers: Int[Array, " k"], total: int) -> Int[Array, " k"]:
    """Return the number of positions of each sequence along depth, each with states of its own."""
    if total % len(numbers) == 0:
        return np.full(len(numbers), total // len(numbers))
    return sequences.positions(numbers)


def folds_of(sequences: int, groups: Any) -> int:
    """Return in how many folds sequences, or groups of them, are held out."""
    available = sequences if groups is None else len(np.unique(groups))
    return max(FEWEST_FOLDS, min(FOLDS_TO_JUDGE, available))


# Balance


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
    data, run = setup.source(setup.fitted_numbers)
    try:
        return balance(setup.model, data, **where, outputs=recorded.outputs.kind, seed=setup.options.seed, **run)
    except RuntimeError as error:  # torch raises it where outputs have no gradients
        raise KannError(f"the outputs have no gradients ({str(error).splitlines()[0]})") from error


class Scores:
    """Scores the network with directions of its state kept or removed, on held-out sequences."""

    def __init__(self, setup: Setup, recorded: Recorded):
        self.where, self.states = live_place(setup, recorded)
        outputs: Any = recorded.outputs
        if outputs is None:
            raise KannError("the network gives no outputs that could be compared")
        self.outputs = outputs
        self.data, self.run = setup.source(setup.held_out)
        self.source = SequenceData(setup.model, self.data, **self.run)

    def of(self, changes: Sequence[Change]) -> Float[Array, " c"]:
        """Return the mean score of each change."""
        return scores_of(self.source, self.where, self.states, changes, self.outputs)

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


def operator_size(setup: Setup, recorded: Recorded, found: Balance) -> tuple[int, list[str]]:
    """Return the number of balanced coordinates of the operator, and why."""
    if found.count is not None:
        interval = found.count_interval
        known = f" ({interval[0]} to {interval[1]} over resampled sequences)" if interval else ""
        return found.count, [f"The singular values of its balanced coordinates have a gap after {found.count}{known}."]
    scores = Scores(setup, recorded)
    counts = [count for count in SIZES[0][0] if count < found.rank]
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


# Trust


def ask_for_trust(
    setup: Setup, recorded: Recorded, found: Operators, balanced: Balance | None
) -> tuple[Trust, list[str]]:
    """Measure how far modes can be trusted, and which of them untrained copies of the network have too."""
    data, options = found.to_trust(folds_of(len(found.states), found.groups), setup.options.seed)
    own = trust(found.koopman, data, **options)
    reason = why_no_copies(setup)
    if not own.trusted or reason:
        return own, [f"The network was not compared with untrained copies: {reason}."] if reason else []
    copies = [trust_of_copy(setup, recorded, found, balanced is not None, seed) for seed in range(COPIES)]
    theirs = [mode for copy in copies for trusted in copy for mode in trusted.modes if mode.trusted]
    return replace(own, modes=tuple(judged(mode, theirs) for mode in own.modes), untrained=copies[0][0]), []


def why_no_copies(setup: Setup) -> str:
    """Return why the network cannot be compared with untrained copies of it; empty if it can."""
    if setup.options.forward is not None:
        return "forward= may run the trained network itself, whichever copy it is given"
    drawn = all(
        hasattr(part, "reset_parameters") or hasattr(part, "_reset_parameters")
        for part in setup.model.modules()
        if next(part.parameters(recurse=False), None) is not None
    )
    return "" if drawn else "it has parameters of its own, and how those began is not known"


def trust_of_copy(setup: Setup, recorded: Recorded, found: Operators, is_balanced: bool, seed: int) -> list[Trust]:
    """Judge an untrained copy as the network: in its own balanced coordinates, and in principal components."""
    numbers = setup.fitted_numbers[:: -(-len(setup.fitted_numbers) // RECORDED_OF_COPIES)]
    copy = replace(setup, model=untrained_twin(setup.model, seed=seed), fitted_numbers=numbers)
    states = copy.record(copy.model, numbers, inputs=recorded.states.inputs is not None)
    bases: list[Balance | None] = [None]
    if is_balanced:
        with contextlib.suppress(KannError):
            bases.insert(0, balance_states(copy, recorded))
    judgements = []
    for basis in bases:
        theirs = found.like(states, _groups(copy, states), basis)
        data, options = theirs.to_trust(folds_of(len(theirs.states), theirs.groups), setup.options.seed)
        judgements.append(trust(theirs.koopman, data, **options))
    return judgements


def judged(own: ModeTrust, theirs: Sequence[ModeTrust]) -> ModeTrust:
    """Judge a mode next to those of the copies: not learned if one of them has it, or if it lies among theirs.

    Complex eigenvalues of copies fill a disc: such a mode lies among them if one of theirs decays as slowly.
    """
    if not own.trusted:
        return own
    rate, why = _rate(own.eigenvalue), ""
    near = [mode.eigenvalue for mode in theirs if abs(mode.eigenvalue - own.eigenvalue) <= SAME_EIGENVALUE]
    same = [each for each in near if rate / SAME_RATE <= _rate(each) <= rate * SAME_RATE]
    if own.eigenvalue.imag:
        same += [m.eigenvalue for m in theirs if m.eigenvalue.imag and _rate(m.eigenvalue) <= SAME_RATE * rate]
    slower = [each for each in near if rate / AMONG <= _rate(each) <= rate]
    faster = [each for each in near if rate <= _rate(each) <= rate * AMONG]
    if abs(own.eigenvalue) < SHORTEST_MEMORY:
        why = "half of it is left after a step or so, which is no memory"
    elif same:
        nearest = min(same, key=lambda each: abs(each - own.eigenvalue))
        why = f"an untrained copy has it just as well ({format_eigenvalue(nearest)})"
    elif slower and faster:
        names = f"{format_eigenvalue(max(slower, key=_rate))} and {format_eigenvalue(min(faster, key=_rate))}"
        why = f"untrained copies have {names} on both sides of it"
    judgement = f"own, not learned: {why}" if why else "learned: no untrained copy has such a mode"
    return replace(own, learned=not why, why=f"{own.why}; {judgement}")


def _rate(eigenvalue: complex) -> float:
    """Return how fast a mode decays, or grows, in a step: |log |λ||."""
    return abs(math.log(max(abs(eigenvalue), SMALLEST_MODULUS)))


# Live test


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
    counts, draws = size_in_time(setup, scores, choices)
    limit = max(koopman.rank, 0 if balanced is None else balanced.rank)
    options: Any = {
        **scores.where,
        **scores.run,
        "outputs": scores.outputs.kind,
        "threshold": scores.outputs.threshold,
        "readout": recorded.reading.weight,
        "seed": setup.options.seed,
        "counts": tuple(count for count in counts if count <= limit),
        "draws": draws,
    }
    both = koopman if balanced is None else balanced
    tested = effects(setup.model, scores.data, both, scores.states, koopman=koopman, **options)
    numbers = setup.sequences.sorted_by_length(setup.held_out)
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


def size_in_time(setup: Setup, scores: Scores, choices: list[str]) -> tuple[tuple[int, ...], int]:
    """Return the numbers of coordinates and draws of the largest test that fits into the time that is left."""
    if setup.clock.left == float("inf"):
        return SIZES[0]
    one = scores.seconds_of_a_run()
    for counts, draws in SIZES:
        if len(counts) * 2 * (METHODS + draws) * one <= LIVE_MAY_TAKE * setup.clock.left:
            if (counts, draws) != SIZES[0]:
                choices.append(f"The live test was made smaller, to {len(counts)} numbers of coordinates: time.")
            return counts, draws
    raise KannError(f"one run takes {one:.1f} seconds, and {setup.clock.left:.0f} are left")


# Movers and maps of layers


def find_movers(setup: Setup, recorded: Recorded, found: Operators) -> tuple[Movers, tuple[str, ...]]:
    """Find which tokens, inputs or steps push each mode."""
    states, by = recorded.states, "steps"
    if recorded.tokens is not None:
        by = "tokens"
    elif states.inputs is not None and 1 < states.inputs.shape[1] <= WIDEST_INPUTS_NAMED:
        by = "inputs"
    names, notes = setup.channels if by == "inputs" else None, list[str]()
    if names is not None and not reads_channels(setup.sequences, setup.fitted_numbers, states):
        names = None
        notes.append(
            "The layer does not read the channels themselves, but what other layers make of them; these numbers are "
            "called input 0, input 1 and so on."
        )
    weight = recorded.reading.weight if recorded.reading.is_output else None
    return movers(found.koopman, states, recorded.tokens, readout=weight, by=by, names=names), tuple(notes)


def map_each_layer(setup: Setup, found: Operators) -> StepTrust:
    """Fit a map to each layer, and measure its error on held-out sequences next to copying and the one operator."""
    states = found.states
    expected = SECONDS_FOR_EACH * (int(states.lengths.max()) - 1) * float(states.dim) ** 3
    if expected > MAPS_MAY_TAKE * setup.clock.left:
        raise KannError(
            f"it takes about {expected:.0f} seconds, and {setup.clock.left:.0f} are left; pass more seconds"
        )
    maps = fit_maps(states, rank=found.koopman.rank, groups=found.groups)
    affordable = MOST_BYTES // (2 * 8 * len(maps) * maps.dim**2)
    folds = max(FEWEST_FOLDS, min(affordable, folds_of(len(states), found.groups)))
    return trust_of_maps(maps, states, folds=folds, groups=found.groups, seed=setup.options.seed)


# The chain


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Results:
    """The results of all stages; None where a stage was left out."""

    setup: Setup
    recorded: Recorded
    operators: Operators
    balance: Balance | None
    trust: Trust | None
    steps: StepTrust | None
    effects: Effects | None
    alone: Mapping[int, tuple[float, float]]
    """For modes that matter the score with each alone kept, and alone removed."""
    accuracy: Accuracy | None
    movers: Movers | None
    choices: tuple[str, ...]


class _Chain:
    """Runs stages that may be left out; after Ctrl-C, or when time is up, all that follow are."""

    def __init__(self, setup: Setup):
        self._setup, self._is_stopped = setup, False
        self.choices: list[str] = []

    def run(self, name: str, stage: Callable[[], tuple[Any, Sequence[str]]]) -> Any:
        """Return the result of a stage, which gives it with its choices; None if it is left out."""
        if self._is_stopped:
            return None
        if self._setup.clock.left <= 0:
            self.choices.append(f"Time was up before {name}: that part is left out.")
            return None
        try:
            result, choices = stage()
            self.choices += choices
            return result
        except KannError as error:
            self.choices.append(f"{name[0].upper()}{name[1:]} was left out: {error}.")
        except KeyboardInterrupt:
            self.stop(name)
        return None

    def stop(self, name: str) -> None:
        """Leave out all stages that follow."""
        self._is_stopped = True
        self.choices.append(f"Interrupted while {name}: that part and what follows are left out.")
        warnings.warn(f"interrupted while {name}; what was finished is kept", UnfinishedWarning, stacklevel=3)


def run_stages(setup: Setup) -> Results:
    """Run all stages; after Ctrl-C, or when time is up, keep what is finished."""
    chain = _Chain(setup)
    setup.clock.require(0.0, "recording")
    recorded = record_states(setup)
    setup.clock.require(0.0, "fitting")
    balanced, count = None, None
    chain.choices += recorded.choices
    along_time = setup.place.axis == "time"
    if recorded.outputs is not None:
        balanced = chain.run("balancing", lambda: (balance_states(setup, recorded), ()))
    if balanced is not None and along_time and setup.place.is_fed_back:
        count = chain.run("sizing", lambda: operator_size(setup, recorded, balanced))
    setup.clock.require(0.0, "fitting")
    basis = balanced if count is not None else None
    found = fit_operators(recorded.states, recorded.groups, basis, count)
    chain.choices += found.notes
    steps = None
    if not along_time:
        steps = chain.run("fitting a map for each layer", lambda: (map_each_layer(setup, found), ()))
    live = chain.run("testing live", lambda: run_live_test(setup, recorded, found, balanced))
    tested, alone = live or (None, {})
    if tested is not None and len(tested.judged) < len(setup.held_out):
        chain.stop("testing live")
    about_score = (setup.sequences, setup.held_out, recorded.outputs, setup.options)
    accuracy = chain.run("measuring how well it does", lambda: measure_accuracy(*about_score))
    own_trust = chain.run("asking how far to trust it", lambda: ask_for_trust(setup, recorded, found, basis))
    pushes = chain.run("finding what pushes modes", lambda: find_movers(setup, recorded, found))
    return Results(
        setup=setup,
        recorded=recorded,
        operators=found,
        balance=balanced,
        trust=own_trust,
        steps=steps,
        effects=tested,
        alone=alone,
        accuracy=accuracy,
        movers=pushes,
        choices=(*setup.choices, *chain.choices),
    )

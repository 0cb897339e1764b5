"""The stages of an explanation: set up, record, balance, fit, test live, ask for trust, find movers."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from kann._format import format_eigenvalue, percent, plural
from kann.analysis._movers import Movers, movers
from kann.analysis._trust import ModeTrust, Trust
from kann.analysis.modes import mode_directions
from kann.analysis.trust_rule import SAME_EIGENVALUE, SAME_RATE, SMALLEST_MODULUS
from kann.backends.arrays import as_numpy
from kann.data.moments import mean_and_covariance
from kann.data.states import States
from kann.depth._trust import StepTrust
from kann.depth._trust import trust as trust_of_maps
from kann.depth.maps import fit as fit_maps
from kann.errors import KannError, UnfinishedWarning
from kann.explaining.layer_search import (
    LayerWorth,
    Place,
    evenly_spaced,
    find_place,
    full_name,
    place_along_time,
    recurrent_targets,
)
from kann.explaining.operators import Operators, fit_operators, folds_of
from kann.explaining.options import Clock, Options
from kann.explaining.outputs import (
    Accuracy,
    Outputs,
    kind_of_outputs,
    measure_accuracy,
    plain_labels,
    require_labels_that_fit,
    without_one_hot,
)
from kann.explaining.readout_search import Reading, find_reading
from kann.explaining.sequences import Sequences, channels_of, reads_channels, require_same_direction, tokens_of
from kann.fitting.balance import Balance
from kann.fitting.folds import FEWEST_FOLDS, HoldoutGroups
from kann.live._balance import balance
from kann.live._effects import Change, effects, run_changes
from kann.live._intervene import replaced, replaced_layer
from kann.live.evaluation import Scorer
from kann.live.mode_selection import modes_that_matter
from kann.live.results import Effects
from kann.recording._record import record
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.recording.untrained import untrained_twin
from kann.typing import Array, Float, Int

LEAST_SEQUENCES = 12
"""Fewer sequences cannot be held out in folds, and leave some to be judged live."""

PROBED = 32
"""Sequences that are run first, to see what the outputs are and how long it takes."""

HELD_OUT = 0.4
"""Fraction of the sequences that nothing is fitted to: coordinates are judged live on them."""

MOST_HELD_OUT = 320
"""More of them would make the live test long: an agreement of 93 % is then known to 3 %."""

SHOWN = 60
"""How many sequences the page shows."""

MOST_STATES_SHOWN = 20_000
"""With more states the page would grow beyond what opens at once."""

RECORDING_MAY_TAKE = 0.25
"""Fraction of the time budget for recording; of more sequences some are left out."""

SCANNED, MOST_SCANNED = 64, 12
"""Sequences that are run with each recurrent layer held at its mean; with more layers than this none is."""

MATTERS_MORE = 0.1
"""Another layer than the usual one is explained if holding it loses more agreement by this."""

RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""What DataLoaders draw sequences with in another order each time."""

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


# Set up


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
    _refuse_shuffled(data, options)
    clock = Clock(options.seconds)
    sequences = Sequences(model, data, options)
    if sequences.count < LEAST_SEQUENCES:
        raise KannError(
            f"there are {sequences.count} sequences, and whole ones are held out; pass at least {LEAST_SEQUENCES}"
        )
    options.require_one_each(sequences.count)
    channels = channels_of(options.channels, sequences)
    sequences.require_real_steps()
    place = find_place(sequences, options)
    outputs, options, about_outputs = _outputs_and_labels(sequences, options)
    scan: tuple[LayerWorth, ...] = ()
    if outputs is not None and options.layer is None and place.axis == "time":
        place, scan = most_worth(sequences, place, options, outputs)
    usable = _within_time(sequences, min(sequences.count, options.max_sequences or sequences.count), clock)
    # Those of one group, and those that read the same, stay together.
    ones = np.ones(sequences.count, dtype=int)
    together = HoldoutGroups.of(ones, groups=options.group_of, repeats=sequences.repeats()).group_of
    fitted, held_out = _split(usable, together[usable], options.seed)
    choices = [place.why, about_outputs]
    if place.axis == "depth" and options.tokens is not None:
        choices.append("tokens= was not used: along depth a step is a layer, and no word is read at it.")
    if sequences.counts_padding:
        choices.append(
            "The model takes lengths, and none were passed: all steps count as real. Pass lengths= if some are padding."
        )
    left_out = sequences.count - len(usable)
    more = f"; {left_out} were left out, since time would not have been enough." if left_out else "."
    choices.append(f"{len(fitted)} sequences were fitted, and {len(held_out)} others held out for the live test{more}")
    return Setup(
        model=model,
        options=options,
        sequences=sequences,
        clock=clock,
        place=place,
        outputs=outputs,
        fitted_numbers=sequences.sorted_by_length(fitted),
        held_out=held_out,
        shown_numbers=_to_show(sequences, held_out),
        channels=channels,
        scan=scan,
        choices=tuple(choices),
    )


def most_worth(
    sequences: Sequences, place: Place, options: Options, outputs: Outputs
) -> tuple[Place, tuple[LayerWorth, ...]]:
    """Hold each recurrent layer and direction at its mean, and choose another one if it clearly matters more.

    Returns what each is worth too, the one that matters most first; nothing where there is a single one.
    """
    model = sequences.model
    names = [
        target.name
        for path, module in model.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        for target in recurrent_targets(path, module)
    ]
    if not 1 < len(names) <= MOST_SCANNED or place.target is None:
        return place, ()
    own = full_name(place.target)
    data, run = sequences.part(evenly_spaced(sequences.count, SCANNED))
    run["progress"], scores = False, dict[str, float]()
    for name in names:
        with contextlib.suppress(KannError):  # a layer that is called in a way that cannot be replaced
            where = {"layer": name, "state": place_along_time(model, name, options).state}
            states = record(model, data, **where, **run)
            held = [Change(directions=np.empty((states.dim, 0)))]
            score = scores_of(SequenceData(model, data, **run), where, states, held, outputs)
            scores[name] = max(0.0, float(score[0]))  # R² of values may be less
    best = min(scores, key=scores.__getitem__, default=own)
    if own in scores and scores[best] < scores[own] - MATTERS_MORE:
        why = (
            f"Layer {best!r} is explained: of {len(scores)} recurrent layers and directions it matters most. Held at "
            f"its mean the network agrees with itself in {percent(scores[best])}, with {own!r} held in "
            f"{percent(scores[own])}; pass layer= for another."
        )
        place, own = replace(place_along_time(model, best, options), why=why), best
    elif len(scores) > 1:
        listed = ", ".join(f"{name!r} {percent(score)}" for name, score in scores.items())
        place = replace(place, why=f"{place.why} With single layers held at their mean, agreement is {listed}.")
    worth = [LayerWorth(layer=name, score=score, is_explained=name == own) for name, score in scores.items()]
    return place, tuple(sorted(worth, key=lambda each: each.score))


def scores_of(
    source: SequenceData, where: Mapping[str, Any], states: States, changes: Sequence[Change], outputs: Outputs
) -> Float[Array, " c"]:
    """Return the mean score over all sequences of the network with a layer's states changed in each of some ways."""
    target, state = replaced_layer(source.model, **where, width=states.dim)
    with evaluation_mode(source.model):
        _, scores, _ = run_changes(
            source,
            partial(replaced, source.model, target, state=state, width=states.dim),
            changes,
            states,
            mean_and_covariance(states),
            fill="auto",
            scorer=Scorer.of(outputs=outputs.kind, threshold=outputs.threshold),
        )
    return scores[1:].mean(axis=1)


def _refuse_shuffled(data: Any, options: Options) -> None:
    """Raise for a DataLoader that gives sequences in another order each time, if something belongs to each of them."""
    given = [name for name in ("labels", "tokens", "groups") if getattr(options, name) is not None]
    samplers = [getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None)]
    if given and any(isinstance(sampler, RANDOM_SAMPLERS) for sampler in samplers):
        raise KannError(
            f"the DataLoader shuffles, so {' and '.join(given)} cannot be told which sequence they belong to; pass "
            "DataLoader(dataset, batch_size=..., shuffle=False)"
        )


def _outputs_and_labels(sequences: Sequences, options: Options) -> tuple[Outputs | None, Options, str]:
    """What outputs are, told by those of a few sequences; options with labels as plain as these; and a sentence."""
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
    """The numbers of the sequences that can be recorded in time, spread over all of them."""
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
    numbers: Int[Array, " k"], together: Int[Array, " k"], seed: int
) -> tuple[Int[Array, " _"], Int[Array, " _"]]:
    """The sequences to fit and those to hold out, at random; all of a group, and all repeats, on one side."""
    rng = np.random.default_rng(seed)
    wanted, is_held = min(int(HELD_OUT * len(numbers)), MOST_HELD_OUT), np.zeros(len(numbers), dtype=bool)
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
    own, reason = found.trust(setup.options.seed), why_no_copies(setup)
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
    states = copy.record(numbers, inputs=recorded.states.inputs is not None)
    bases: list[Balance | None] = [None]
    if is_balanced:
        with contextlib.suppress(KannError):
            bases.insert(0, balance_states(copy, recorded))
    groups = _groups(copy, states)
    return [found.like(states, groups, basis).trust(setup.options.seed) for basis in bases]


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
    states = recorded.states
    has_inputs = states.inputs is not None and 1 < states.inputs.shape[1] <= WIDEST_INPUTS_NAMED
    by = "tokens" if recorded.tokens is not None else "inputs" if has_inputs else "steps"
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

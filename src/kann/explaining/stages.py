"""The stages of an explanation, one after the other, and their results."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis._movers import Movers, movers
from kann.analysis._trust import Trust
from kann.depth._bypass import bypass_effects
from kann.depth._trust import StepTrust
from kann.depth._trust import trust as trust_of_maps
from kann.depth.maps import StepMaps
from kann.depth.maps import fit as fit_maps
from kann.depth.results import BypassEffects
from kann.errors import KannError, UnfinishedWarning
from kann.explaining.input_effects import InputCases, find_input_cases
from kann.explaining.layer_search import evenly_spaced
from kann.explaining.live_test import NEARLY_BEST, balance_states, count_to_judge, operator_size, run_live_test
from kann.explaining.operators import Operators, fit_operators, folds_of
from kann.explaining.outputs import Accuracy, measure_accuracy
from kann.explaining.sequences import reads_channels
from kann.explaining.setup import Recorded, Setup, record_states
from kann.explaining.untrained_copies import ask_for_trust, unknown_start
from kann.fitting.balance import Balance
from kann.fitting.folds import FEWEST_FOLDS
from kann.live._memory import memory
from kann.live.results import Effects, Memory

WIDEST_INPUTS_NAMED = 64
"""Largest number of inputs that are named one by one."""

MOST_BYTES = 500_000_000
"""Memory for the moments of all folds along depth: for each layer two matrices (units, units) in float64."""

SECONDS_FOR_EACH = 3e-8
"""Seconds for each layer and the cube of its units, on one core: 9 for six layers of 384 units."""

MAPS_MAY_TAKE = 0.5
"""Fraction of the time that is left which maps of layers may take."""

STEPS_CHANGED = 8_000
"""Number of steps of the sequences whose inputs are changed: each sequence is run once for each lag."""

FEWEST_CHANGED, MOST_CHANGED = 16, 64
"""Number of these sequences."""

MOST_MAPPED = 8
"""Largest number of coordinates in the maps of single inputs."""

RUNS_FOR_MEMORY = 40
"""Each sequence is run about so often: some twenty lags, of the network and of an untrained copy."""


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


def map_each_layer(setup: Setup, found: Operators) -> tuple[StepTrust, StepMaps]:
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
    return trust_of_maps(maps, states, folds=folds, groups=found.groups, seed=setup.options.seed), maps


def replace_blocks(setup: Setup, recorded: Recorded, maps: StepMaps | None) -> BypassEffects | None:
    """Run the network with each block skipped, and with its own map in its place; None if it gives no classes."""
    place = setup.place
    if maps is None or not place.embedding or recorded.outputs is None or recorded.outputs.kind != "class":
        return None
    data, run = setup.source(setup.held_out)
    spans = [(name, name) for name in place.layer]
    return bypass_effects(setup.model, data, maps, recorded.states, spans=spans, **run)


def inputs_one_by_one(
    setup: Setup, recorded: Recorded, operators: Operators, balanced: Balance | None, effects: Effects | None
) -> InputCases | None:
    """Find what each input does to the coordinates that the outputs depend on, where these are known."""
    if balanced is None or setup.place.axis == "depth":
        return None
    count = operators.koopman.rank if operators.koopman.in_coordinates else balanced.count
    if count is None and effects is not None and effects.full != effects.none:
        kept = effects.recovered["balanced"]
        count = effects.counts[int(np.argmax(kept >= np.nanmax(kept) - NEARLY_BEST))]
    if count is None or count > MOST_MAPPED:
        return None
    return find_input_cases(setup, recorded, balanced.directions[:, :count])


def measure_memory(setup: Setup) -> Memory:
    """Measure what is left of one input after k steps, in some held-out sequences."""
    place, numbers, channels = setup.place, setup.held_out, setup.channels
    most = STEPS_CHANGED / max(1.0, float(setup.sequences.positions(numbers).mean()))
    chosen = numbers[evenly_spaced(len(numbers), max(FEWEST_CHANGED, min(MOST_CHANGED, int(most))))]
    if setup.clock.left < math.inf:
        began = time.monotonic()
        setup.sequences.outputs(chosen)
        setup.clock.require((time.monotonic() - began) * RUNS_FOR_MEMORY, "this")
    data, run = setup.source(chosen)
    where = {"layer": place.layer, "state": place.state} if place.axis == "time" else {}
    found = memory(
        setup.model,
        data,
        channels=channels,
        sequences=MOST_CHANGED,
        # forward= may run the trained network, whichever copy it is given.
        untrained=setup.options.forward is None and unknown_start(setup.model) is None,
        step_seconds=setup.options.step_seconds,
        seed=setup.options.seed,
        **where,
        **run,
    )
    if found.lags[-1] == 0:
        raise KannError("the network reads no sequence of steps")
    return found


# The chain


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Results:
    """The results of all stages; None where a stage was left out."""

    setup: Setup
    recorded: Recorded
    operators: Operators
    balance: Balance | None
    trust: Trust | None
    not_compared: str
    """Why modes were not compared with those of untrained copies; empty if they were."""
    steps: StepTrust | None
    bypassed: BypassEffects | None
    inputs: InputCases | None
    effects: Effects | None
    alone: Mapping[int, tuple[float, float]]
    """For modes that matter the score with each alone kept, and alone removed."""
    accuracy: Accuracy | None
    movers: Movers | None
    memory: Memory | None
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
    mapped, bypassed = None, None
    if not along_time:
        mapped = chain.run("fitting a map for each layer", lambda: (map_each_layer(setup, found), ()))
    steps, maps = mapped or (None, None)
    if maps is not None:
        bypassed = chain.run("replacing blocks", lambda: (replace_blocks(setup, recorded, maps), ()))
    live = chain.run("testing live", lambda: run_live_test(setup, recorded, found, balanced))
    tested, alone = live or (None, {})
    if tested is not None and len(tested.judged) < count_to_judge(setup, recorded):
        chain.stop("testing live")
    about_score = (setup.sequences, setup.held_out, setup.together, recorded.outputs, setup.options)
    accuracy = chain.run("measuring how well it does", lambda: measure_accuracy(*about_score))
    asked = chain.run("asking how far to trust it", lambda: (ask_for_trust(setup, recorded, found, basis), ()))
    own_trust, not_compared = asked or (None, "")
    if not_compared:
        chain.choices.append(f"The network was not compared with untrained copies: {not_compared}.")
    pushes = chain.run("finding what pushes modes", lambda: find_movers(setup, recorded, found))
    about_inputs = (setup, recorded, found, balanced, tested)
    inputs = chain.run("finding what each input does", lambda: (inputs_one_by_one(*about_inputs), ()))
    remembered = chain.run("measuring how long it remembers", lambda: (measure_memory(setup), ()))
    return Results(
        setup=setup,
        recorded=recorded,
        operators=found,
        balance=balanced,
        trust=own_trust,
        not_compared=not_compared,
        steps=steps,
        bypassed=bypassed,
        inputs=inputs,
        effects=tested,
        alone=alone,
        accuracy=accuracy,
        movers=pushes,
        memory=remembered,
        choices=(*setup.choices, *chain.choices),
    )

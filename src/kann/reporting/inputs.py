"""Which layers are linear, in numbers for the page: errors of each layer by identity, one operator and its own map."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis._movers import Movers
from kann.analysis.decisions import OUTPUTS, Readout, read_out
from kann.backends.arrays import as_numpy
from kann.checks import (
    entries_by_name,
    require_all_finite,
    require_choice,
    require_instance,
    require_names,
    require_number,
    require_real,
    require_sequence,
    require_text,
    require_whole_number,
    shown,
)
from kann.data.moments import state_gram
from kann.data.states import States, as_states, require_one_per_state
from kann.depth._trust import PREDICTIONS, StepTrust
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.results import Effects
from kann.reporting.packing import finite_or_none
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReportInputs:
    """What the user passed to `report`, checked. `report` describes each argument."""

    koopman: Koopman
    states: States
    tokens: list[list[str]] | None
    signals: list[Float[Array, "_ _"]] | None
    channels: Sequence[str] | None
    readout: Readout | None
    decode: Callable[[Any], Any] | None
    labels: list[Any] | None
    classes: Sequence[str] | None
    driven: Koopman | None
    others: Mapping[str, Koopman]
    fixed_points: Any
    matter: list[int]
    """Numbers of the modes that matter, the most important first."""
    modes_shown: tuple[int, ...]
    """Numbers of the modes that are shown for each sequence."""
    effects: Effects | None
    movers: Movers | None
    sentences: list[str]
    choices: list[str]
    alone: dict[int, tuple[float, float]]
    step_seconds: float | None
    step_name: str
    steps: StepTrust | None
    step_names: list[str] | None
    outputs: str | None
    threshold: float
    network_outputs: Float[Array, "s ..."] | None = None
    """What the network itself gave out at the end of each sequence."""

    @property
    def outputs_kind(self) -> str:
        """What outputs are, as the user or the live test says: "class", "labels" or "values"; else classes."""
        if self.outputs is not None:
            return self.outputs
        if self.effects is None:
            return "class"
        return self.effects.outputs

    @property
    def channel_names(self) -> list[str]:
        """What the channels of the signals are called, as the user says or by their numbers."""
        if self.channels is not None:
            return list(self.channels)
        if not self.signals:
            return []
        count = self.signals[0].shape[1]
        if count == 1:
            return ["signal"]
        return [f"input {number}" for number in range(count)]

    @property
    def readout_weight(self) -> AnyArray | None:
        """The weight of the readout, (outputs, units), if the readout is linear."""
        weight = getattr(self.readout, "weight", None)
        if weight is None or weight.ndim != 2:
            return None
        return weight


def checked_states(states: Any) -> States:
    """The states to show; refuse those that are NaN or infinite, or whose squares are, in the words of `kann.fit`."""
    states = as_states(states)
    state_gram(states)
    return states


def checked_operators(driven: Any, others: Any) -> dict[str, Koopman]:
    """The other operators by name; refuse what is no operator among them and for ``driven``."""
    if driven is not None:
        require_instance(driven, Koopman, "driven")
    operators = entries_by_name(others, "others", remedy="pass a dict of operators")
    for name, operator in operators.items():
        require_instance(operator, Koopman, f"others[{shown(name)}]")
    return operators


def checked_classes(classes: Any) -> list[str] | None:
    """The names of the classes, as text."""
    if classes is None:
        return None
    require_sequence(classes, "classes")
    return [str(name) for name in classes]


def checked_outputs_of_network(outputs: Any, states: States, readout: Readout | None) -> Float[Array, "s ..."] | None:
    """What the network gave out, one row for each sequence, of as many outputs as the readout gives."""
    if outputs is None:
        return None
    rows = as_numpy(outputs)
    require_real(rows, what="network_outputs")
    if rows.ndim == 0 or len(rows) != len(states):
        raise KannError(
            f"network_outputs has shape {rows.shape} for {len(states)} sequences; pass a row of outputs for each"
        )
    require_all_finite(rows, what="network_outputs", remedy="find out for which sequence the network fails")
    rows = rows.astype(np.float64)
    if readout is None:
        return rows
    shape = read_from_ends(readout, states).shape
    if math.prod(shape) != rows.size:
        raise KannError(
            f"network_outputs has shape {rows.shape}, and the readout gives {shape} for the last states; pass what the "
            "network gave out at the end of each sequence"
        )
    return rows.reshape(shape)


def read_from_ends(readout: Readout, states: States) -> Float[Array, "s ..."]:
    """What a readout makes of the last state of each sequence."""
    return read_out(readout, as_numpy(states.values[states.starts + states.lengths - 1]))


def checked_count(modes: Any) -> int:
    """How many modes to show."""
    return require_whole_number(modes, "modes", least=0)


def checked_points(fixed_points: Any, koopman: Koopman) -> Any:
    """The fixed points to show, if they are points of this network."""
    if fixed_points is None:
        return None
    shape = np.shape(getattr(fixed_points, "points", ()))
    if len(shape) != 2 or shape[1] < koopman.dim or len(fixed_points.kinds) != shape[0]:
        raise KannError(
            f"fixed_points= holds points of shape {shape}; pass what kann.find_fixed_points returned for a network of "
            f"{koopman.dim} units"
        )
    if not np.isfinite(fixed_points.points).all():
        raise KannError("fixed_points= holds NaN or Inf; pass finite points")
    return fixed_points


def checked_labels(labels: Sequence[Any] | None, states: States) -> list[Any] | None:
    """The label of each sequence, or its labels at every step."""
    if labels is None:
        return None
    require_sequence(labels, "labels")
    if len(labels) != len(states):
        raise KannError(f"there are {len(labels)} labels for {len(states)} sequences; pass one for each")
    return list(labels)


def checked_channels(channels: Any, signals: list[Float[Array, "_ _"]] | None) -> tuple[str, ...] | None:
    """The names of the channels of the signals."""
    if channels is None:
        return None
    if not signals:
        raise KannError("channels= names the channels of signals, and there are none; pass signals=, or leave it out")
    count = signals[0].shape[1]
    return require_names(channels, count, "channels", of=f"the signals have {count} channels")


def checked_signals(signals: Sequence[AnyArray] | None, states: States) -> list[Float[Array, "_ _"]] | None:
    """The signal of each sequence, (T, channels), one row for each state, in the order of the states."""
    if signals is None:
        return None
    require_sequence(signals, "signals")
    arrays = [as_numpy(signal) for signal in signals]
    for i, array in enumerate(arrays):
        if not array.ndim or array.dtype.kind not in "fiub":
            raise KannError(f"the signal of sequence {i} is no array of real numbers; pass (T,) or (T, channels)")
        if not np.isfinite(array).all():
            raise KannError(f"the signal of sequence {i} holds NaN or Inf; pass finite samples")
    require_one_per_state(arrays, states, "samples")
    rows = [np.asarray(array, dtype=np.float64).reshape(len(array), -1) for array in arrays]
    if states.reverse:
        return [own[::-1] for own in rows]
    return rows


def checked_effects(effects: Any, koopman: Koopman) -> Effects | None:
    """The live test of this operator's modes."""
    if effects is None:
        return None
    require_instance(effects, Effects, "effects")
    if not np.array_equal(effects.koopman.eigenvalues, koopman.eigenvalues):
        raise KannError(
            f"effects= is of another operator, of rank {effects.koopman.rank}; this one has rank {koopman.rank}, or "
            "other eigenvalues; pass effects.koopman as the operator"
        )
    return effects


def checked_movers(movers: Any, koopman: Koopman) -> Movers | None:
    """What pushes this operator's modes."""
    if movers is None:
        return None
    require_instance(movers, Movers, "movers")
    if max(movers.modes, default=0) >= len(koopman.modes):
        raise KannError(
            f"movers= names mode {max(movers.modes)} and the operator has {len(koopman.modes)} modes; pass what "
            "kann.movers returned for this operator"
        )
    return movers


def checked_sentences(sentences: Any, name: str) -> list[str]:
    """Sentences to show; a string alone would be read as a sentence for each of its letters."""
    if isinstance(sentences, str):
        raise KannError(f"{name}= is a single string; pass a list of sentences")
    require_sequence(sentences, name)
    for sentence in sentences:
        require_text(sentence, f"a sentence of {name}")
    return list(sentences)


def checked_alone(alone: Any, koopman: Koopman) -> dict[int, tuple[float, float]]:
    """For modes by number, the live scores with the mode alone kept, and with it alone removed."""
    if alone is None:
        return {}
    if not isinstance(alone, Mapping):
        raise KannError(f"alone={shown(alone)} has no modes by number; pass a dict such as {{0: (0.9, 0.6)}}")
    found = {}
    for number, scores in alone.items():
        if require_whole_number(number, "a mode of alone", least=0) >= len(koopman.modes):
            raise KannError(
                f"alone= names mode {number}; the operator has {len(koopman.modes)} modes; pass one of them"
            )
        if np.shape(scores) != (2,) or not np.isfinite(scores).all():
            raise KannError(f"alone[{number}]={shown(scores)} are no two numbers; pass (score kept, score removed)")
        found[int(number)] = (float(scores[0]), float(scores[1]))
    return found


def checked_outputs(outputs: Any) -> str | None:
    """What the readout gives."""
    if outputs is None:
        return None
    require_choice(outputs, "outputs", OUTPUTS)
    return outputs


def checked_step_seconds(step_seconds: Any) -> float | None:
    """How long a step lasts."""
    if step_seconds is None:
        return None
    seconds = require_number(step_seconds, "step_seconds", remedy="pass how many seconds a step lasts")
    if not seconds > 0:
        raise KannError(f"step_seconds={seconds} is no length of time; pass how many seconds a step lasts")
    return seconds


def checked_step_name(step_name: Any) -> str:
    """What a step is called."""
    require_text(step_name, "step_name")
    if not step_name.strip():
        raise KannError("step_name= is empty; pass what a step is called, such as 'step' or 'layer'")
    return step_name


def checked_steps(steps: Any, states: States) -> StepTrust | None:
    """The trust of the maps of single steps, if it is of as many steps as the states shown have."""
    if steps is None:
        return None
    require_instance(steps, StepTrust, "steps")
    shown = int(states.lengths.max()) - 1
    if len(steps) != shown:
        raise KannError(
            f"steps= is of {len(steps)} steps and the states shown have {shown}; pass what kann.depth.trust "
            "returned for maps of these steps"
        )
    return steps


def checked_step_names(names: Any, steps: StepTrust | None) -> list[str] | None:
    """The names of the steps, such as of layers."""
    if names is None:
        return None
    require_sequence(names, "step_names")
    if steps is None or len(names) != len(steps):
        count = 0
        if steps is not None:
            count = len(steps)
        raise KannError(f"step_names= has {len(names)} names and steps= {count} steps; pass one name for each")
    return [str(name) for name in names]


def layer_numbers(steps: StepTrust | None, names: Sequence[str] | None) -> dict[str, Any] | None:
    """Errors with their intervals, layer by layer; None if no maps were fitted to single layers.

    Layers are counted from 1, as states are on the page: layer 1 leads from state 0 to state 1.
    """
    if steps is None:
        return None
    better, parts = steps.better_than_identity, steps.linear_part.tolist()
    rows = []
    for place in range(len(steps)):
        row: dict[str, Any] = {"number": place + 1, "name": None, "better": place in better}
        if names is not None:
            row["name"] = names[place]
        for prediction in PREDICTIONS:
            error, interval = steps.errors[prediction][place], steps.intervals[prediction][place]
            row[prediction] = [finite_or_none(float(value)) for value in (error, *interval)]
        rows.append(row | {"linear_part": finite_or_none(parts[place])})
    return {"folds": steps.folds, "level": steps.level, "layers": rows, "one_is_worse": len(steps.one_is_worse)}


def most_are_worse(worse: int, total: int) -> bool:
    """Whether copying is better at more than half of the layers: a mean over layers must then not be praised."""
    return 2 * worse > total


def where_copying_is_better(
    quality: dict[str, Any], copying: dict[str, Any], *, steps: StepTrust | None, step_name: str
) -> str:
    """At how many layers copying is better than the operator, in words; empty if it is not at most of them.

    Along time a mean is over many steps of one kind, and nothing is said.
    """
    if step_name == "step":
        return ""
    pairs = zip(quality["times"]["error"], copying["times"]["error"], strict=True)
    is_worse = [own > copied for own, copied in pairs if own is not None and copied is not None]
    worse, total = sum(is_worse), len(is_worse)
    if steps is not None:
        worse, total = len(steps.one_is_worse), len(steps)
    if not most_are_worse(worse, total):
        return ""
    return f"copying is better at {worse} of the {total} {step_name}s"

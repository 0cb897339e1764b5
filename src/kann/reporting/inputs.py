"""What a user passes to `report`, checked before anything is computed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.decisions import Readout
from kann.analysis.live_effects import Effects
from kann.analysis.movers import Movers
from kann.backends.arrays import as_numpy
from kann.checks import (
    entries_by_name,
    require_instance,
    require_number,
    require_sequence,
    require_text,
    require_whole_number,
    shown,
)
from kann.data.moments import state_gram
from kann.data.states import States, as_states
from kann.data.tokens import require_one_per_state
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReportInputs:
    """What the user passed to `report`, checked. `report` describes each argument."""

    koopman: Koopman
    states: States
    tokens: list[list[str]] | None
    signals: list[Float[Array, "_ _"]] | None
    readout: Readout | None
    decode: Callable[[Any], Any] | None
    labels: list[str] | None
    classes: Sequence[str] | None
    driven: Koopman | None
    others: Mapping[str, Koopman]
    fixed_points: Any
    modes_shown: tuple[int, ...]
    """Numbers of the modes that are shown for each sequence."""
    effects: Effects | None
    movers: Movers | None
    sentences: list[str]
    choices: list[str]
    alone: dict[int, tuple[float, float]]
    step_seconds: float | None
    step_name: str

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


def checked_labels(labels: Sequence[Any] | None, states: States) -> list[str] | None:
    """The label of each sequence, as text."""
    if labels is None:
        return None
    require_sequence(labels, "labels")
    if len(labels) != len(states):
        raise KannError(f"there are {len(labels)} labels for {len(states)} sequences; pass one for each")
    return [str(label) for label in labels]


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

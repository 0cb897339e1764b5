"""Check what the user passes to `kann.report`, and hold it for the sections of the page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict

import numpy as np

from kann.analysis._movers import Movers
from kann.analysis.decisions import OUTPUTS, Readout, decide, read_out
from kann.analysis.modes import importance
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
    short_repr,
)
from kann.data.moments import state_gram
from kann.data.states import States, as_states, checked_tokens, require_one_per_state
from kann.depth._trust import StepTrust
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.results import Effects, Memory, modes_that_matter
from kann.reporting.trust import KnownTrust, known_trust
from kann.typing import AnyArray, Array, Float

VERDICTS = {"found": "Found", "partly": "Partly explained", "nothing": "Nothing can be concluded"}
"""Verdicts in words."""


class PageOptions(TypedDict, total=False):
    """Further options of `kann.report`."""

    title: str
    """The heading."""
    about: str
    """A paragraph about the network and the data."""
    modes: int
    """How many modes are shown for each sequence, 20 by default: half of them the slowest, the others the most
    important of the rest."""
    channels: Sequence[str] | None
    """The names of the channels of the signals; "input 0", "input 1", … by default."""
    classes: Sequence[str] | None
    """The names of the classes that the readout tells apart."""
    others: Mapping[str, Koopman] | None
    """Operators to compare with, by name, such as one that reads the inputs."""
    fixed_points: Any
    """`kann.FixedPoints`, to draw among the states."""
    steps: StepTrust | None
    """Along depth, what `kann.depth.trust` returned for the maps of single layers."""
    step_names: Sequence[str] | None
    """The names of these layers."""
    line: str
    """The line under the heading, such as the layer and the kind of outputs."""
    verdict: tuple[str, str] | None
    """"found", "partly" or "nothing", and the figure that decides it, in words."""
    summary: Sequence[str]
    """Sentences to show first, at most three."""
    caveats: str
    """A line under these sentences: what must not be concluded from them."""
    sentences: Sequence[str]
    """All sentences, shown under "Details"; the first of them come first if there is no ``summary``. The page's own by
    default."""
    choices: Sequence[str]
    """The choices that were made, and their reasons."""
    tables: Sequence["PageTable"]
    """Further tables, such as what each input does."""
    matter: Sequence[int] | None
    """Numbers of the modes that have a card, the most important first; by default those that matter in the live test
    and can be trusted."""
    alone: Mapping[int, tuple[float, float]] | None
    """For modes by number, the live scores with this mode alone kept, and with it alone removed."""
    step_seconds: float | None
    """How long a step lasts, to show half-lives in seconds too."""
    step_name: str
    """The name of a step, such as ``"layer"``."""
    outputs: str | None
    """The kind of outputs, as in `kann.effects`: ``"class"``, ``"labels"`` or ``"values"``, that of ``effects`` by
    default."""
    threshold: float
    """The value that an output must exceed to be a yes, such as 0.5 behind a sigmoid."""
    network_outputs: AnyArray | None
    """The outputs of the network itself at the end of each sequence, (sequences, outputs), for a head that reads more
    than these states, such as both directions. By default predictions are what ``readout`` makes of last states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table of text, with a chart of its figures or without."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    about: str = ""
    chart: Mapping[str, Any] | None = None
    """``kind`` is "plane" (named points: ``x``, ``y``, ``size``, ``names``, ``labels``, ``x_title``, ``y_title``) or
    "bars" (``names``, ``series`` of ``name`` and ``values`` (value, low, high), ``levels`` of value and title)."""
    folded: bool = False
    """True for a table under "Details"."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReportInputs:
    """Checked arguments of `kann.report`; `PageOptions` describes it."""

    koopman: Koopman
    states: States
    known: KnownTrust
    """How far the operator can be trusted."""
    importances: Float[Array, " m"]
    """The importance of each mode for the states."""
    matter: list[int]
    """Numbers of the modes that matter, the most important first."""
    doubtful: list[int]
    """Numbers of modes that add to the live test and cannot be trusted."""
    modes_shown: tuple[int, ...]
    """Numbers of the modes that are shown for each sequence."""
    last_read: Float[Array, "s ..."] | None
    """Readout of the last state of each sequence; None without a readout."""
    last_outputs: Float[Array, "s ..."] | None
    """Outputs of the network at the end of each sequence, its own or by the readout of its last state."""
    title: str = "What this network remembers by"
    about: str = ""
    tokens: list[list[str]] | None = None
    signals: list[Float[Array, "_ _"]] | None = None
    channels: Sequence[str] | None = None
    readout: Readout | None = None
    labels: list[Any] | None = None
    classes: list[str] | None = None
    others: Mapping[str, Koopman] = field(default_factory=dict)
    fixed_points: Any = None
    effects: Effects | None = None
    movers: Movers | None = None
    memory: Memory | None = None
    line: str = ""
    verdict: tuple[str, str] | None = None
    tables: Sequence[PageTable] = ()
    summary: Sequence[str] = ()
    caveats: str = ""
    sentences: Sequence[str] = ()
    choices: Sequence[str] = ()
    alone: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    step_seconds: float | None = None
    step_name: str = "step"
    steps: StepTrust | None = None
    step_names: list[str] | None = None
    outputs: str | None = None
    threshold: float = 0.0

    @property
    def outputs_kind(self) -> str:
        """The kind of outputs, as the user or the live test says: "class", "labels" or "values"; else "class"."""
        return self.outputs or (self.effects.outputs if self.effects else "class")

    @property
    def channel_names(self) -> list[str]:
        """The names of the channels of the signals, as the user says or by their numbers."""
        if self.channels is not None:
            return list(self.channels)
        count = self.signals[0].shape[1] if self.signals else 0
        return ["signal"] if count == 1 else [f"input {number}" for number in range(count)]

    @property
    def readout_weight(self) -> Float[Array, "o d"] | None:
        """The weight of the readout if the readout is linear."""
        weight = getattr(self.readout, "weight", None)
        return None if weight is None or weight.ndim != 2 else as_numpy(weight).astype(np.float64)

    @property
    def readout_is_all(self) -> bool:
        """Whether the readout of the last state decides as the network; not if its head reads other states as well."""
        own, read = self.last_outputs, self.last_read
        if own is None or read is None:
            return True
        if self.outputs_kind == "class":
            return bool((decide(own, threshold=self.threshold) == decide(read, threshold=self.threshold)).all())
        return bool(np.allclose(own, read, rtol=0, atol=0.01 * own.std()))


def checked_inputs(koopman: Koopman, states: Any, arguments: Mapping[str, Any]) -> ReportInputs:
    """Check all arguments of `kann.report`."""
    require_instance(koopman, Koopman, "koopman")
    states = as_states(states)
    state_gram(states)  # raises if states are NaN or infinite, or if their squares are, as `kann.fit` does
    count = require_whole_number(arguments.get("modes", 20), "modes", least=0)
    given = {name: value for name, value in arguments.items() if value is not None and name != "modes"}
    _require_kinds(given)
    _require_same_network(given, koopman, states)
    read: dict[str, Callable[[Any], Any]] = {
        "tokens": lambda tokens: checked_tokens(tokens, states),
        "signals": partial(_signals, states=states),
        "labels": partial(_labels, states=states),
        "classes": lambda classes: [str(name) for name in classes],
        "others": _operators,
        "verdict": _verdict,
        "tables": list,
        "matter": lambda matter: [_mode(number, koopman, "matter") for number in matter],
        "alone": partial(_alone, koopman=koopman),
        "step_seconds": checked_step_seconds,
        "threshold": partial(require_number, name="threshold", remedy="pass the value that an output must exceed"),
    } | dict.fromkeys(SENTENCES, list)
    checked = given | {name: convert(given[name]) for name, convert in read.items() if name in given}
    if "channels" in given:
        checked["channels"] = _channels(given["channels"], checked.get("signals"))
    if "step_names" in given:
        checked["step_names"] = _step_names(given["step_names"], checked.get("steps"))
    last_read = None
    if "readout" in given:
        last_read = read_out(given["readout"], as_numpy(states.values[states.starts + states.lengths - 1]))
    last_outputs = last_read
    if "network_outputs" in given:
        last_outputs = _network_outputs(checked.pop("network_outputs"), states, last_read)
    by_eigenvector = importance(koopman, states)
    importances = np.array([by_eigenvector[list(mode.indices)].sum() for mode in koopman.modes])
    known = known_trust(koopman, states, checked.pop("trust", None))
    live = {name: checked.get(name) for name in ("effects", "movers", "alone")}
    decisive = modes_that_matter(koopman, trust=known.trust, **live)
    trusted = range(len(koopman.modes)) if known.trust is None else known.trust.trusted
    matter = checked.pop("matter", [number for number in decisive if number in trusted])
    doubtful = [number for number in decisive if number not in trusted]
    first = list(dict.fromkeys([*matter, *decisive]))
    others = [number for number in slowest_and_most_important(importances, count) if number not in first]
    return ReportInputs(
        koopman=koopman,
        states=states,
        known=known,
        importances=importances,
        matter=matter,
        doubtful=doubtful,
        modes_shown=tuple(sorted([*first, *others[: max(0, count - len(first))]])),
        last_read=last_read,
        last_outputs=last_outputs,
        **checked,
    )


def slowest_and_most_important(importances: Float[Array, " m"], count: int) -> tuple[int, ...]:
    """Return numbers of ``count`` modes: half of them the slowest, the others the most important of the rest.

    >>> slowest_and_most_important(np.array([1.0, 1.0, 1.0, 9.0, 5.0, 8.0]), 4)
    (0, 1, 3, 5)
    """
    slowest = list(range(min(len(importances), (count + 1) // 2)))  # modes are sorted by decreasing modulus
    rest = [number for number in np.argsort(-importances, kind="stable").tolist() if number not in slowest]
    return tuple(sorted([*slowest, *rest[: count - len(slowest)]]))


TEXTS = ("title", "about", "line", "caveats", "step_name")
"""Options that are a text."""

SENTENCES = ("summary", "sentences", "choices")
"""Options that are a list of texts."""

RESULTS = {"effects": Effects, "movers": Movers, "memory": Memory, "steps": StepTrust}
"""Options that are a result."""


def _require_kinds(given: Mapping[str, Any]) -> None:
    """Raise for options of another type than they have."""
    for name in TEXTS:
        require_text(given.get(name, ""), name)
    if not given.get("step_name", "step").strip():
        raise KannError("step_name= is empty; pass the name of a step, such as 'step' or 'layer'")
    for name in SENTENCES:
        if isinstance(given.get(name), str):  # its letters would be shown as sentences
            raise KannError(f"{name}= is a single string; pass a list of sentences")
        require_sequence(given.get(name, ()), name)
        for sentence in given.get(name, ()):
            require_text(sentence, f"a sentence of {name}")
    require_sequence(given.get("tables", ()), "tables")
    for table in given.get("tables", ()):
        require_instance(table, PageTable, "a table of tables")
    for name, kind in RESULTS.items():
        if name in given:
            require_instance(given[name], kind, name)
    require_sequence(given.get("classes", ()), "classes")
    require_choice(given.get("outputs", "class"), "outputs", OUTPUTS)


def _require_same_network(given: Mapping[str, Any], koopman: Koopman, states: States) -> None:
    """Raise for results of another operator or of other states."""
    effects, movers, steps = given.get("effects"), given.get("movers"), given.get("steps")
    if effects is not None and not np.array_equal(effects.koopman.eigenvalues, koopman.eigenvalues):
        raise KannError(
            f"effects= is of another operator, of rank {effects.koopman.rank}; this one has rank {koopman.rank}, or "
            "other eigenvalues; pass effects.koopman as the operator"
        )
    if movers is not None and max(movers.modes, default=0) >= len(koopman.modes):
        raise KannError(
            f"movers= names mode {max(movers.modes)} and the operator has {len(koopman.modes)} modes; pass what "
            "kann.movers returned for this operator"
        )
    count = int(states.lengths.max()) - 1
    if steps is not None and len(steps) != count:
        raise KannError(
            f"steps= is of {len(steps)} steps and the states shown have {count}; pass what "
            "kann.depth.trust returned for maps of these steps"
        )
    if "fixed_points" in given:
        _require_points(given["fixed_points"], koopman)


def _operators(others: Any) -> dict[str, Koopman]:
    operators = entries_by_name(others, "others", remedy="pass a dict of operators")
    for name, operator in operators.items():
        require_instance(operator, Koopman, f"others[{short_repr(name)}]")
    return operators


def _network_outputs(outputs: Any, states: States, last_read: Array | None) -> Float[Array, "s ..."]:
    """Return the outputs of the network, one row for each sequence, in the shape of what the readout gives."""
    rows = as_numpy(outputs)
    require_real(rows, what="network_outputs")
    if rows.ndim == 0 or len(rows) != len(states):
        raise KannError(
            f"network_outputs has shape {rows.shape} for {len(states)} sequences; pass a row of outputs for each"
        )
    require_all_finite(rows, what="network_outputs", remedy="find out for which sequence the network fails")
    shape = rows.shape if last_read is None else last_read.shape
    if math.prod(shape) != rows.size:
        raise KannError(
            f"network_outputs has shape {rows.shape}, and the readout gives {shape} for the last states; pass what the "
            "network gave out at the end of each sequence"
        )
    return rows.astype(np.float64).reshape(shape)


def _require_points(fixed_points: Any, koopman: Koopman) -> None:
    """Raise unless fixed points are points of this network."""
    shape = np.shape(getattr(fixed_points, "points", ()))
    if len(shape) != 2 or shape[1] < koopman.dim or len(fixed_points.kinds) != shape[0]:
        raise KannError(
            f"fixed_points= holds points of shape {shape}; pass what kann.find_fixed_points returned for a network of "
            f"{koopman.dim} units"
        )
    if not np.isfinite(fixed_points.points).all():
        raise KannError("fixed_points= holds NaN or Inf; pass finite points")


def _labels(labels: Any, states: States) -> list[Any]:
    """Return the label of each sequence, or its labels at every step."""
    require_sequence(labels, "labels")
    if len(labels) != len(states):
        raise KannError(f"there are {len(labels)} labels for {len(states)} sequences; pass one for each")
    return list(labels)


def _channels(channels: Any, signals: list[Float[Array, "_ _"]] | None) -> tuple[str, ...]:
    if not signals:
        raise KannError("channels= names the channels of signals, and there are none; pass signals=, or leave it out")
    count = signals[0].shape[1]
    return require_names(channels, count, "channels", of=f"the signals have {count} channels")


def _signals(signals: Any, states: States) -> list[Float[Array, "_ _"]]:
    """Return the signal of each sequence, (T, channels), one row for each state, in the order of the states."""
    require_sequence(signals, "signals")
    arrays = [as_numpy(signal) for signal in signals]
    for i, array in enumerate(arrays):
        if not array.ndim or array.dtype.kind not in "fiub":
            raise KannError(f"the signal of sequence {i} is no array of real numbers; pass (T,) or (T, channels)")
        if not np.isfinite(array).all():
            raise KannError(f"the signal of sequence {i} holds NaN or Inf; pass finite samples")
    require_one_per_state(arrays, states, "samples")
    rows = [np.asarray(array, dtype=np.float64).reshape(len(array), -1) for array in arrays]
    return [own[::-1] for own in rows] if states.reverse else rows


def _alone(alone: Any, koopman: Koopman) -> dict[int, tuple[float, float]]:
    if not isinstance(alone, Mapping):
        raise KannError(f"alone={short_repr(alone)} has no modes by number; pass a dict such as {{0: (0.9, 0.6)}}")
    found = {}
    for number, scores in alone.items():
        number = _mode(number, koopman, "alone")
        if np.shape(scores) != (2,) or not np.isfinite(scores).all():
            raise KannError(
                f"alone[{number}]={short_repr(scores)} must be a pair of numbers; pass (score kept, score removed)"
            )
        found[number] = (float(scores[0]), float(scores[1]))
    return found


def _mode(number: Any, koopman: Koopman, name: str) -> int:
    """Return the number of a mode of the operator."""
    if require_whole_number(number, f"a mode of {name}", least=0) >= len(koopman.modes):
        raise KannError(f"{name}= names mode {number}; the operator has {len(koopman.modes)} modes; pass one of them")
    return int(number)


def _verdict(verdict: Any) -> tuple[str, str]:
    if not isinstance(verdict, tuple) or len(verdict) != 2:
        raise KannError(f"verdict={short_repr(verdict)} must be a pair; pass a word and the figure that decides it")
    require_choice(verdict[0], "the word of verdict", tuple(VERDICTS))
    require_text(verdict[1], "the figure of verdict")
    return verdict


def checked_step_seconds(step_seconds: Any) -> float:
    """Return how many seconds a step lasts."""
    seconds = require_number(step_seconds, "step_seconds", remedy="pass how many seconds a step lasts")
    if not seconds > 0:
        raise KannError(f"step_seconds={seconds} is no length of time; pass how many seconds a step lasts")
    return seconds


def _step_names(names: Any, steps: StepTrust | None) -> list[str]:
    require_sequence(names, "step_names")
    count = 0 if steps is None else len(steps)
    if len(names) != count or not count:
        raise KannError(f"step_names= has {len(names)} names and steps= {count} steps; pass one name for each")
    return [str(name) for name in names]

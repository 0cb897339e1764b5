"""Options of `kann.explain`, in one object."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.decisions import OUTPUTS
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_number, require_sequence, require_whole_number, short_repr
from kann.errors import KannError
from kann.fitting.folds import group_numbers
from kann.live.evaluation import has_ignored, require_known_labels
from kann.recording.sequence_data import RunOptions
from kann.typing import Array, Int


class Clock:
    """Counts the seconds of a budget; without one there is always time."""

    def __init__(self, seconds: int | float | None):
        self._started, self._seconds = time.monotonic(), math.inf if seconds is None else seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a budget."""
        return self._seconds - self.spent

    def require(self, seconds: int | float, what: str) -> None:
        """Raise before a step that takes longer than the time left and without which no explanation is possible."""
        if seconds < self.left and self.left > 0:
            return
        problem = f", and {what} takes about {seconds:.1f}; pass more seconds, or fewer sequences"
        if self.left <= 0:
            problem = f" before {what} began (a first call also loads libraries); pass more seconds"
        raise KannError(f"out of time: {self.spent:.1f} of seconds={self._seconds:g} are spent{problem}")


class ExplainOptions(RunOptions, total=False):
    """Further options of `kann.explain`."""

    readout: Any
    """The readout of the states: a module or its name, a weight (outputs, units), or a function. Found if there is only
    one linear layer that fits."""
    state: str | None
    """The state of an LSTM, as in `kann.record`: "h", "c" or "hc". Default: "hc"."""
    axis: str | None
    """``"time"``, or ``"depth"`` to take layers as steps. Found if None."""
    outputs: str | None
    """``"class"``, ``"labels"`` or ``"values"``, as in `kann.effects`. Found from labels and shapes if None."""
    step_seconds: float | None
    """The duration of a step."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Options:
    """The arguments of `kann.explain`, which describes each of them."""

    labels: Any = None
    tokens: Any = None
    readout: Any = None
    groups: Any = None
    layer: Any = None
    state: str | None = None
    axis: str | None = None
    lengths: Any = None
    classes: Sequence[str] | None = None
    channels: Sequence[str] | None = None
    outputs: str | None = None
    step_seconds: int | float | None = None
    seconds: int | float | None = None
    forward: Callable[..., Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    batch_size: int | None = None
    max_sequences: int | None = None
    device: Any = None
    seed: int = 0
    progress: bool = True

    @staticmethod
    def of(more: Mapping[str, Any], **named: Any) -> "Options":
        """Return the arguments of `kann.explain`, those that it names and others."""
        unknown = next((name for name in more if name not in ExplainOptions.__annotations__), None)
        if unknown is not None:
            raise TypeError(f"explain() got an unexpected keyword argument {unknown!r}")
        return Options(**named, **more)

    def __post_init__(self) -> None:
        """Raise for wrong arguments before the model runs."""
        choices = {"state": ("h", "c", "hc"), "axis": ("time", "depth"), "outputs": OUTPUTS}
        for name, words in choices.items():
            if getattr(self, name) is not None:
                require_choice(getattr(self, name), name, words)
        for name in ("labels", "tokens", "groups", "classes"):
            if getattr(self, name) is not None:
                require_sequence(getattr(self, name), name)
        self._require_words()
        self._require_classes_of_labels()
        for name in ("seconds", "step_seconds"):
            value = getattr(self, name)
            if value is not None and not require_number(value, name, remedy=f"pass {name}>0") > 0:
                raise KannError(f"{name}={value} is no stretch of time; pass {name}>0")
        require_whole_number(self.seed, "seed", least=0, too_small="is negative")

    def labels_that_mark(self, numbers: Int[Array, " k"], outputs: str) -> list[Any] | None:
        """Return the labels of some sequences if −100 marks steps or answers that do not count, and None if all count.

        A sequence whose single class is −100 has an unknown label, and what the network decides there counts. A value
        of −100 is a number.
        """
        own = [] if self.labels is None or outputs == "values" else [self.labels[number] for number in numbers]
        return own if has_ignored([label for label in own if np.ndim(as_numpy(label))]) else None

    def _require_words(self) -> None:
        """Raise for one text per sequence: it is unknown which of its words is read at which step."""
        if self.tokens is None:
            return
        number = next((i for i, own in enumerate(self.tokens) if isinstance(own, str)), None)
        if number is not None:
            raise KannError(
                f"the tokens of sequence {number} are one text, {short_repr(self.tokens[number])}; pass a list with "
                "one word for each step, such as text.split()"
            )

    def _require_classes_of_labels(self) -> None:
        """Raise for labels that are not numbers of classes."""
        if self.labels is None or self.classes is None or not len(self.labels):
            return
        found = [np.asarray(as_numpy(label)) for label in self.labels if not isinstance(label, str)]
        largest = max((int(label.max()) for label in found if label.dtype.kind in "iu" and label.size), default=0)
        if largest >= len(self.classes):
            raise KannError(
                f"a label is {largest}, and classes= has {len(self.classes)} names; pass one for each number from 0 on"
            )

    @property
    def run(self) -> dict[str, Any]:
        """`RunOptions` without lengths, which are those of the sequences that a function runs on."""
        return {name: getattr(self, name) for name in ("forward", "collate", "batch_size", "device", "progress")}

    @property
    def group_of(self) -> Int[Array, " s"] | None:
        """For each sequence the number of its group, also of groups that come as tensors; None if there are none."""
        if self.groups is None:
            return None
        return group_numbers(self.groups, len(self.groups))

    def require_one_each(self, count: int, steps: int | None) -> None:
        """Raise for labels, tokens, groups or lengths of a wrong number of sequences, or of ``steps`` entries."""
        for name in ("labels", "tokens", "groups", "lengths"):
            values = getattr(self, name)
            if values is None or isinstance(values, str | int) or callable(values):  # lengths by key or function
                continue
            if len(values) != count:
                remedy = "pass one for each sequence"
                if len(values) == steps:
                    remedy = f"the second axis has {steps} entries: pass data.swapaxes(0, 1) if these are the sequences"
                raise KannError(f"there are {len(values)} {name} for {count} sequences; {remedy}")
        if self.labels is not None:
            require_known_labels(self.labels)

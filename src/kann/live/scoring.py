"""How well a network did on each sequence, judged by its outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from kann.analysis.decisions import decide
from kann.backends.arrays import as_numpy
from kann.checks import require_sequence, shown
from kann.errors import KannError
from kann.recording.batching import tensors_of
from kann.recording.ragged import RealSteps
from kann.typing import Array, Float, Int, Shaped

METRICS = ("agreement", "accuracy", "loss")
"""Metrics that have a name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scorer:
    """From the outputs of a batch to one score for each of its sequences."""

    name: str
    """One of `METRICS`, or "own"."""
    labels: Any
    """A list or array with the label of each sequence of the data, or with the labels of its steps; or None."""
    function: Callable[..., Any] | None
    """The user's own metric."""

    @staticmethod
    def of(metric: Any, labels: Any) -> "Scorer":
        """The metric that the user asked for: agreement without labels, and accuracy with them, if none."""
        if labels is not None:
            require_sequence(labels, "labels")
        if callable(metric):
            return Scorer(name="own", labels=labels, function=metric)
        name = metric
        if metric is None:
            name = "agreement"
            if labels is not None:
                name = "accuracy"
        if name not in METRICS:
            raise KannError(f"metric={shown(metric)} is unknown; pass one of {METRICS}, or a function of outputs")
        if name != "agreement" and labels is None:
            raise KannError(f"metric={name!r} needs labels=, one for each sequence")
        return Scorer(name=name, labels=labels, function=None)

    def require_labels(self, count: int) -> None:
        """Refuse labels of another number of sequences than there are."""
        if self.labels is not None and len(self.labels) != count:
            raise KannError(f"there are {len(self.labels)} labels for {count} sequences; pass one for each")

    def __call__(
        self,
        outputs: Shaped[Array, "b ..."],
        untouched: Shaped[Array, "b ..."],
        sequences: Int[Array, " b"],
        real: RealSteps | None,
    ) -> Float[Array, " b"]:
        """The score of each sequence of a batch, whose numbers in the data are ``sequences``."""
        if self.function is not None:
            return self._own(outputs, untouched, sequences)
        if self.name == "loss":
            losses = self._losses(outputs, self._labels(sequences, outputs))
            return _mean_over_steps(losses, real)
        decided = _decisions(outputs)
        if self.name == "agreement":
            return _mean_over_steps((decided == _decisions(untouched)).astype(np.float64), real)
        return _mean_over_steps((decided == self._labels(sequences, outputs)).astype(np.float64), real)

    def _own(self, outputs: Array, untouched: Array, sequences: Int[Array, " b"]) -> Float[Array, " b"]:
        against = untouched
        if self.labels is not None:
            against = np.array([self.labels[i] for i in sequences])
        assert self.function is not None  # noqa: S101  # the caller has seen that there is one
        scores = as_numpy(self.function(outputs, against)).astype(np.float64)
        if scores.shape != (len(outputs),):
            raise KannError(
                f"metric returned shape {scores.shape} for {len(outputs)} sequences; return one number for each"
            )
        return scores

    def _labels(self, sequences: Int[Array, " b"], outputs: Array) -> Int[Array, "..."]:
        """The labels of a batch: (b,), or (b, t) filled up with −1 where a sequence has ended."""
        assert self.labels is not None  # noqa: S101  # `of` has refused that
        own = [as_numpy(self.labels[i]) for i in sequences]
        if outputs.ndim < 3:
            return np.array([int(label) for label in own])
        found = np.full(outputs.shape[:2], -1)
        for row, label in zip(found, own, strict=True):
            if label.ndim:
                row[: len(label)] = label
            else:
                row[:] = label
        return found

    def _losses(self, outputs: Array, labels: Int[Array, "..."]) -> Float[Array, "..."]:
        """Cross-entropy of each decision."""
        logits, wanted = torch.from_numpy(outputs).double(), torch.from_numpy(labels).clamp(min=0)
        if logits.ndim == 1:
            logits = logits[:, None]
        if logits.shape[-1] == 1:
            return as_numpy(binary_cross_entropy_with_logits(logits[..., 0], wanted.double(), reduction="none"))
        return as_numpy(cross_entropy(logits.movedim(-1, 1), wanted, reduction="none"))


def _decisions(outputs: Array) -> Int[Array, "..."]:
    """The class of each sequence, (b,), or of each step, (b, t), where outputs are (b, t, o)."""
    if outputs.ndim < 3:
        return decide(outputs)
    return decide(outputs.reshape(-1, outputs.shape[-1])).reshape(outputs.shape[:-1])


def _mean_over_steps(values: Float[Array, "b ..."], real: RealSteps | None) -> Float[Array, " b"]:
    """The mean over the real steps of each sequence."""
    if values.ndim == 1:
        return values
    weights = np.ones(values.shape)
    if real is not None and values.ndim == 2:
        steps, starts = np.arange(values.shape[1]), np.zeros(len(values), dtype=np.int64)
        if real.starts is not None:
            starts = real.starts
        weights = ((steps >= starts[:, None]) & (steps < (starts + real.lengths)[:, None])).astype(np.float64)
    axes = tuple(range(1, values.ndim))
    return (values * weights).sum(axis=axes) / weights.sum(axis=axes)


def outputs_of(output: Any, sequences: int) -> Tensor:
    """What a model decides by: the first real numbers of its output, the sequences along the first axis."""
    found = next((part for part in tensors_of(output) if part.is_floating_point()), None)
    if found is None or not found.ndim:
        raise KannError(f"the model returns {type(output).__name__} without real numbers; pass forward= that does")
    if found.shape[0] != sequences and found.ndim > 1 and found.shape[1] == sequences:
        found = found.transpose(0, 1)
    if found.shape[0] != sequences:
        raise KannError(
            f"the model returned {tuple(found.shape)} for {sequences} sequences; pass forward= that returns one row "
            "for each"
        )
    return found

"""Run a network on sequences again and again with its states changed, and score each sequence by the outputs.

Outputs are compared with those of the untouched network, or with labels, in the same words as `kann.agreement` has:
classes, several yes-or-no labels, or values of a regression.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from kann.analysis.decisions import OUTPUTS, answers
from kann.analysis.fidelity import Comparison, compare_values
from kann.backends.arrays import as_numpy, threads_for
from kann.checks import require_choice, require_number, require_sequence, short_repr
from kann.errors import KannError, UnfinishedWarning
from kann.progress import progress
from kann.recording.sequence_data import Batch, RealSteps, SequenceData, tensors_of
from kann.typing import Array, Float, Int, Shaped

Score = TypeVar("Score")
"""Result of one run of a batch."""


def run_batches(
    source: SequenceData,
    batches: Sequence[Batch],
    changes: Sequence[Callable[[], AbstractContextManager[Any]]],
    judge: Callable[[Batch, Tensor], Callable[[Tensor], Score]],
    *,
    what: str,
) -> list[tuple[Batch, list[Score]]]:
    """Score the untouched network on each batch, and then the network within each of the changes.

    ``judge`` takes a batch and the outputs of the untouched network, and returns a function that scores outputs. It
    works batch by batch, because the outputs of a language model would not fit in memory for all batches.
    An interruption returns the finished batches. The model must be in evaluation mode.
    """
    # In random order: batches are sorted by length, and an interruption should leave sequences of all lengths.
    order = np.random.default_rng(0).permutation(len(batches)).tolist()
    bar = progress(order, what=what, total=len(order), unit="batch") if source.shows_progress else order
    finished: list[tuple[Batch, list[Score]]] = []
    try:
        for i in bar:
            batch = batches[i]
            with threads_for(_multiplications(source.model, len(batch))):
                untouched = outputs_of(source.call(batch), len(batch))
                score = judge(batch, untouched)
                scores = [score(untouched)]
                for change in changes:
                    with change():
                        scores.append(score(outputs_of(source.call(batch), len(batch))))
            finished.append((batch, scores))
    except KeyboardInterrupt:
        if not finished:
            raise
        warnings.warn(
            f"interrupted after {len(finished)} of {len(batches)} batches; means are over those",
            UnfinishedWarning,
            stacklevel=2,
        )
    return finished


def _multiplications(model: nn.Module, sequences: int) -> int | float:
    """Count the multiplications of the largest product in one step of a recurrent network; infinite for other models.

    Other models multiply all steps at once, in products that threads share well.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase | nn.RNNCellBase)]
    weights = [weight.numel() for layer in layers for weight in layer.parameters()]
    return sequences * max(weights, default=math.inf)


def score_runs(
    source: SequenceData,
    changes: Sequence[Callable[[], AbstractContextManager[Any]]],
    scorer: "Scorer",
    *,
    what: str,
) -> tuple[Int[Array, " s"], Float[Array, "r s"]]:
    """Score every sequence with the untouched network, in the first row, and within each of the changes.

    Returns the numbers of the sequences in the data, increasing, and their scores. An R² is the mean of its scores.
    """
    variation = Comparison()

    def judge(batch: Batch, untouched: Tensor) -> Callable[[Tensor], Float[Array, " b"]]:
        nonlocal variation
        own = as_numpy(untouched)
        if scorer.is_r_squared:
            variation = variation + scorer.variation(own, batch)
        return lambda outputs: scorer(as_numpy(outputs), own, batch)

    batches = source.groups()
    require_label_of_each(scorer.labels, sum(map(len, batches)), may_be_more=source.max_sequences is not None)
    finished = run_batches(source, batches, changes, judge, what=what)
    numbers = np.concatenate([batch.numbers for batch, _ in finished])
    scores = np.concatenate([np.stack(own) for _, own in finished], axis=1)
    order = order_of_judged(numbers, source, scorer.labels if scorer.ignores else None)
    numbers, scores = numbers[order], scores[:, order]
    if scorer.is_r_squared:
        if not variation.spread:
            raise KannError(
                "the values that outputs are compared with are all the same, so R² is not defined; pass sequences with "
                "other outputs, or metric='loss'"
            )
        scores = 1 - scores * len(numbers) / variation.spread
    return numbers, scores


def order_of_judged(numbers: Int[Array, " s"], source: SequenceData, labels: Any) -> list[int]:
    """Return the places of the sequences that count, by increasing number.

    Sequences whose labels are all `IGNORED` have no score; the last batch may hold more than were asked for.
    """
    most = np.inf if source.max_sequences is None else source.max_sequences
    order = [i for i in np.argsort(numbers).tolist() if numbers[i] < most]
    if labels is not None:
        order = [i for i in order if is_known(labels[numbers[i]])]
    if not order:
        raise KannError(f"all labels are {IGNORED}, which does not count; pass labels of some sequences")
    return order


def is_known(label: Any) -> bool:
    """Return whether the label of a sequence, or of one of its steps, is not `IGNORED`."""
    return bool((as_numpy(label) != IGNORED).any())


def has_ignored(labels: Any) -> bool:
    """Return whether some labels, of sequences or of their steps, are `IGNORED`."""
    return labels is not None and any(not isinstance(own, str) and (as_numpy(own) == IGNORED).any() for own in labels)


def require_label_of_each(labels: Any, count: int, *, may_be_more: bool) -> None:
    """Raise unless there is a label for each sequence; there may be more where not all sequences are run."""
    if labels is None:
        return
    if len(labels) < count or (len(labels) > count and not may_be_more):
        raise KannError(f"there are {len(labels)} labels for {count} sequences; pass one for each")
    require_known_labels(labels)


def require_known_labels(labels: Any) -> None:
    """Raise if a label holds NaN."""
    for number, label in enumerate(labels):
        if not isinstance(label, str) and (own := as_numpy(label)).dtype.kind == "f" and np.isnan(own).any():
            raise KannError(
                f"the label of sequence {number} holds NaN; leave the sequence out, or pass {IGNORED} where a class is "
                "not known"
            )


def labels_by_step(
    labels: Any,
    sequences: Int[Array, " b"],
    starts: Int[Array, " b"],
    *,
    steps: int,
    has_steps: bool,
    width: int | None = None,
) -> Shaped[Array, "b t ..."]:
    """Return the class of each sequence or of each of its steps, or the labels of ``width`` outputs there.

    It is 0 where a sequence has ended. ``starts`` are the first real steps of sequences that are padded on the left. A
    network that decides once for a sequence has one step, and ``has_steps`` is False.
    """
    shape, kind = ((steps,), np.int64) if width is None else ((steps, width), np.float64)
    found = np.zeros((len(sequences), *shape), dtype=kind)
    for row, number, start in zip(found, sequences.tolist(), starts.tolist(), strict=True):
        label = as_numpy(labels[number])
        if width is None and label.ndim > int(has_steps):
            expected = "one class for each step" if has_steps else "one class"
            raise KannError(
                f"the label of sequence {number} has shape {label.shape}, and {expected} is needed; for several labels "
                "or values of each decision pass outputs='labels' or outputs='values'"
            )
        if width == 1 and label.ndim <= int(has_steps):  # a single output needs no axis of its own
            label = label[..., None]
        if width is not None and (label.ndim not in (1, 1 + has_steps) or label.shape[-1] != width):
            expected = f"(steps, {width}) or ({width},)" if has_steps else f"({width},)"
            raise KannError(
                f"the label of sequence {number} has shape {label.shape}, and the network has {width} outputs; pass "
                f"{expected} for each sequence{', or whole numbers that are classes' if width > 1 else ''}"
            )
        if label.ndim < row.ndim:  # one for all steps
            row[:] = label
        elif start + len(label) > steps:
            raise KannError(
                f"sequence {number} has labels for {len(label)} steps, and the network gave {steps - start}; pass one "
                "for each step"
            )
        else:
            row[start : start + len(label)] = label
    return found


def kind_by_labels(labels: Any, outputs: Any) -> tuple[str, str] | None:
    """Return the kind of outputs (sequences, ..., o) that labels imply, and why; None without labels.

    One-hot rows name a class, other rows of zeros and ones are labels.
    """
    if labels is None:
        return None
    if isinstance(labels[0], str):
        return "class", "labels are names"
    first = [as_numpy(label) for label in labels[:LOOKED_AT]]
    values = np.unique(np.concatenate([each.ravel().astype(np.float64) for each in first]))
    values = values[values != IGNORED]
    are_marks = set(values) <= {0, 1} or set(values) <= {-1, 1}
    if are_marks and first[0].ndim == outputs.ndim - 1 > 0 and outputs.shape[-1] > 1:
        if all(((as_numpy(label) == 1).sum(axis=-1) == 1).all() for label in labels):
            return "class", "each label marks one output"
        return "labels", "each label has a mark for each output"
    if not np.array_equal(values, np.round(values)):
        return "values", "labels are real numbers"
    return "class", "labels are whole numbers"


class ScoreOptions(TypedDict, total=False):
    """How to judge the outputs of a network."""

    metric: str | Callable[..., Any] | None
    """``"agreement"`` with the untouched network (the default without labels), ``"accuracy"`` (the default with
    labels), ``"loss"``, or a function of two arrays, the outputs of a batch and those of the untouched network (or the
    labels, if there are any), that returns one number for each sequence."""
    labels: Any
    """The class of each sequence, or of each of its steps for a model that gives (sequences, steps, outputs). With
    several outputs that are labels or values, (outputs,) of each sequence or (steps, outputs). Classes and labels of
    −100 do not count, also for agreement; sequences without another are left out."""
    outputs: str
    """As in `kann.agreement`. ``"class"`` (the default): the largest of several outputs, or whether a single one
    exceeds ``threshold``. ``"labels"``: each output is a yes-or-no answer; agreement and accuracy are fractions of
    answers. ``"values"``: regression; agreement is R² of the outputs against those of the untouched network, accuracy
    is R² against the labels, and the loss is the squared error."""
    threshold: float
    """An output above this value is a yes. Default: 0."""


IGNORED = -100
"""The label of steps that do not count, as in torch's losses."""

LOOKED_AT = 50
"""Labels that tell what the outputs are."""

METRICS = ("agreement", "accuracy", "loss")
"""Metrics that have a name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scorer:
    """From the outputs of a batch to one score for each of its sequences."""

    name: str
    """One of `METRICS`, or "own"."""
    outputs: str
    """Kind of the outputs, one of `OUTPUTS`."""
    threshold: float
    """An output above this value is a yes."""
    labels: Any
    """A list or array with the label of each sequence of the data, or with the labels of its steps; or None."""
    function: Callable[..., Any] | None
    """The user's own metric."""
    ignores: bool
    """Whether some labels are `IGNORED`."""

    @staticmethod
    def of(metric: Any = None, labels: Any = None, *, outputs: str = "class", threshold: float = 0.0) -> "Scorer":
        """Return the metric that the user asked for; by default accuracy, or agreement without labels."""
        require_choice(outputs, "outputs", OUTPUTS)
        threshold = require_number(threshold, "threshold", remedy="pass the value that an output must exceed")
        if labels is not None:
            require_sequence(labels, "labels")
        name, function = ("own", metric) if callable(metric) else (metric, None)
        if name is None:
            name = "agreement" if labels is None else "accuracy"
        if function is None and name not in METRICS:
            raise KannError(f"metric={short_repr(metric)} is unknown; pass one of {METRICS}, or a function of outputs")
        if name in ("accuracy", "loss") and labels is None:
            raise KannError(f"metric={name!r} needs labels=, one for each sequence")
        ignores = function is None and outputs != "values" and has_ignored(labels)
        return Scorer(
            name=name, outputs=outputs, threshold=threshold, labels=labels, function=function, ignores=ignores
        )

    @property
    def is_r_squared(self) -> bool:
        """Whether scores are parts of an R², which one batch alone does not tell."""
        return self.outputs == "values" and self.name in ("agreement", "accuracy")

    def __call__(
        self, outputs: Shaped[Array, "b ..."], untouched: Shaped[Array, "b ..."], batch: Batch
    ) -> Float[Array, " b"]:
        """Score each sequence of a batch: of an R² the squared error, Σ|output − wanted|² over steps and outputs."""
        if self.function is not None:
            return self._own(outputs, untouched, batch)
        wanted, weights = self._wanted(outputs, untouched, batch), step_weights(outputs, batch.real)[..., None]
        if self.ignores:
            weights = weights * (self._labels(outputs, batch).reshape(*weights.shape[:2], -1) != IGNORED)
        if self.name == "loss":
            return _mean_over_steps(self._losses(outputs, wanted), weights)
        if self.outputs == "values":
            return np.sum(np.square(_by_step(outputs) - wanted) * weights, axis=(1, 2))
        return _mean_over_steps(self._decided(outputs) == wanted.reshape(*weights.shape[:2], -1), weights)

    def variation(self, untouched: Shaped[Array, "b ..."], batch: Batch) -> Comparison:
        """Measure how far the wanted values of a batch vary; variations of batches are added with +."""
        is_real = step_weights(untouched, batch.real) > 0
        wanted = self._wanted(untouched, untouched, batch)[is_real]
        return compare_values(wanted, wanted)

    def _own(self, outputs: Array, untouched: Array, batch: Batch) -> Float[Array, " b"]:
        against = untouched if self.labels is None else np.array([self.labels[i] for i in batch.numbers])
        assert self.function is not None  # noqa: S101  # the caller has seen that there is one
        scores = as_numpy(self.function(outputs, against)).astype(np.float64)
        if scores.shape != (len(outputs),):
            raise KannError(
                f"metric returned shape {scores.shape} for {len(outputs)} sequences; return one number for each"
            )
        return scores

    def _wanted(self, outputs: Array, untouched: Array, batch: Batch) -> Shaped[Array, "b t ..."]:
        """Return the decisions or values of the untouched network, or the labels, that outputs are compared with."""
        if self.name == "agreement":
            return _by_step(untouched) if self.outputs == "values" else self._decided(untouched)
        return self._labels(outputs, batch)

    def _labels(self, outputs: Array, batch: Batch) -> Shaped[Array, "b t ..."]:
        """Return the labels of each step."""
        steps, width = _by_step(outputs).shape[1:]
        kind: Any = {} if self.outputs == "class" else {"width": width}
        where: Any = {"steps": steps, "has_steps": outputs.ndim > 2} | kind
        return labels_by_step(self.labels, batch.numbers, first_steps(batch), **where)

    def _decided(self, outputs: Array) -> Shaped[Array, "b t k"]:
        """Return the class of each step, or its answers; the last axis of the outputs is decided over."""
        rows = outputs.reshape(-1, outputs.shape[-1]) if outputs.ndim > 2 else outputs.reshape(len(outputs), -1)
        found = answers(rows, kind=self.outputs, threshold=self.threshold)
        return found.reshape(*_by_step(outputs).shape[:2], -1)

    def _losses(self, outputs: Array, wanted: Shaped[Array, "b t ..."]) -> Float[Array, "b t ..."]:
        """Compute the cross-entropy of each decision, or the squared error of each value."""
        steps = torch.from_numpy(_by_step(outputs)).double()
        target = torch.from_numpy(wanted)
        if self.outputs == "values":
            return as_numpy((steps - target) ** 2)
        if self.outputs == "class" and steps.shape[-1] > 1:
            return as_numpy(cross_entropy(steps.movedim(-1, 1), target, reduction="none"))
        answered = steps if self.outputs == "labels" else steps[..., 0]
        return as_numpy(binary_cross_entropy_with_logits(answered, target.double(), reduction="none"))


def _by_step(outputs: Shaped[Array, "b ..."]) -> Shaped[Array, "b t o"]:
    """Return outputs of every sequence, step and unit; a network that decides once for a sequence has one step."""
    return outputs.reshape(*(outputs.shape[:2] if outputs.ndim > 2 else (len(outputs), 1)), -1)


def first_steps(batch: Batch) -> Int[Array, " b"]:
    """Return the first real step of each sequence: 0 unless it is padded on the left."""
    return np.zeros(len(batch), dtype=np.int64) if batch.real is None else batch.real.starts


def step_weights(outputs: Shaped[Array, "b ..."], real: RealSteps | None) -> Float[Array, "b t"]:
    """Return 1 for every step that counts, and 0 for padding."""
    shape = _by_step(outputs).shape[:2]
    return np.ones(shape) if real is None or outputs.ndim < 3 else real.mask(shape[1]).astype(np.float64)


def _mean_over_steps(values: Shaped[Array, "b t ..."], weights: Float[Array, "b t _"]) -> Float[Array, " b"]:
    """Average over the steps, and the answers of each step, that count."""
    values = values.reshape(*weights.shape[:2], -1)
    weights = np.broadcast_to(weights, values.shape)
    return (values * weights).sum(axis=(1, 2)) / np.maximum(weights.sum(axis=(1, 2)), 1)


def outputs_of(output: Any, sequences: int) -> Tensor:
    """Return the outputs by which a model decides: the first real tensor, with sequences along the first axis."""
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

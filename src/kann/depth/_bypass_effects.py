"""Measure what a network does with spans of its layers replaced by linear operators."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis.intervals import require_level
from kann.backends.arrays import as_numpy
from kann.checks import require_flag, require_instance, require_sequence, shown
from kann.data.states import as_states
from kann.depth._bypass import Span, bypass, maps_of, span_of
from kann.depth.maps import StepMaps, fit_steps
from kann.depth.results import METHODS, BypassEffects
from kann.errors import KannError
from kann.live.evaluation import first_steps, labels_of_classes, run_batches, step_weights
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import Batch, SequenceData
from kann.typing import Array, Float

IGNORED = -100
"""The label of a step that does not count, as torch's cross-entropy has it: such as the last one of a text."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reference:
    """What the untouched network gives for a group of sequences, and what it should give."""

    logarithms: Float[Tensor, "b t o"]
    """Logarithms of its probabilities."""
    weights: Float[Tensor, "b t"]
    """1 for every step that counts, and 0 for padding."""
    labels: Any
    """(b, t) classes, `IGNORED` where there is none; or None."""

    @staticmethod
    def of(outputs: Tensor, batch: Batch, labels: Any) -> "Reference":
        """From the outputs of the untouched network."""
        shape = np.empty((*outputs.shape[:-1], 1)[: outputs.ndim])  # its width does not matter, and may be huge
        weights = torch.from_numpy(step_weights(shape, batch.real)).to(outputs.device)
        wanted = None
        if labels is not None:
            where: Any = {"starts": first_steps(batch), "steps": weights.shape[1], "has_steps": outputs.ndim > 2}
            wanted = torch.from_numpy(labels_of_classes(labels, batch.numbers, **where)).to(outputs.device)
        return Reference(logarithms=log_probabilities(outputs), weights=weights, labels=wanted)

    def scores(self, logarithms: Float[Tensor, "b t o"]) -> dict[str, Float[Array, " b"]]:
        """By measure, the score of each sequence: the mean over its steps."""
        own, decided = self.logarithms, logarithms.argmax(-1)
        # Of a class that is impossible for both the product would be 0 · −∞.
        divergence = torch.nan_to_num(own.exp() * (own - logarithms), nan=0.0).sum(-1)
        found = {"kl": divergence, "agreement": (decided == own.argmax(-1)).double()}
        means = {name: _mean(values, self.weights) for name, values in found.items()}
        if self.labels is None:
            return means
        has_label = self.weights * (self.labels != IGNORED)
        wanted = self.labels.clamp(min=0)
        loss = -logarithms.gather(-1, wanted[..., None])[..., 0]
        labelled = {"loss": loss, "accuracy": (decided == wanted).double()}
        return means | {name: _mean(values, has_label) for name, values in labelled.items()}


def log_probabilities(outputs: Tensor) -> Float[Tensor, "b t o"]:
    """Logarithms of the probabilities of classes at each step; a single output is the logit of yes against no."""
    steps = outputs.reshape(len(outputs), 1, -1)
    if outputs.ndim > 2:
        steps = outputs.reshape(*outputs.shape[:2], -1)
    steps = steps.to(torch.promote_types(steps.dtype, torch.float32))
    if steps.shape[-1] == 1:
        steps = torch.cat([torch.zeros_like(steps), steps], dim=-1)
    return steps.log_softmax(-1)


def _mean(values: Tensor, weights: Tensor) -> Float[Array, " b"]:
    """The mean over the steps that count; 0 for a sequence without any."""
    return as_numpy((values.double() * weights).sum(1) / weights.sum(1).clamp(min=1))


Scores = dict[str, Float[Array, " _"]]
"""By measure: the score of each sequence of a group."""


def bypass_effects(
    model: nn.Module,
    data: Any,
    maps: StepMaps,
    states: Any,
    *,
    spans: Sequence[tuple[str, str]],
    labels: Any = None,
    groups: Any = None,
    lengths: Any = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 128,
    device: Any = None,
    level: float = 0.95,
    progress: bool = True,
) -> BypassEffects:
    """Test which layers can be replaced: run the model with spans of them bypassed, and compare with the untouched one.

    In place of each span come the identity, one operator for all layers, the own map of each layer, and one map for the
    whole span, which is fitted here. What was finished is returned if the work is interrupted.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Block(nn.Linear):
    ...     def forward(self, x):
    ...         return x + super().forward(x)
    >>> model, x = nn.Sequential(nn.Sequential(*(Block(4, 4) for _ in range(3))), nn.Linear(4, 5)), torch.randn(60, 4)
    >>> states = kann.record(model, x[:40], layer="0.*", axis="depth", embedding=True)
    >>> maps = kann.depth.fit(states)
    >>> found = kann.depth.bypass_effects(model, x[40:], maps, states, spans=[("0.0", "0.1")])
    >>> found.means["agreement"].shape  # one span, four methods
    (1, 4)
    >>> bool(found.means["kl"][0, 3] < 1e-6)  # blocks that are affine are one map
    True

    Parameters
    ----------
    model
        The model that the states were recorded from.
    data
        What the model reads, as for `kann.record`; other sequences than the states are of.
    maps
        One map for each layer and one operator for all, from ``kann.depth.fit(states)``.
    states
        The states that the maps were fitted to, recorded along depth from all layers of the list with
        ``embedding=True``; the map of each span is fitted to them.
    spans
        The first and the last layer of each span, both included: ``[("layers.0", "layers.2"), ...]``.
    labels
        The class of each sequence, or of each of its steps for a model that gives (sequences, steps, classes); −100
        for a step that does not count. Of a language model the next token of each.
    groups
        For each sequence of the states who it comes from, such as its text, for the ridges of the spans' maps.
    lengths, forward, collate, batch_size, device
        How to read the data and to call the model, as in `kann.record`. The first real numbers that the model, or
        ``forward``, returns are the logits.
    level
        Confidence level of the intervals over sequences.
    progress
        Whether to show a progress bar if it takes long.
    """
    require_instance(maps, StepMaps, "maps")
    require_flag(progress, "progress")
    require_level(level)
    if labels is not None:
        require_sequence(labels, "labels")
    jobs = _jobs(spans_of(model, spans), maps, states, groups)
    run: Any = {"lengths": lengths, "forward": forward, "collate": collate, "device": device, "progress": progress}
    source = SequenceData(model, data, batch_size=batch_size, **run)
    batches = source.groups()
    if labels is not None and len(labels) != sum(map(len, batches)):
        raise KannError(f"there are {len(labels)} labels for {sum(map(len, batches))} sequences; pass one for each")
    changes = [
        partial(bypass, model, job.span.names[0], job.span.names[-1], operator)
        for job in jobs
        for operator in job.operators.values()
    ]

    def judge(batch: Batch, untouched: Tensor) -> Callable[[Tensor], Scores]:
        reference = Reference.of(untouched, batch, labels)
        return lambda outputs: reference.scores(log_probabilities(outputs))

    with evaluation_mode(model):
        finished = run_batches(source, batches, changes, judge, what="bypasses")
    return _gathered(jobs, finished, level=level)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """A span, and the operator that takes its place by each method."""

    span: Span
    operators: dict[str, Any]


def spans_of(model: nn.Module, spans: Any) -> list[Span]:
    """The spans of layers that the user names."""
    if isinstance(spans, str) or not isinstance(spans, Sequence) or not len(spans):
        raise KannError(f"spans={shown(spans)} are no spans; pass a list such as [('layers.0', 'layers.2')]")
    found = []
    for each in spans:
        if isinstance(each, str) or not isinstance(each, Sequence) or len(each) != 2:
            raise KannError(f"{shown(each)} is no span; pass its first and its last layer, ('layers.0', 'layers.2')")
        found.append(span_of(model, each[0], each[1]))
    return found


def _jobs(spans: Sequence[Span], maps: StepMaps, states: Any, groups: Any) -> list[Job]:
    """What is to be run. The maps of all spans are fitted in one reading of the states."""
    for span in spans:
        maps_of(maps, span)  # refuses maps of other layers before anything is fitted
    long = [span for span in spans if len(span) > 1]
    steps = [(span.first, span.first + len(span)) for span in long]
    fitted = []
    if steps:
        fitted = fit_steps(as_states(states), steps, ridge=None, groups=groups)
    whole = dict(zip(steps, fitted, strict=True))
    jobs = []
    for span in spans:
        operators: dict[str, Any] = {"identity": None, "one": maps.one, "each": maps}
        if len(span) > 1:  # of a single layer it would be its own map
            operators["span"] = whole[span.first, span.first + len(span)]
        jobs.append(Job(span=span, operators=operators))
    return jobs


def _gathered(jobs: Sequence[Job], finished: Sequence[tuple[Batch, list[Scores]]], *, level: float) -> BypassEffects:
    """The scores of all batches, the sequences in the order of the data."""
    numbers = np.concatenate([batch.numbers for batch, _ in finished])
    order = np.argsort(numbers)
    measures = list(finished[0][1][0])
    runs = [(job.span, method) for job in jobs for method in job.operators]

    def joined(measure: str, run: int) -> Float[Array, " s"]:
        return np.concatenate([scores[run][measure] for _, scores in finished])[order]

    def row(job: Job, method: str) -> int:
        """The run of a method, of which a single layer has no map of the whole span: it would be its own map."""
        return 1 + runs.index((job.span, method if method in job.operators else "each"))

    return BypassEffects(
        spans=tuple((job.span.names[0], job.span.names[-1]) for job in jobs),
        layers=np.array([len(job.span) for job in jobs]),
        scores={
            measure: np.array([[joined(measure, row(job, method)) for method in METHODS] for job in jobs])
            for measure in measures
        },
        untouched={measure: joined(measure, 0) for measure in measures},
        judged=numbers[order],
        level=level,
    )

"""Score a network with spans of its layers replaced by linear operators."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis.intervals import require_level
from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_sequence, short_repr
from kann.data.states import as_states
from kann.depth._bypass import Span, bypass, maps_of, span_of
from kann.depth.maps import StepMaps, fit_steps
from kann.depth.results import METHODS, BypassEffects
from kann.errors import KannError
from kann.live.evaluation import (
    IGNORED,
    first_steps,
    labels_by_step,
    order_of_judged,
    require_label_of_each,
    run_batches,
    step_weights,
)
from kann.recording.options import RunOptions
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import Batch, SequenceData
from kann.typing import Array, Float

BATCH_SIZE = 128


Scores = dict[str, Float[Array, " _"]]
"""By measure: the score of each sequence of a batch."""


def _judge(labels: Any, batch: Batch, untouched: Tensor) -> Callable[[Tensor], Scores]:
    """From the outputs of the untouched network, a function that scores outputs: means over the steps that count."""
    own = log_probabilities(untouched)
    shape = np.empty((*untouched.shape[:-1], 1)[: untouched.ndim])  # its width does not matter, and may be huge
    weights = torch.from_numpy(step_weights(shape, batch.real)).to(untouched.device)
    wanted, has_label = None, weights
    if labels is not None:
        where: Any = {"sequences": batch.numbers, "starts": first_steps(batch)}
        where |= {"steps": weights.shape[1], "has_steps": untouched.ndim > 2}
        wanted = torch.from_numpy(labels_by_step(labels, **where)).to(untouched.device)
        has_label = weights * (wanted != IGNORED)

    def scores(outputs: Tensor) -> Scores:
        logarithms = log_probabilities(outputs)
        decided = logarithms.argmax(-1)
        # Of a class that is impossible for both the product would be 0 · −∞.
        divergence = torch.nan_to_num(own.exp() * (own - logarithms), nan=0.0).sum(-1)
        found = {"kl": _mean(divergence, weights), "agreement": _mean((decided == own.argmax(-1)).double(), weights)}
        if wanted is not None:
            loss = -logarithms.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
            found["loss"] = _mean(loss, has_label)
            found["accuracy"] = _mean((decided == wanted.clamp(min=0)).double(), has_label)
        return found

    return scores


def log_probabilities(outputs: Tensor) -> Float[Tensor, "b t o"]:
    """Logarithms of the probabilities of classes at each step; a single output is the logit of yes against no."""
    steps = outputs.reshape(len(outputs), outputs.shape[1] if outputs.ndim > 2 else 1, -1)
    steps = steps.to(torch.promote_types(steps.dtype, torch.float32))
    if steps.shape[-1] == 1:
        steps = torch.cat([torch.zeros_like(steps), steps], dim=-1)
    return steps.log_softmax(-1)


def _mean(values: Tensor, weights: Tensor) -> Float[Array, " b"]:
    """The mean over the steps that count."""
    return as_numpy((values.double() * weights).sum(1) / weights.sum(1).clamp(min=1))


def bypass_effects(
    model: nn.Module,
    data: Any,
    maps: StepMaps,
    states: Any,
    *,
    spans: Sequence[tuple[str, str]],
    labels: Any = None,
    groups: Any = None,
    level: float = 0.95,
    **run: Unpack[RunOptions],
) -> BypassEffects:
    """Test which layers can be replaced: run the model with spans of them bypassed, and compare with the untouched one.

    Each span is replaced by the identity, one operator for all layers, the map of each layer, and one map for the whole
    span, which is fitted here. If the work is interrupted, the finished batches are returned.

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
    model, data
        The model that the states were recorded from, and its data, as for `kann.record`; other sequences than those of
        the states.
    maps
        What `kann.depth.fit` returned.
    states
        The states that the maps were fitted to, recorded along depth from all layers of the list with
        ``embedding=True``; the map of each span is fitted to them.
    spans
        The first and the last layer of each span, both included: ``[("layers.0", "layers.2"), ...]``.
    labels
        The class of each sequence, or of each of its steps for a model that gives (sequences, steps, classes); −100
        for a step that does not count; sequences without another are left out. For a language model, the next token of
        each step.
    groups
        For each sequence of the states the group that it belongs to, such as its text, for the ridges of the spans'
        maps.
    level
        Confidence level of the intervals over sequences.
    run
        `kann.recording.RunOptions`; ``batch_size`` is 128 by default. The first real numbers that the model, or
        ``forward``, returns are the logits.
    """
    require_instance(maps, StepMaps, "maps")
    require_level(level)
    if labels is not None:
        require_sequence(labels, "labels")
    found_spans = spans_of(model, spans)
    operators = _operators(found_spans, maps, states, groups)
    options: Any = {"batch_size": BATCH_SIZE} | run
    source = SequenceData(model, data, **options)
    batches = source.groups()
    require_label_of_each(labels, sum(map(len, batches)), may_be_more=source.max_sequences is not None)
    runs = [(place, method) for place, methods in enumerate(operators) for method in methods]
    ends = [(span.names[0], span.names[-1]) for span in found_spans]
    changes = [partial(bypass, model, *ends[place], operators[place][method]) for place, method in runs]
    with evaluation_mode(model):
        finished = run_batches(source, batches, changes, partial(_judge, labels), what="bypasses")
    numbers = np.concatenate([batch.numbers for batch, _ in finished])
    order = order_of_judged(numbers, source, labels)

    def joined(measure: str, run: int) -> Float[Array, " s"]:
        return np.concatenate([scores[run][measure] for _, scores in finished])[order]

    def scores_of(measure: str, place: int) -> list[Float[Array, " s"]]:
        # For a single layer the map of the whole span is the map of the layer.
        methods = [method if method in operators[place] else "each" for method in METHODS]
        return [joined(measure, 1 + runs.index((place, method))) for method in methods]

    measures = list(finished[0][1][0])
    return BypassEffects(
        spans=tuple(ends),
        layers=np.array([len(span) for span in found_spans]),
        scores={name: np.array([scores_of(name, place) for place in range(len(ends))]) for name in measures},
        untouched={name: joined(name, 0) for name in measures},
        judged=numbers[order],
        level=level,
    )


def spans_of(model: nn.Module, spans: Any) -> list[Span]:
    """The spans of layers that the user names."""
    if isinstance(spans, str) or not isinstance(spans, Sequence) or not len(spans):
        raise KannError(f"spans={short_repr(spans)} are no spans; pass a list such as [('layers.0', 'layers.2')]")
    found = []
    for each in spans:
        if isinstance(each, str) or not isinstance(each, Sequence) or len(each) != 2:
            raise KannError(
                f"{short_repr(each)} is no span; pass its first and its last layer, ('layers.0', 'layers.2')"
            )
        found.append(span_of(model, each[0], each[1]))
    return found


def _operators(spans: Sequence[Span], maps: StepMaps, states: Any, groups: Any) -> list[dict[str, Any]]:
    """By method, the operator that replaces each span. All maps of spans are fitted in one reading of the states."""
    for span in spans:
        maps_of(maps, span)  # raises for maps of other layers before anything is fitted
    steps = [(span.first, span.first + len(span)) for span in spans if len(span) > 1]
    fitted = fit_steps(as_states(states), steps, ridge=None, groups=groups) if steps else []
    whole = {(own.first, own.last + 1): {"span": own} for own in fitted}
    methods = {"identity": None, "one": maps.one, "each": maps}
    return [methods | whole.get((span.first, span.first + len(span)), {}) for span in spans]

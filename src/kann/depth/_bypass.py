"""Run a model with spans of its layers replaced by linear operators, and score what it still does."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis.intervals import require_level
from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_sequence, short_repr
from kann.data.states import as_states
from kann.depth.maps import AffineMap, StepMaps, fit_steps
from kann.depth.results import METHODS, BypassEffects
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live._intervene import only_in_this_thread, replacement, turned_back_if, turned_if, with_tensors
from kann.live.evaluation import (
    IGNORED,
    first_steps,
    labels_by_step,
    order_of_judged,
    require_label_of_each,
    run_batches,
    step_weights,
)
from kann.recording.fused import states_replaced
from kann.recording.layer_selection import require_module, select
from kann.recording.runner import evaluation_mode, every_module_called, exclusive
from kann.recording.sequence_data import Batch, RunOptions, SequenceData, require_order, tensors_of
from kann.recording.tracer import has_channels_first, hook_last
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive layers of a model, both ends included."""

    names: tuple[str, ...]
    """As in ``model.named_modules()``."""
    modules: tuple[nn.Module, ...]
    first: int
    """The index of the first layer among all layers of its list."""
    siblings: int
    """The number of layers in the list."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def label(self) -> str:
        """Return a name such as ``"layers.10 – layers.15"``."""
        return self.names[0] if len(self) == 1 else f"{self.names[0]} – {self.names[-1]}"


def span_of(model: nn.Module, first: Any, last: Any) -> Span:
    """Find the layers from ``first`` to ``last``; raise if the model does not have them in one list in this order."""
    require_module(model)
    known = dict(model.named_modules(remove_duplicate=False))
    for name in (first, last):
        if not isinstance(name, str):
            raise KannError(
                f"{short_repr(name)} is no name of a layer; pass one of model.named_modules(), such as 'layers.3'"
            )
        targets, _ = select(model, name)  # raises with similar names if there is no such layer
        if not name or name not in known:  # patterns such as 'layers.*' select several
            close = ", ".join(repr(target.path) for target in targets[:8] if target.path)
            raise KannError(f"{name!r} is no single layer inside the model; pass one such as {close or 'layers.3'}")
    parent, other = (name.rpartition(".")[0] for name in (first, last))
    if parent != other:
        raise KannError(
            f"{first!r} and {last!r} are not layers of one list, such as 'layers.3' and 'layers.5'; bypass each list "
            "by itself, one kann.depth.bypass inside the other"
        )
    siblings = list(model.get_submodule(parent).named_children())
    paths = [f"{parent}.{child}".removeprefix(".") for child, _ in siblings]
    start, stop = paths.index(first), paths.index(last) + 1
    if stop <= start:
        raise KannError(f"{first!r} comes after {last!r}; pass the first layer of the span first")
    return Span(
        names=tuple(paths[start:stop]),
        modules=tuple(module for _, module in siblings[start:stop]),
        first=start,
        siblings=len(siblings),
    )


Operator = Koopman | AffineMap | StepMaps | Sequence[AffineMap | Koopman | None] | None
"""Replacements of a span of layers."""


@contextlib.contextmanager
def bypass(model: nn.Module, first: str, last: str, operator: Operator = None) -> Iterator[None]:
    """Run a model with a span of its layers replaced by an operator.

    >>> import kann
    >>> model = nn.Sequential(nn.Linear(3, 4), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 2))
    >>> x = torch.randn(50, 3)
    >>> states = kann.record(model, x, layer=["1", "2", "3"], axis="depth", embedding=True)
    >>> with kann.depth.bypass(model, "2", "3", kann.depth.fit_span(states, 1, 2)), torch.no_grad():
    ...     replaced = model(x)
    >>> bool((replaced - model(x)).abs().max() < 1e-4)  # these layers are affine, and one map is as good as both
    True

    Inside the block the model is called as always, in its current mode, in the thread that entered the block. Each
    layer of the span still runs and its output is replaced, so that caches of attention stay whole; an operator saves
    no time. A layer that is called several times, such as one that is shared along depth, is replaced at every call.
    `kann.record` inside the block records the replaced states. Afterwards the model is as it was, also after an error.

    Parameters
    ----------
    model
        Any torch module: a transformer with its layers, a residual network with its blocks. Of images, the channels
        are mapped at every pixel.
    first, last
        The names of the first and the last layer of the span, both included, as in ``model.named_modules()``. They
        must be layers of one list, and give states of the shape that they read.
    operator
        The replacement of the span. None: the span is skipped. A `Koopman`: the same operator for each layer.
        `StepMaps`, fitted to states that were recorded from all layers of the list with ``embedding=True``: the map of
        each layer. An `AffineMap` from `kann.depth.fit_span`: one map for the whole span. Or a list with an operator
        for each layer.
    """
    span = span_of(model, first, last)
    maps = maps_of(operator, span)
    with contextlib.ExitStack() as stack:
        for name, module in zip(span.names, span.modules, strict=True):
            in_use = (
                f"the states of {name!r} are being replaced already, in this thread or another; leave the other "
                "kann.depth.bypass or kann.intervene first, and replace a layer in one of them"
            )
            stack.enter_context(exclusive(states_replaced(module), partial(KannError, in_use)))
        stack.enter_context(every_module_called())
        for name, module, own in zip(span.names, span.modules, maps, strict=True):
            hook_last(module, _replaces_output(name, own), stack)
        yield


@dataclass(frozen=True, slots=True)
class WholeMap:
    """A map of whole states, h ↦ h A + b, of arrays or tensors; it replaces states as a fill does."""

    matrix: Any
    offset: Any

    def on(self, convert: Callable[[Array], Tensor]) -> "WholeMap":
        """Convert the arrays of the map."""
        return WholeMap(convert(self.matrix), convert(self.offset))

    def kept(self, h: Tensor) -> Tensor:
        """Apply the map to states."""
        return h @ self.matrix + self.offset


def maps_of(operator: Any, span: Span) -> list[WholeMap | None]:
    """Return the map that replaces each layer; None for the identity."""
    if operator is None:
        return [None] * len(span)
    if isinstance(operator, Koopman):
        return [_affine(operator)] * len(span)
    if isinstance(operator, AffineMap):
        steps = operator.last - operator.first + 1
        if steps != len(span):
            raise KannError(
                f"the map stands for {steps} steps, and {span.label!r} has {len(span)} layers; pass "
                f"kann.depth.fit_span of {len(span)} layers"
            )
        return [_affine(operator), *[None] * (len(span) - 1)]
    if isinstance(operator, StepMaps):
        if len(operator) != span.siblings:
            raise KannError(
                f"there are {len(operator)} maps, and {span.label!r} is of {span.siblings} layers, so that it is not "
                f"known whose each one is; pass a list of {len(span)} maps, such as maps.each[3:6]"
            )
        return [_affine(own) for own in operator.each[span.first : span.first + len(span)]]
    if isinstance(operator, list | tuple):
        if len(operator) != len(span):
            raise KannError(f"there are {len(operator)} operators for {len(span)} layers; pass one for each layer")
        return [None if each is None else _affine(each) for each in operator]
    raise KannError(
        f"operator={short_repr(operator)} cannot take the place of layers; pass None, a Koopman, kann.depth.fit_span, "
        "kann.depth.fit, or a list with an operator for each layer"
    )


def _affine(operator: Any) -> WholeMap:
    if isinstance(operator, AffineMap):
        return WholeMap(operator.matrix, operator.offset)
    if not isinstance(operator, Koopman):
        raise KannError(f"{short_repr(operator)} is no operator of states; pass a Koopman or an AffineMap")
    if operator.drive is not None:
        raise KannError("the operator is driven by inputs, which layers do not read; pass one fitted without driven=")
    matrix, offset = operator.basis @ operator.matrix @ operator.state_vectors, operator.mean.copy()
    if operator.offset is not None:
        offset = offset + operator.offset @ operator.state_vectors
    return WholeMap(matrix, offset - operator.mean @ matrix)


def _replaces_output(name: str, own: WholeMap | None) -> Callable[..., Any]:
    """Make a forward hook that replaces a layer's output, its first real tensor, by the map of its input."""
    require_own_thread = only_in_this_thread(name, "kann.depth.bypass")
    mapped = replacement(own, keep=True) if own else None

    def replace(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        require_own_thread()
        given = next((part for part in tensors_of(output) if part.is_floating_point()), None)
        if given is None:
            raise KannError(
                f"layer {name!r} gives {type(output).__name__} without real numbers; pass layers that give states"
            )
        parts = [part for part in tensors_of((args, kwargs)) if part.is_floating_point()]
        read = next((part for part in parts if part.shape == given.shape), None)
        if read is None:
            raise KannError(
                f"layer {name!r} reads {[tuple(part.shape) for part in parts]} and gives {tuple(given.shape)}; only "
                "layers that keep the shape of the states can be bypassed"
            )
        if own and mapped:
            width = len(own.offset)
            is_image = read.ndim == 4 and read.shape[-1] != width == read.shape[1]
            turned = has_channels_first(module, read) or is_image
            rows = turned_if(turned, read)
            if rows.shape[-1] != width:
                raise KannError(
                    f"the operator is for {width} units; layer {name!r} reads {tuple(read.shape)}; pass an operator "
                    "that was fitted to states of these layers"
                )
            precise = rows.to(torch.promote_types(rows.dtype, given.dtype))
            read = turned_back_if(turned, mapped(precise))
        return with_tensors(output, {id(given): read.to(given.dtype)})

    return replace


# Scores of the network with spans replaced

Scores = dict[str, Float[Array, " _"]]
"""By measure: the score of each sequence of a batch."""


def _judge(labels: Any, batch: Batch, untouched: Tensor) -> Callable[[Tensor], Scores]:
    """Make a function that scores outputs against those of the untouched network: means over steps that count."""
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
    """Compute log-probabilities of classes at each step; a single output is the logit of yes against no."""
    steps = outputs.reshape(len(outputs), outputs.shape[1] if outputs.ndim > 2 else 1, -1)
    steps = steps.to(torch.promote_types(steps.dtype, torch.float32))
    if steps.shape[-1] == 1:
        steps = torch.cat([torch.zeros_like(steps), steps], dim=-1)
    return steps.log_softmax(-1)


def _mean(values: Tensor, weights: Tensor) -> Float[Array, " b"]:
    """Average over the steps that count."""
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
        `kann.recording.RunOptions`; ``batch_size`` is None by default. The first real numbers that the model, or
        ``forward``, returns are the logits.
    """
    require_instance(maps, StepMaps, "maps")
    require_level(level)
    if labels is not None:
        require_sequence(labels, "labels")
        require_order(data, labels=labels)
    found_spans = spans_of(model, spans)
    operators = _operators(found_spans, maps, states, groups)
    options: Any = {"batch_size": None} | run
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
    """Return the spans of layers that the user names."""
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
    """Return by method the operator that replaces each span, with all maps fitted in one reading of the states."""
    for span in spans:
        maps_of(maps, span)  # raises for maps of other layers before anything is fitted
    steps = [(span.first, span.first + len(span)) for span in spans if len(span) > 1]
    fitted = fit_steps(as_states(states), steps, ridge=None, groups=groups) if steps else []
    whole = {(own.first, own.last + 1): {"span": own} for own in fitted}
    methods = {"identity": None, "one": maps.one, "each": maps}
    return [methods | whole.get((span.first, span.first + len(span)), {}) for span in spans]

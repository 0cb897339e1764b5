"""Balance a running network: adjoints of its states, by automatic differentiation through every step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kann.analysis.decisions import OUTPUTS
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_sequence, require_whole_number
from kann.errors import KannError
from kann.fitting.balance import Balance
from kann.live._intervene import only_target, replaced, width_of
from kann.live.evaluation import (
    IGNORED,
    first_steps,
    kind_by_labels,
    labels_by_step,
    outputs_of,
    require_label_of_each,
    step_weights,
)
from kann.progress import progress
from kann.recording._record import record
from kann.recording.layer_selection import Target, state_widths
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import Batch, RunOptions, SequenceData, require_order, tensors_of
from kann.recording.tracer import has_time_first
from kann.typing import Array, Float, Int, Shaped

MOST_NUMBERS = 2**27
"""Numbers in the snapshots of states and adjoints: 0.5 GB in float32. More rows are thinned out at random."""

GRAPH_BYTES = {"cpu": 2**29, "cuda": 2**32}
"""Memory that the graph of one batch may take. With half of it a CPU takes up to a quarter longer, because a step has
fewer sequences; with twice as much it gains little (benchmarks/balance.py)."""

FALLBACK = "use kann.Balance.of_states(kann.record(...)), whose directions are principal components"


def balance(
    model: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    state: str | None = None,
    outputs: str = "auto",
    labels: Any = None,
    sequences: int = 256,
    draws: int = 4,
    seed: int = 0,
    **run: Unpack[RunOptions],
) -> Balance:
    """Find the few coordinates of a state that the outputs of a network depend on.

    Adjoints g_t = ∂(v·y)/∂h_t are the gradients of random combinations v of the outputs y with respect to the state
    after every step, by backpropagation through the running network. `Balance` combines their second moments with the
    covariance of the states.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> balance = kann.balance(Reader(), torch.randn(40, 6, 3))
    >>> balance.directions.shape
    (8, 8)

    Steps after the end of a sequence, and states that no output depends on, are left out. Adjoints are scaled to the
    same mean energy at every number of steps before the end, so that gradients that explode or vanish over time do not
    hide all other steps. The model's mode, buffers, gradients and random numbers stay as they are.

    Parameters
    ----------
    model
        A torch module whose outputs are differentiable functions of the layer's states.
    data
        Input of the model, as for `kann.record`.
    layer
        The layer, named as in `kann.record`; any that `kann.intervene` can replace. Default: the only recurrent one.
        Of modules that are not recurrent, each position of the output is a state.
    state
        The state of an LSTM: "h", "c" or "hc". Default: all that the layer carries from step to step, "hc" for LSTMs.
    outputs
        Kind of the outputs. ``"class"``: only differences along the last axis count. ``"labels"``, ``"values"``: each
        output counts by itself. ``"auto"``: what ``labels`` imply; without labels, values if they have the shape of
        what the network reads, else classes. A regression with several outputs per sequence needs ``"values"``.
    labels
        The label of each sequence, or of each of its steps; outputs whose label is −100 do not count. Of
        ``outputs="labels"``, those of each output.
    sequences
        Number of sequences to run, drawn at random from data that are not batches, else the first ones.
    draws
        Number of random combinations of the outputs of each sequence, or of each step where there are outputs at
        every step. One is exact for a single output per sequence.
    seed
        Seed of everything random. Combinations of outputs are drawn for each sequence by its number, so that the
        batch size and the device do not change them.
    run
        How to read the data and to call the model, as in `kann.record`. ``batch_size`` is chosen by memory.

    Returns
    -------
    Balance
        Directions, their singular values, and `Balance.count` with an interval over resampled sequences.
    """
    require_choice(outputs, "outputs", ("auto", *OUTPUTS))
    require_whole_number(sequences, "sequences")
    require_whole_number(draws, "draws")
    if labels is not None:
        require_sequence(labels, "labels")
        require_order(data, labels=labels)
    target = only_target(model, layer, state or "h")
    state = state or "".join(state_widths(target.module)) or "h"
    source = SequenceData(model, data, **run)
    with torch.inference_mode(False), evaluation_mode(model):
        torch.manual_seed(seed)  # a loader may shuffle
        most, drawn = source.max_sequences, None
        if source.count is not None:
            count = min(source.count, most or source.count)
            require_label_of_each(labels, count, may_be_more=most is not None)
            drawn = np.random.default_rng(seed).permutation(count)[:sequences]
        if drawn is None:
            batches = source.first_groups(min(sequences, most or sequences))
            require_label_of_each(labels, sum(map(len, batches)), may_be_more=True)
        else:
            source = source.take(drawn)
            source.batch_size = 1
            batches = source.groups()  # the longest first, to measure its graph
        width = width_of(target, state) or _recorded_width(source, batches[0], layer, state)
    network = _Network(source, target, state, width, kind=outputs, seed=seed)
    with torch.inference_mode(False), evaluation_mode(model, gradients=True):
        torch.manual_seed(seed)
        if drawn is not None:
            source.batch_size = run.get("batch_size") or network.batch_size(batches[0])
            batches = source.groups()
            for batch in batches:
                batch.numbers = drawn[batch.numbers]
        snapshots = _Snapshots(seed)
        is_shown = run.get("progress", True)
        bar = progress(batches, what="balance", total=len(batches), unit="batch") if is_shown else batches
        for batch in bar:
            snapshots.add(*network.adjoints(batch, labels=labels, draws=draws))
    return replace(snapshots.balance(), outputs=network.kind)


def _recorded_width(source: SequenceData, batch: Batch, layer: Any, state: str) -> int:
    """Record some states of a module to see how wide they are."""
    forward = lambda model, content: source.call(Batch(content=content, real=batch.real))  # noqa: E731
    return record(
        source.model, iter([batch.content]), layer=layer, state=state, forward=forward, max_sequences=1, progress=False
    ).dim


class _Network:
    """A network whose adjoints are computed, and the layer whose states they are of."""

    def __init__(self, source: SequenceData, target: Target, state: str, width: int, *, kind: str, seed: int):
        self._source, self._target = source, target
        self.kind, self._seed = kind, seed
        self._place: Any = {"state": state, "width": width}
        self._states: list[Tensor] = []
        self._zeros: list[Tensor] = []

    def _run(self, batch: Batch) -> Any:
        """Run the model with a zero added to its states in every call; gradients with respect to it are adjoints."""
        self._states, self._zeros = [], []

        def add_zero(states: Tensor) -> Tensor:
            zero = torch.zeros_like(states, requires_grad=True)
            self._states.append(states.detach())
            self._zeros.append(zero)
            return states + zero

        with replaced(self._source.model, self._target, add_zero, whole=True, **self._place):
            return self._source.call(batch)

    def batch_size(self, one: Batch) -> int:
        """Number of sequences whose graph fits in memory, by the graph of ``one``."""
        sizes: dict[int, int] = {}

        def measure(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(measure, lambda tensor: tensor):
            output = self._run(one)  # kept, so that no storage is used twice
        for tensor in self._source.model.parameters():
            sizes.pop(tensor.untyped_storage().data_ptr(), None)
        needed = sum(sizes.values()) + sum(4 * states.nbytes for states in self._states)
        del output
        device = self._source.device
        available = GRAPH_BYTES.get(device.type if device else "cpu", GRAPH_BYTES["cpu"])
        return max(1, available // max(1, needed))

    def adjoints(self, batch: Batch, *, labels: Any, draws: int) -> "_Rows":
        """Compute states and adjoints, without those of padding and those that no output depends on."""
        outputs = outputs_of(self._run(batch), len(batch))
        if not self._states:
            raise KannError(f"layer {self._target.path!r} was not called; pass one that the model uses")
        outputs = outputs[:, None] if outputs.ndim == 1 else outputs
        if outputs.shape[-1] == 1:
            self.kind = "single"
        elif self.kind == "auto":
            by_labels = kind_by_labels(labels, outputs)
            like_inputs = "values" if _is_like_inputs(outputs, batch) else "class"
            self.kind = like_inputs if by_labels is None else by_labels[0]
        weights = torch.from_numpy(_weights(outputs, batch, labels, self.kind)).to(outputs)
        if outputs[0].numel() - (self.kind == "class") == 1:
            draws = 1  # there is one combination, but for its sign
        found = [self._gradients(outputs, weights, batch, draw, is_last=draw == draws - 1) for draw in range(draws)]
        rows = [self._rows(states, batch) for states in self._states]
        adjoints = torch.stack([torch.cat([self._rows(g, batch) for g in each]) for each in found], dim=1)
        sizes = torch.linalg.vector_norm(adjoints, dim=(1, 2), dtype=torch.float64).cpu().numpy()
        if not np.isfinite(sizes).all():
            raise KannError(
                "adjoints are not finite: they overflow, or data, states or weights hold NaN; shorten sequences, or "
                "run the model in float64 (model.double())"
            )
        places, calls, is_real = self._steps(batch, [len(each) for each in rows], len(batch))
        kept = is_real & (sizes > 0)
        last = np.zeros(len(batch), dtype=np.int64)
        np.maximum.at(last, places[kept], calls[kept])
        chosen = np.flatnonzero(kept)
        numbers, before_end = batch.numbers[places[kept]], (last[places] - calls)[kept]
        return _rows_at(torch.cat(rows), chosen), _rows_at(adjoints, chosen), sizes[kept] ** 2, numbers, before_end

    def _gradients(self, outputs: Tensor, weights: Tensor, batch: Batch, draw: int, *, is_last: bool) -> list[Tensor]:
        """Compute the gradients of a random combination of the outputs with respect to the states of each call."""
        if not outputs.requires_grad:
            raise KannError(f"the outputs have no gradient, as after detach(), no_grad() or argmax(); {FALLBACK}")
        v = torch.from_numpy(self._normal_numbers(outputs, batch, draw)).to(outputs)
        if self.kind == "class":
            v = v - v.mean(dim=-1, keepdim=True)
        # Of length 1: a single output counts alike in all sequences, and one draw of its sign is exact.
        v = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        v = v * weights
        try:
            found = torch.autograd.grad(outputs, self._zeros, v, retain_graph=not is_last, allow_unused=True)
        except RuntimeError as error:
            raise KannError(f"the outputs cannot be differentiated ({error}); {FALLBACK}") from error
        if all(each is None for each in found):
            raise KannError(
                f"the outputs do not depend on the states of {self._target.path!r} by steps that have gradients, as "
                f"after detach() or argmax(); {FALLBACK}"
            )
        return [zero.detach() if each is None else each for zero, each in zip(self._zeros, found, strict=True)]

    def _normal_numbers(self, outputs: Tensor, batch: Batch, draw: int) -> Float[Array, "b ..."]:
        """Draw random numbers for each output, which depend only on the number of the sequence and its step."""
        drawn = [
            np.random.default_rng((self._seed, draw, number)).standard_normal(outputs.shape[1:], dtype=np.float32)
            for number in batch.numbers.tolist()
        ]
        if outputs.ndim > 2:
            drawn = [np.roll(own, start, axis=0) for own, start in zip(drawn, first_steps(batch), strict=True)]
        return np.stack(drawn)

    def _rows(self, values: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
        """Return states as rows, of complete sequences one sequence after the other."""
        if values.ndim == 3 and has_time_first(values, self._target.module, batch):
            values = values.transpose(0, 1)
        return values.reshape(-1, values.shape[-1])

    def _steps(
        self, batch: Batch, sizes: Sequence[int], count: int
    ) -> tuple[Int[Array, " n"], Int[Array, " n"], Shaped[Array, " n"]]:
        """Return for each row its sequence in the batch, its call, and whether it is a real step."""
        calls = np.repeat(np.arange(len(sizes)), sizes)
        rows = np.concatenate([np.arange(size) for size in sizes])
        if self._states[0].ndim == 2 and max(sizes) <= count:  # a call for every step
            places = rows
            times = len(sizes) - 1 - calls if self._target.reverse else calls
        else:  # each call has all steps
            steps = np.repeat([max(1, size // count) for size in sizes], sizes)
            places, times = np.minimum(rows // steps, count - 1), rows % steps
        real = batch.real_of(self._target.path)
        # Packed sequences have no padding; they are sorted by length, so that places are those in the sorted batch.
        if real is None or min(sizes) < count:
            return places, calls, np.ones(len(rows), dtype=bool)
        return places, calls, (times >= real.starts[places]) & (times < real.ends[places])


def _weights(outputs: Tensor, batch: Batch, labels: Any, kind: str) -> Float[Array, "b ..."]:
    """Return 1 for every output that counts, 0 for padding and where the label is −100."""
    weights = step_weights(np.broadcast_to(np.float32(0), outputs.shape), batch.real)
    shape, starts = (*weights.shape, *[1] * (outputs.ndim - 2)), first_steps(batch)
    if labels is None:
        return weights.reshape(shape)
    if kind == "labels":
        steps, width = weights.shape[1], outputs.shape[-1]
        own = labels_by_step(labels, batch.numbers, starts, steps=steps, has_steps=outputs.ndim > 2, width=width)
        return (weights[..., None] * (own != IGNORED)).reshape(outputs.shape)
    for row, (number, start) in enumerate(zip(batch.numbers, starts, strict=True)):
        ignored = np.asarray(as_numpy(labels[number]) == IGNORED)
        if ignored.ndim == 1 and weights.shape[1] > 1:
            first = 0 if len(ignored) == weights.shape[1] else int(start)
            weights[row, first : first + len(ignored)][ignored] = 0
        elif ignored.all():
            weights[row] = 0
    return weights.reshape(shape)


def _is_like_inputs(outputs: Tensor, batch: Batch) -> bool:
    """Return True if outputs have the shape of the numbers that the model reads, as in an autoencoder."""
    content = batch.content
    if isinstance(content, list | tuple) and not isinstance(content, PackedSequence):
        content = content[0]  # what follows may be labels, which the model does not read
    shapes = {tuple(each.shape) for each in tensors_of(content) if each.is_floating_point()}
    own = tuple(outputs.shape)
    return any(own in (shape, (*shape, 1)) or (*own, 1) == shape for shape in shapes)


def _rows_at(rows: Any, chosen: Int[Array, " k"]) -> Any:
    """Select rows of a tensor or an array; all of them are not copied."""
    if len(chosen) == len(rows):
        return rows
    return rows[torch.from_numpy(chosen).to(rows.device)] if isinstance(rows, Tensor) else rows[chosen]


_Rows = tuple[Float[Tensor, "n d"], Float[Tensor, "n v d"], Float[Array, " n"], Int[Array, " n"], Int[Array, " n"]]
"""States, adjoints, their energies, the numbers of their sequences, and how many steps before the end they are."""


class _Snapshots:
    """States and adjoints of all batches, thinned out at random where they would not fit in memory."""

    def __init__(self, seed: int):
        self._rng, self._share = np.random.default_rng(seed), 1.0
        self._parts: list[list[Any]] = []

    def add(self, states: Tensor, adjoints: Tensor, *others: Array) -> None:
        """Add `_Rows`, those of a batch."""
        kind = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._parts.append([states.to(kind), adjoints.to(kind), *others, self._rng.random(len(states))])
        self._thin(self._parts[-1:])
        # Halved, so that what is kept is a random part of all rows, those of later batches included.
        while sum(part[0].numel() + part[1].numel() for part in self._parts) > MOST_NUMBERS:
            self._share /= 2
            self._thin(self._parts)

    def _thin(self, parts: list[list[Any]]) -> None:
        for part in parts:
            chosen = np.flatnonzero(part[-1] < self._share)
            part[:] = [_rows_at(each, chosen) for each in part]

    def balance(self) -> Balance:
        """Balance all rows, after scaling adjoints to the same mean energy at each number of steps before the end."""
        states, adjoints, *others = zip(*self._parts, strict=True)
        self._parts = []
        energies, sequences, before_end, _ = map(np.concatenate, others)
        if not len(sequences):
            raise KannError(f"all adjoints are zero: the outputs do not depend on these states; {FALLBACK}")
        means = np.bincount(before_end, energies) / np.maximum(np.bincount(before_end), 1)
        scaled = torch.cat(adjoints)
        scaled /= torch.from_numpy(np.sqrt(means[before_end])[:, None, None]).to(scaled.device)
        return Balance.of_snapshots(torch.cat(states), scaled, sequences=sequences)

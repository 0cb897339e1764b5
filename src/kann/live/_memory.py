"""Measure how long a network remembers: change one input, run on, and compare states and outputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from kann.backends.arrays import as_numpy
from kann.checks import require_flag, require_sequence, require_whole_number
from kann.errors import KannError
from kann.live.evaluation import first_steps, outputs_of
from kann.live.results import ALL, Memory
from kann.progress import progress
from kann.recording._record import record
from kann.recording.layer_selection import recurrent_modules, select, state_widths
from kann.recording.probe import StepInputs
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import Batch, RunOptions, SequenceData
from kann.recording.untrained import untrained_twin
from kann.typing import Array, Float, Int, Shaped

MOST_CHANNELS = 16
"""Largest number of channels without names that are changed one by one."""

FEWEST_SEQUENCES = 0.1
"""Lags that a smaller fraction of the sequences is long enough for are left out: a few would decide alone."""

DRAWS = 8
"""Attempts to find another input for a step. One that equals the present one would have no effect."""


def memory(
    model: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    state: str | None = None,
    channels: Sequence[str] | None = None,
    sequences: int = 64,
    untrained: bool = True,
    step_seconds: float | None = None,
    seed: int = 0,
    **run: Unpack[RunOptions],
) -> Memory:
    """Measure what is left of one input in states and outputs after k steps.

    The input of one step is replaced by that of another sequence, and the network runs on. The difference of states and
    of outputs k steps later is divided by that of unrelated sequences: 1 if they differ as much, 0 if the input is
    forgotten. No operator is needed.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0])
    >>> _ = torch.manual_seed(0)
    >>> found = kann.memory(Reader(), torch.randn(20, 30, 2))
    >>> found.lags
    (0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 29)
    >>> bool(found.half_life() < 4)  # an untrained GRU forgets soon
    True

    Parameters
    ----------
    model
        A torch module whose outputs have one row for each sequence.
    data
        Input of the model, as for `kann.record`. The first tensor of a batch that has an axis of steps is changed.
    layer, state
        Whose states are compared, as in `kann.record`. Default: the only recurrent layer, with h and c of an LSTM. Of a
        model without a recurrent layer only outputs are compared.
    channels
        Names of the numbers that are read at each step. Each is changed by itself too, as are up to 16 without names,
        unless steps are one-hot.
    sequences
        Number of sequences, drawn at random from data that are not batches, else the first ones.
    untrained
        Whether to measure a copy with newly drawn weights too, as a baseline.
    step_seconds
        Duration of a step, to report times in seconds.
    seed
        Seed of everything random.
    run
        How to read the data and to call the model, as in `kann.record`.
    """
    require_whole_number(sequences, "sequences", least=2)
    require_flag(untrained, "untrained")
    if channels is not None:
        require_sequence(channels, "channels")
    where = _states_compared(model, layer, state)
    source = SequenceData(model, data, **run)
    if source.count is not None:
        count = min(source.count, source.max_sequences or source.count)
        source = source.take(np.sort(np.random.default_rng(seed).permutation(count)[:sequences]))
    with evaluation_mode(model):
        torch.manual_seed(seed)  # a loader may shuffle
        batches = source.first_groups(sequences)
        if sum(map(len, batches)) < 2:
            raise KannError("the data hold one sequence; pass at least two, since their inputs are exchanged")
        runs = [_Run(source, batch, where) for batch in batches]
        names = _channel_names(channels, runs)
        own = _measured(runs, names, seed=seed, shows_progress=source.shows_progress)
    theirs = None
    if untrained:
        twin = untrained_twin(model, seed=seed)
        with evaluation_mode(twin):
            source = SequenceData(twin, (), **run)
            theirs = _measured([_Run(source, batch, where) for batch in batches], (ALL,), seed=seed)
    return replace(own, untrained=theirs, step_seconds=step_seconds)


def _states_compared(model: nn.Module, layer: str | None, state: str | None) -> dict[str, Any] | None:
    """Return the arguments of `record`; None for a model without a recurrent layer."""
    if layer is None and not recurrent_modules(model):
        return None
    module = select(model, layer)[0][0].module
    return {"layer": layer, "state": state or "".join(state_widths(module)) or "h"}


def _channel_names(channels: Sequence[str] | None, runs: Sequence["_Run"]) -> tuple[str, ...]:
    """Name the changes: all inputs of a step together, and each channel by itself."""
    steps, count = runs[0].inputs.steps, _channels(runs[0].inputs)
    width = steps.shape[2] if steps.is_floating_point() and steps.ndim == 3 else 0
    if channels is not None and len(channels) != width:
        raise KannError(
            f"there are {len(channels)} names in channels= for {width} numbers of a step; pass one for each"
        )
    if channels is None and count <= MOST_CHANNELS:
        channels = [f"input {i}" for i in range(count)]
    return (ALL, *(map(str, channels or ()) if count > 1 else ()))


def _lags(longest: Int[Array, " s"]) -> list[int]:
    """Return lags 0, 1, 2, 3, 4, 6, 8, 11, 16, …, two for each doubling, as far as enough sequences are long enough."""
    enough = max(2, int(np.ceil(FEWEST_SEQUENCES * len(longest))))
    most = int(np.sort(longest)[-enough]) - 1
    doubling = {round(2 ** (i / 2)) for i in range(2 * max(1, most).bit_length())}
    return sorted({0, most, *doubling} & set(range(most + 1)))


def _measured(runs: Sequence["_Run"], names: Sequence[str], *, seed: int, shows_progress: bool = False) -> Memory:
    """Change the input of a step of each sequence, for every channel and every number of steps before the end."""
    lags = _lags(np.concatenate([run.lengths for run in runs]))
    tasks = [(run, row, lag) for run in runs for row in range(len(names)) for lag in lags]
    bar = progress(tasks, what="memory", total=len(tasks), unit="run") if shows_progress else tasks
    total = sum(len(run.lengths) for run in runs)
    sums, counts = np.zeros((2, len(names), total, len(lags))), np.zeros((2, len(names), total, len(lags)))
    for run, row, lag in bar:
        rng = np.random.default_rng((seed, row))  # the same at each lag, so that the curve is smooth
        content, is_changed = _changed(run.inputs, run.lengths - 1 - lag, run.lengths, row - 1, rng, run.reverse)
        if not is_changed.any():
            continue
        for kind, squares in enumerate(run.differences(content, lag, lags)):
            squares[~is_changed] = np.nan
            is_known = ~np.isnan(squares)
            sums[kind, row, run.batch.numbers] += np.where(is_known, squares, 0)
            counts[kind, row, run.batch.numbers] += is_known
    with np.errstate(invalid="ignore"):
        squares = sums / counts
    return Memory(
        lags=tuple(lags),
        names=tuple(names),
        state_squares=None if runs[0].states is None else squares[0],
        output_squares=None if runs[0].outputs is None else squares[1],
        state_scale=_spread([run.rows[0] for run in runs]),
        output_scale=_spread([run.rows[1] for run in runs]),
        untrained=None,
        step_seconds=None,
    )


def _spread(parts: Sequence[Array | None]) -> float:
    """Compute the mean squared difference of unrelated rows: twice their total variance."""
    known = [part for part in parts if part is not None]
    return 2 * float(np.concatenate(known).astype(np.float64).var(axis=0).sum()) if known else float("nan")


# What is changed


def _channels(inputs: StepInputs) -> int:
    """Return the number of channels that can be changed one by one; 0 for tokens, images, and one-hot rows."""
    steps = inputs.steps
    if not steps.is_floating_point() or steps.ndim != 3:
        return 0
    real = steps[torch.from_numpy(inputs.real.mask(steps.shape[1]))]
    is_one_hot = bool(((real == 0) | (real == 1)).all() and (real.sum(dim=1) == 1).all())
    return 0 if is_one_hot and real.shape[1] > 1 else real.shape[1]


def _changed(
    inputs: StepInputs,
    steps: Int[Array, " b"],
    lengths: Int[Array, " b"],
    channel: int,
    rng: np.random.Generator,
    reverse: bool,
) -> tuple[Any, Shaped[Array, " b"]]:
    """Replace the input of one step of each sequence that is long enough, and return which changed.

    ``steps`` are counted as the layer reads, out of ``lengths``; several inputs may make one of its steps. ``channel``
    −1 stands for all.
    """
    new, is_changed = inputs.steps.clone(), np.zeros(len(steps), dtype=bool)
    read, written = (inputs.steps, new) if channel < 0 else (inputs.steps[..., channel], new[..., channel])
    starts, counts = inputs.real.starts.tolist(), inputs.real.lengths.tolist()
    for i in np.flatnonzero(steps >= 0).tolist():
        step = lengths[i] - 1 - steps[i] if reverse else steps[i]
        own = slice(*(starts[i] + int(k) * counts[i] // int(lengths[i]) for k in (step, step + 1)))
        for _ in range(DRAWS):
            donor = int(i + rng.integers(1, max(2, len(steps)))) % len(steps)
            first = starts[donor] + int(rng.integers(max(1, counts[donor] - (own.stop - own.start) + 1)))
            other = read[donor, first : min(first + own.stop - own.start, starts[donor] + counts[donor])]
            if len(other) == own.stop - own.start and not torch.equal(read[i, own], other):
                written[i, own], is_changed[i] = other, True
                break
    return inputs.put_back(new), is_changed


class _Run:
    """One batch: its inputs, and the states and outputs of the network that reads them."""

    def __init__(self, source: SequenceData, batch: Batch, where: dict[str, Any] | None):
        self.batch, self._source, self._where = batch, source, where
        inputs = StepInputs.of(batch, source.axis)
        if inputs is None:
            raise KannError(
                "no tensor of the batch has an axis of sequences and one of steps, so no input can be changed; pass "
                "data of shape (sequences, steps, ...)"
            )
        self.inputs = inputs
        self.states, self.outputs, self.lengths, self.reverse = self._run(batch.content)

    def _run(self, content: Any) -> tuple[Float[Array, "n d"] | None, list[Array] | None, Int[Array, " b"], bool]:
        """Run the network: states, outputs, the number of steps of each sequence, and whether it reads backwards."""
        given: list[Any] = []

        def forward(_: Any, read: Any) -> Any:
            given.append(self._source.call(replace(self.batch, content=read)))
            return given[-1]

        if self._where is None:
            forward(None, content)
            found, lengths, reverse = None, self.inputs.real.lengths, False
        else:
            real = None if isinstance(content, PackedSequence) else self.batch.real
            states = record(
                self._source.model,
                iter([content]),
                forward=forward,
                lengths=None if real is None else lambda _: real.mask(int(real.ends.max())),
                progress=False,
                **self._where,
            )
            found, lengths, reverse = as_numpy(states.values), states.lengths, states.reverse
        try:
            outputs = self._by_step(as_numpy(outputs_of(given[0], len(self.batch))), np.asarray(lengths), reverse)
        except KannError:  # outputs without one row for each sequence, such as packed ones
            if found is None:
                raise
            outputs = None
        return found, outputs, np.asarray(lengths), reverse

    def _by_step(self, outputs: Array, lengths: Int[Array, " b"], reverse: bool) -> list[Float[Array, "_ o"]]:
        """Return the outputs of each sequence, in the order of reading: one row for each step, or a single one."""
        starts = first_steps(self.batch)
        if outputs.ndim < 3 or outputs.shape[1] < (starts + lengths).max():
            return list(outputs.reshape(len(outputs), 1, -1))
        ends = starts + lengths
        found = [rows[a:b].reshape(b - a, -1) for rows, a, b in zip(outputs, starts, ends, strict=True)]
        return [rows[::-1] for rows in found] if reverse else found

    @property
    def rows(self) -> tuple[Float[Array, "n d"] | None, Float[Array, "m o"] | None]:
        """All states and all outputs."""
        return self.states, None if self.outputs is None else np.concatenate(self.outputs)

    def differences(self, content: Any, lag: int, lags: Sequence[int]) -> Float[Array, "2 b l"]:
        """Compute squared differences of states and outputs at all lags, after a change ``lag`` steps before the end.

        An output of the whole sequence is known at ``lag`` alone.
        """
        states, outputs, _, _ = self._run(content)
        found = np.full((2, len(self.lengths), len(lags)), np.nan)
        ends, rows = np.cumsum(self.lengths), np.flatnonzero(self.lengths > lag)
        pairs = [] if outputs is None or self.outputs is None else list(zip(self.outputs, outputs, strict=True))
        for column, k in enumerate(lags):
            if k > lag:
                break
            if states is not None and self.states is not None:
                places = (ends - 1 - lag + k)[rows]
                found[0, rows, column] = np.square(states[places] - self.states[places], dtype=np.float64).sum(axis=1)
            for row in rows if pairs else ():
                own, new = pairs[row]
                if len(own) > 1 or k == lag:
                    place = len(own) - 1 - lag + k if len(own) > 1 else 0
                    found[1, row, column] = np.square(new[place] - own[place], dtype=np.float64).sum()
        return found

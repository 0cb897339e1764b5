"""Measure how many directions of the residual stream the outputs depend on after each layer."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
from torch import nn

from kann.checks import require_choice, require_whole_number
from kann.data.moments import mean_and_covariance
from kann.depth.results import Profile
from kann.errors import KannError
from kann.live._balance import balance
from kann.live._effects import Change, changes_of, checked_counts
from kann.live._intervene import replaced, replaced_layer, replacement
from kann.live.completion import FILLS, fit_fills
from kann.live.evaluation import Scorer, score_runs
from kann.recording._record import record_layers
from kann.recording.layer_selection import select
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import RunOptions, SequenceData


def profile(
    model: nn.Module,
    data: Any,
    held_out: Any,
    *,
    layer: str | Iterable[str],
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    outputs: str = "class",
    threshold: float = 0.0,
    fill: str = "auto",
    sequences: int = 256,
    draws: int = 1,
    seed: int = 0,
    **run: Unpack[RunOptions],
) -> Profile:
    """Measure how many directions keep the outputs of a network after each of its layers.

    After each layer by itself, only some coordinates of the state are kept at every position: balanced ones, principal
    components, or random directions with the variance of the balanced ones. The outputs on held-out sequences are
    compared with those of the untouched network.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Block(nn.Linear):
    ...     def forward(self, x):
    ...         return x + super().forward(x).tanh()
    >>> model = nn.Sequential(nn.Sequential(*(Block(6, 6) for _ in range(3))), nn.Linear(6, 1))
    >>> x = torch.randn(200, 5, 6)  # five positions
    >>> found = kann.depth.profile(model, x[:100], x[100:], layer="0.*", counts=(1, 2, 6), progress=False)
    >>> found.layers, int(found.needed()["balanced"][-1])  # a linear readout follows the last block
    (('0.0', '0.1', '0.2'), 1)

    Fits read the data once to record all layers and once for each layer to balance it. The held-out data are run once
    untouched, and for each layer 1 + (2 + draws) × counts times. The states of all layers are kept in memory.

    Parameters
    ----------
    model
        A torch module whose outputs are differentiable functions of the layers' states.
    data
        Sequences that directions and completions are fitted to, as for `kann.record`; not an iterator, as they are read
        more than once.
    held_out
        Other sequences, which the network is tested on.
    layer
        A pattern such as ``"blocks.*"``, or a list of names, of layers that give (sequences, positions, units). Each
        position is a state.
    counts
        Numbers of directions to keep.
    outputs, threshold
        Kind of the outputs, as in `kann.agreement`: "class", "labels" or "values".
    fill
        How to complete the state, as in `kann.intervene`.
    sequences
        Number of sequences whose adjoints are computed, as in `kann.balance`.
    draws
        Number of draws of random directions.
    seed
        Seed of everything random.
    run
        `kann.recording.RunOptions`, for both data sets. Pass ``lengths`` as a key or a function of the batch if they
        are not in the data. ``batch_size`` is None for the tests by default.
    """
    counts = checked_counts(counts)
    require_choice(fill, "fill", FILLS)
    require_whole_number(draws, "draws", least=0)
    scorer = Scorer.of(outputs=outputs, threshold=threshold)
    if isinstance(data, Iterator):
        raise KannError(f"data is {type(data).__name__}, which can be read only once; pass a list or a DataLoader")
    names = [target.name for target in select(model, layer)[0]]
    states = record_layers(model, data, layer=names, **run)
    balances = [
        balance(model, data, layer=name, state="h", outputs=outputs, sequences=sequences, seed=seed, **run)
        for name in names
    ]
    runs: list[tuple[int, Change]] = []
    contexts = []
    for number, (name, own) in enumerate(zip(names, balances, strict=True)):
        recorded, spread = states[name], mean_and_covariance(states[name])
        target, state = replaced_layer(model, name, "h", recorded.dim)
        changes = [Change(directions=np.empty((recorded.dim, 0)), method="none")]
        changes += [each for each in changes_of(own, spread, counts, draws=draws, seed=seed) if each.keep]
        fills = fit_fills([each.directions for each in changes], recorded, fill, spread=spread)
        place = partial(replaced, model, target, state=state, width=recorded.dim)
        contexts += [partial(place, replacement(each, keep=True)) for each in fills]
        runs += [(number, each) for each in changes]
    options: Any = {"batch_size": None} | run
    with evaluation_mode(model):
        # All layers in one call: the untouched network runs once, and an interruption leaves all the same sequences.
        judged, (_, *scores) = score_runs(SequenceData(model, held_out, **options), contexts, scorer, what="profile")
    shape = (len(names), len(counts), max(1, draws), len(judged))
    tables = {method: np.full(shape, np.nan) for method in ("none", "balanced", "pca", "random")}
    for (number, change), score in zip(runs, scores, strict=True):
        tables[change.method][number, change.row, change.draw] = score
    none = tables.pop("none")[:, 0, 0]
    return Profile(
        layers=tuple(names),
        counts=counts,
        outputs=outputs,
        kept_scores={name: own.mean(axis=2) if name == "random" else own[:, :, 0] for name, own in tables.items()},
        none_scores=none,
        judged=judged,
        balances=tuple(balances),
    )

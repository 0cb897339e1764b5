"""Measure how well a network does with only some coordinates of its state, and without them."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
from torch import nn

from kann.analysis.decisions import linear_weight
from kann.analysis.modes import first_modes, mode_directions, mode_variances
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_instance, require_whole_number, short_repr
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.balance import Balance
from kann.fitting.folds import group_numbers
from kann.fitting.koopman import Koopman
from kann.live._intervene import directions_of, replaced, replaced_layer, replacement, require_same_width
from kann.live.completion import DEPENDENT, FILLS, fit_fills, orthonormal_axes
from kann.live.evaluation import ScoreOptions, Scorer, score_runs
from kann.live.results import Effects
from kann.recording.layer_selection import require_module
from kann.recording.recurrent import readout_of
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import RunOptions, SequenceData, require_order
from kann.typing import Array, Float, Int

Sets = Sequence[Float[Array, "d _"] | None]
"""Directions for each of the counts; None where a method has fewer."""

SAME_SPAN = 1e-6
"""Directions of length 1 that leave the span of others by less keep the same: states are recorded in float32."""


STEEPEST = 8.0
"""Random directions weigh the principal components by their variance to a power of at most this size. With more, all
but one component vanish."""

BISECTIONS = 30
"""Halvings of the range of that power: 1e-8 is left of it."""


class EffectsOptions(ScoreOptions, RunOptions, total=False):
    """How to judge the outputs, how to read the data, and how to call the model."""

    readout: Any
    """The linear readout of the state: a module or its weight (o, d). Default: found in the model. Without one, modes
    are ordered by their variance, and there is no method "readout"."""


def effects(
    model: nn.Module,
    data: Any,
    coordinates: Any,
    states: Any,
    *,
    koopman: Koopman | None = None,
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    fill: str = "auto",
    draws: int = 3,
    layer: str | None = None,
    state: str | None = None,
    groups: Any = None,
    seed: int = 0,
    **options: Unpack[EffectsOptions],
) -> Effects:
    """Run a network with only some coordinates of its state kept after every step, and with them removed.

    The coordinates are compared with equal numbers of principal components, directions of the readout, and random
    directions of the same variance. After an interruption the result has the sequences that were finished.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> model, x = Reader(), torch.randn(40, 6, 3)
    >>> states = kann.record(model, x)
    >>> found = kann.effects(model, x, kann.fit(states, basis="pca"), states, counts=(1, 4), draws=1)
    >>> float(found.kept["modes"][1])  # all four coordinates are kept
    1.0

    Parameters
    ----------
    model
        The model that the states were recorded from.
    data
        Input of the model, as for `kann.record`; sequences other than those of the states. A list of sequences is run
        in batches of similar length.
    coordinates
        A `Balance` ("balanced": its first directions), a `Koopman` ("modes", by the variance of their contribution to
        the readout) or an array of directions (d, k) ("directions": its first columns).
    states
        Recorded states that fills are fitted to.
    koopman
        An operator whose modes are compared too.
    counts
        Numbers of coordinates to keep and to remove. A conjugate pair of modes has two.
    fill
        How to complete the state, as in `kann.intervene`.
    draws
        Number of draws of random directions.
    layer, state
        Whose states were recorded, as in `kann.intervene`.
    groups
        For each sequence who it comes from, as in `kann.trust`: copies of a sequence, or those of one patient, count
        together in intervals.
    seed
        Seed of the random directions.
    options
        ``metric``, ``labels``, ``outputs`` and ``threshold``: how outputs are judged, see `ScoreOptions`. ``readout``:
        see `EffectsOptions`. ``lengths``, ``forward``, ``collate``, ``batch_size`` (default None), ``max_sequences``,
        ``device`` and ``progress``: as in `kann.record`.
    """
    require_module(model)
    if isinstance(coordinates, Koopman):
        coordinates, koopman = None, coordinates
    if koopman is not None:
        require_instance(koopman, Koopman, "koopman")
    require_choice(fill, "fill", FILLS)
    require_whole_number(draws, "draws", least=0)
    counts = checked_counts(counts)
    scorer = Scorer.of(**{name: options[name] for name in ScoreOptions.__annotations__ if name in options})
    own = ScoreOptions.__annotations__.keys() | {"readout"}
    run: Any = {"batch_size": None} | {name: value for name, value in options.items() if name not in own}
    require_order(data, labels=options.get("labels"), groups=groups)
    source = SequenceData(model, data, **run)
    recorded = as_states(states)
    for own in (coordinates, koopman):
        if own is not None:
            width = own.dim if isinstance(own, Koopman) else len(directions_of(own))
            require_same_width(width, recorded.dim, "the recorded states have")
    target, state = replaced_layer(model, layer, state, recorded.dim)
    spread = mean_and_covariance(recorded)
    weight = readout_weight(model, options.get("readout"), layer=layer, state=state, width=recorded.dim)
    order = [] if koopman is None else contribution_order(koopman, spread, weight)
    known: Any = {"koopman": koopman, "order": order, "weight": weight, "largest_decides": scorer.outputs == "class"}
    runs = changes_of(coordinates, spread, counts, draws=draws, seed=seed, **known)
    place = partial(replaced, model, target, state=state, width=recorded.dim)
    changes = [Change(directions=np.empty((recorded.dim, 0))), *runs]
    with evaluation_mode(model):
        judged, scores, kinds = run_changes(source, place, changes, recorded, spread, fill=fill, scorer=scorer)
    if groups is not None:
        groups = group_numbers(groups, len(groups) if source.count is None else source.count)
        if len(groups) <= judged.max():
            raise KannError(f"groups has {len(groups)} entries for {judged.max() + 1} sequences; pass one for each")
        groups = groups[judged] if len(np.unique(groups[judged])) < len(judged) else None
    return _gathered(
        runs,
        scores,
        kinds[1:],
        groups=groups,
        counts=counts,
        draws=draws,
        judged=judged,
        metric=scorer.name,
        outputs=scorer.outputs,
        fill=fill,
        order=tuple(order),
        koopman=koopman,
    )


def checked_counts(counts: Any) -> tuple[int, ...]:
    """Require numbers of coordinates."""
    if isinstance(counts, str) or not isinstance(counts, Iterable) or not list(counts):
        raise KannError(f"counts={short_repr(counts)} must be numbers of coordinates; pass some, such as (1, 2, 4)")
    return tuple(require_whole_number(count, "counts") for count in counts)


def readout_weight(
    model: nn.Module, readout: Any, *, layer: str | None, state: str, width: int
) -> Float[Array, "o d"] | None:
    """Return the weight of the readout, as wide as the state; None if it was not passed and cannot be found."""
    if readout is None:
        with contextlib.suppress(KannError):
            readout = readout_of(model, layer)
        if not isinstance(readout, nn.Linear) or "h" not in state:
            return None
    weight = as_numpy(getattr(readout, "weight", readout))
    if weight.ndim == 2 and state == "hc":  # a readout reads h only, and nothing of c
        weight = np.pad(weight, ((0, 0), (0, max(0, width - weight.shape[1]))))
    return linear_weight(weight, width)


def contribution_order(koopman: Koopman, spread: MeanAndCovariance, weight: Float[Array, "o d"] | None) -> list[int]:
    """Sort modes by the variance of their contribution to the readout, or to the state if there is no readout."""
    return np.argsort(-mode_variances(koopman, spread, weight), kind="stable").tolist()


# Directions that are compared


def principal_components(spread: MeanAndCovariance) -> Float[Array, "d d"]:
    """Return orthonormal directions in which the states vary, by decreasing variance."""
    return np.linalg.eigh(spread.covariance)[1][:, ::-1]


def readout_directions(
    weight: Float[Array, "o d"], spread: MeanAndCovariance, *, largest_decides: bool = True
) -> Float[Array, "d q"]:
    """Return the directions that a linear readout reads, by the variance of its outputs along them.

    Where the largest of several outputs decides, only their differences count.
    """
    if len(weight) > 1 and largest_decides:
        weight = weight - weight.mean(axis=0)
    values, turned = np.linalg.eigh(weight @ spread.covariance @ weight.T)
    order = np.argsort(-values, kind="stable")
    used = order[values[order] > DEPENDENT * max(values.max(), np.finfo(float).tiny)]
    return weight.T @ turned[:, used]


def random_like(axes: Float[Array, "d q"], spread: MeanAndCovariance, rng: np.random.Generator) -> Float[Array, "d q"]:
    """Draw random directions, one per orthonormal axis, with the same variance of the states.

    Normal random numbers for the principal components are weighed by a power of their variance, and the power is chosen
    so that the variance comes out, as nearly as can be. Directions drawn without weights would hold less variance than
    those of most modes, and a test against them would be too easy.
    """
    components, wanted = principal_components(spread), float(np.trace(spread.along(axes)))
    variances = np.maximum(np.diag(spread.along(components)), 0.0)
    relative = np.maximum(variances / variances.max(), DEPENDENT)
    drawn = rng.normal(size=axes.shape)

    def span(power: float) -> Float[Array, "d k"]:
        return np.linalg.qr(relative[:, None] ** power * drawn)[0]

    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):  # the variance grows with the power
        middle = (low + high) / 2
        is_too_little = (variances @ span(middle) ** 2).sum() < wanted
        low, high = (middle, high) if is_too_little else (low, middle)
    return components @ span((low + high) / 2)


# What is kept and removed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Change:
    """Directions along which a state is kept, or removed, and the entry of the result that it is for."""

    directions: Float[Array, "d k"]
    keep: bool = True
    method: str = ""
    row: int = 0
    """Which of the counts."""
    draw: int = 0
    """Which of several draws of random directions."""


def changes_of(
    coordinates: Any,
    spread: MeanAndCovariance,
    counts: Sequence[int],
    *,
    koopman: Koopman | None = None,
    order: Sequence[int] = (),
    weight: Float[Array, "o d"] | None = None,
    largest_decides: bool = True,
    draws: int,
    seed: int,
) -> list[Change]:
    """Keep and remove the first directions of each method: coordinates, modes, principal components, a readout's.

    Random directions have the variance of those of the first method.
    """

    def first(directions: Float[Array, "d m"]) -> Sets:
        return [directions[:, :count] if count <= directions.shape[1] else None for count in counts]

    found: dict[str, Sets] = {}
    if coordinates is not None:
        found["balanced" if isinstance(coordinates, Balance) else "directions"] = first(directions_of(coordinates))
    if koopman is not None:
        found["modes"] = [
            mode_directions(koopman, first_modes(koopman, order, count))[:, :count] if count <= koopman.rank else None
            for count in counts
        ]
    found["pca"] = first(principal_components(spread))
    if weight is not None:  # all of them where there are fewer
        own = readout_directions(weight, spread, largest_decides=largest_decides)
        found["readout"] = [own[:, :count] for count in counts]
    runs = []
    for row, like in enumerate(next(iter(found.values()))):
        sets = [(name, 0, directions[row]) for name, directions in found.items()]
        if like is not None:
            axes, rng = orthonormal_axes(like, spread), np.random.default_rng((seed, row))
            sets += [("random", draw, random_like(axes, spread, rng)) for draw in range(draws)]
        runs += [
            Change(directions=directions, keep=keep, method=name, row=row, draw=draw)
            for keep in (True, False)
            for name, draw, directions in sets
            if directions is not None
        ]
    return runs


def run_changes(
    source: SequenceData,
    place: Any,
    changes: Sequence[Change],
    states: States,
    spread: MeanAndCovariance,
    *,
    fill: str,
    scorer: Scorer,
) -> tuple[Int[Array, " s"], Float[Array, "r s"], list[str]]:
    """Score the untouched network, in the first row, and the network under each change.

    ``place`` is `replaced` without its function. Returns the numbers of the sequences, their scores, and the kind of
    the fill of each change. Use it where the model is in evaluation mode. Changes that are the same run once.
    """
    first_like = same_spans([orthonormal_axes(each.directions, spread) for each in changes])
    different = sorted(set(first_like))
    fills = fit_fills([changes[i].directions for i in different], states, fill, spread=spread)
    fill_of = dict(zip(different, fills, strict=True))
    keys = [(like, change.keep) for like, change in zip(first_like, changes, strict=True)]
    runs = list(dict.fromkeys(keys))
    contexts = [partial(place, replacement(fill_of[like], keep=keep)) for like, keep in runs]
    numbers, scores = score_runs(source, contexts, scorer, what="effects")
    rows = [0, *(1 + runs.index(key) for key in keys)]
    return numbers, scores[rows], [fill_of[like].kind for like in first_like]


def same_spans(spans: Sequence[Float[Array, "d _"]]) -> list[int]:
    """Return for each set of orthonormal directions the index of the first with the same span, hence the same fill."""
    found: list[int] = []
    for i, span in enumerate(spans):
        alike = [j for j in sorted(set(found)) if spans[j].shape == span.shape]
        outside = (np.linalg.norm(span - spans[j] @ (spans[j].T @ span), axis=0) for j in alike)
        found.append(next((j for j, own in zip(alike, outside, strict=True) if (own < SAME_SPAN).all()), i))
    return found


def _gathered(
    runs: Sequence[Change], scores: Float[Array, "r s"], kinds: Sequence[str], *, draws: int, **known: Any
) -> Effects:
    """Sort the scores of all runs by method, number of coordinates and draw."""
    full, none, *found = scores
    counts = known["counts"]
    tables: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    fills: dict[str, list[str]] = {}
    for run, score, kind in zip(runs, found, kinds, strict=True):
        empty = np.full((draws if run.method == "random" else 1, len(counts), len(full)), np.nan)
        tables[run.keep].setdefault(run.method, empty)[run.draw, run.row] = score
        fills.setdefault(run.method, [""] * len(counts))[run.row] = kind
    # Scores of random directions are means over draws; other methods have a single one.
    kept, removed = ({name: own.mean(axis=0) for name, own in tables[keep].items()} for keep in (True, False))
    nothing = np.empty((0, len(counts), 1))
    return Effects(
        kept_scores=kept,
        removed_scores=removed,
        full_scores=full,
        none_scores=none,
        random_kept=tables[True].get("random", nothing).mean(axis=2),
        random_removed=tables[False].get("random", nothing).mean(axis=2),
        fills={name: tuple(own) for name, own in fills.items()},
        **known,
    )

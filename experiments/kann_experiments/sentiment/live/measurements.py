"""The numbers of the live tests, by the keys of `LIVE`: one coordinate, several, the paper's groups, and words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import kann
from kann.analysis.modes import mode_directions
from kann.live._effects import Change, contribution_order, principal_components, random_like
from kann.live.completion import orthonormal_axes
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Float, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.groups import Groups
from kann_experiments.sentiment.live.bench import LAYER, RECORDING_BATCH, Bench, make_bench
from kann_experiments.sentiment.live.words import flipped_by_deletion
from kann_experiments.sentiment.task import JUDGED
from kann_experiments.training import generator

DRAWS = 3
"""Draws of random directions."""

COUNTS = (2, 4, 8, 16)
"""How many coordinates are kept together."""

MODES_RANK = 16
"""Rank of the driven operator whose modes are kept, by their contribution to the logit."""

ENOUGH = 0.95
"""Agreement for which the coordinates that it takes are counted."""

Kept = Mapping[str, Shaped[Array, " s"]]
"""Which decisions on test reviews stay as they are, by the name of a change of the state."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PaperGroups:
    """The paper's operator, of the hidden state h, and its two groups of modes."""

    koopman: kann.Koopman
    groups: Groups


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LiveResult:
    """What was measured in the running network."""

    numbers: dict[str, float]
    """By the keys of `LIVE`."""
    details: dict[str, Any]
    """How it was measured, for ``results.json``."""


def measure_live(
    network: SentimentNetwork, corpus: Corpus, *, seed: int, paper: PaperGroups | None = None
) -> LiveResult:
    """Find coordinates on training reviews, and judge them, and the paper's groups, on test reviews."""
    with evaluation_mode(network):
        bench = make_bench(network, corpus, seed=seed)
        chosen = coordinates(bench, seed)
        changes = _changes_of_one(bench, chosen, seed) | _changes_of_several(chosen)
        if paper is not None:
            changes |= _changes_of_groups(bench, paper, seed)
        kept = bench.kept(changes)
        flips = flipped_by_deletion(bench, chosen["balanced"][:, 0], seed=seed)
    numbers = _numbers_of_one(bench, kept) | _numbers_of_several(kept) | _numbers_of_groups(bench, kept)
    numbers |= {f"words_{name}": flipped for name, flipped in flips.items()}
    return LiveResult(numbers=numbers, details={"rank of the modes": min(MODES_RANK, bench.states.dim)})


def kept_by_coordinates(bench: Bench, seed: int) -> dict[str, float]:
    """How many decisions each kind of coordinates keeps, random ones included for several coordinates too."""
    chosen = coordinates(bench, seed)
    changes = _changes_of_one(bench, chosen, seed) | _changes_of_several(chosen)
    for count in COUNTS:
        drawn = _random_like(bench, chosen["balanced"][:, :count], f"random_{count}", seed)
        changes |= {name: Change(directions=directions) for name, directions in drawn.items()}
    kept = bench.kept(changes)
    numbers = _numbers_of_one(bench, kept) | _numbers_of_several(kept)
    return numbers | {f"live_random_{count}": _mean_of_draws(kept, f"random_{count}") for count in COUNTS}


def coordinates(bench: Bench, seed: int) -> dict[str, Float[Array, "d _"]]:
    """Directions by the way in which they are chosen, the most important first."""
    words: dict[str, Any] = {"layer": LAYER, "state": bench.state, "batch_size": RECORDING_BATCH, "seed": seed}
    koopman = kann.fit(bench.states, rank=min(MODES_RANK, bench.states.dim), driven=True)
    order = contribution_order(koopman, bench.spread, bench.weight)
    return {
        "balanced": kann.balance(bench.network, bench.recorded, **words).directions,
        "modes": mode_directions(koopman, order),
        "pca": principal_components(bench.spread),
    }


# One coordinate


def _changes_of_one(bench: Bench, chosen: Mapping[str, Float[Array, "d _"]], seed: int) -> dict[str, Change]:
    """One coordinate kept, and removed: the balanced one, and those it is compared with."""
    coordinates = {
        "one": chosen["balanced"][:, :1],
        "one_mode": chosen["modes"][:, :1],
        "readout": bench.weight.T,
        "pca": chosen["pca"][:, :1],
        **_random_like(bench, chosen["balanced"][:, :1], "random", seed),
    }
    changes = {"none": Change(directions=np.empty((bench.spread.dim, 0)))}
    for name, own in coordinates.items():
        changes[name] = Change(directions=own)
        changes[f"removed_{name}"] = Change(directions=own, keep=False)
    return changes


def _random_like(bench: Bench, like: Float[Array, "d k"], name: str, seed: int) -> dict[str, Float[Array, "d _"]]:
    """Draws of as many random directions, in which the states vary as much."""
    axes, rng = orthonormal_axes(like, bench.spread), generator(seed, JUDGED, like.shape[1])
    return {f"{name}_{draw}": random_like(axes, bench.spread, rng) for draw in range(DRAWS)}


def _numbers_of_one(bench: Bench, kept: Kept) -> dict[str, float]:
    """How many decisions one coordinate keeps, and how many stay if it is removed."""
    right = bench.positive == (bench.judged.positive > 0)
    numbers = {
        "live_reviews": float(len(bench.judged)),
        "live_one": _fraction(kept["one"]),
        # Of two classes, a decision that has changed is right where the network's own was wrong.
        "live_one_accuracy": _fraction(kept["one"] == right),
        "live_accuracy": _fraction(right),
        "live_one_readout": _fraction(kept["readout"]),
        "live_one_pca": _fraction(kept["pca"]),
        "live_one_mode": _fraction(kept["one_mode"]),
        "live_one_random": _mean_of_draws(kept, "random"),
        "live_none": _fraction(kept["none"]),
        "live_removed": _fraction(kept["removed_one"]),
        "live_removed_readout": _fraction(kept["removed_readout"]),
        "live_removed_pca": _fraction(kept["removed_pca"]),
        "live_removed_random": _mean_of_draws(kept, "removed_random"),
    }
    rival = max(numbers["live_one_readout"], numbers["live_one_pca"])
    return numbers | {"live_one_lead": numbers["live_one"] - rival}


# Several coordinates


def _changes_of_several(chosen: Mapping[str, Float[Array, "d _"]]) -> dict[str, Change]:
    """Several coordinates kept. Where a conjugate pair has one too many, its real part is kept."""
    return {
        f"{name}_{count}": Change(directions=directions[:, :count])
        for count in COUNTS
        for name, directions in chosen.items()
        if count <= directions.shape[1]
    }


def _numbers_of_several(kept: Kept) -> dict[str, float]:
    """How many decisions several coordinates keep, and how few of them keep enough."""
    numbers = {}
    for kind, one in (("balanced", "one"), ("modes", "one_mode"), ("pca", "pca")):
        by_count = {1: _fraction(kept[one])}
        by_count |= {count: _fraction(kept[f"{kind}_{count}"]) for count in COUNTS if f"{kind}_{count}" in kept}
        numbers |= {f"live_{kind}_{count}": same for count, same in by_count.items() if count > 1}
        numbers[f"live_needs_{kind}"] = float(
            min((count for count, same in by_count.items() if same >= ENOUGH), default=math.inf)
        )
    return numbers


# The paper's groups of modes


def _changes_of_groups(bench: Bench, paper: PaperGroups, seed: int) -> dict[str, Change]:
    """Each group of modes kept and removed, both together, and as many random directions."""
    groups = paper.groups
    directions = {
        "negative": _of_hidden_state(bench, paper.koopman, groups.negative),
        "positive": _of_hidden_state(bench, paper.koopman, groups.positive),
        "both": _of_hidden_state(bench, paper.koopman, tuple({*groups.negative, *groups.positive})),
    }
    directions |= _random_like(bench, directions["both"], "random", seed)
    changes = {}
    for name, own in directions.items():
        changes[f"group_{name}"] = Change(directions=own)
        changes[f"removed_group_{name}"] = Change(directions=own, keep=False)
    return changes


def _of_hidden_state(bench: Bench, koopman: kann.Koopman, modes: tuple[int, ...]) -> Float[Array, "d _"]:
    """Directions of modes of h, as wide as the state that is replaced: they have no part in the cell of an LSTM."""
    directions = mode_directions(koopman, modes)
    return np.pad(directions, ((0, bench.spread.dim - len(directions)), (0, 0)))


def _numbers_of_groups(bench: Bench, kept: Kept) -> dict[str, float]:
    """What is left of the paper's groups in the running network; nothing if they were not tested."""
    if "group_both" not in kept:
        return {}
    # What the network decides if one group alone is kept: its own decision, or the other one where that has changed.
    low, high = (bench.positive == kept[f"group_{side}"] for side in ("negative", "positive"))
    return {
        "live_groups_split": _fraction(~low & high),
        "live_group_negative": _fraction(kept["group_negative"]),
        "live_group_positive": _fraction(kept["group_positive"]),
        "live_groups": _fraction(kept["group_both"]),
        "live_groups_random": _mean_of_draws(kept, "group_random"),
        "live_groups_removed": _fraction(kept["removed_group_both"]),
        "live_group_negative_removed": _fraction(kept["removed_group_negative"]),
        "live_group_positive_removed": _fraction(kept["removed_group_positive"]),
        "live_groups_random_removed": _mean_of_draws(kept, "removed_group_random"),
    }


def _fraction(values: Shaped[Array, " s"]) -> float:
    return float(np.mean(values))


def _mean_of_draws(kept: Kept, name: str) -> float:
    return float(np.mean([kept[f"{name}_{draw}"] for draw in range(DRAWS)]))

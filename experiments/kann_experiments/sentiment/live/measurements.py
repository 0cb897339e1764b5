"""The numbers of the live tests, by the keys of `LIVE`: one coordinate, several, the paper's groups, and words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import kann
from kann.analysis.coordinates import Coordinates, principal_components, random_directions
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.groups import Groups
from kann_experiments.sentiment.live.bench import Bench, Change, make_bench
from kann_experiments.sentiment.live.search import Chosen, choose_coordinates
from kann_experiments.sentiment.live.words import flipped_by_deletion
from kann_experiments.sentiment.task import JUDGED
from kann_experiments.training import generator

DRAWS = 3
"""Draws of random directions."""

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
    """Which operators were compared, for ``results.json``."""


def measure_live(
    network: SentimentNetwork, corpus: Corpus, *, seed: int, paper: PaperGroups | None = None
) -> LiveResult:
    """Choose coordinates on validation reviews, and judge them, and the paper's groups, on test reviews."""
    with evaluation_mode(network):
        bench = make_bench(network, corpus, seed=seed)
        chosen = choose_coordinates(bench)
        changes = _changes_of_one(bench, chosen, seed) | _changes_of_several(bench, chosen)
        if paper is not None:
            changes |= _changes_of_groups(bench, paper, seed)
        kept = bench.kept(changes)
        flips = flipped_by_deletion(bench, chosen.one.directions[:, 0], seed=seed)
    numbers = _numbers_of_one(bench, kept) | _numbers_of_several(kept) | _numbers_of_groups(bench, kept)
    numbers |= {f"words_{name}": flipped for name, flipped in flips.items()}
    tried = [{"operator": each.name, "recovered": each.recovered, "reviews": each.sequences} for each in chosen.tried]
    return LiveResult(numbers=numbers, details={"tried": tried, "several": chosen.operators})


# One coordinate


def _changes_of_one(bench: Bench, chosen: Chosen, seed: int) -> dict[str, Change]:
    """One coordinate kept on its curve, and removed: the chosen one, and what it is compared with."""
    weight = bench.search.weight
    assert weight is not None  # noqa: S101  # the bench was made with the readout
    coordinates = {
        "one": chosen.one,
        "readout": Coordinates.of_directions(weight.T),
        "pca": Coordinates.of_directions(principal_components(bench.spread)[:, :1]),
        **_random_like(bench, chosen.one, "random", seed),
    }
    changes = {"none": Change(coordinates=Coordinates.of_directions(np.empty((bench.spread.dim, 0))))}
    for name, own in coordinates.items():
        changes[name] = Change(coordinates=own)
        changes[f"removed_{name}"] = Change(coordinates=own, keep=False)
    return changes | {"learned": Change(coordinates=chosen.learned)}


def _random_like(bench: Bench, like: Coordinates, name: str, seed: int) -> dict[str, Coordinates]:
    """Draws of as many random directions, in which the states vary as much."""
    spread, axes, rng = bench.spread, like.axes(bench.spread), generator(seed, JUDGED, like.count)
    fraction = float(np.trace(spread.along(axes)) / np.trace(spread.covariance))
    return {
        f"{name}_{draw}": Coordinates.of_directions(
            random_directions(spread, count=axes.shape[1], fraction=fraction, rng=rng)
        )
        for draw in range(DRAWS)
    }


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
        "live_one_random": _mean_of_draws(kept, "random"),
        "live_one_learned": _fraction(kept["learned"]),
        "live_none": _fraction(kept["none"]),
        "live_removed": _fraction(kept["removed_one"]),
        "live_removed_readout": _fraction(kept["removed_readout"]),
        "live_removed_pca": _fraction(kept["removed_pca"]),
        "live_removed_random": _mean_of_draws(kept, "removed_random"),
    }
    rival = max(numbers["live_one_readout"], numbers["live_one_pca"])
    return numbers | {"live_one_lead": numbers["live_one"] - rival}


# Several coordinates


def _changes_of_several(bench: Bench, chosen: Chosen) -> dict[str, Change]:
    """Several coordinates kept, filled linearly: the chosen modes, and as many principal components."""
    components = principal_components(bench.spread)
    changes = {}
    for count, modes in chosen.several.items():
        changes[f"modes_{count}"] = Change(coordinates=modes, fill="linear")
        own = Coordinates.of_directions(components[:, :count])
        changes[f"pca_{count}"] = Change(coordinates=own, fill="linear")
    return changes


def _numbers_of_several(kept: Kept) -> dict[str, float]:
    """How many decisions several coordinates keep, and how few of them keep enough."""
    numbers = {f"live_{name}": _fraction(same) for name, same in kept.items() if name.startswith(("modes_", "pca_"))}
    for kind, one in (("modes", "one"), ("pca", "pca")):
        by_count = {1: _fraction(kept[one])}
        by_count |= {
            int(name.removeprefix(f"{kind}_")): _fraction(same)
            for name, same in kept.items()
            if name.startswith(f"{kind}_")
        }
        numbers[f"live_needs_{kind}"] = float(
            min((k for k, same in by_count.items() if same >= ENOUGH), default=math.inf)
        )
    return numbers


# The paper's groups of modes


def _changes_of_groups(bench: Bench, paper: PaperGroups, seed: int) -> dict[str, Change]:
    """Each group of modes kept and removed, both together, and as many random directions."""
    groups = paper.groups
    coordinates = {
        "negative": _of_hidden_state(bench, paper.koopman, groups.negative),
        "positive": _of_hidden_state(bench, paper.koopman, groups.positive),
        "both": _of_hidden_state(bench, paper.koopman, tuple({*groups.negative, *groups.positive})),
    }
    coordinates |= _random_like(bench, coordinates["both"], "random", seed)
    changes = {}
    for name, own in coordinates.items():
        changes[f"group_{name}"] = Change(coordinates=own)
        changes[f"removed_group_{name}"] = Change(coordinates=own, keep=False)
    return changes


def _of_hidden_state(bench: Bench, koopman: kann.Koopman, modes: tuple[int, ...]) -> Coordinates:
    """Coordinates of modes of h, as wide as the state that is replaced: they have no part in the cell of an LSTM."""
    directions = Coordinates.of_modes(koopman, modes).directions
    return Coordinates.of_directions(np.pad(directions, ((0, bench.spread.dim - len(directions)), (0, 0))))


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

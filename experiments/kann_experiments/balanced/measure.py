"""Measure one network: how few coordinates keep its decisions, balanced ones next to the baselines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kann
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Float
from kann_experiments.balanced.cases import Case
from kann_experiments.results import Quantity
from kann_experiments.sentiment.corpus import load_corpus
from kann_experiments.sentiment.live.bench import make_bench
from kann_experiments.sentiment.live.measurements import COUNTS as SEVERAL
from kann_experiments.sentiment.live.measurements import kept_by_coordinates
from kann_experiments.sentiment.task import CONFIGS, trained

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of coordinates that are kept after every step."""

METHODS = {
    "balanced": "balanced coordinates",
    "modes": "modes of a driven operator",
    "pca": "principal components",
    "readout": "the readout's directions",
    "random": "random directions of equal variance",
}
"""Kinds of coordinates, by the names that `kann.effects` has for them."""

MODES_RANK = 16
"""Rank of the driven operator in principal components whose modes are compared."""

DRAWS = 3
"""Draws of random directions."""

VALUES = 24
"""Leading singular values that are written down."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """What was measured about one network."""

    numbers: dict[str, float]
    """Fractions of decisions kept, by method and number of coordinates, such as ``balanced_4``."""
    balance: kann.Balance
    fills: dict[str, tuple[str, ...]]
    """How the rest of the state was completed, by method."""

    @property
    def details(self) -> dict[str, Any]:
        """Singular values, their count and the fills, for ``results.json``."""
        return {
            "values": self.balance.values[:VALUES],
            "count": self.balance.count,
            "count_interval": self.balance.count_interval,
            "fills": self.fills,
        }


def quantities(counts: tuple[int, ...] = tuple(range(1, max(COUNTS) + 1))) -> tuple[Quantity, ...]:
    """The rows of the table; those that were not measured are left out of it."""
    rows = [
        Quantity(key="judged", what="held-out sequences judged in the running network"),
        Quantity(key="none", what="decisions kept with the state held at its mean", format="percent"),
        Quantity(key="count", what="coordinates before the gap in the singular values"),
    ]
    for name, what in METHODS.items():
        rows += [Quantity(key=f"{name}_{k}", what=f"    {k} of {what}", format="percent") for k in counts]
    return tuple(rows)


def study(case: Case, *, counts: tuple[int, ...] = COUNTS, seed: int = 0) -> Study:
    """Fit coordinates to some sequences and judge them on others, in the running network."""
    where: dict[str, Any] = {"layer": case.layer, "state": case.state}
    balance = kann.balance(case.network, case.fitted, outputs=case.outputs, seed=seed, **where)
    recording = {"inputs": case.has_inputs, "batch_size": case.batch_size, "progress": False}
    states = kann.record(case.network, case.fitted, **recording, **where)
    koopman = kann.fit(states, rank=min(MODES_RANK, states.dim), driven=case.has_inputs)
    effects = kann.effects(
        case.network,
        case.judged,
        balance,
        states,
        koopman=koopman,
        readout=None if case.layer == "encoder" else getattr(case.network, "readout", None),
        counts=sorted({count for count in (*counts, case.known or 1) if count <= states.dim}),
        outputs=case.outputs,
        draws=DRAWS,
        seed=seed,
        batch_size=case.batch_size,
        progress=False,
        **dict(case.scored),
        **where,
    )
    numbers = {"judged": float(len(effects.judged)), "none": float(_kept(case, effects, effects.none_scores).mean())}
    numbers["count"] = np.nan if balance.count is None else float(balance.count)
    for name in METHODS:
        for count, scores in zip(effects.counts, effects.kept_scores.get(name, ()), strict=False):
            if np.isfinite(scores).all():
                numbers[f"{name}_{count}"] = float(_kept(case, effects, scores).mean())
    return Study(numbers=numbers, balance=balance, fills=dict(effects.fills))


def _kept(case: Case, effects: kann.Effects, scores: Float[Array, " s"]) -> Float[Array, " s"]:
    return scores if case.decided is None else case.decided(scores, effects.full_scores)


def sentiment_numbers(arch: str, seed: int, folder: Path, device: str) -> dict[str, float]:
    """The same for a sentiment network, on the reviews of that experiment: 25,000 test reviews on a GPU."""
    corpus = load_corpus()
    network = trained(CONFIGS[arch], corpus, seed=seed, folder=folder, device=device)
    with evaluation_mode(network):
        return renamed(kept_by_coordinates(make_bench(network, corpus, seed=seed), seed))


def renamed(live: dict[str, float]) -> dict[str, float]:
    """Numbers of the sentiment experiment under the names that other tasks have here."""
    one = {"balanced": "one", "modes": "one_mode", "pca": "one_pca", "readout": "one_readout", "random": "one_random"}
    numbers = {"judged": live["live_reviews"], "none": live["live_none"]}
    numbers |= {f"{name}_1": live[f"live_{key}"] for name, key in one.items()}
    keys = {f"{name}_{count}": f"live_{name}_{count}" for name in METHODS for count in SEVERAL}
    return numbers | {key: live[own] for key, own in keys.items() if own in live}

"""The paper's checks: other bases, and two reviews of the same words in another order."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import kann
from kann.paper.sentiment.operators import LEADING, SLOW, Operators, on_host, papers_fit
from kann.typing import Array, Complex, Float
from kann.zoo.sentiment_network import SentimentNetwork
from kann.zoo.vocabulary import Vocabulary

BASES = ("svd", "pca", "fourier")

SHUFFLED = ("not bad and very good", "very bad and not good")
"""The paper's two reviews, the first positive, the second negative."""


def other_bases(operators: Operators) -> dict[str, kann.Koopman]:
    """The operator of the paper's batch in three bases."""
    moments = kann.Moments.of(operators.states)
    return {basis: papers_fit(moments, basis=basis) for basis in BASES}


def distance(values: Complex[Array, " n"], others: Complex[Array, " m"], *, count: int | None = None) -> float:
    """Mean distance of the dominant eigenvalues from those of another operator that correspond to them."""
    count = count or max(LEADING, int((np.abs(values) > SLOW).sum()))
    gaps = np.abs(values[:count, None] - others[None, :])
    return float(gaps[linear_sum_assignment(gaps)].mean())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Path:
    """How the state moves while a short review is read, on two principal axes."""

    text: str
    network: Float[Array, "t 2"]
    """Where the network is after each word."""
    kann: Float[Array, "t 2"]
    """Where the paper's operator sends it from there: its table follows the state at the same t."""
    driven: Float[Array, "t 2"]
    """Where the linear system is that reads the words and was never told the network's state."""
    logit: float
    """The network's, after the last word."""

    @property
    def ends_alike(self) -> bool:
        """Whether network and operator end on the same side of the first axis."""
        return bool(np.sign(self.network[-1, 0]) == np.sign(self.kann[-1, 0]))


def shuffled_paths(network: SentimentNetwork, vocabulary: Vocabulary, operators: Operators) -> tuple[Path, ...]:
    """The paths of the two reviews on the first two principal axes of the states without padding.

    The first axis points to where the readout is positive.
    """
    axes = kann.fit(operators.moments, basis="pca", rank=min(2, operators.unpadded.rank))
    signs = np.where(operators.readout.weight[0] @ axes.basis < 0, -1.0, 1.0)
    paths = []
    for text in SHUFFLED:
        (ids,) = vocabulary.encode([text])
        states = on_host(
            kann.record(network, [torch.from_numpy(ids)], layer="recurrent", inputs=True, batch_size=1, progress=False)
        )
        h = states[0].astype(np.float64)
        alone = operators.driven.simulate(np.asarray(states.inputs, dtype=np.float64)[None])[0]
        mapped = [axes.encode(each) * signs for each in (h, operators.unpadded.predict(h), alone)]
        paths.append(
            Path(
                text=text,
                network=mapped[0],
                kann=mapped[1],
                driven=mapped[2],
                logit=float(operators.readout(h[-1:])[0, 0]),
            )
        )
    return tuple(paths)

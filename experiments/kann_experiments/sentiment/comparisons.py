"""The paper's checks: other bases, and two reviews of the same words in another order."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import kann
from kann.typing import Array, Complex, Float
from kann.zoo.sentiment_network import SentimentNetwork, Vocabulary
from kann_experiments.sentiment.operators import DOMINANT, LEADING, Operators, fit_as_in_paper, on_host

BASES = ("svd", "pca", "fourier")
"""The bases that the paper compares."""

SHUFFLED = ("not bad and very good", "very bad and not good")
"""The paper's two reviews, the first positive, the second negative."""

PRINTED_PATHS = (
    (
        ((-0.716, 0.547), (-0.284, 0.649)),
        ((-1.080, 0.280), (-0.589, 0.612)),
        ((-0.440, -0.093), (0.003, 0.479)),
        ((0.807, -0.319), (0.708, 0.419)),
        ((0.713, 0.036), (0.598, 0.474)),
    ),
    (
        ((1.478, 0.355), (1.094, 0.522)),
        ((0.313, 0.078), (0.128, 0.619)),
        ((0.392, -0.282), (0.335, 0.503)),
        ((-0.895, -0.311), (-0.530, 0.571)),
        ((-0.572, -0.291), (-0.237, 0.542)),
    ),
)
"""The paper's table: of each review, after each word, the network and its operator on two principal axes."""


def fit_in_each_basis(operators: Operators) -> dict[str, kann.Koopman]:
    """The operator of the paper's batch in three bases."""
    moments = kann.Moments.of(operators.states)
    return {basis: fit_as_in_paper(moments, basis=basis) for basis in BASES}


def eigenvalue_distance(
    values: Complex[Array, " n"], others: Complex[Array, " m"], *, count: int | None = None
) -> float:
    """Mean distance of the first ``count`` eigenvalues from those of another operator that correspond to them.

    Without ``count`` the dominant ones are compared, or the leading four if fewer are dominant. Eigenvalues are
    matched one to one so that the sum of distances is smallest: their order by modulus may differ.
    """
    count = count or max(LEADING, int((np.abs(values) > DOMINANT).sum()))
    gaps = np.abs(values[:count, None] - others[None, :])
    return float(gaps[linear_sum_assignment(gaps)].mean())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trajectory:
    """How the state moves while a short review is read, on two principal axes."""

    text: str
    network: Float[Array, "t 2"]
    """Where the network is after each word."""
    kann: Float[Array, "t 2"]
    """Where the paper's operator sends it from there: its table follows the state at the same t."""
    driven: Float[Array, "t 2"]
    """Where the linear system is that reads the words and was never told the network's state."""
    logit: float
    """The network's logit after the last word."""

    @property
    def ends_alike(self) -> bool:
        """Whether network and operator end on the same side of the first axis."""
        return bool(np.sign(self.network[-1, 0]) == np.sign(self.kann[-1, 0]))


def shuffled_trajectories(
    network: SentimentNetwork, vocabulary: Vocabulary, operators: Operators
) -> tuple[Trajectory, ...]:
    """The two shuffled reviews on the first two principal axes of the states without padding.

    The first axis points to where the readout is positive.
    """
    axes = kann.fit(operators.moments, basis="pca", offset=False, rank=min(2, operators.unpadded.rank))
    # Principal axes have no sign of their own.
    signs = np.where(operators.readout.weight[0] @ axes.basis < 0, -1.0, 1.0)
    trajectories = []
    for text in SHUFFLED:
        (ids,) = vocabulary.encode([text])
        words = [torch.from_numpy(ids)]
        states = on_host(kann.record(network, words, layer="recurrent", inputs=True, batch_size=1, progress=False))
        h = states[0].astype(np.float64)  # (t, d)
        simulated = operators.driven.simulate(np.asarray(states.inputs, dtype=np.float64)[None])[0]  # (t, d)
        on_axes = [axes.encode(each) * signs for each in (h, operators.padded.predict(h), simulated)]
        trajectories.append(
            Trajectory(
                text=text,
                network=on_axes[0],
                kann=on_axes[1],
                driven=on_axes[2],
                logit=float(operators.readout(h[-1:])[0, 0]),
            )
        )
    return tuple(trajectories)

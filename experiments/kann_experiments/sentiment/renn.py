"""RENN, the baseline, on networks that read reviews: fixed points without input, and the network linearised at them."""

import math

import numpy as np
import torch
from torch import nn

import kann
from kann.typing import Array, Float
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.results import Quantity
from kann_experiments.sentiment.corpus import Reviews
from kann_experiments.sentiment.operators import DOMINANT, on_host

SEARCHES = 64
"""States from which fixed points are searched, evenly spaced over all words of some reviews."""

PAIRS = 4000
"""Pairs of states that linearisations are judged on, at most."""

QUANTITIES = (
    Quantity(key="renn_fixed", what="RENN: fixed points without input"),
    Quantity(key="renn_slow", what="    slow points"),
    Quantity(key="renn_line", what="    variance of these points along one line", format="percent"),
    Quantity(key="renn_modulus", what="    largest |λ| of the Jacobian, mean over the points"),
    Quantity(key="renn_dominant", what="    eigenvalues of modulus above .99, mean over the points"),
    Quantity(key="renn_error", what="    relative error of one step at the nearest point, words read"),
    Quantity(key="renn_silent_error", what="    relative error without the words"),
)
"""The rows of the table for `renn_numbers`."""


def renn_numbers(network: SentimentNetwork, fitted: Reviews, judged: Reviews) -> dict[str, float]:
    """Search from states of some reviews under x* = 0, as the paper's rival does, and judge on others."""
    device = network.readout.weight.device
    recurrent = network.recurrent
    host = network.cpu()  # searches are in float64 on the host
    try:
        visited, _ = _full_states(host, fitted)
        starts = visited.values[np.linspace(0, len(visited.values) - 1, SEARCHES).astype(int)]
        zero = np.zeros(network.embedding.embedding_dim)
        points = kann.find_fixed_points(recurrent, starts, inputs=zero)
        if not len(points):  # the slowest states that searches came to
            points = kann.find_fixed_points(recurrent, starts, inputs=zero, slow_tolerance=math.inf)
        states, inputs = _full_states(host, judged)
    finally:
        network.to(device)
    d = network.readout.in_features
    follows = np.setdiff1d(np.arange(len(states.values)), states.starts)[:PAIRS]
    before, after = states.values[follows - 1].astype(np.float64), states.values[follows].astype(np.float64)
    moduli = np.abs(points.eigenvalues)
    return {
        "renn_fixed": float((points.kinds == "fixed").sum()),
        "renn_slow": float((points.kinds == "slow").sum()),
        "renn_line": _along_one_line(points.points),
        "renn_modulus": float(moduli.max(axis=1).mean()),
        "renn_dominant": float((moduli > DOMINANT).sum(axis=1).mean()),
        "renn_error": _error(points.predict(before, inputs=inputs[follows])[:, :d], after[:, :d]),
        "renn_silent_error": _error(points.predict(before)[:, :d], after[:, :d]),
    }


def _full_states(network: SentimentNetwork, reviews: Reviews) -> tuple[kann.States, Float[Array, "n p"]]:
    """All that the network carries from word to word, of an LSTM h and c, and the embeddings that it reads."""
    kind = "hc" if isinstance(network.recurrent, nn.LSTM) else "h"
    words = [torch.from_numpy(reviews[i]) for i in range(len(reviews))]
    recorded = kann.record(
        network, words, layer="recurrent", state=kind, inputs=True, batch_size=len(words), progress=False
    )
    states = on_host(recorded)
    return states, np.asarray(states.inputs, dtype=np.float64)


def _along_one_line(points: Float[Array, "k d"]) -> float:
    """The fraction of the points' variance along their first principal axis; NaN for a single point."""
    squares = np.linalg.svd(points - points.mean(axis=0), compute_uv=False) ** 2
    return float(squares[0] / squares.sum()) if squares.sum() > 0 else np.nan


def _error(predicted: Float[Array, "n d"], true: Float[Array, "n d"]) -> float:
    """The paper's relative error."""
    return float(np.mean(((predicted - true) ** 2).sum(axis=1) / (true**2).sum(axis=1)))

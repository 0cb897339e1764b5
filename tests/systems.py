"""Dynamical systems and states with known properties, for the tests."""

import warnings

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

AS_IN_PAPER = {"basis": "svd", "offset": False}
"""The arguments of `kann.fit` for the paper's operator, which is about zero and has no offset."""


def stable_matrix(rng, d):
    """A non-normal matrix with complex eigenvalues, all of modulus 0.5 to 0.98."""
    blocks = np.diag(rng.uniform(0.5, 0.98, d))
    for i in range(0, d - 1, 2):
        angle, size = rng.uniform(0.2, 2.5), rng.uniform(0.6, 0.98)
        blocks[i : i + 2, i : i + 2] = size * np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
    change = np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d)
    return np.linalg.inv(change) @ blocks @ change


def run(matrix, start, steps, push=None):
    """Paths (S, steps, d) of h[t+1] = h[t] @ matrix + push[t+1], with h[0] = start."""
    path = [start]
    for t in range(1, steps):
        path.append(path[-1] @ matrix + (0 if push is None else push[:, t]))
    return np.stack(path, axis=1)


def noisy_states(rng, *, sequences=12, steps=40, d=10, noise=0.3):
    """A stable linear system in noise: states of full rank that no operator fits exactly."""
    push = noise * rng.normal(size=(sequences, steps, d))
    return run(stable_matrix(rng, d), rng.normal(size=(sequences, d)), steps, push)


def low_rank_states(rng, *, d, r=6, sequences=20, steps=60):
    """A stable linear system of r dimensions in noise, seen through d units that add little noise of their own."""
    push = 0.3 * rng.normal(size=(sequences, steps, r))
    inner = run(stable_matrix(rng, r), rng.normal(size=(sequences, r)), steps, push) * (1 + np.arange(r))
    seen = inner @ np.linalg.qr(rng.normal(size=(d, r)))[0].T + 1
    return seen + 1e-3 * rng.normal(size=(sequences, steps, d))


def wide_states(rng):
    """Three slow modes of .98, .93 and .9 in little noise, in 140 units that are noise otherwise."""
    rates = np.concatenate([[0.98, 0.93, 0.9], np.full(137, 0.1)])
    noise = np.concatenate([np.full(3, 0.02), np.ones(137)])
    push = noise * rng.normal(size=(60, 40, 140))
    return run(np.diag(rates), rng.normal(size=(60, 140)), 40, push) @ rotation(rng, 140)


def rotation(rng, d):
    """A random orthogonal matrix."""
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def full_operator(koopman):
    """B C Bᵀ: the operator in the coordinates of the hidden units."""
    return koopman.basis @ koopman.matrix @ koopman.basis.T


def relative(ours, theirs):
    """|ours − theirs| / |theirs|."""
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


def eigenvalue_distance(ours, theirs):
    """How far apart two spectra are: the largest distance when each eigenvalue is matched with one of the other."""
    assert len(ours) == len(theirs)
    distances = np.abs(np.subtract.outer(ours, theirs))
    return distances[linear_sum_assignment(distances)].max()


def nested():
    """A nested tensor, without torch's warning that it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])

"""Least squares and eigenvalues in sixty digits, of the numbers as float64 or float32 hold them."""

import mpmath
import numpy as np

DIGITS = 60


def exact(values):
    """The same numbers, each as a number of sixty digits."""
    return np.vectorize(mpmath.mpf, otypes=[object])(np.asarray(values, dtype=np.float64))


def eigenvalues(values, inputs=None, *, offset=False, about_mean=False):
    """Eigenvalues of the operator that fits states (S, T, d) best: driven if there are inputs.

    At full rank they do not depend on the basis. With ``about_mean`` the mean of all states is taken off first, as the
    PCA basis does; a fit with an offset is about the means of the pairs in any case.
    """
    with mpmath.workdps(DIGITS):
        h = exact(values)
        d = h.shape[-1]
        if about_mean:
            h = h - h.reshape(-1, d).sum(0) / (h.shape[0] * h.shape[1])
        x, y = h[:, :-1].reshape(-1, d), h[:, 1:].reshape(-1, d)
        if inputs is not None:
            u = exact(inputs)[:, 1:].reshape(len(x), -1)
            x = np.hstack([x, u])
        if offset:
            x, y = x - x.sum(0) / len(x), y - y.sum(0) / len(y)
        weights = mpmath.inverse(mpmath.matrix((x.T @ x).tolist())) * mpmath.matrix((x.T @ y).tolist())
        found = mpmath.eig(weights[:d, :], left=False, right=False)
    return np.array([complex(value) for value in found])

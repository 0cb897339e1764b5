"""How well an operator predicts sequences that it was not fitted to: what ``kann fit`` says about its own fit."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import kann
from kann.data.reduction import runs_on_dask
from kann.data.rows import ChosenRows
from kann.errors import KannError, KannWarning
from kann.typing import Array, Shaped

SEED = 0
"""The seed with which held-out sequences are drawn."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutErrors:
    """Relative errors of one step, or why there are none."""

    error: float | None = None
    """Of an operator fitted to the sequences that were not held out; of the operator itself if there is but one."""
    copying: float | None = None
    """Of copying the previous state, on the same sequences."""
    held_out: int = 0
    """How many sequences were held out."""
    fitted: int = 0
    """How many sequences the measured operator was fitted to."""
    reason: str = ""
    """Why nothing was measured."""

    def sentence(self) -> str:
        """The errors and what they were measured on, for people."""
        if self.error is None:
            return f"relative error of one step: not measured, {self.reason}"
        numbers = f"relative error of one step {self.error:.4g}, copying the previous state {self.copying:.4g}"
        if not self.held_out:
            return f"{numbers}; on the only sequence, which was fitted"
        sequences = f"{self.held_out} held-out sequence{'s' * (self.held_out != 1)}"
        return f"{numbers}; on {sequences}, with a second operator fitted to the other {self.fitted}"

    def numbers(self) -> dict[str, Any]:
        """The same for programs."""
        names = ("held_out", "fitted", "reason")
        return {"relative_error": self.error, "copying": self.copying} | {name: getattr(self, name) for name in names}


def require_fraction(fraction: float) -> None:
    """Refuse to hold out what is no fraction of the sequences."""
    if not 0 <= fraction < 1:
        raise KannError(f"--held-out {fraction:g} is no fraction of the sequences; pass 0 for none, or less than 1")


def measure_held_out(
    data: kann.States | kann.Moments, koopman: kann.Koopman, *, fraction: float, settings: dict[str, Any]
) -> HeldOutErrors:
    """Fit again without a fraction of the sequences, at least one, and measure the errors on those.

    ``koopman`` is the operator of all sequences and ``settings`` what it was fitted with.
    """
    if not fraction:
        return HeldOutErrors(reason="as --held-out 0 asks")
    if isinstance(data, kann.Moments):
        return HeldOutErrors(reason="since moments do not keep sequences apart")
    if runs_on_dask(data):
        return HeldOutErrors(reason="since the states are read by Dask; call kann.relative_error from Python")
    try:
        if len(data) == 1:
            return _errors(koopman, data, held_out=0, fitted=1)
        is_held_out = draw_sequences(len(data), fraction=fraction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KannWarning)  # the fit to all sequences has given them already
            other = kann.fit(take_sequences(data, ~is_held_out), **settings)
        held_out = int(is_held_out.sum())
        return _errors(other, take_sequences(data, is_held_out), held_out=held_out, fitted=len(data) - held_out)
    except KannError as error:  # what is left may be too little to fit or to measure
        return HeldOutErrors(reason=str(error))


def draw_sequences(count: int, *, fraction: float) -> Shaped[Array, " s"]:
    """Which of some sequences are held out: a fraction of them, at least one and never all."""
    held_out = min(max(1, round(fraction * count)), count - 1)
    is_held_out = np.zeros(count, dtype=bool)
    is_held_out[np.random.default_rng(SEED).permutation(count)[:held_out]] = True
    return is_held_out


def take_sequences(states: kann.States, chosen: Shaped[Array, " s"]) -> kann.States:
    """Some of the sequences, read from where all of them are."""
    rows = np.flatnonzero(np.repeat(chosen, states.lengths))
    inputs = states.inputs
    if inputs is not None:
        inputs = ChosenRows(inputs, rows)
    values = ChosenRows(states.values, rows)
    return kann.States(values=values, lengths=states.lengths[chosen], inputs=inputs, reverse=states.reverse)


def _errors(koopman: kann.Koopman, states: kann.States, *, held_out: int, fitted: int) -> HeldOutErrors:
    return HeldOutErrors(
        error=float(kann.relative_error(koopman, states)),
        copying=float(kann.relative_error(kann.copying, states)),
        held_out=held_out,
        fitted=fitted,
    )

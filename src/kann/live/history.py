"""Operators of a network at the checkpoints of its training."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kann import _display
from kann.checks import require_choice, require_instance, short_repr
from kann.data.serialization import Saved, Stored, made, save_npz
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float, Int, Shaped

FARTHEST = 0.5
"""A mode continues another only if its eigenvalue and its direction together have moved by no more than this. A turn by
60° alone, or a jump of |λ| by a half alone, is that far: beyond, it is another mode."""


FIGURES: tuple[str, ...] = ("slow", "radius", "horizon", "error", "copying", "trusted", "rank", "coordinates")
"""Names of the figures of each checkpoint; see `kann.Monitor`."""

LEADING = 16
"""Singular values of the balanced coordinates that are kept of each checkpoint."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Checkpoint(Stored):
    """The operator of a network at one checkpoint."""

    step: int
    """The step of training."""
    loss: float
    """The loss that was given, NaN if none was."""
    figures: dict[str, float]
    """Figures by the names in `FIGURES`; NaN if the network's states allow no operator."""
    numbers: Int[Array, " m"]
    """Numbers of the modes, which they keep from one checkpoint to the next."""
    eigenvalues: Complex[Array, " m"]
    """Their eigenvalues; of a conjugate pair the one above the real axis."""
    carried: Float[Array, " m"]
    """The fraction of the states' energy that each mode carries."""
    trusted: Shaped[Array, " m"]
    """Whether each mode can be trusted."""
    values: Float[Array, " q"] = field(default_factory=lambda: np.zeros(0))
    """The leading singular values of the balanced coordinates; none if they were not asked for."""

    @staticmethod
    def unknown(*, step: int, loss: float) -> "Checkpoint":
        """Return a checkpoint at which no operator could be fitted."""
        none: dict[str, Any] = {name: np.zeros(0, dtype=kind) for name, kind in MODES.items()}
        return Checkpoint(step=step, loss=loss, figures=dict.fromkeys(FIGURES, math.nan), **none)

    def _content(self) -> dict[str, Any]:
        # Lists are part of the text of a file; arrays would be five members of the archive for each checkpoint.
        return {name: as_plain_list(value) for name, value in Stored._content(self).items()}

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> "Checkpoint":
        arrays: Any = {name: np.array(content[name], dtype=kind) for name, kind in (MODES | {"values": float}).items()}
        return cls(**content | arrays)

    def _check(self) -> None:
        if set(self.figures) != set(FIGURES):
            raise ValueError(f"it holds {len(self.figures)} figures, not {len(FIGURES)}")
        if len(set(self.numbers.tolist())) < len(self.numbers) or len(self.values) > LEADING:
            raise ValueError("a checkpoint has two modes of the same number, or too many singular values")
        if self.carried.min(initial=0.0) < 0:
            raise ValueError("its modes hold numbers that they cannot hold")


MODES = {"numbers": int, "eigenvalues": complex, "carried": float, "trusted": bool}
"""The fields of a checkpoint with an entry for each mode, and their types."""


def as_plain_list(value: Any) -> Any:
    """Turn an array into a list; anything else stays as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value


@dataclass(slots=True, eq=False, repr=False)
class History(Saved):
    """The checkpoints of one training, in their order.

    >>> history = History()
    >>> len(history)
    0
    """

    checkpoints: list[Checkpoint] = field(default_factory=list)
    directions: Complex[Array, "m d"] | None = None
    """The directions of the modes of the last checkpoint that has any, which the next one needs to continue them."""

    def add(self, checkpoint: Checkpoint, directions: Complex[Array, "m d"] | None = None) -> None:
        """Append a checkpoint, and the directions of its modes."""
        self.require_later(checkpoint.step)
        self.checkpoints.append(checkpoint)
        if directions is not None:
            self.directions = directions

    def require_later(self, step: int) -> None:
        """Raise if a step does not follow the last one."""
        if self.checkpoints and step <= self.checkpoints[-1].step:
            last = self.checkpoints[-1].step
            raise KannError(f"step={step} does not follow step {last}; pass steps in their order, each once")

    def follow(self, koopman: Koopman) -> tuple[Int[Array, " m"], Complex[Array, " m"], Complex[Array, "m d"]]:
        """Number the modes of the next operator; those that continue a mode of the last one keep its number.

        Modes are assigned such that what eigenvalues and directions move is least in sum, |λ' − λ| + 1 − |cos|. Returns
        numbers, eigenvalues (of a pair the one above the real axis) and directions of unit length.
        """
        firsts = [mode.indices[0] for mode in koopman.modes]
        eigenvalues, directions = koopman.eigenvalues[firsts], koopman.left[firsts] @ koopman.state_vectors
        directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        numbers = np.full(len(firsts), -1)
        if self.directions is not None and self.directions.shape[1] == koopman.dim:
            from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

            last = next(each for each in reversed(self.checkpoints) if len(each.numbers))
            apart = np.abs(eigenvalues[:, None] - last.eigenvalues) + 1 - np.abs(directions @ self.directions.conj().T)
            # Beyond the bound all are equally wrong, so that no good match is given up for the sake of a bad one.
            rows, columns = linear_sum_assignment(np.minimum(apart, FARTHEST))
            near = apart[rows, columns] < FARTHEST
            numbers[rows[near]] = last.numbers[columns[near]]
        new = numbers < 0
        numbers[new] = 1 + max((int(each.numbers.max(initial=-1)) for each in self), default=-1) + np.arange(new.sum())
        return numbers, eigenvalues, directions

    def __len__(self) -> int:
        return len(self.checkpoints)

    def __getitem__(self, place: int) -> Checkpoint:
        return self.checkpoints[place]

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.checkpoints)

    @property
    def steps(self) -> Int[Array, " k"]:
        """The step of training at each checkpoint."""
        return np.array([each.step for each in self.checkpoints], dtype=np.int64)

    @property
    def loss(self) -> Float[Array, " k"]:
        """The loss at each checkpoint, NaN where none was given."""
        return np.array([each.loss for each in self.checkpoints], dtype=np.float64)

    def figure(self, name: str) -> Float[Array, " k"]:
        """Return one figure at each checkpoint, such as ``"slow"``."""
        require_choice(name, "name", FIGURES)
        return np.array([each.figures[name] for each in self.checkpoints], dtype=np.float64)

    @property
    def values(self) -> Float[Array, "k q"]:
        """The leading singular values of the balanced coordinates at each checkpoint, NaN where there are fewer."""
        own = [each.values[:LEADING] for each in self.checkpoints]
        return np.array([np.pad(row, (0, LEADING - len(row)), constant_values=math.nan) for row in own])

    def traces(self) -> dict[int, tuple[Int[Array, " c"], Complex[Array, " c"]]]:
        """Return for each mode, by its number, the checkpoints at which it exists, and its eigenvalue at each."""
        found: dict[int, list[tuple[int, complex]]] = {}
        for place, each in enumerate(self.checkpoints):
            for number, value in zip(each.numbers.tolist(), each.eigenvalues.tolist(), strict=True):
                found.setdefault(number, []).append((place, value))
        return {
            number: (np.array([place for place, _ in seen]), np.array([value for _, value in seen]))
            for number, seen in sorted(found.items())
        }

    def require_checkpoints(self, what: str) -> None:
        """Raise if the history is empty; ``what`` would be made of it."""
        if not self.checkpoints:
            raise KannError(f"the history is empty, so there is {what}; call monitor.update() first")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file that `load` reads."""
        self.require_checkpoints("nothing to save")
        save_npz(path, self)

    def _check(self) -> None:
        if (np.diff(self.steps) <= 0).any():
            raise ValueError("its steps are not in their order")
        last = next((each for each in reversed(self.checkpoints) if len(each.numbers)), None)
        if (0 if last is None else len(last.numbers)) != (0 if self.directions is None else len(self.directions)):
            raise ValueError("its directions are not those of the modes of its last checkpoint")

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        names, checkpoints = FIGURES[: arrays["figures"].shape[1]], []
        for place, (step, loss) in enumerate(zip(arrays["steps"].tolist(), arrays["loss"].tolist(), strict=True)):
            figures = dict.fromkeys(FIGURES, math.nan) | dict(
                zip(names, arrays["figures"][place].tolist(), strict=True)
            )
            content: dict[str, Any] = {"step": step, "loss": loss, "figures": figures, "values": []}
            own = arrays["places"] == place if "places" in arrays else np.zeros(0, dtype=bool)
            content |= {name: arrays.get(name, own)[own] for name in MODES}
            checkpoints.append(made(Checkpoint, content))
        return {"checkpoints": checkpoints, "directions": arrays.get("last_directions")}

    def __repr__(self) -> str:
        if not self.checkpoints:
            return "History(no checkpoints)"
        slow = self.figure("slow")[-1]
        return f"History({len(self)} checkpoints, steps {self.steps[0]} to {self.steps[-1]}, slow = {slow:.4f})"

    def _repr_html_(self) -> str:
        rows = [[each.step, f"{each.loss:.4g}", *(f"{each.figures[n]:.4g}" for n in FIGURES)] for each in self]
        return _display.table(repr(self), ["step", "loss", *FIGURES], rows[-12:])


def require_histories(histories: Any) -> dict[str, History]:
    """Return histories by name, from one history or a mapping of them; raise if one is empty."""
    if isinstance(histories, History):
        histories = {"": histories}
    if not isinstance(histories, Mapping) or not histories or not all(isinstance(name, str) for name in histories):
        raise KannError(f'{short_repr(histories)} holds no history; pass one, or {{"name": history, …}}')
    for history in histories.values():
        require_instance(history, History, "history")
        history.require_checkpoints("nothing to show")
    return dict(histories)

"""Operators of a network at the checkpoints of its training."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kann import _display
from kann.checks import require_choice, require_instance, short_repr
from kann.data.serialization import Saved, require_annotations, save_npz
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float, Int

FARTHEST = 0.5
"""A mode continues another only if its eigenvalue and its direction together have moved by no more than this. A turn by
60° alone, or a jump of |λ| by a half alone, is that far: beyond, it is another mode."""


FIGURES: tuple[str, ...] = ("slow", "radius", "horizon", "error", "copying", "trusted", "rank", "coordinates")
"""What is measured at each checkpoint; see `kann.Monitor`."""

LEADING = 16
"""Singular values of the balanced coordinates that are kept of each checkpoint."""

STEPS = {
    "steps": Int[Array, " k"],
    "loss": Float[Array, " k"],
    "figures": Float[Array, "k f"],
    "values": Float[Array, "k q"],
}
MODES = {
    "places": Int[Array, " m"],
    "numbers": Int[Array, " m"],
    "eigenvalues": Complex[Array, " m"],
    "carried": Float[Array, " m"],
    "trusted": Int[Array, " m"],
    "last_numbers": Int[Array, " l"],
    "last_eigenvalues": Complex[Array, " l"],
    "last_directions": Complex[Array, "l d"],
}
"""The arrays of a saved history, those of its modes only if there are any."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Checkpoint:
    """What was found at one checkpoint."""

    step: int
    """The step of training."""
    loss: float
    """The loss that was given, NaN if none was."""
    figures: dict[str, float]
    """What was measured, by the names in `FIGURES`; NaN if the network's states allow no operator."""
    numbers: Int[Array, " m"]
    """Numbers of the modes, which they keep from one checkpoint to the next."""
    eigenvalues: Complex[Array, " m"]
    """Their eigenvalues; of a conjugate pair the one above the real axis."""
    carried: Float[Array, " m"]
    """The fraction of the states' energy that each mode carries."""
    trusted: Array
    """(m,) whether each mode can be trusted."""
    values: Float[Array, " q"] = field(default_factory=lambda: np.zeros(0))
    """The leading singular values of the balanced coordinates; none if they were not asked for."""

    @staticmethod
    def unknown(*, step: int, loss: float) -> "Checkpoint":
        """A checkpoint at which no operator could be fitted."""
        types = {"numbers": int, "eigenvalues": complex, "carried": float, "trusted": bool}
        none: dict[str, Any] = {name: np.zeros(0, dtype=kind) for name, kind in types.items()}
        return Checkpoint(step=step, loss=loss, figures=dict.fromkeys(FIGURES, math.nan), **none)


class History(Saved):
    """The checkpoints of one training, in their order.

    >>> history = History()
    >>> len(history)
    0
    """

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []
        self._last: tuple[Checkpoint, Complex[Array, "m d"]] | None = None
        self._unused = 0

    def add(self, checkpoint: Checkpoint, directions: Complex[Array, "m d"] | None = None) -> None:
        """Append a checkpoint, and the directions of its modes, which the next one needs to continue them."""
        self.require_later(checkpoint.step)
        self._checkpoints.append(checkpoint)
        self._unused = max(self._unused, int(checkpoint.numbers.max(initial=-1)) + 1)
        if directions is not None:
            self._last = checkpoint, directions

    def require_later(self, step: int) -> None:
        """Refuse a step that does not follow the last one."""
        if self._checkpoints and step <= self._checkpoints[-1].step:
            last = self._checkpoints[-1].step
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
        if self._last is not None and self._last[1].shape[1] == koopman.dim:
            from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

            last, before = self._last
            apart = np.abs(eigenvalues[:, None] - last.eigenvalues) + 1 - np.abs(directions @ before.conj().T)
            # Beyond the bound all are equally wrong, so that no good match is given up for the sake of a bad one.
            rows, columns = linear_sum_assignment(np.minimum(apart, FARTHEST))
            near = apart[rows, columns] < FARTHEST
            numbers[rows[near]] = last.numbers[columns[near]]
        new = numbers < 0
        numbers[new] = self._unused + np.arange(new.sum())
        return numbers, eigenvalues, directions

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __getitem__(self, place: int) -> Checkpoint:
        return self._checkpoints[place]

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._checkpoints)

    @property
    def steps(self) -> Int[Array, " k"]:
        """The step of training at each checkpoint."""
        return np.array([each.step for each in self._checkpoints], dtype=np.int64)

    @property
    def loss(self) -> Float[Array, " k"]:
        """The loss at each checkpoint, NaN where none was given."""
        return np.array([each.loss for each in self._checkpoints], dtype=np.float64)

    def figure(self, name: str) -> Float[Array, " k"]:
        """One figure at each checkpoint, such as ``"slow"``."""
        require_choice(name, "name", FIGURES)
        return np.array([each.figures[name] for each in self._checkpoints], dtype=np.float64)

    @property
    def values(self) -> Float[Array, "k q"]:
        """The leading singular values of the balanced coordinates at each checkpoint, NaN where there are fewer."""
        own = [each.values[:LEADING] for each in self._checkpoints]
        return np.array([np.pad(row, (0, LEADING - len(row)), constant_values=math.nan) for row in own])

    def traces(self) -> dict[int, tuple[Int[Array, " c"], Complex[Array, " c"]]]:
        """For each mode by its number, at which checkpoints it was there, and its eigenvalue at each."""
        found: dict[int, list[tuple[int, complex]]] = {}
        for place, each in enumerate(self._checkpoints):
            for number, value in zip(each.numbers.tolist(), each.eigenvalues.tolist(), strict=True):
                found.setdefault(number, []).append((place, value))
        return {
            number: (np.array([place for place, _ in seen]), np.array([value for _, value in seen]))
            for number, seen in sorted(found.items())
        }

    def require_checkpoints(self, what: str) -> None:
        """Refuse an empty history; ``what`` would be made of it."""
        if not self._checkpoints:
            raise KannError(f"the history is empty, so there is {what}; call monitor.update() first")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file that `load` reads."""
        self.require_checkpoints("nothing to save")
        save_npz(path, self)

    def _content(self) -> dict[str, Any]:
        """Return all checkpoints in few arrays; ``places`` says to which checkpoint a mode belongs."""
        content: dict[str, Any] = {
            "steps": self.steps,
            "loss": self.loss,
            "figures": np.array([[each.figures[name] for name in FIGURES] for each in self]),
            "values": self.values,
        }
        if self._last is not None:
            last, directions = self._last
            names = ("numbers", "eigenvalues", "carried", "trusted")
            content |= {name: np.concatenate([getattr(each, name) for each in self]) for name in names}
            content |= {
                "places": np.repeat(np.arange(len(self)), [len(each.numbers) for each in self]),
                "trusted": content["trusted"].astype(np.int64),
                "last_numbers": last.numbers,
                "last_eigenvalues": last.eigenvalues,
                "last_directions": directions,
            }
        return content

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> "History":
        _require_consistent(content)
        history = History()
        last = content["places"][-1] if "places" in content else None
        for place in range(len(content["steps"])):
            history.add(_checkpoint(content, place), content["last_directions"] if place == last else None)
        return history

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        count = len(arrays["steps"])
        unknown = {"values": np.full((count, LEADING), math.nan), "figures": np.full((count, 1), math.nan)}
        unknown["figures"] = np.concatenate([arrays["figures"], unknown["figures"]], axis=1)
        return arrays | unknown

    def __repr__(self) -> str:
        if not self._checkpoints:
            return "History(no checkpoints)"
        slow = self.figure("slow")[-1]
        return f"History({len(self)} checkpoints, steps {self.steps[0]} to {self.steps[-1]}, slow = {slow:.4f})"

    def _repr_html_(self) -> str:
        rows = [[each.step, f"{each.loss:.4g}", *(f"{each.figures[n]:.4g}" for n in FIGURES)] for each in self]
        return _display.table(repr(self), ["step", "loss", *FIGURES], rows[-12:])


def require_histories(histories: Any) -> dict[str, History]:
    """Histories by name, from one history or a mapping of them; refuse empty ones."""
    if isinstance(histories, History):
        histories = {"": histories}
    if not isinstance(histories, Mapping) or not histories or not all(isinstance(name, str) for name in histories):
        raise KannError(f'{short_repr(histories)} holds no history; pass one, or {{"name": history, …}}')
    for history in histories.values():
        require_instance(history, History, "history")
        history.require_checkpoints("nothing to show")
    return dict(histories)


def _checkpoint(arrays: Mapping[str, Array], place: int) -> Checkpoint:
    figures = dict(zip(FIGURES, arrays["figures"][place].tolist(), strict=True))
    known: Any = {"step": int(arrays["steps"][place]), "loss": float(arrays["loss"][place])}
    if "places" not in arrays:
        return Checkpoint.unknown(**known)
    known["values"] = arrays["values"][place][np.isfinite(arrays["values"][place])]
    names, own = ("numbers", "eigenvalues", "carried", "trusted"), arrays["places"] == place
    columns: Any = {name: arrays[name][own] for name in names}
    return Checkpoint(figures=figures, **known, **columns | {"trusted": columns["trusted"].astype(bool)})


def _require_consistent(arrays: dict[str, Array]) -> None:
    """Raise ValueError if steps are not in order, or modes are of checkpoints that are not there."""
    expected = STEPS | (MODES if "numbers" in arrays else {})
    if set(arrays) != set(expected):
        raise ValueError(f"it holds {sorted(arrays)}, not {sorted(expected)}")
    require_annotations(arrays, expected)
    if arrays["figures"].shape[1] != len(FIGURES):
        raise ValueError(f"it holds {arrays['figures'].shape[1]} figures, not {len(FIGURES)}")
    if arrays["values"].shape[1] != LEADING:
        raise ValueError(f"it holds {arrays['values'].shape[1]} singular values, not {LEADING}")
    if (np.diff(arrays["steps"]) <= 0).any():
        raise ValueError("its steps are not in their order")
    if "places" not in arrays:
        return
    places, numbers = arrays["places"], arrays["numbers"]
    if places.max() >= len(arrays["steps"]) or (np.diff(places) < 0).any():
        raise ValueError("it holds modes of checkpoints that are not there")
    if len(set(zip(places.tolist(), numbers.tolist(), strict=True))) < len(places):
        raise ValueError("a checkpoint has two modes of the same number")
    if arrays["trusted"].max() > 1 or arrays["carried"].min() < 0:
        raise ValueError("its modes hold numbers that they cannot hold")
    if not np.array_equal(arrays["last_numbers"], numbers[places == places[-1]]):
        raise ValueError("its last modes are not those of its last checkpoint")

"""Operators of a network at the checkpoints of its training."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Followed:
    """The modes of one operator with numbers that they keep from one operator to the next."""

    numbers: Int[Array, " m"]
    """The number of each mode; one that is new has a number that no mode had before."""
    eigenvalues: Complex[Array, " m"]
    """λ; of a conjugate pair the one above the real axis."""
    directions: Complex[Array, "m d"]
    """Where each mode moves the states, of unit length."""

    @staticmethod
    def first(koopman: Koopman) -> "Followed":
        """Modes numbered as the operator orders them."""
        found = _unnumbered(koopman)
        return Followed(numbers=np.arange(len(found[0])), eigenvalues=found[0], directions=found[1])

    def next(self, koopman: Koopman, *, unused: int) -> "Followed":
        """The modes of a later operator; new ones are numbered from ``unused`` on.

        Modes are assigned such that what eigenvalues and directions move is least in sum, |λ' − λ| + 1 − |cos|.
        """
        from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

        eigenvalues, directions = _unnumbered(koopman)
        apart = np.abs(eigenvalues[:, None] - self.eigenvalues) + 1 - np.abs(directions @ self.directions.conj().T)
        # Beyond the bound all are equally wrong, so that no good match is given up for the sake of a bad one.
        rows, columns = linear_sum_assignment(np.minimum(apart, FARTHEST))
        near = apart[rows, columns] < FARTHEST
        numbers = np.full(len(eigenvalues), -1)
        numbers[rows[near]] = self.numbers[columns[near]]
        new = numbers < 0
        numbers[new] = unused + np.arange(new.sum())
        return Followed(numbers=numbers, eigenvalues=eigenvalues, directions=directions)


def _unnumbered(koopman: Koopman) -> tuple[Complex[Array, " m"], Complex[Array, "m d"]]:
    """Eigenvalue and direction of each mode."""
    first = [mode.indices[0] for mode in koopman.modes]
    directions = koopman.left[first] @ koopman.state_vectors
    return koopman.eigenvalues[first], directions / np.linalg.norm(directions, axis=1, keepdims=True)


FIGURES: tuple[str, ...] = ("slow", "radius", "horizon", "error", "copying", "trusted", "rank")
"""What is measured at each checkpoint; see `kann.Monitor`."""

STEPS = {"steps": Int[Array, " k"], "loss": Float[Array, " k"], "figures": Float[Array, "k f"]}
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

    @staticmethod
    def unknown(*, step: int, loss: float) -> "Checkpoint":
        """A checkpoint at which no operator could be fitted."""
        figures = dict.fromkeys(FIGURES, math.nan)
        none = np.zeros(0)
        return Checkpoint(
            step=step,
            loss=loss,
            figures=figures,
            numbers=none.astype(int),
            eigenvalues=none.astype(complex),
            carried=none,
            trusted=none.astype(bool),
        )


class History(Saved):
    """The checkpoints of one training, in their order.

    >>> history = History()
    >>> len(history)
    0
    """

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []
        self._last: Followed | None = None
        self._unused = 0

    def add(self, checkpoint: Checkpoint, followed: Followed | None = None) -> None:
        """Append a checkpoint, and what the next one needs to continue its modes."""
        self.require_later(checkpoint.step)
        self._checkpoints.append(checkpoint)
        if followed is not None:
            self._last = followed
            self._unused = max(self._unused, int(followed.numbers.max(initial=-1)) + 1)

    def require_later(self, step: int) -> None:
        """Refuse a step that does not follow the last one."""
        if self._checkpoints and step <= self._checkpoints[-1].step:
            last = self._checkpoints[-1].step
            raise KannError(f"step={step} does not follow step {last}; pass steps in their order, each once")

    def follow(self, koopman: Any) -> Followed:
        """The modes of the next operator, with the numbers of those that they continue."""
        if self._last is None or self._last.directions.shape[1] != koopman.dim:
            return Followed.first(koopman)
        return self._last.next(koopman, unused=self._unused)

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
        }
        if self._last is not None:
            content |= {
                "places": np.repeat(np.arange(len(self)), [len(each.numbers) for each in self]),
                "last_numbers": self._last.numbers,
                "last_eigenvalues": self._last.eigenvalues,
                "last_directions": self._last.directions,
            }
            for name in ("numbers", "eigenvalues", "carried"):
                content[name] = np.concatenate([getattr(each, name) for each in self])
            content["trusted"] = np.concatenate([each.trusted for each in self]).astype(np.int64)
        return content

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> "History":
        _require_consistent(content)
        history = History()
        for place in range(len(content["steps"])):
            history.add(_checkpoint(content, place))
        if "numbers" in content:
            names = ("numbers", "eigenvalues", "directions")
            history._last = Followed(**{name: content[f"last_{name}"] for name in names})
            history._unused = int(content["numbers"].max()) + 1
        return history

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        return dict(arrays)

    def __repr__(self) -> str:
        if not self._checkpoints:
            return "History(no checkpoints)"
        slow = self.figure("slow")[-1]
        return f"History({len(self)} checkpoints, steps {self.steps[0]} to {self.steps[-1]}, slow = {slow:.4f})"

    def _repr_html_(self) -> str:
        shown_figures = [[each.step, f"{each.loss:.4g}", *(f"{each.figures[n]:.4g}" for n in FIGURES)] for each in self]
        return _display.table(repr(self), ["step", "loss", *FIGURES], shown_figures[-12:])


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
    step, loss = int(arrays["steps"][place]), float(arrays["loss"][place])
    figures = dict(zip(FIGURES, arrays["figures"][place].tolist(), strict=True))
    if "places" not in arrays:
        return Checkpoint.unknown(step=step, loss=loss)
    own = arrays["places"] == place
    return Checkpoint(
        step=step,
        loss=loss,
        figures=figures,
        numbers=arrays["numbers"][own],
        eigenvalues=arrays["eigenvalues"][own],
        carried=arrays["carried"][own],
        trusted=arrays["trusted"][own].astype(bool),
    )


def _require_consistent(arrays: dict[str, Array]) -> None:
    """Raise ValueError if steps are not in order, or modes are of checkpoints that are not there."""
    expected = STEPS | (MODES if "numbers" in arrays else {})
    if set(arrays) != set(expected):
        raise ValueError(f"it holds {sorted(arrays)}, not {sorted(expected)}")
    require_annotations(arrays, expected)
    if arrays["figures"].shape[1] != len(FIGURES):
        raise ValueError(f"it holds {arrays['figures'].shape[1]} figures, not {len(FIGURES)}")
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
    if arrays["last_numbers"].max() > numbers.max():
        raise ValueError("its last modes are not among its modes")

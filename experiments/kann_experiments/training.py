"""Train a network so that a run that was killed goes on where it stopped and ends with the same numbers.

Nothing depends on a running state of random numbers: batch i of a run is drawn from the seed and i. So the weights, the
optimizer's averages and the number of iterations made are all that a checkpoint needs to hold.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from kann.data.archives import damage_explained, require_file
from kann.data.atomic_write import remove, replacing
from kann.errors import KannError
from kann.progress import progress
from kann.typing import Array, Float
from kann.zoo import ADDED_LATER

try:
    from safetensors import safe_open
    from safetensors.torch import save
except ImportError as error:
    raise ImportError("the paper's experiments need safetensors: pip install -e experiments") from error

CHECKSUM = "checksum of the tensors"
"""The entry of a checkpoint's header that tells a damaged one."""

Schedule = Literal["constant", "linear", "exponential", "plateau"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long to train, and how the learning rate falls."""

    iterations: int
    """Steps of the optimizer."""
    schedule: Schedule = "constant"
    """The rate stays; or stays for the first half and then falls to zero in a straight line; or is multiplied by
    ``gamma`` several times; or is multiplied by ``gamma`` whenever validation stops getting better."""
    gamma: float = 1.0
    """For the exponential schedule and that by plateaus."""
    falls: int = 10
    """For the exponential schedule: into how many parts the iterations are cut, each with ``gamma`` times the rate of
    the one before."""
    clip: float = math.inf
    """Largest norm of a gradient; longer ones are shortened to it."""
    every: int = 250
    """Iterations between checkpoints."""
    patience: int = field(default=2, metadata=ADDED_LATER)
    """For the schedule by plateaus: the rate falls when more validations than these in a row brought nothing."""

    def factor(self, iteration: int, validations: Sequence[float] = ()) -> float:
        """Return the multiple of the rate in this iteration, the first being 0, after these validations."""
        done = iteration / self.iterations
        if self.schedule == "plateau":
            return self.gamma ** _plateaus(validations, self.patience)
        if self.schedule == "linear":
            return min(1.0, 2 * (1 - done))
        if self.schedule == "exponential":
            return self.gamma ** int(self.falls * done)
        return 1.0


def _plateaus(validations: Sequence[float], patience: int) -> int:
    """Count how often more than ``patience`` validations in a row brought nothing, as torch's ReduceLROnPlateau."""
    lowest, without, count = math.inf, 0, 0
    for value in validations:
        if value < lowest * (1 - 1e-4):
            lowest, without = value, 0
        else:
            without += 1
        if without > patience:
            count, without = count + 1, 0
    return count


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    *,
    plan: Training,
    path: str | os.PathLike[str],
    made_by: Mapping[str, Any],
    validate: Callable[[], float] | None = None,
) -> Float[Array, " i"]:
    """Lower ``loss(iteration)``; return its value at each iteration.

    Goes on from the checkpoint at ``path`` if there is one; a finished one is only read. ``made_by`` is written into
    the checkpoint as JSON, and one that was made by anything else is refused. With ``validate``, which is called
    whenever a checkpoint is due, the network ends with the weights for which it was lowest, not with the last ones.
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a run that was killed while it was writing
        remove(leftover)
    state = _TrainingState(network, optimizer, plan.iterations)
    if path.exists():
        state.resume(path, made_by)
    rates = [group["lr"] for group in optimizer.param_groups]
    network.train()
    for iteration in progress(range(state.done, plan.iterations), what="training", unit="batch"):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * plan.factor(iteration, state.validations)
        value = loss(iteration)
        optimizer.zero_grad()
        value.backward()
        if math.isfinite(plan.clip):
            nn.utils.clip_grad_norm_(network.parameters(), plan.clip)
        optimizer.step()
        state.add_loss(value)
        if state.done % plan.every == 0 or state.done == plan.iterations:
            if validate is not None:
                state.keep_best(validate)
            state.save(path, made_by)
    network.eval()
    return state.losses.cpu().numpy().astype(np.float64)


class _TrainingState:
    """How far a training has come: losses, weights, and what the optimizer keeps. A checkpoint holds all of it."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, iterations: int):
        self.network, self.optimizer, self.done = network, optimizer, 0
        # One tensor from the start: thousands of small ones, kept between the large ones, would break up the memory.
        self.losses = torch.zeros(iterations, device=next(network.parameters()).device)
        self.best: dict[str, Tensor] = {}
        self.lowest = math.inf
        self.validations: list[float] = []

    def add_loss(self, loss: Tensor) -> None:
        """Keep the loss of an iteration, without waiting for a GPU to compute it, and count the iteration."""
        self.losses[self.done] = loss.detach()
        self.done += 1

    @torch.no_grad()
    def keep_best(self, validate: Callable[[], float]) -> None:
        """Keep the weights if they are the best so far; at the end go back to the best ones."""
        self.network.eval()
        value = validate()
        self.network.train()
        self.validations.append(value)
        if value < self.lowest:
            self.lowest = value
            self.best = {name: weight.clone() for name, weight in self.network.state_dict().items()}
        if self.done == len(self.losses) and self.best:
            self.network.load_state_dict(self.best)

    def save(self, path: Path, made_by: Mapping[str, Any]) -> None:
        """Write one file that is replaced at once. Of a finished training it holds weights and losses alone."""
        values = self.losses[: self.done]
        if not torch.isfinite(values).all():
            first = int((~torch.isfinite(values)).nonzero()[0])
            raise KannError(f"training diverged: the loss is {values[first]:g} at iteration {first}; lower the rate")
        tensors = {"losses": values} | _add_prefix("network", self.network.state_dict())
        if self.done < len(self.losses):
            tensors |= _add_prefix("best", self.best) | {"lowest": torch.tensor(self.lowest, dtype=torch.float64)}
            tensors["validations"] = torch.tensor(self.validations, dtype=torch.float64)
            for parameter, state in self.optimizer.state_dict()["state"].items():
                tensors |= _add_prefix(f"optimizer.{parameter}", state)
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        # One entry of metadata, since safetensors writes several in any order.
        header = json.dumps(dict(made_by) | {CHECKSUM: _checksum(copies)})
        with replacing(path) as temporary:
            temporary.write_bytes(save(copies, metadata={"made_by": header}))

    def resume(self, path: Path, made_by: Mapping[str, Any]) -> None:
        """Put everything where the checkpoint left it."""
        tensors = _read_checkpoint(path, made_by)
        with damage_explained(path, problem="does not fit this network", remedy="remove it to train anew"):
            states = _optimizer_states(tensors)
            if len({tuple(sorted(state)) for state in states.values()}) > 1:
                raise ValueError("the optimizer's numbers are incomplete")
            self.network.load_state_dict(_with_prefix("network", tensors))
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": states})
            _require_finite(tensors)
            self.done = len(tensors["losses"])
            self.losses[: self.done] = tensors["losses"]
            self.lowest = float(tensors.get("lowest", math.inf))
            self.validations = tensors.get("validations", torch.zeros(0)).tolist()
            self.best = _with_prefix("best", tensors)
            if self.best and _shapes(self.best) != _shapes(self.network.state_dict()):
                raise ValueError("its best weights are those of another network")
        if not states and self.done < len(self.losses):
            raise KannError(f"{path} holds a finished training of {self.done} iterations; remove it to train anew")
        self.best = {name: value.to(self.losses.device) for name, value in self.best.items()}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse numbers that no training can have written: `save` writes none that are NaN or infinite."""
    for name, value in tensors.items():
        if name != "lowest" and value.is_floating_point() and not torch.isfinite(value).all():
            raise ValueError(f"{name} holds NaN or Inf")


def _optimizer_states(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """What the optimizer keeps for each parameter, by the parameter's number; empty in a finished checkpoint."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in _with_prefix("optimizer", tensors).items():
        parameter, entry = name.split(".", 1)
        states.setdefault(int(parameter), {})[entry] = value
    return states


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, by the rest of the name."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _read_checkpoint(path: Path, made_by: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, if it is whole and was made by the same configuration."""
    require_file(path)
    with (
        damage_explained(path, problem="is no whole checkpoint", remedy="remove it to train anew"),
        safe_open(path, framework="pt") as file,
    ):
        header = json.loads((file.metadata() or {})["made_by"])
        if not isinstance(header, dict):
            raise ValueError("it does not say what made it")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        # Checkpoints of earlier releases have no checksum.
        if header.pop(CHECKSUM, None) not in (None, _checksum(tensors)):
            raise ValueError("its checksum does not match")
    wanted = json.loads(json.dumps(made_by))  # as it would be read back: tuples become lists
    if header != wanted:
        differing = sorted(key for key in header.keys() | wanted.keys() if header.get(key) != wanted.get(key))
        raise KannError(
            f"{path} was trained with other settings ({', '.join(differing)}); remove it, or pass another folder"
        )
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """A text that changes with every bit of the tensors and their names."""
    names = sorted(tensors)
    return hashlib.sha256(f"{names} {fingerprint(*(tensors[name].numpy() for name in names))}".encode()).hexdigest()


def fingerprint(*arrays: Array) -> str:
    """A short text that differs for other data, for ``made_by``."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def generator(seed: int, *path: int) -> np.random.Generator:
    """Random numbers that depend on a seed and on the purpose that ``path`` numbers, and on nothing else."""
    return np.random.default_rng((seed, *path))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw initial weights from a seed, and afterwards continue its own random numbers undisturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def repeatable(threads: int | None = 1) -> Iterator[None]:
    """Compute on this number of threads, None for all, and flush numbers near zero to zero.

    On one thread sums are always in the same order, and a second one gains nothing on the smallest networks. Without
    flushing, vanishing gradients become denormal numbers, with which processors are many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def require_device(name: str) -> torch.device:
    """The device of this name, if it is there and works."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise KannError(f"device {name!r} cannot be used ({reason}); pass cpu, or cuda where there is one") from error
    return device


def require_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that can be written to, made if it is not there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with replacing(path / "writable") as probe:
            probe.touch()
        (path / "writable").unlink()
    except OSError as error:
        raise KannError(
            f"results cannot be written to {path} ({error.strerror or error}); pass another folder"
        ) from error
    return path


def require_run_folder(
    out: str | os.PathLike[str], arch: str, *, seeds: Sequence[int], printed: bool, suffix: str = ""
) -> Path:
    """Make the folder of an architecture below ``out``. Each setting has one, such as ``gru-as-printed``."""
    if not seeds:
        raise KannError("there are no seeds; pass at least one")
    return require_folder(Path(out) / run_name(arch, printed=printed, suffix=suffix))


def run_name(arch: str, *, printed: bool = False, suffix: str = "") -> str:
    """Name the folder of an architecture and setting."""
    return f"{arch}{'-as-printed' * printed}{suffix}"

"""Train a network so that a run that was killed goes on where it stopped and ends with the same numbers.

Nothing depends on a running state of random numbers: batch i of a run is drawn from the seed and i. So the weights, the
optimizer's averages and the number of iterations made are all that a checkpoint needs to hold.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.files import remove, replacing
from kann.progress import progress
from kann.typing import Array, Float

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save
except ImportError as error:
    raise ImportError("the paper's experiments need safetensors: pip install 'kann[paper]'") from error

Schedule = Literal["constant", "linear", "exponential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long to train, and how the learning rate falls."""

    iterations: int
    """Steps of the optimizer."""
    schedule: Schedule = "constant"
    """The rate stays; or stays for the first half and then falls to zero in a straight line; or is multiplied by
    ``gamma`` after each tenth of the iterations."""
    gamma: float = 1.0
    """For the exponential schedule."""
    clip: float = math.inf
    """Largest norm of a gradient; longer ones are shortened to it."""
    every: int = 250
    """Iterations between checkpoints."""

    def factor(self, iteration: int) -> float:
        """What the rate is multiplied by in this iteration, the first being 0."""
        done = iteration / self.iterations
        if self.schedule == "linear":
            return min(1.0, 2 * (1 - done))
        return self.gamma ** int(10 * done) if self.schedule == "exponential" else 1.0


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    *,
    plan: Training,
    path: str | os.PathLike[str],
    made_by: Mapping[str, Any],
) -> Float[Array, " i"]:
    """Lower ``loss(iteration)``; return its value at each iteration.

    Goes on from the checkpoint at ``path`` if there is one; a finished one is only read. ``made_by`` is written into
    the checkpoint as JSON, and one that was made by anything else is refused.
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a run that was killed while it was writing
        remove(leftover)
    losses = _resume(path, network, optimizer, made_by) if path.exists() else []
    rates = [group["lr"] for group in optimizer.param_groups]
    network.train()
    for iteration in progress(range(len(losses), plan.iterations), what="training", unit="batch"):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * plan.factor(iteration)
        value = loss(iteration)
        optimizer.zero_grad()
        value.backward()
        if math.isfinite(plan.clip):
            nn.utils.clip_grad_norm_(network.parameters(), plan.clip)
        optimizer.step()
        losses.append(value.detach())
        if len(losses) % plan.every == 0 or len(losses) == plan.iterations:
            _save(path, network, optimizer, losses, made_by)
    network.eval()
    return torch.stack(losses).cpu().numpy().astype(np.float64)


def _save(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor], made_by: Mapping[str, Any]
) -> None:
    """Write weights, the optimizer's averages and the losses, in one file that is replaced at once."""
    values = torch.stack(losses)
    if not torch.isfinite(values).all():
        first = int((~torch.isfinite(values)).nonzero()[0])
        raise KannError(f"training diverged: the loss is {values[first]:g} at iteration {first}; lower the rate")
    tensors = {"losses": values}
    tensors |= {f"network.{name}": value for name, value in network.state_dict().items()}
    for place, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": value for name, value in state.items()}
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(copies, metadata={"made_by": json.dumps(made_by)}))


def _resume(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, made_by: Mapping[str, Any]
) -> list[Tensor]:
    """Put network and optimizer where the checkpoint left them; return the losses up to there."""
    tensors = _read(path, made_by)
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, place, entry = name.split(".", 2)
            states.setdefault(int(place), {})[entry] = value
    weights = {name.removeprefix("network."): value for name, value in tensors.items() if name.startswith("network.")}
    try:
        network.load_state_dict(weights)
        optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
        return list(tensors["losses"].to(next(network.parameters()).device))
    except (KeyError, RuntimeError, ValueError) as error:
        raise KannError(f"{path} does not fit this network ({error}); remove it to train anew") from error


def _read(path: Path, made_by: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, if it is whole and was made by the same configuration."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["made_by"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise KannError(f"{path} is no whole checkpoint ({error}); remove it to train anew") from error
    wanted = json.loads(json.dumps(made_by))
    if header != wanted:
        differing = sorted(key for key in header.keys() | wanted.keys() if header.get(key) != wanted.get(key))
        raise KannError(
            f"{path} was trained with other settings ({', '.join(differing)}); remove it, or pass another folder"
        )
    return tensors


def generator(seed: int, *path: int) -> np.random.Generator:
    """Random numbers that depend on a seed and on the purpose that ``path`` numbers, and on nothing else."""
    return np.random.default_rng((seed, *path))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw initial weights from a seed; its own random numbers go on afterwards as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Compute on one thread, where sums are always in the same order, and with numbers near zero flushed to it.

    A second thread gains nothing on networks as small as the paper's. Without flushing, vanishing gradients become
    denormal numbers, with which processors are many times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


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

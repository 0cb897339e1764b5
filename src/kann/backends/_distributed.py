"""Sums over the ranks of torch.distributed.

The ranks first tell each other what they hold. If that cannot be added, all of them learn it at once and none is left
waiting for the others; and a rank without data learns the shapes it needs to take part.
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.errors import KannError

MAX_RANKS_LISTED = 8
"""Largest number of ranks an error lists; of more, it names the first ones and their number."""

ROWS_COMPARED = 64
"""Rows of each array that are compared between ranks: two ranks that agree in all of them ran over the same data."""


def add_up(
    values: Mapping[str, Any], *, largest: Collection[str], sizes: Mapping[str, int], group: Any = None
) -> dict[str, Any]:
    """Add up arrays and whole numbers of all ranks; of those named in ``largest``, take the largest.

    Arrays are added in float64, and come back where this rank's own were. A rank without data has None for all of them
    and is given tensors. ``sizes`` say what a rank holds, as in ``{"units": 64}``; ranks with data must agree on them.
    Ranks that hold the same numbers raise: their data would count once for each of them. The values are not changed.
    """
    torch = _torch()
    group = _initialised(torch.distributed, group)
    arrays: dict[str, Any] = {n: value for n, value in values.items() if value is None or getattr(value, "ndim", 0)}
    own = next((value for value in arrays.values() if value is not None), None)
    device = torch.device(getattr(own, "device", "cpu"))
    # Such as "cuda:nccl", "cpu:gloo,cuda:nccl", or for gloo alone "cpu:gloo,cuda:gloo".
    backends = dict(pair.split(":") for pair in torch.distributed.get_backend_config(group).split(","))
    host = backends.pop("cpu", None)
    # A backend that serves both, as gloo does, is used on the host, where it copies to anyway.
    direct = [kind for kind, backend in backends.items() if backend != host]
    on_accelerator = device.type in direct
    with getattr(torch, device.type).device(device) if on_accelerator else contextlib.nullcontext():
        every = _gathered(
            {
                "device": device.type,
                "sizes": dict(sizes),
                "shapes": {name: None if array is None else tuple(array.shape) for name, array in arrays.items()},
                "numbers": {name: value for name, value in values.items() if name not in arrays},
                "checksum": _checksum(arrays),
            },
            group,
        )
    shapes = _agreed_shapes(every)
    _require_different(every)
    # All ranks must use the same backend: that of the host, unless all arrays are on one kind of accelerator.
    if not on_accelerator or (host is not None and any(held["device"] != device.type for held in every.values())):
        device = torch.device("cpu")
        if host is None:
            device = torch.device(direct[0], getattr(torch, direct[0]).current_device())
    total: dict[str, Any] = {}
    for name in values.keys() - arrays.keys():
        numbers = [held["numbers"][name] for held in every.values()]
        total[name] = max(numbers) if name in largest else sum(numbers)
    # One by one, and what was sent becomes the result: at most one array more than the old and the new ones is held.
    for name, array in arrays.items():
        total[name] = None
        if shapes[name] is not None:
            to: dict[str, Any] = {"dtype": torch.float64, "device": device}
            if isinstance(array, torch.Tensor):
                sent = array.to(**to, copy=True)
            else:
                sent = torch.zeros(shapes[name], **to) if array is None else torch.tensor(array, **to)
            torch.distributed.all_reduce(sent, group=group)
            total[name] = (
                sent.cpu().numpy() if isinstance(array, np.ndarray) else sent.to(getattr(array, "device", device))
            )
    return total


def add_results(find: Callable[[], Any]) -> Any:
    """Return the sum of the results of ``find`` on all ranks, in the order of the ranks: the same on every rank.

    A result that knows how to sum itself over ranks, as moments do, does so. An error of one rank is raised on all, so
    that none is left waiting.
    """
    group = _initialised(_torch().distributed, None)
    found: Any
    try:
        found = find()
    except KannError as error:
        found = error
    sums_itself = hasattr(found, "all_reduce")
    every = _gathered(None if sums_itself else found, group)
    for rank, other in every.items():
        if isinstance(other, KannError):
            raise KannError(f"rank {rank}: {other}") from other
    if sums_itself:
        return found.all_reduce(group=group)
    total, *others = every.values()
    for other in others:
        total = total + other
    return total


def _gathered(found: Any, group: Any) -> dict[int, Any]:
    """Return the results of all ranks by number; they travel pickled, between processes that run the same program."""
    distributed = _torch().distributed
    ranks = distributed.get_process_group_ranks(group)
    every: list[Any] = [None] * len(ranks)
    distributed.all_gather_object(every, found, group=group)
    return dict(zip(ranks, every, strict=True))


def _agreed_shapes(every: Mapping[int, Mapping[str, Any]]) -> dict[str, tuple[int, ...] | None]:
    """Return the shape that each array has on the ranks that have data; None if on none of them."""
    kinds: dict[Any, list[int]] = {}
    for rank, held in every.items():
        if any(held["shapes"].values()):
            kinds.setdefault((*held["sizes"].items(), *held["shapes"].items()), []).append(rank)
    if len(kinds) > 1:
        parts = [_sentence(ranks, every[ranks[0]]["sizes"]) for ranks in kinds.values()]
        raise KannError(
            f"what the ranks hold cannot be added: {'; '.join(parts)}; pass states of the same layer on every rank, "
            "with inputs on all of them or on none"
        )
    with_data = next(iter(kinds.values()), list(every))
    return every[with_data[0]]["shapes"]


def _checksum(arrays: Mapping[str, Any]) -> str | None:
    """Return a checksum of the first rows of all arrays; None without data."""
    parts = [as_numpy(array[:ROWS_COMPARED]).tobytes() for array in arrays.values() if array is not None]
    return hashlib.sha256(b"".join(parts)).hexdigest() if parts else None


def _require_different(every: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise if ranks hold the same numbers, which two shares of the data never give."""
    alike: dict[Any, list[int]] = {}
    for rank, held in every.items():
        if held["checksum"] is not None:
            alike.setdefault((held["checksum"], *held["numbers"].items()), []).append(rank)
    ranks = max(alike.values(), key=len, default=[])
    if len(ranks) > 1:
        raise KannError(
            f"{_sentence(ranks, every[ranks[0]]['sizes'])} with the same sums, so each state would count {len(ranks)} "
            "times; sum moments once, and if several ranks run one copy of the model, as in tensor parallelism, pass "
            "group=, a group with one rank of each copy"
        )


def _sentence(ranks: Sequence[int], sizes: Mapping[str, int]) -> str:
    """Describe ranks, as in ``ranks 0, 2 hold 4 units and 0 inputs``."""
    what = " and ".join(f"{n} {name}" for name, n in sizes.items())
    if len(ranks) == 1:
        return f"rank {ranks[0]} holds {what}"
    listed = list(map(str, ranks[:MAX_RANKS_LISTED]))
    if len(ranks) > MAX_RANKS_LISTED:
        listed.append(f"… ({len(ranks)} of them)")
    return f"ranks {', '.join(listed)} hold {what}"


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise ImportError(f"sums over ranks need torch ({error}): pip install 'kann[torch]'") from error
    return torch


def _initialised(distributed: Any, group: Any) -> Any:
    """Return the group to sum over, of which this process must be a member."""
    if not distributed.is_available():
        raise KannError("this build of torch has no torch.distributed; add saved moments instead, with Moments.load")
    if not distributed.is_initialized():
        raise KannError(
            "there are no ranks to sum over: torch.distributed is not initialised; call "
            "torch.distributed.init_process_group('gloo') first, or 'nccl', in a script that torchrun starts"
        )
    if distributed.get_rank(group) < 0:
        raise KannError(
            f"rank {distributed.get_rank()} is not in the group to sum over; call it on the ranks of the group alone"
        )
    return group or distributed.group.WORLD

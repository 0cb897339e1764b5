"""Sums over the ranks of torch.distributed.

The ranks first tell each other what they hold. If that cannot be added, all of them learn it at once and none is left
waiting for the others; and a rank that holds nothing learns the shapes it needs to take part.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kann.errors import KannError
from kann.typing import AnyArray, Array, Int

MAX_RANKS_LISTED = 8
"""Largest number of ranks an error lists; of more, it names the first ones and their number."""


def add_up(
    values: Mapping[str, Any], *, largest: Collection[str], sizes: Mapping[str, int], group: Any = None
) -> dict[str, Any]:
    """The values of all ranks together: arrays and whole numbers are added; of those named in ``largest``, the largest.

    Arrays have one or two axes, are added in float64, and come back where this rank's own were. A rank without data
    has None for all of them and is given tensors. ``sizes`` say what a rank holds, as in ``{"units": 64}``; ranks with
    data must agree on them. The values themselves are not changed.
    """
    arrays = {name: value for name, value in values.items() if value is None or getattr(value, "ndim", 0)}
    counts = [name for name in values if name not in arrays and name not in largest]
    own = next((value for value in arrays.values() if value is not None), None)
    link = _Link(group, own)
    shapes = _agree(link, arrays, sizes)
    total = link.numbers(values, counts, "SUM") | link.numbers(values, largest, "MAX")
    # One by one, and what was sent becomes the result: at most one array more than the old and the new ones is held.
    for name, shape in shapes.items():
        total[name] = None
        if shape is not None:
            total[name] = link.array(arrays[name], shape)
    return total


def add_results(find: Callable[[], Any], *, group: Any = None) -> Any:
    """Return the sum of the results of ``find`` on all ranks, in the order of the ranks: the same on every rank.

    A result that knows how to sum itself over ranks, as moments do, does so. An error of one rank is raised on all, so
    that none is left waiting.
    """
    group = _initialised(_torch().distributed, group)
    found: Any
    try:
        found = find()
    except KannError as error:
        found = error
    sums_itself = hasattr(found, "all_reduce")
    sent = None if sums_itself else found
    every = _gathered(sent, group)
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


def _agree(
    link: "_Link", arrays: Mapping[str, AnyArray | None], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...] | None]:
    """The shape that each array has on the ranks that have data; None if on none of them."""
    # (a, b), (a, -1) for a single axis, or (-1, -1) for no array.
    padded = [(*getattr(array, "shape", ()), -1, -1)[:2] for array in arrays.values()]
    every = link.gather([link.place, *sizes.values(), *(n for shape in padded for n in shape)])
    link.meet(every[:, 0])
    kinds: dict[tuple[int, ...], list[int]] = {}
    for rank, held in zip(link.ranks, every[:, 1:].tolist(), strict=True):
        if max(held[len(sizes) :]) >= 0:
            kinds.setdefault(tuple(held), []).append(rank)
    if len(kinds) > 1:
        parts = [_sentence(ranks, dict(zip(sizes, held, strict=False))) for held, ranks in kinds.items()]
        raise KannError(
            f"what the ranks hold cannot be added: {'; '.join(parts)}; pass states of the same layer on every rank, "
            "with inputs on all of them or on none"
        )
    agreed = next(iter(kinds), (-1,) * (len(sizes) + 2 * len(arrays)))[len(sizes) :]
    shapes = [tuple(n for n in pair if n >= 0) or None for pair in zip(agreed[::2], agreed[1::2], strict=True)]
    return dict(zip(arrays, shapes, strict=True))


def _sentence(ranks: Sequence[int], sizes: Mapping[str, int]) -> str:
    """Such as ``ranks 0, 2 hold 4 units and 0 inputs``."""
    what = " and ".join(f"{n} {name}" for name, n in sizes.items())
    if len(ranks) == 1:
        return f"rank {ranks[0]} holds {what}"
    listed = list(map(str, ranks[:MAX_RANKS_LISTED]))
    if len(ranks) > MAX_RANKS_LISTED:
        listed.append(f"… ({len(ranks)} of them)")
    return f"ranks {', '.join(listed)} hold {what}"


class _Link:
    """The ranks of a group, and the devices on which they exchange numbers."""

    def __init__(self, group: Any, own: AnyArray | None):
        self._torch = torch = _torch()
        self._group = _initialised(torch.distributed, group)
        self.ranks = torch.distributed.get_process_group_ranks(self._group)
        # Such as "cuda:nccl", "cpu:gloo,cuda:nccl", or for gloo alone "cpu:gloo,cuda:gloo".
        backends = dict(pair.split(":") for pair in torch.distributed.get_backend_config(self._group).split(","))
        host = backends.pop("cpu", None)
        # One that serves both, as gloo does, is used on the host, where it copies to anyway.
        self._direct = [kind for kind, backend in backends.items() if backend != host]
        self._own = torch.device(getattr(own, "device", "cpu"))
        self.place = 0
        """Which kind of accelerator this rank's arrays are on, counted from 1; 0 for the host."""
        if self._own.type in self._direct:
            self.place = 1 + self._direct.index(self._own.type)
        self._device = torch.device("cpu")
        if host is None:
            self._device = self._accelerator()

    def _accelerator(self) -> Any:
        """Where the arrays of this rank are, else the current one."""
        if self.place:
            return self._own
        kind = self._direct[0]
        return self._torch.device(kind, getattr(self._torch, kind).current_device())

    def meet(self, places: Int[Array, " ranks"]) -> None:
        """Leave the host if every rank's arrays are on the same kind of accelerator: all must use the same backend."""
        if self.place and (places == self.place).all():
            self._device = self._accelerator()

    def gather(self, numbers: Sequence[int]) -> Int[Array, "ranks n"]:
        """The whole numbers of every rank."""
        ours = self._torch.tensor(numbers, dtype=self._torch.int64, device=self._device)
        every = [self._torch.empty_like(ours) for _ in self.ranks]
        self._torch.distributed.all_gather(every, ours, group=self._group)
        return self._torch.stack(every).cpu().numpy()

    def numbers(self, values: Mapping[str, Any], names: Collection[str], how: str) -> dict[str, Any]:
        """The sum or the largest of each of the numbers ``names``."""
        dtype = {"SUM": self._torch.int64, "MAX": self._torch.float64}[how]
        ours = self._torch.tensor([values[name] for name in names], dtype=dtype, device=self._device)
        return dict(zip(names, self._reduced(ours, how).tolist(), strict=True))

    def array(self, ours: AnyArray | None, shape: tuple[int, ...]) -> AnyArray:
        """The sum of an array of this shape, where ours is."""
        torch = self._torch
        if ours is None:
            return self._reduced(torch.zeros(shape, dtype=torch.float64, device=self._device), "SUM")
        if isinstance(ours, torch.Tensor):
            copy = torch.empty(shape, dtype=torch.float64, device=self._device).copy_(ours)
            return self._reduced(copy, "SUM").to(ours.device)
        copy = torch.from_numpy(np.array(ours, dtype=np.float64, order="C"))
        return self._reduced(copy.to(self._device), "SUM").cpu().numpy()

    def _reduced(self, ours: Any, how: str) -> Any:
        distributed = self._torch.distributed
        distributed.all_reduce(ours, op=getattr(distributed.ReduceOp, how), group=self._group)
        return ours


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise ImportError(f"sums over ranks need torch ({error}): pip install 'kann[torch]'") from error
    return torch


def _initialised(distributed: Any, group: Any) -> Any:
    """The group to sum over, of which this process must be a member."""
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

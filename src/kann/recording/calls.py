"""Calls of a module, and the state that passes from one call to the next.

A state is what one call gives and a later call of the same module reads: an output that returns as an argument, or an
attribute that the module keeps by itself. Whether a call goes on from another is decided by that tensor, not by the
order of the calls, so that two loops may share a cell and a loop may start from any state.
"""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kann.recording.runner import attributes_of, is_of_torch
from kann.recording.sequence_data import is_state, named_tensors, tensors_of
from kann.recording.tracer import as_real, hook_last
from kann.typing import Shaped

COMPARED = 8
"""Calls that are compared to see which outputs return as arguments; the first of them may be equal by chance."""

OWN = "self."
"""Prefix of the names of a module's attributes among its arguments and outputs."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """One call of a module: copies of the tensors that it read and gave, by their names.

    ``hx.0`` is the first entry of the argument ``hx``, ``1`` the second of several outputs, the empty name the only
    output, and ``self.h`` an attribute that the call changed.
    """

    reads: Mapping[str, Tensor]
    gives: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A part of a state: what a call gives under one name, the next call reads under another."""

    read: str
    give: str

    @property
    def name(self) -> str:
        """Name for users: that of the argument or the attribute."""
        return self.read.removeprefix(OWN)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a module keeps by itself, in attributes and buffers."""
    if is_of_torch(module):
        return {}
    return dict(named_tensors(attributes_of(module) | module._buffers, OWN.removesuffix(".")))


Mark = tuple[Tensor, Any]
"""A tensor and how often it was changed in place."""


def _mark(tensor: Tensor) -> Mark:
    return tensor, None if tensor.is_inference() else tensor._version


def _is_same(mark: Mark | None, tensor: Tensor) -> bool:
    """Return True if a tensor is the one that was marked and was not changed in place since."""
    return mark is not None and mark[0] is tensor and mark[1] == _mark(tensor)[1]


class Passed(TorchFunctionMode):
    """Keeps the state that a model makes of what a cell gave, where it alters it: the last one is read by no call.

    Between two calls a loop calls the same functions in the same order. The result that the next call reads as its
    state shows which of them makes the state, and after the last call the same one does. It is watched also where it
    leaves the state as it is: an open gate may do so in all steps but the last.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__()
        self.names = names
        self.seen: dict[str, Counter[tuple[int, Any]]] = {}
        """How often which result of which function was what the next call read, by the name of the argument."""
        self.is_direct = False
        """Whether a call read the very tensor that the one before gave."""
        self._given: Sequence[Tensor] = ()
        self.clear()

    def clear(self) -> None:
        """Forget all calls, but not which results were read."""
        self.after: list[dict[str, Tensor]] = []
        """The states that the model went on with after each call."""
        self._results: list[tuple[Any, Tensor]] | None = None  # None while a call runs, and before the first one

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._results is not None and len(self._results) < MOST_RESULTS:
            self._results += [(func, tensor) for tensor in tensors_of(result)]
        return result

    def begin_call(self, reads: Mapping[str, Tensor]) -> None:
        """Look for what a call reads among what the last one gave, and among the results since."""
        self.is_direct |= any(reads.get(name) is tensor for name in self.names for tensor in self._given)
        for name in self.names:
            for place, (func, result) in enumerate(self._results or ()):
                if result is reads.get(name):
                    self.seen.setdefault(name, Counter())[place, func] += 1
        self.close()

    def close(self) -> None:
        """Keep the states among the results since the last call."""
        results, self._results = self._results, None
        if results is not None:
            # The most frequent one: where a loop starts again, the next call reads another.
            places = {name: seen.most_common(1)[0][0] for name, seen in self.seen.items()}
            found = {name: results[place : place + 1] for name, (place, _) in places.items()}
            self.after.append(
                {name: _copy(value) for name, same in found.items() for func, value in same if func is places[name][1]}
            )

    def end_call(self, given: Sequence[Tensor]) -> None:
        """Note what a call gave, and results from now on."""
        self._results, self._given = [], given


MOST_RESULTS = 1000
"""Results that are noted between two calls; those after the last call would be all that the model computes."""


class CallLog:
    """Keeps the calls of a module while ``is_on()``."""

    def __init__(self, module: nn.Module, is_on: Callable[[], bool]):
        self.module, self._is_on = module, is_on
        self.passed: Passed | None = None
        self.keeps_reads, self.is_whole = True, False
        """Whether to copy what a call reads; whether only the first thing that it gives counts."""
        try:
            self._names = list(inspect.signature(module.forward).parameters)
        except ValueError:  # compiled code has none
            self._names = []
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.calls: list[Call] = []
        self.gave_instead = ""
        self._open: list[tuple[dict[str, Tensor], dict[str, Mark]]] = []
        self._kept: dict[str, tuple[Mark, Tensor]] = {}  # attributes after the last call: their marks and copies

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Hook the module until the stack is closed."""
        stack.callback(self.module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
        hook_last(self.module, self._after, stack)

    def arguments(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return arguments by the names that the module's forward gives them."""
        names = [*self._names[: len(args)], *map(str, range(len(self._names), len(args)))]
        return dict(zip(names, args, strict=True)) | kwargs

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Copy what goes in: a cell may change its arguments in place."""
        if not self._is_on():
            return
        reads, marks = {}, {}
        if self.keeps_reads:
            reads = dict(named_tensors(self.arguments(args, kwargs)))
            if self.passed is not None:
                self.passed.begin_call(reads)
            reads = {name: _copy(value) for name, value in reads.items()}
        for name, value in own_tensors(module).items():
            kept = self._kept.get(name)
            if kept is None or not _is_same(kept[0], value):
                kept = self._kept[name] = _mark(value), _copy(value)
            reads[name], marks[name] = kept[1], kept[0]
        self._open.append((reads, marks))

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Copy what comes out, with the attributes that have changed; a forward hook that is last."""
        if not self._is_on() or not self._open:
            return
        reads, marks = self._open.pop()
        given = [(name, value) for name, value in named_tensors(output) if is_state(value)]
        gives = {name: _copy(value) for name, value in given[: 1 if self.is_whole else None]}
        if not gives:
            kinds = ", ".join(str(part.dtype).removeprefix("torch.") for _, part in named_tensors(output))
            self.gave_instead = f"{type(output).__name__} without real numbers ({kinds or 'no tensor'})"
        for name, value in own_tensors(module).items():
            if _is_same(marks.get(name), value):
                reads.pop(name)  # a constant
            elif is_state(value):
                gives[name] = _copy(value)
                self._kept[name] = _mark(value), gives[name]
        self.calls.append(Call(reads=reads, gives=gives))
        if self.passed is not None:
            self.passed.end_call([value for _, value in given])


def _copy(tensor: Tensor) -> Tensor:
    """Copy, since what follows may change a tensor in place, and a loop may reuse its buffers."""
    return as_real(tensor.detach()).clone()


# Which call goes on from which


def by_row(values: Tensor) -> Tensor:
    """Return a row for each sequence; a state of a single sequence, (d,), is one row."""
    return values[None] if values.ndim < 2 else values.flatten(1)


def rows_that_differ(one: Tensor, other: Tensor) -> Shaped[Tensor, " b"]:
    """Mark the rows in which two tensors differ: all rows if shapes differ."""
    if one.shape != other.shape:
        return torch.ones(len(by_row(one)), dtype=torch.bool, device=one.device)
    return (by_row(one) != by_row(other)).any(dim=1)


def _first_rows(values: Tensor, count: int) -> Tensor:
    return values if values.ndim < 2 else values[:count]


def _goes_on(before: Call, after: Call, link: Link) -> int:
    """Score the evidence that a call continues another: 2 if it reads that output, 1 if only in some rows, else 0.

    Rows in which a mask holds the state read the same values again.
    """
    if link.read not in after.reads or link.give not in before.gives:
        return 0
    start = after.reads[link.read]
    end = _first_rows(before.gives[link.give], len(start))
    if start.shape != end.shape:
        return 0
    if torch.equal(start, end):
        return 2
    goes_on = ~rows_that_differ(start, end)
    if link.read in before.reads:
        goes_on |= ~rows_that_differ(start, _first_rows(before.reads[link.read], len(start)))
    return int((goes_on & by_row(start).any(dim=1)).any())


def links_between(calls: Sequence[Call], changed: Sequence[Call] = ()) -> list[Link]:
    """Find the parts of the state: outputs that most of the first calls read again, each with the argument.

    ``changed`` are the calls of a run in which inputs were changed. They show a state that the model alters on its way
    from call to call, as ``g * cell(x, h) + (1 - g) * h``: it changes one call later than the output of the cell.
    """
    if len(calls) < 2:
        return []
    scores = {}
    for link in _possible_links(calls[0], calls[1]):
        score = sum(
            any(_goes_on(before, after, link) for before in calls[max(0, k - LOOPS) : k])
            for k, after in enumerate(calls[:COMPARED])
        )
        if 2 * score >= len(calls[1:COMPARED]):
            scores[link] = score
    if not scores and len(changed) == len(calls):
        scores = {
            link: -float((calls[1].reads[link.read] - calls[0].gives[link.give]).abs().mean())
            for link in _possible_links(calls[0], calls[1])
            if _follows_later(calls, changed, link)
        }
    links: list[Link] = []
    for link in sorted(scores, key=lambda each: -scores[each]):  # sorting keeps the order of equal ones
        if all(link.read != known.read and link.give != known.give for known in links):
            links.append(link)
    order = list(calls[0].gives)
    return sorted(links, key=lambda link: order.index(link.give))


def _possible_links(first: Call, second: Call) -> Iterator[Link]:
    for give, end in first.gives.items():
        for read, start in second.reads.items():
            is_own = give.startswith(OWN) or read.startswith(OWN)
            if start.ndim == end.ndim and start.shape[1:] == end.shape[1:] and (read == give or not is_own):
                yield Link(read=read, give=give)


def _follows_later(calls: Sequence[Call], changed: Sequence[Call], link: Link) -> bool:
    """Return True if an argument changes in later calls than an output, in every sequence in which both do."""
    given, read = (
        _first_changes(calls, changed, kind, name) for kind, name in (("gives", link.give), ("reads", link.read))
    )
    if given is None or read is None or given.shape != read.shape:
        return False
    both = (given < len(calls)) & (read < len(calls))
    return bool(both.any() and (read > given)[both].all())


def _first_changes(calls: Sequence[Call], changed: Sequence[Call], kind: str, name: str) -> Tensor | None:
    """Return per sequence the first call in which a tensor changes, or the number of calls; None if calls differ."""
    pairs = [
        (getattr(call, kind).get(name), getattr(other, kind).get(name))
        for call, other in zip(calls, changed, strict=True)
    ]
    pairs = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len({pair[0].shape for pair in pairs}) != 1:
        return None
    differs = torch.stack([rows_that_differ(one, other) for one, other in pairs])
    late = len(calls) - len(pairs)  # the first calls of a loop may be given no state
    return torch.where(differs.any(dim=0), differs.int().argmax(dim=0) + late, len(calls))


LOOPS = 4
"""Loops that may share a cell, taking turns."""


@dataclass(slots=True, eq=False, kw_only=True)
class Chain:
    """Calls of which each reads the state that the one before gave."""

    numbers: list[int]
    is_altered: bool = False
    """Whether the model alters the state between calls."""


@dataclass(slots=True, eq=False, kw_only=True)
class Chains:
    """Cuts calls into chains, and remembers over batches what only changed inputs could show."""

    links: Sequence[Link]
    changed: Sequence[Sequence[Call]] = ()
    """The calls of runs in which inputs were changed."""
    shown: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """For calls whose state no call gave as it is: the call that they go on from, or None, as changed inputs showed. By
    the number of calls in the batch, since loops over more steps start again at other calls, and that of the call."""
    alters: bool = False
    """Whether the model was seen to alter a state between calls; then it may alter the last one of every loop."""
    guessed: list[int] = field(default_factory=list)
    """Calls of the last batch without evidence of the call that they continue."""

    def of(self, calls: Sequence[Call]) -> list[Chain]:
        """Arrange calls in chains, in order; a call whose state is no earlier output begins a new chain."""
        chains: list[Chain] = []
        self.guessed = []
        for number, call in enumerate(calls):
            ends = sorted(chains, key=lambda chain: -chain.numbers[-1])[:LOOPS]
            ends = [chain for chain in ends if _rows(call) <= _rows(calls[chain.numbers[-1]])]
            sure = [self._surely(calls, chain, number) for chain in ends]
            before, is_altered = None, False
            if any(sure):
                before, is_altered = ends[sure.index(max(sure))], max(sure) < 2
            elif ends:
                before = self._altered(calls, ends, number)
                is_altered = before is not None
            if before is None:
                chains.append(Chain(numbers=[number]))
            else:
                before.numbers.append(number)
                before.is_altered |= is_altered
        self.alters |= any(chain.is_altered for chain in chains)
        return [replace(chain, is_altered=self.alters) for chain in chains]

    def _surely(self, calls: Sequence[Call], chain: Chain, number: int) -> int:
        """Score the evidence that a call continues a chain, by the numbers that it reads: 2, 1 or 0."""
        first, last, call = calls[chain.numbers[0]], calls[chain.numbers[-1]], calls[number]
        sure = max((_goes_on(last, call, link) for link in self.links), default=2)
        return 0 if sure == 1 and self._starts_as(first, call) else sure

    def _starts_as(self, first: Call, call: Call) -> bool:
        """Return True if a call starts from the first state of a chain, such as a learned one, or from zeros."""
        starts = [(first.reads.get(link.read), call.reads.get(link.read)) for link in self.links]
        return all(
            own is None or not own.any() or (one is not None and torch.equal(_first_rows(one, len(own)), own))
            for one, own in starts
        )

    def _altered(self, calls: Sequence[Call], ends: Sequence[Chain], number: int) -> Chain | None:
        """Find the chain whose state a call continues after the model altered it; None if it begins a new one."""
        if any(self._starts_as(calls[chain.numbers[0]], calls[number]) for chain in ends):
            return None
        place, layouts = (len(calls), number), {count for count, _ in self.shown}
        # A state that did not change is surely another one. One that changed may also have been made of other inputs.
        if place not in self.shown or self.shown[place] is not None:
            passed = [self._passes_on(calls, chain.numbers[-1], number) for chain in ends]
            going_on = [chain for chain, is_passed in zip(ends, passed, strict=True) if is_passed]
            if going_on or None not in passed:
                before = min(going_on, key=partial(self._distance, calls, number), default=None)
                self.shown[place] = None if before is None else before.numbers[-1]
        if place in self.shown:
            return next((chain for chain in ends if chain.numbers[-1] == self.shown[place]), None)
        starts = by_row(calls[number].reads[self.links[0].read])
        if len(starts) > 1 and (starts == starts[0]).all():  # the same for all sequences, such as a learned state
            return None
        if not ends[0].is_altered and len(ends[0].numbers) > 1:  # its other calls read what the one before gave
            return None
        # Where no loop was seen to start again, loops over other numbers of steps do not either.
        if len(calls) in layouts or not layouts or None in self.shown.values():
            self.guessed.append(number)
        return ends[0]

    def _passes_on(self, calls: Sequence[Call], before: int, after: int) -> bool | None:
        """Return True if a call reads other values where another returned other values; None if undecided.

        A run in which it reads the same values outweighs the others.
        """
        found = set()
        for changed in self.changed:
            if len(changed) != len(calls):
                continue
            gave = self._differing(calls[before], changed[before], "gives", [link.give for link in self.links])
            read = self._differing(calls[after], changed[after], "reads", [link.read for link in self.links])
            gave = gave[: len(read)]
            if gave.any():
                follows = bool(read[gave].double().mean() > 0.5)
                if not follows or not read[~gave].any():
                    found.add(follows)
        return min(found, default=None)

    def _differing(self, call: Call, changed: Call, kind: str, names: Sequence[str]) -> Shaped[Tensor, " b"]:
        one, other = getattr(call, kind), getattr(changed, kind)
        both = [rows_that_differ(one[name], other[name]) for name in names if name in one and name in other]
        return torch.stack(both).any(dim=0)

    def _distance(self, calls: Sequence[Call], number: int, chain: Chain) -> tuple[bool, float]:
        """Return True if a chain had its last turn another number of calls before, and how far its state is."""
        link, numbers = self.links[0], [*chain.numbers, number]
        start = calls[number].reads[link.read]
        end = _first_rows(calls[chain.numbers[-1]].gives[link.give], len(start))
        is_in_turn = len(numbers) > 2 and numbers[-1] - numbers[-2] == numbers[-2] - numbers[-3]
        return not is_in_turn, float((start - end).abs().mean())


def _rows(call: Call) -> int:
    """Return the number of sequences that a call gives states of."""
    return max((len(by_row(value)) for value in call.gives.values()), default=0)

"""Find the layer whose states are explained, if the user does not name it."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.data.moments import mean_and_covariance
from kann.data.serialization import Stored
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.options import Options
from kann.explaining.outputs import Outputs
from kann.explaining.sequences import Sequences
from kann.live._effects import Change, run_changes
from kann.live._intervene import replaced, replaced_layer, with_tensors
from kann.live.evaluation import Scorer
from kann.recording._record import record
from kann.recording.layer_selection import Target, fused_layers, select
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData, tensors_of
from kann.typing import Array, Float, Int

CHANGED = 1e-6
"""An output that differs by more than this fraction of its largest number has changed: float32 rounds to 1e-7."""

HIDES_TIME = (nn.MultiheadAttention, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules that look at several steps at once without a state that goes from one to the next."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Seen:
    """Inputs and outputs of one module."""

    name: str
    module: nn.Module
    read: tuple[int, ...]
    gave: Tensor


def modules_seen(sequences: Sequences, numbers: Int[Array, " k"], *, changed_at: int | None = None) -> list[Seen]:
    """Return inputs and outputs of each module for the first batch, in the order in which they finished.

    With ``changed_at``, each sequence reads at that step the input of the sequence before it.
    """
    data, model, seen = sequences.data(numbers), sequences.model, list[Seen]()

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        gave, read = _first_real(output), _first_real((args, kwargs))
        if gave is not None:
            shape = () if read is None else tuple(read.shape)
            seen.append(Seen(name=name, module=module, read=shape, gave=gave.detach().clone()))

    with evaluation_mode(model), contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(partial(note, name), with_kwargs=True).remove)
        batch = next(data.batches())
        if changed_at is not None:
            batch.content = _changed(batch.content, changed_at, sequences.axis)
        data.call(batch)
    return seen


def _first_real(value: Any) -> Tensor | None:
    return next((part for part in tensors_of(value) if part.is_floating_point()), None)


def _changed(content: Any, step: int, axis: int) -> Any:
    """Return the batch with another input at one step."""
    if isinstance(content, Tensor):
        changed = content.clone()
        changed.select(1 - axis, step).copy_(content.roll(1, dims=axis).select(1 - axis, step))
        return changed
    if isinstance(content, Mapping):
        first = next(key for key, value in content.items() if isinstance(value, Tensor) and value.ndim > 1)
        return {**content, first: _changed(content[first], step, axis)}
    if isinstance(content, list | tuple) and content:
        return type(content)([_changed(content[0], step, axis), *content[1:]])
    return content


def module_with_memory(sequences: Sequences, numbers: Int[Array, " k"]) -> tuple[str, str | None] | None:
    """Return the first module whose output at later steps, and at no earlier one, follows what was read at one step.

    With it the module inside it that every state passes on its way to the next step, if there is one.
    """
    steps = len(sequences.steps(int(numbers[0])))
    at = _step_to_change(sequences, numbers, steps)
    if at is None:
        return None
    before, after = (modules_seen(sequences, numbers, changed_at=step) for step in (None, at))
    for one, other in zip(before, after, strict=False):
        if any(isinstance(part, HIDES_TIME) for part in one.module.modules()) or one.gave.ndim != 3:
            continue
        if one.gave.shape == other.gave.shape and one.gave.shape[1] == steps and _remembers(one.gave, other.gave, at):
            return one.name, _passed_by_states(one, before)
    cells = [name for name in dict.fromkeys(each.name for each in before) if is_fed_back(sequences, numbers, name)]
    outermost = (name for name in cells if not any(name.startswith(f"{other}.") for other in cells))
    cell = next(outermost, None)
    return None if cell is None else (cell, cell)


def is_fed_back(sequences: Sequences, numbers: Int[Array, " k"], name: str) -> bool:
    """Return True for a module that is called in a loop and reads next what it gave: a cell."""
    module, data, calls = sequences.model.get_submodule(name), sequences.data(numbers), list[Tensor]()

    def note(is_changed: bool, module: nn.Module, args: Any, output: Any) -> Any:
        gave = _first_real(output)
        calls.append(torch.empty(0) if gave is None else gave.detach().clone())
        if not is_changed or len(calls) > 1 or gave is None:
            return None
        return with_tensors(output, {id(gave): gave + 1})

    later = []
    with evaluation_mode(sequences.model):
        for is_changed in (False, True):
            calls.clear()
            handle = module.register_forward_hook(partial(note, is_changed))
            try:
                data.call(next(data.batches()))
            finally:
                handle.remove()
            later.append(calls[1] if len(calls) > 1 else torch.empty(0))
    one, other = later
    return one.shape == other.shape and bool(one.numel()) and not torch.allclose(one, other)


def _step_to_change(sequences: Sequences, numbers: Int[Array, " k"], steps: int) -> int | None:
    """Return a step at which sequences read different things, with steps before and after it; None if there is none."""
    read = [sequences.steps(int(number))[:steps] for number in numbers]
    if len({each.shape for each in read}) > 1:  # of different lengths: every step that all have will do
        return min(map(len, read)) // 3 or None
    differs = [t for t in range(1, steps - 2) if any((each[t] != read[0][t]).any() for each in read)]
    return min(differs, key=lambda t: abs(t - steps // 3), default=None)


def _passed_by_states(whole: Seen, seen: Sequence[Seen]) -> str | None:
    """Return the last module that is called once a step and gives the states of the whole sequence one by one."""
    found = None
    for name in dict.fromkeys(each.name for each in seen if each.name.startswith(f"{whole.name}.")):
        calls = [each.gave for each in seen if each.name == name]
        is_step = len(calls) == whole.gave.shape[1] and all(call.shape == whole.gave[:, 0].shape for call in calls)
        if is_step and torch.allclose(torch.stack(calls, dim=1), whole.gave):
            found = name
    return found


def _remembers(one: Tensor, other: Tensor, at: int) -> bool:
    change = as_numpy((one - other).abs().amax(dim=(0, 2)))
    limit = CHANGED * float(one.abs().max())
    return bool((change[:at] <= limit).all() and (change[at + 1 : at + 3] > limit).all())


def equal_blocks(sequences: Sequences, numbers: Int[Array, " k"]) -> tuple[list[str], bool] | None:
    """Return the longest run of modules of one class that follow each other inside a module and give the same shape.

    With them whether the first of them reads states of that shape too.
    """
    seen = {each.name: each for each in modules_seen(sequences, numbers)}
    best: list[str] = []
    for path, module in sequences.model.named_modules():
        run: list[str] = []
        for child, part in module.named_children():
            name = f"{path}.{child}".removeprefix(".")
            kinds = [(type(each.module), each.gave.shape) for each in map(seen.get, [*run[-1:], name]) if each]
            if len(kinds) == 2 and kinds[0] == kinds[1]:
                run.append(name)
            else:  # a block is made of several modules
                run = [name] if name in seen and next(part.children(), None) is not None else []
            if len(run) >= max(2, len(best)):
                best = list(run)
    if not best:
        return None
    first = seen[best[0]]
    return best, first.read == tuple(first.gave.shape)


def evenly_spaced(count: int, most: int) -> Int[Array, " k"]:
    """Return numbers of sequences, spread over all of them; at most the given number."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))


PROBED = 4
"""Sequences that a model is run on to see which of its modules have a memory."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place:
    """Whose states are explained."""

    layer: Any
    """As `kann.record` takes it."""
    axis: str
    state: str = "h"
    target: Target | None = None
    """The layer along time; None along depth."""
    embedding: bool = False
    """Along depth: whether what the first block reads is the first state."""
    why: str
    """The choice and its reason, in a sentence."""

    live_layer: Any = None
    """Where states are replaced in the running network."""
    is_fed_back: bool = True
    """Whether the network goes on from a replaced state; of a layer of one's own that is called once for all steps,
    only what is read out of it can be replaced."""

    @property
    def step_name(self) -> str:
        """Name of a step."""
        return {"time": "step", "depth": "layer"}[self.axis]

    @property
    def recorded(self) -> dict[str, Any]:
        """The arguments of `kann.record` that name it."""
        if self.axis == "depth":
            return {"layer": self.layer, "axis": "depth", "embedding": self.embedding or None}
        return {"layer": self.layer, "state": self.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWorth(Stored):
    """A layer or direction held at its mean."""

    layer: str
    score: float
    """Agreement with the untouched network, or R², while it is held."""
    is_explained: bool


def find_place(sequences: Sequences, options: Options) -> Place:
    """Find the layer: the one that the user names, the recurrent one, one with memory, or blocks along depth."""
    model = sequences.model
    if options.layer is not None:
        place = _named(model, options)
        is_own = place.target is not None and place.target.module is not None and not place.is_fed_back
        if is_own and is_fed_back(sequences, evenly_spaced(sequences.count, PROBED), place.target.path):  # type: ignore[union-attr]
            place = replace(place, is_fed_back=True)
        return place
    recurrent = [(path, part) for path, part in model.named_modules() if isinstance(part, nn.RNNBase | nn.RNNCellBase)]
    if recurrent and options.axis != "depth":
        return _recurrent(model, recurrent, options)
    numbers = evenly_spaced(sequences.count, PROBED)
    blocks = equal_blocks(sequences, numbers)
    if options.axis != "depth":
        memory = module_with_memory(sequences, numbers)
        # Causal attention looks back too, and hands on no state: its blocks are explained if there are such.
        name, step_name = memory or ("", None)
        around = [model.get_submodule(each) for each in (name, name.rpartition(".")[0])]
        if memory is not None and (blocks is None or not any(map(_only_attends, around))):
            which = "is called at every step and" if step_name == name else "runs over all steps, and"
            why = f"Layer {name!r} is explained: it {which} is the first module that follows what was read earlier."
            place = place_along_time(model, name, options, why)
            return replace(place, live_layer=step_name or name, is_fed_back=bool(step_name))
    if blocks is None:
        raise KannError(
            "kann explains networks that read sequences or pass states of one width through blocks, and the model has "
            "no recurrent layer, no other layer with a memory, and no blocks of one width; if one of its modules gives "
            "(sequences, steps, units), pass the name of that module as layer="
        )
    names, reads_same = blocks
    why = (
        f"The network is explained along depth: it has no recurrent layer, and its blocks {names[0]!r} to "
        f"{names[-1]!r} give states of one width. A step is a layer."
    )
    return Place(layer=names, axis="depth", embedding=reads_same, why=why)


def recurrent_targets(path: str, module: nn.Module) -> list[Target]:
    """Return the layers and directions of a recurrent module; of cells, which have none, the module itself."""
    return fused_layers(path, module) or [Target(name=path, path=path, module=module)]


def full_name(target: Target) -> str:
    """Return the name of a layer with its number and direction, also of one that its module stands for."""
    own = [each for each in recurrent_targets(target.path, target.module) if each.reverse == target.reverse]  # type: ignore[arg-type]
    numbered = [each for each in own if each.level == target.level] or own[-1:]
    return numbered[0].name if numbered else target.name


def _named(model: nn.Module, options: Options) -> Place:
    """Return the place that the user named."""
    layer, why = options.layer, f"Layer {options.layer!r} is explained, as you asked."
    if isinstance(layer, list | tuple) and len(layer) > 1:
        why = f"Layers {layer[0]!r} to {layer[-1]!r} are explained, as you asked."
        if options.axis != "depth":
            raise KannError(
                f"layer= names {len(layer)} layers; along time an explanation is of one: call explain for each, or "
                "pass axis='depth' if they are blocks"
            )
    if options.axis == "depth":
        targets, _ = select(model, layer)
        if all(target.module is not None for target in targets):  # else they are found in the model's output
            layer = [target.name for target in targets]
        return Place(layer=layer, axis="depth", why=why)
    place = place_along_time(model, layer, options, why)
    if place.target is not None and _only_attends(place.target.module):
        why = (
            f"{place.why} Positions are taken as time. Attention hands no state from one position to the next, so read "
            "nothing as a memory: an operator here says how what stands at one position goes with what stands at the "
            "next. Pass axis='depth' and the names of the blocks for what the network hands on from block to block."
        )
        return replace(place, why=why)
    return place


def _only_attends(module: Any) -> bool:
    """Return True if a module has attention, also that of other packages, and no recurrence."""
    parts = list(module.modules()) if isinstance(module, nn.Module) else []
    is_recurrent = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in parts)
    return not is_recurrent and any("attention" in type(part).__name__.lower() for part in parts)


def place_along_time(model: nn.Module, layer: Any, options: Options, why: str = "") -> Place:
    """Return a single layer along time; of a bidirectional one the direction that reads forwards."""
    targets, _ = select(model, layer)
    target = targets[0]
    if len(targets) > 1:
        if not all(each.module is target.module for each in targets):
            names = ", ".join(repr(each.name) for each in targets)
            raise KannError(f"layer={layer!r} means {names}; an explanation is of one layer; pass one of them")
        why += (
            f" Of its directions {target.name!r}, which reads forwards; pass layer={targets[1].name!r} for the other."
        )
    # Only together do both states of an LSTM determine what comes next.
    state = options.state or ("hc" if isinstance(target.module, nn.LSTM | nn.LSTMCell) else "h")
    if "c" in state:
        why += f" Its states are {state!r}: an LSTM remembers in its cell state."
    return Place(
        layer=target.name,
        state=state,
        axis="time",
        target=target,
        why=why,
        live_layer=target.name,
        is_fed_back=isinstance(target.module, nn.RNNBase | nn.RNNCellBase),
    )


def _recurrent(model: nn.Module, found: Sequence[tuple[str, nn.Module]], options: Options) -> Place:
    """Find the only recurrent module; of several the encoder, or else the last, which is closest to the outputs."""
    encoders = [each for each in found if "enc" in each[0].lower()] if len(found) > 1 else []
    path, module = (encoders or found)[-1]
    why = f"Layer {path or 'the model itself'!r} ({type(module).__name__}) is explained"
    if len(found) > 1:
        reason = "what it hands on is all that the others get to know" if encoders else "the last of them"
        why += f", one of {len(found)} recurrent modules: {reason}; pass layer= for another."
    else:
        why += ": it is the only recurrent one."
    if isinstance(module, nn.RNNBase) and module.num_layers > 1:
        why += f" Of its {module.num_layers} layers it is the last."
    return place_along_time(model, path or None, options, why)  # None: the model itself is recurrent


# Layers held at their mean


SCANNED, MOST_SCANNED = 64, 12
"""Sequences that are run with each recurrent layer held at its mean; with more layers than this none is."""

MATTERS_MORE = 0.1
"""Another layer than the usual one is explained if holding it loses more agreement by this."""


def most_worth(
    sequences: Sequences, place: Place, options: Options, outputs: Outputs
) -> tuple[Place, tuple[LayerWorth, ...]]:
    """Hold each recurrent layer and direction at its mean, and choose another one if it clearly matters more.

    Returns also the worth of each, the one that matters most first; none where there is a single layer.
    """
    model = sequences.model
    names = [
        target.name
        for path, module in model.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        for target in recurrent_targets(path, module)
    ]
    if not 1 < len(names) <= MOST_SCANNED or place.target is None:
        return place, ()
    own = full_name(place.target)
    scanned = evenly_spaced(sequences.count, SCANNED)
    data, run = sequences.part(scanned)
    labels = options.labels_that_mark(scanned, outputs.kind)
    run["progress"], scores = False, dict[str, float]()
    for name in names:
        with contextlib.suppress(KannError):  # a layer that is called in a way that cannot be replaced
            where = {"layer": name, "state": place_along_time(model, name, options).state}
            states = record(model, data, **where, **run)
            held = [Change(directions=np.empty((states.dim, 0)))]
            score = scores_of(SequenceData(model, data, **run), where, states, held, outputs, labels)
            scores[name] = max(0.0, float(score[0]))  # R² of values may be less
    best = min(scores, key=scores.__getitem__, default=own)
    if own in scores and scores[best] < scores[own] - MATTERS_MORE:
        why = (
            f"Layer {best!r} is explained: of {len(scores)} recurrent layers and directions it matters most. Held at "
            f"its mean the network agrees with itself in {percent(scores[best])}, with {own!r} held in "
            f"{percent(scores[own])}; pass layer= for another."
        )
        place, own = replace(place_along_time(model, best, options), why=why), best
    elif len(scores) > 1:
        listed = ", ".join(f"{name!r} {percent(score)}" for name, score in scores.items())
        place = replace(place, why=f"{place.why} With single layers held at their mean, agreement is {listed}.")
    worth = [LayerWorth(layer=name, score=score, is_explained=name == own) for name, score in scores.items()]
    return place, tuple(sorted(worth, key=lambda each: each.score))


def scores_of(
    source: SequenceData,
    where: Mapping[str, Any],
    states: States,
    changes: Sequence[Change],
    outputs: Outputs,
    labels: list[Any] | None,
) -> Float[Array, " c"]:
    """Return the mean score over all sequences of the network with a layer's states changed in each of some ways.

    ``labels`` mark steps that do not count.
    """
    target, state = replaced_layer(source.model, **where, width=states.dim)
    with evaluation_mode(source.model):
        _, scores, _ = run_changes(
            source,
            partial(replaced, source.model, target, state=state, width=states.dim),
            changes,
            states,
            mean_and_covariance(states),
            fill="auto",
            scorer=Scorer.of("agreement", labels, outputs=outputs.kind, threshold=outputs.threshold),
        )
    return scores[1:].mean(axis=1)

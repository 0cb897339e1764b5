"""Find the layer whose states are explained, if the user does not name it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from kann.errors import KannError
from kann.explaining.options import Options
from kann.explaining.probing import Probe, equal_blocks, few, module_with_memory
from kann.recording.selection import Target, select

PROBED = 4
"""Sequences that a model is run on to see which of its modules have a memory."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place:
    """Whose states are explained."""

    layer: Any
    """As `kann.record` takes it."""
    state: str
    axis: str
    target: Target | None
    """The layer along time; None along depth."""
    embedding: bool
    """Along depth: whether what the first block reads is the first state."""
    why: str
    """What was chosen and why, in a sentence."""

    live_layer: Any = None
    """Where states are replaced in the running network."""
    is_fed_back: bool = True
    """Whether the network goes on from a replaced state; of a layer of one's own that is called once for all steps,
    only what is read out of it can be replaced."""

    @property
    def step_name(self) -> str:
        """What a step is called."""
        return {"time": "step", "depth": "layer"}[self.axis]

    @property
    def recorded(self) -> dict[str, Any]:
        """The arguments of `kann.record` that name it."""
        if self.axis == "depth":
            return {"layer": self.layer, "axis": "depth", "embedding": self.embedding or None}
        return {"layer": self.layer, "state": self.state}


def find_place(probe: Probe, options: Options) -> Place:
    """The layer that the user names; else the recurrent one, one with a memory of its own, or blocks along depth."""
    if options.layer is not None:
        return _named(probe, options)
    recurrent = [
        (path, part) for path, part in probe.model.named_modules() if isinstance(part, nn.RNNBase | nn.RNNCellBase)
    ]
    if recurrent and options.axis != "depth":
        return _recurrent(probe.model, recurrent, options)
    numbers = few(probe.sequences.count, PROBED)
    blocks = equal_blocks(probe, numbers)
    if options.axis != "depth":
        memory = module_with_memory(probe, numbers)
        # Causal attention looks back too, and hands on no state: its blocks are explained if there are such.
        if memory is not None and (blocks is None or not _is_in_attention(probe.model, memory.name)):
            why = (
                f"Layer {memory.name!r} is explained: it is the first module whose output at later steps follows "
                "what was read before."
            )
            place = _along_time(probe.model, memory.name, options, why)
            return replace(place, live_layer=memory.step_name or memory.name, is_fed_back=bool(memory.step_name))
    if blocks is None:
        raise KannError(
            "the model has no recurrent layer, no other layer with a memory, and no blocks of one width to explain "
            "along depth; pass layer= the name of the module that gives (sequences, steps, units)"
        )
    why = (
        f"The network is explained along depth: it has no recurrent layer, and its blocks {blocks.names[0]!r} to "
        f"{blocks.names[-1]!r} give states of one width. A step is a layer."
    )
    return Place(layer=blocks.names, state="h", axis="depth", target=None, embedding=blocks.reads_same, why=why)


def _named(probe: Probe, options: Options) -> Place:
    """What the user named."""
    what = f"Layer {options.layer!r} is"
    if isinstance(options.layer, list | tuple) and len(options.layer) > 1:
        what = f"Layers {options.layer[0]!r} to {options.layer[-1]!r} are"
    why = f"{what} explained, as you asked."
    if options.axis == "depth":
        targets, _ = select(probe.model, options.layer)
        layer = options.layer
        if all(target.module is not None for target in targets):  # else they are found in the model's output
            layer = [target.name for target in targets]
        return Place(layer=layer, state="h", axis="depth", target=None, embedding=False, why=why)
    if isinstance(options.layer, list | tuple) and len(options.layer) > 1:
        raise KannError(
            f"layer= names {len(options.layer)} layers; along time an explanation is of one: call explain for each, or "
            "pass axis='depth' if they are blocks"
        )
    place = _along_time(probe.model, options.layer, options, why)
    if place.target is not None and _only_attends(place.target.module):
        why = (
            f"{place.why} Positions are taken as time. Attention hands no state from one position to the next, so read "
            "nothing as a memory: an operator here says how what stands at one position goes with what stands at the "
            "next. Pass axis='depth' and the names of the blocks for what the network hands on from block to block."
        )
        return replace(place, why=why)
    return place


def _is_in_attention(model: nn.Module, path: str) -> bool:
    """Whether a module, or the one that it is a part of, has attention and nothing recurrent."""
    return any(_only_attends(model.get_submodule(name)) for name in (path, path.rpartition(".")[0]))


def _only_attends(module: Any) -> bool:
    """Whether a module has attention, also that of other packages, and nothing recurrent."""
    if not isinstance(module, nn.Module):
        return False
    parts = list(module.modules())
    if any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in parts):
        return False
    return any("attention" in type(part).__name__.lower() for part in parts)


def _along_time(model: nn.Module, layer: Any, options: Options, why: str) -> Place:
    """A single layer along time; of a bidirectional one the direction that reads forwards."""
    targets, _ = select(model, layer)
    target = targets[0]
    if len(targets) > 1:
        if not all(each.module is target.module for each in targets):
            names = ", ".join(repr(each.name) for each in targets)
            raise KannError(f"layer={layer!r} means {names}; an explanation is of one layer; pass one of them")
        why += (
            f" Of its directions {target.name!r}, which reads forwards; pass layer={targets[1].name!r} for the other."
        )
    state = options.state or _state_of(target.module)
    if "c" in state:
        why += f" Its states are {state!r}: an LSTM remembers in its cell state."
    return Place(
        layer=target.name,
        state=state,
        axis="time",
        target=target,
        embedding=False,
        why=why,
        live_layer=target.name,
        is_fed_back=isinstance(target.module, nn.RNNBase | nn.RNNCellBase),
    )


def _state_of(module: Any) -> str:
    """Both states of an LSTM, since only together they say what comes next."""
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return "hc"
    return "h"


def _recurrent(model: nn.Module, found: Sequence[tuple[str, nn.Module]], options: Options) -> Place:
    """The only recurrent module; of several the encoder, or else the last, which is closest to what is decided."""
    path, module = found[-1]
    why = f"Layer {_shown(path)} ({type(module).__name__}) is explained: it is the only recurrent one."
    if len(found) > 1:
        encoders = [each for each in found if "enc" in each[0].lower()]
        reason = "the last of them"
        if encoders:
            (path, module), reason = encoders[-1], "what it hands on is all that the others get to know"
        why = (
            f"Layer {_shown(path)} ({type(module).__name__}) is explained, one of {len(found)} recurrent modules: "
            f"{reason}; pass layer= for another."
        )
    if isinstance(module, nn.RNNBase) and module.num_layers > 1:
        why += f" Of its {module.num_layers} layers it is the last."
    if not path:  # the model itself is recurrent
        return _along_time(model, None, options, why)
    return _along_time(model, path, options, why)


def _shown(path: str) -> str:
    return repr(path or "the model itself")

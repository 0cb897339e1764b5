"""What a network that learnt the copy task recalls if only some coordinates of its state are kept while it runs."""

import math

import torch
from torch import nn

import kann
from kann.typing import Array, Float, Int
from kann.zoo.copy_task import OrthogonalRNN
from kann_experiments import trusting
from kann_experiments.copy.held_out import HeldOut
from kann_experiments.copy.task import CopyNetwork
from kann_experiments.results import Quantity

COUNTS = (2, 4, 8, 16, 24, 32)
"""How many coordinates are kept, and how many removed."""

GOOD_RECALL = 0.8
"""Fraction of digits recalled that the paper calls good."""

METHODS = {"modes": "modes", "pca": "principal components", "random": "random directions, three draws"}
"""What is kept, by the names that `kann.effects` has for it."""


def live_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `live_numbers`."""
    rows = [Quantity(key="live_full", what="running network, held-out sequences: digits recalled", format="percent")]
    for count in COUNTS:
        for name, what in METHODS.items():
            text = f"    only {count} {what} kept"
            rows.append(Quantity(key=f"live_{name}_{count}", what=text, format="percent"))
    rows.append(Quantity(key="live_none", what="    held at the mean state", format="percent"))
    rows.append(Quantity(key="live_needs_modes", what=f"of {_listed(COUNTS)} modes kept, those needed for 80 %"))
    rows.append(Quantity(key="live_needs_pca", what="    principal components"))
    for name, what in METHODS.items():
        text = f"digits recalled without {COUNTS[0]} {what}"
        rows.append(Quantity(key=f"live_removed_{name}", what=text, format="percent"))
    return tuple(rows)


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts))


def live_numbers(network: CopyNetwork, held_out: HeldOut | None, inputs: Float[Array, "s t p"]) -> dict[str, float]:
    """Digits recalled in held-out sequences with coordinates kept or removed; nothing if there are no such sequences.

    The operator reads the characters; it, and what fills the state, is fitted to the states while ``inputs`` are read.
    """
    if held_out is None:
        return {}
    layer, state = _replaced_layer(network)
    states = kann.record(network, torch.as_tensor(inputs), layer="recurrent", state=state, inputs=True, progress=False)
    rank = "auto" if trusting.can_hold_out(states) else max(COUNTS)
    found = kann.effects(
        network,
        torch.as_tensor(held_out.inputs),
        kann.fit(states, rank=rank, driven=True),
        states,
        readout=network.readout,
        metric=recalled,
        labels=held_out.digits.numpy(),
        counts=[count for count in COUNTS if count < states.dim],
        fill="linear",
        layer=layer,
        state=state,
        progress=False,
    )
    return _numbers(found)


def _replaced_layer(network: CopyNetwork) -> tuple[str, str]:
    """The module whose state is replaced at every step, and which state: h and c of an LSTM."""
    if isinstance(network.recurrent, OrthogonalRNN):
        return "recurrent.state", "h"
    if isinstance(network.recurrent, nn.LSTM):
        return "recurrent", "hc"
    return "recurrent", "h"


def recalled(scores: Float[Array, "b t o"], digits: Int[Array, "b k"]) -> Float[Array, " b"]:
    """The fraction of its digits that each sequence is answered with, in its last steps."""
    answers = scores[:, -digits.shape[1] :].argmax(axis=-1)  # (b, k)
    return (answers == digits).mean(axis=1)


def _numbers(found: kann.Effects) -> dict[str, float]:
    """The numbers of the table; NaN for more modes than the operator has."""
    numbers = {"live_full": found.full, "live_none": found.none}
    for name in METHODS:
        kept = dict(zip(found.counts, found.kept[name].tolist(), strict=True))
        numbers |= {f"live_{name}_{count}": recall for count, recall in kept.items()}
        if name != "random":
            enough = [count for count, recall in kept.items() if recall >= GOOD_RECALL]
            numbers[f"live_needs_{name}"] = float(min(enough, default=math.inf))
        numbers[f"live_removed_{name}"] = float(found.removed[name][0])
    return numbers

"""How far the operators of the copy task hold on sequences that they were not fitted to, beside copying states."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import kann
from kann.analysis.fidelity import Predictor
from kann.typing import Array, Float, Int
from kann_experiments.copy.task import CopyNetwork, Task


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOut:
    """All sequences that no operator was fitted to; the network itself was trained on sequences drawn from all."""

    states: kann.States
    """The network's hidden states, with the inputs."""
    inputs: Float[Array, "s t p"]
    """What the network read."""
    digits: Int[Tensor, "s k"]
    """What it should recall."""


def hold_out(network: CopyNetwork, task: Task, fitted: Int[Array, "s k"]) -> HeldOut | None:
    """Record the network on all sequences but those that operators are fitted to; None if there are no others."""
    seen = {tuple(digits) for digits in fitted.tolist()}
    others = np.array([digits for digits in task.every().tolist() if tuple(digits) not in seen])
    if not len(others):
        return None
    x, answer = task.sequences(others)  # (s, t, p) and (s, t)
    states = kann.record(network, x, layer="recurrent", inputs=True, progress=False)
    return HeldOut(states=states, inputs=x.numpy(), digits=answer[:, -task.digits :])


def held_out_numbers(
    network: CopyNetwork, koopman: kann.Koopman, driven: kann.Koopman, held_out: HeldOut | None
) -> dict[str, float]:
    """What operators and copying reach on held-out sequences, by the keys of the table; nothing if there are none."""
    if held_out is None:
        return {}
    predictors = {"held_out": koopman, "driven_held_out": driven, "copying": kann.copying}
    numbers = {
        f"{name}_{what}": value
        for name, predictor in predictors.items()
        for what, value in _measured(network, predictor, held_out).items()
    }
    simulated = driven.simulate(held_out.inputs)  # (s, t, d)
    return numbers | {"simulated_held_out": float(recalled_digits(network, simulated, held_out.digits).mean())}


def _measured(network: CopyNetwork, predictor: Predictor, held_out: HeldOut) -> dict[str, float]:
    """Error of one step, digits recalled once all have been read, and answers that one predicted step leaves as is."""
    states, count = held_out.states, held_out.digits.shape[1]
    path = kann.hybrid(predictor, states, count).padded()  # (s, t, d)
    # Digits are answered in the last `count` states; the one before them predicts the first.
    last = slice(-count - 1, None)
    answering = kann.States.from_padded(states.padded()[:, last], inputs=held_out.inputs[:, last])
    return {
        "error": float(kann.relative_error(predictor, states)),
        "recall": float(recalled_digits(network, path, held_out.digits).mean()),
        "answers": kann.agreement(predictor, states, network.readout, at="every"),
        "digits": kann.agreement(predictor, answering, network.readout, at="every"),
    }


def recalled_digits(
    network: CopyNetwork, states: Float[Array, "s t w"], digits: Int[Tensor, "s k"]
) -> Float[Array, " k"]:
    """Fraction of sequences in which each digit is answered rightly, if the network's states were these."""
    readout, count = network.readout, digits.shape[1]
    with torch.no_grad():
        h = torch.as_tensor(states[:, -count:, : readout.in_features], dtype=torch.float32)  # (s, k, d)
        right = readout(h).argmax(dim=-1) == digits  # (s, k)
    return right.double().mean(dim=0).numpy()

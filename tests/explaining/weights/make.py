"""Train the small networks that tests explain: ``python -m tests.explaining.weights.make [name ...]``.

Without names all are trained, in about six minutes.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from tests import flipflop
from tests.explaining import known, networks


def classes(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of all steps."""
    return cross_entropy(outputs.reshape(-1, outputs.shape[-1]), wanted.flatten())


def answers(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of yes-or-no answers."""
    return binary_cross_entropy_with_logits(outputs.reshape(wanted.shape), wanted.float())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train one network."""

    make: type[nn.Module]
    draw: Callable[[int, Generator], tuple[Any, Tensor]]
    """From the number of the iteration: a batch and its answers. Sequences grow where long ones are hard at first."""
    iterations: int
    loss: Callable[[Tensor, Tensor], Tensor] = classes
    rate: float = 1e-2


RECIPES = {
    "depth_tagger": Recipe(
        make=networks.DepthTagger, draw=lambda i, random: networks.brackets(64, 20, random), iterations=300
    ),
    "parity": Recipe(
        make=networks.Parity, draw=lambda i, random: networks.bits(64, min(16, 2 + i // 40), random), iterations=1500
    ),
    "counter": Recipe(
        make=known.Counter, draw=lambda i, random: known.pulses(64, min(24, 4 + i // 40), random), iterations=1500
    ),
    "context": Recipe(
        make=known.ContextIntegrator,
        draw=lambda i, random: known.evidence(64, min(25, 5 + i // 40), random),
        iterations=2000,
        loss=answers,
        rate=3e-3,
    ),
    "latch": Recipe(
        make=known.Latch, draw=lambda i, random: known.flagged(64, 20, random), iterations=1500, loss=mse_loss
    ),
    "forecaster": Recipe(
        make=known.Forecaster,
        draw=lambda i, random: known.oscillations(64, random),
        iterations=2000,
        loss=mse_loss,
        rate=5e-3,
    ),
    "periods": Recipe(make=known.PeriodDetector, draw=lambda i, random: known.periodic(64, 64, random), iterations=800),
    "places": Recipe(
        make=known.PlaceMemory,
        draw=lambda i, random: known.place_pulses(64, min(30, 8 + i // 30), random),
        iterations=1500,
        loss=answers,
    ),
    "flat_places": Recipe(
        make=known.FlatPlaceMemory,
        draw=lambda i, random: known.place_pulses(64, min(30, 8 + i // 30), random),
        iterations=1500,
        loss=answers,
    ),
    "majority": Recipe(
        make=known.Majority, draw=lambda i, random: known.letters(64, random), iterations=800, rate=3e-3
    ),
    "adder": Recipe(make=known.Adder, draw=lambda i, random: known.additions(), iterations=600, rate=3e-3),
    "characters": Recipe(
        make=known.CharacterModel, draw=lambda i, random: known.characters(32, 40, random), iterations=800
    ),
}


def main(names: Sequence[str]) -> None:
    """Write one file for each network."""
    torch.set_num_threads(1)
    if not names or "flip_flop" in names:
        _save("flip_flop", flipflop.train("gru", 3, seed=0, iterations=1500))
    for name in names or RECIPES:
        if name in RECIPES:
            network = networks.seeded(RECIPES[name].make).train()
            _train(network, RECIPES[name])
            _save(name, network)


def _train(network: nn.Module, recipe: Recipe) -> None:
    generator = Generator().manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.iterations)
    for number in range(recipe.iterations):
        x, wanted = recipe.draw(number, generator)
        outputs = network(**x) if isinstance(x, dict) else network(x)
        loss = recipe.loss(outputs, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _save(name: str, network: nn.Module) -> None:
    save_file(network.state_dict(), Path(__file__).with_name(f"{name}.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Train the small networks that tests explain: ``python -m tests.explaining.weights.make``."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests import flipflop
from tests.explaining import networks


def main() -> None:
    """Write one file for each network."""
    _save("flip_flop", flipflop.train("gru", 3, seed=0, iterations=1500))
    generator = torch.Generator().manual_seed(0)
    tagger = networks.seeded(networks.DepthTagger)
    _train(tagger, 300, lambda number: networks.brackets(64, 20, generator))
    _save("depth_tagger", tagger)
    parity = networks.seeded(networks.Parity)
    _train(parity, 1500, lambda number: networks.bits(64, min(16, 2 + number // 40), generator))
    _save("parity", parity)


def _train(network: nn.Module, iterations: int, draw) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for number in range(iterations):
        x, y = draw(number)
        scores: Tensor = network(x)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def _save(name: str, network: nn.Module) -> None:
    save_file(network.state_dict(), Path(__file__).with_name(f"{name}.safetensors"))


if __name__ == "__main__":
    main()

"""Train the small networks that tests explain: ``python -m tests.explaining.weights.make``."""

from pathlib import Path

from safetensors.torch import save_file

from tests import flipflop


def main() -> None:
    """Write one file for each network."""
    network = flipflop.train("gru", 3, seed=0, iterations=1500)
    save_file(network.state_dict(), Path(__file__).with_name("flip_flop.safetensors"))


if __name__ == "__main__":
    main()

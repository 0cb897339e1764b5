"""Negative controls of `kann.explain`: how often it concludes something about networks that learned nothing.

    python benchmarks/nothing_learned.py              # 100 explanations, about ten minutes on one core
    python benchmarks/nothing_learned.py --kinds rnn --seeds 3 --print

Untrained networks are explained without labels, so that only modes can decide. Networks trained on random labels get
new sequences with new random labels. Any verdict but "nothing" is a false conclusion. Results are written to
``benchmarks/nothing_learned.json``.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kann

SEQUENCES, STEPS, INPUTS, UNITS = 300, 20, 3, 32

MEMORIZED, ITERATIONS = 100, 300
"""Number of sequences whose random labels are learned, and of iterations with all of them."""

RESULTS = Path(__file__).with_suffix(".json")


class StateSpace(nn.Module):
    """Diagonal linear states, h ← λ h + b x, with |λ| and angles drawn as in the linear recurrent unit (LRU)."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.modulus, self.angle = nn.Parameter(torch.empty(units // 2)), nn.Parameter(torch.empty(units // 2))
        self.mix = nn.Linear(inputs, units)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw |λ| uniformly from the ring 0.4 < |λ| < 0.99, and angles from the whole circle."""
        with torch.no_grad():
            self.modulus.uniform_(0.4**2, 0.99**2).sqrt_()
            self.angle.uniform_(0, torch.pi)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states (sequences, steps, units): real and imaginary parts."""
        read = torch.view_as_complex(self.mix(x).unflatten(-1, (-1, 2)))
        eigenvalues = torch.polar(self.modulus, self.angle)
        h, states = torch.zeros_like(read[:, 0]), []
        for step in range(x.shape[1]):
            h = eigenvalues * h + read[:, step]
            states.append(torch.view_as_real(h).flatten(1))
        return torch.stack(states, dim=1)


class Classifier(nn.Module):
    """A recurrent layer whose last state a linear readout decides by."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(UNITS, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of two classes."""
        states = self.layer(x)
        states = states[0] if isinstance(states, tuple) else states
        return self.head(states[:, -1])


LAYERS: Mapping[str, Callable[[], nn.Module]] = {
    "rnn": lambda: nn.RNN(INPUTS, UNITS, batch_first=True),
    "gru": lambda: nn.GRU(INPUTS, UNITS, batch_first=True),
    "lstm": lambda: nn.LSTM(INPUTS, UNITS, batch_first=True),
    "state space": lambda: StateSpace(INPUTS, UNITS),
}


def untrained(layer: str) -> tuple[nn.Module, Tensor, None]:
    """Return an untrained network and data."""
    return Classifier(LAYERS[layer]()).eval(), torch.randn(SEQUENCES, STEPS, INPUTS), None


def trained_on_random_labels() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a GRU that knows random labels by heart, and new sequences with new random labels."""
    model = Classifier(LAYERS["gru"]())
    x, labels = torch.randn(MEMORIZED, STEPS, INPUTS), torch.randint(2, (MEMORIZED,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(ITERATIONS):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), torch.randn(SEQUENCES, STEPS, INPUTS), torch.randint(2, (SEQUENCES,))


KINDS: Mapping[str, Callable[[], tuple[nn.Module, Tensor, Tensor | None]]] = {
    **{f"untrained {name}": lambda name=name: untrained(name) for name in LAYERS},
    "random labels": trained_on_random_labels,
}


def explained(kind: str, seed: int) -> dict[str, Any]:
    """Return the verdict on one network, with the figure that decides and the first sentence."""
    torch.manual_seed(seed)
    model, x, labels = KINDS[kind]()
    found = kann.explain(model, x, labels=labels, seed=seed, progress=False)
    verdict: Any = found.facts and found.facts.verdict
    return {"seed": seed, "verdict": verdict.word, "decided_by": verdict.decided_by, "sentence": found.sentences[0]}


def summary(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the number of explanations and of false conclusions."""
    rows = [row for own in results.values() for row in own]
    return {"explanations": len(rows), "false_conclusions": sum(row["verdict"] != "nothing" for row in rows)}


def main() -> None:
    """Explain all networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--print", action="store_true", help="do not write results")
    arguments = parser.parse_args()
    results = {}
    for kind in arguments.kinds:
        results[kind] = [explained(kind, seed) for seed in range(arguments.seeds)]
        false = [row for row in results[kind] if row["verdict"] != "nothing"]
        print(f"{kind}: {len(false)} false conclusions in {len(results[kind])}", flush=True)
        for row in false:
            print(f"  seed {row['seed']}: {row['verdict']}, {row['sentence']}", flush=True)
    print(summary(results))
    if not arguments.print:
        RESULTS.write_text(json.dumps({**summary(results), "networks": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How many directions keep the outputs after each block: ``python -m kann_experiments.depth_profiles [FOLDER]``.

Two small transformers are trained on one processor core: a GPT on addition modulo 23, and a classifier of sequences of
tokens. Each writes ``results.json``, its network's profile, and a figure of it to a folder of its name.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import kann
from kann.progress import progress
from kann_experiments.results import common_json, write_json

MODULUS, CLASSES, TOKENS, LENGTH = 23, 4, 32, 24
COUNTS = (1, 2, 4, 8, 16, 32)
WIDTH = 64


class Transformer(nn.Module):
    """Blocks of attention that read tokens, and decide at the last position or by the mean over positions."""

    def __init__(self, tokens: int, length: int, classes: int, *, blocks: int, is_causal: bool):
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, WIDTH), nn.Parameter(0.02 * torch.randn(length, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False).layers
        for parameter in self.blocks.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=WIDTH**-0.5)  # blocks begin as copies of one layer
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)
        self.is_causal = is_causal
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each sequence."""
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x, src_mask=self.mask if self.is_causal else None)
        return self.head(self.norm(x[:, -1] if self.is_causal else x.mean(dim=1)))


def train(model: nn.Module, inputs: Tensor, labels: Tensor, *, steps: int, batch: int, decay: float) -> None:
    """Minimise the cross-entropy on random batches."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay, betas=(0.9, 0.98))
    for _ in progress(range(steps), what=f"train {type(model).__name__}", total=steps, unit="step"):
        chosen = torch.randint(len(inputs), (batch,))
        optimiser.zero_grad()
        cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimiser.step()
    model.eval()


def addition() -> dict[str, Any]:
    """A GPT that reads a, b and "=", and answers a + b modulo 23. Nine of ten pairs are trained on."""
    pairs = torch.cartesian_prod(torch.arange(MODULUS), torch.arange(MODULUS))
    pairs = pairs[torch.randperm(len(pairs))]
    inputs, labels = nn.functional.pad(pairs, (0, 1), value=MODULUS), pairs.sum(1) % MODULUS
    model, known = Transformer(MODULUS + 1, 3, MODULUS, blocks=4, is_causal=True), 9 * len(pairs) // 10
    settings = {"steps": 2000, "batch": 256, "decay": 1.0}
    train(model, inputs[:known], labels[:known], **settings)
    half = len(pairs) // 2  # directions are fitted to one half of all pairs, and tested on the other
    return measured(model, inputs[:half], inputs[half:], inputs[known:], labels[known:]) | {"config": settings}


def classification() -> dict[str, Any]:
    """A classifier: tokens speak for classes, and the class with the most votes is the answer."""
    votes = torch.randn(TOKENS, CLASSES)
    inputs = torch.randint(TOKENS, (12_000, LENGTH))
    labels = votes[inputs].sum(1).argmax(1)
    model, known = Transformer(TOKENS, LENGTH, CLASSES, blocks=3, is_causal=False), 10_000
    settings = {"steps": 400, "batch": 64, "decay": 0.01}
    train(model, inputs[:known], labels[:known], **settings)
    return measured(model, inputs[:500], inputs[known:], inputs[known:], labels[known:]) | {"config": settings}


def measured(model: nn.Module, data: Tensor, held_out: Tensor, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """Profile a network, and return the result with the accuracy on test data."""
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == labels).double().mean())
    return {"profile": kann.depth.profile(model, data, held_out, layer="blocks.*", counts=COUNTS), "accuracy": accuracy}


def table(profile: kann.depth.Profile) -> list[str]:
    """Write agreement in percent as lines of Markdown."""
    lines = [f"| after | directions | {' | '.join(map(str, profile.counts))} |", "| --- " * (2 + len(COUNTS)) + "|"]
    words = {"balanced": "balanced", "pca": "components", "random": "random"}
    for i, layer in enumerate(profile.layers):
        for method, name in words.items():
            cells = " | ".join("–" if own != own else f"{100 * own:.1f}" for own in profile.kept[method][i].tolist())
            lines.append(f"| {layer} | {name} | {cells} |")
    return lines


def main(folder: Path) -> None:
    """Run both experiments."""
    for name, experiment in {"addition": addition, "classification": classification}.items():
        torch.manual_seed(0)
        found = experiment()
        profile = found.pop("profile")
        print(name, f"accuracy {found['accuracy']:.3f}", profile, sep="\n")  # noqa: T201  # a script
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        profile.save(own / "profile.npz")
        figure, ax = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
        kann.plots.draw_profile(profile, ax=ax)
        figure.savefig(own / "depth-profile.png", dpi=150)
        pyplot.close(figure)
        agreement = {method: means.round(4).tolist() for method, means in profile.kept.items()}
        write_json(
            own / "results.json",
            common_json(f"depth/{name}", seeds=[0])
            | {
                "config": found["config"],
                "accuracy": round(found["accuracy"], 4),
                "counts": list(profile.counts),
                "sequences": len(profile.judged),
                "agreement": agreement,
                "lines": {"profile": table(profile)},
            },
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/depth"))

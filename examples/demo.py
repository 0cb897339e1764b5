"""From a trained network to its explanation, in a minute: train, record, fit, read.

A GRU of 32 units learns the sentiment of made-up reviews: words count up or down, "not" turns the next word around.
Then kann says how the network does it.
"""

import argparse
import base64
import html
import io
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import kann
from kann.plots import COLOURS, draw_spectrum

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>kann demo</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
  img {{ width: 100% }}
</style>
<h1>A GRU that reads reviews, as one linear operator</h1>
<ul>{items}</ul>
<img alt="Spectrum of the operator, and what each word does to its leading mode" src="data:image/png;base64,{picture}">
</html>
"""

GOOD = ["perfect", "excellent", "loved", "wonderful", "great", "charming"]
BAD = ["worst", "awful", "waste", "boring", "poor", "dull"]
PLAIN = ["the", "film", "plot", "actor", "scene", "and", "was", "it", "story", "a"]
VOCABULARY = [*GOOD, *BAD, "not", *PLAIN]
NOT = VOCABULARY.index("not")
VALUE = torch.tensor([1.0] * len(GOOD) + [-1.0] * len(BAD) + [0.0] * (1 + len(PLAIN)))


def reviews(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words (count, 24), their lengths (count,), and whether each review is positive (count,)."""
    words = torch.randint(len(VOCABULARY), (count, 24), generator=generator)
    lengths = torch.randint(8, 25, (count,), generator=generator)
    negated = torch.cat([torch.zeros(count, 1, dtype=torch.bool), words[:, :-1] == NOT], dim=1)
    value = torch.where(negated, -VALUE[words], VALUE[words])
    score = (value * (torch.arange(24) < lengths[:, None])).sum(1)
    decided = score != 0
    return words[decided], lengths[decided], (score > 0)[decided]


class Reader(nn.Module):
    """Word vectors, a GRU, and a readout of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), 8)
        self.rnn = nn.GRU(8, 32, batch_first=True)
        self.readout = nn.Linear(32, 1)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits of "positive", (batch,)."""
        states, _ = self.rnn(self.embed(words))
        return self.readout(states[torch.arange(len(words)), lengths - 1]).squeeze(1)


def train(model: Reader, generator: torch.Generator, iterations: int = 400) -> None:
    """A few seconds of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(iterations):
        words, lengths, positive = reviews(128, generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(words, lengths), positive.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def word_effects(
    koopman: kann.Koopman, model: Reader, states: kann.States, words: list[np.ndarray]
) -> dict[str, float]:
    """How much each word changes the leading mode's share of the logit, on average over its occurrences."""
    shares = kann.contributions(koopman, states.values, model.readout.weight, model.readout.bias).modes[:, 0, 0]
    change = np.concatenate([np.diff(shares[states.span(i)]) for i in range(len(states))])
    read = np.concatenate([sequence[1:] for sequence in words])
    return {word: float(change[read == i].mean()) for i, word in enumerate(VOCABULARY)}


def one_mode_decides(koopman: kann.Koopman, model: Reader, states: kann.States) -> float:
    """Share of reviews that the leading mode alone decides as the network does."""
    last = states.values[states.starts + states.lengths - 1]
    shares = kann.contributions(koopman, last, model.readout.weight, model.readout.bias)
    return float(np.mean((shares.modes[:, 0, 0] + shares.rest[:, 0] + shares.bias[0] > 0) == (shares.total[:, 0] > 0)))


def linear_accuracy(koopman: kann.Koopman, model: Reader, data: tuple[torch.Tensor, ...]) -> float:
    """Accuracy when the driven linear system reads the words in place of the GRU."""
    words, lengths, positive = data
    paths = koopman.simulate(model.embed(words))
    last = paths[np.arange(len(words)), lengths.numpy() - 1]
    logits = last @ model.readout.weight.detach().numpy().T + model.readout.bias.detach().numpy()
    return float(np.mean((logits[:, 0] > 0) == positive.numpy()))


def findings(
    model: Reader, data: tuple[torch.Tensor, ...], states: kann.States, effects: dict[str, float]
) -> list[str]:
    """What the operators say about the network, in sentences."""
    words, lengths, positive = data
    with torch.no_grad():
        accuracy = float(((model(words, lengths) > 0) == positive).float().mean())
    autonomous, driven = kann.fit(states), kann.fit(states, driven=True)
    errors = [kann.relative_error(koopman, states) for koopman in (autonomous, driven)]
    leading, ranked = driven.modes[0], sorted(effects, key=effects.__getitem__)
    replaced = {rank: linear_accuracy(kann.fit(states, driven=True, rank=rank), model, data) for rank in (1, 2, 4, 32)}
    return [
        f"The network is right on {accuracy:.1%} of {len(words)} new reviews.",
        f"A linear operator predicts its next state with a relative error of {errors[0]:.3f}; one that also reads the "
        f"word, of {errors[1]:.4f}.",
        f"The leading mode of that one has |λ| = {leading.modulus:.3f} (residual {leading.residual:.2f}): it keeps a "
        f"count, and loses nine tenths of it in {leading.horizon():.0f} words. The next ones have |λ| = "
        f"{', '.join(f'{mode.modulus:.2f}' for mode in driven.modes[1:4])}.",
        f"Words that push it up most: {', '.join(ranked[:-6:-1])}. Down most: {', '.join(ranked[:5])}.",
        f"That mode alone decides {one_mode_decides(driven, model, states):.1%} of the reviews as the network does.",
        "A linear system that only reads the words is right on "
        f"{', '.join(f'{share:.1%} (rank {rank})' for rank, share in replaced.items())} of the reviews: "
        'being linear, it cannot let "not" turn a word around.',
    ]


def figure(koopman: kann.Koopman, effects: dict[str, float]) -> Figure:
    """The spectrum, and what each word does to the leading mode."""
    drawing = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = drawing.subplots(1, 2)
    draw_spectrum(koopman, ax=left)
    left.set_title("Eigenvalues of the driven operator")
    ordered = sorted(effects, key=effects.__getitem__)
    sizes = [effects[word] for word in ordered]
    right.barh(ordered, sizes, color=[COLOURS[0] if size > 0 else COLOURS[1] for size in sizes])
    right.set_xlabel("change of the leading mode's share of the logit")
    right.set_title("What each word does to the leading mode")
    right.tick_params(axis="y", labelsize=8)
    return drawing


def write_report(path: Path, lines: list[str], drawing: Figure) -> None:
    """One self-contained page: the findings and the figure."""
    picture = io.BytesIO()
    drawing.savefig(picture, format="png", dpi=150)
    encoded = base64.b64encode(picture.getvalue()).decode()
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    page = PAGE.format(items=items, picture=encoded)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def main() -> None:
    """Train, record, fit, read; print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # so small a network is slower on several cores
    generator = torch.Generator().manual_seed(arguments.seed)
    print("Training a GRU of 32 units on made-up reviews ...", flush=True)
    model = Reader()
    train(model, generator)

    data = reviews(2000, generator)
    words, lengths, _ = data
    states = kann.record(model, [(words, lengths)], lengths=lengths, inputs=True)
    driven = kann.fit(states, driven=True)
    effects = word_effects(driven, model, states, [row[:n].numpy() for row, n in zip(words, lengths, strict=True)])
    lines = findings(model, data, states, effects)
    for line in lines:
        print(f"- {line}")
    report = arguments.out / "report.html"
    write_report(report, lines, figure(driven, effects))
    print(f"\nOpen {report}")


if __name__ == "__main__":
    main()

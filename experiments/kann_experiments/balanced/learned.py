"""Learn subspaces by gradient through the running network, to see how far from optimal balanced coordinates are.

A network of which k coordinates are kept after every step, with the state completed by linear regression on them, is
trained to answer as the untouched network does. Only the coordinates change. Several numbers of coordinates and several
starts are trained at once: the sequences of a batch are repeated for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import kann
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.live._intervene import only_target, replaced, replacement
from kann.live.completion import fit_fills
from kann.live.evaluation import Scorer, score_runs
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.typing import Array, Float
from kann_experiments.balanced.cases import Case
from kann_experiments.training import generator

COUNTS = (1, 2, 4)
"""Dimensions of the subspaces that are learned."""

BALANCED_RATES, RANDOM_RATES, LATER_RATES = (0.1, 0.03), (1.0, 0.3), (0.3, 0.03)
"""Starts from balanced and from random directions, by their rates of learning in multiples of `RATE`, and the rates in
further rounds. A high rate leaves bad starts; a low one improves good starts without leaving them first."""

STEPS, ROUNDS = 100, 2
"""Steps of Adam in a round. A further round goes on from the best subspaces with rates that are high again: its gain
shows how far learning had converged."""

RATE = 0.1
"""How far directions of length 1 turn in a step, about. It falls to 0 with a cosine in each round."""

WARM_UP = 20
"""Steps in which the rate rises: Adam's first ones have the same length in all coordinates, whatever the gradient."""

TINIEST = 1e-8
"""Gradients below this size are rounding."""

LONGEST_GRADIENT = 0.1
"""Gradients of one subspace are cut to this length: one large gradient would throw it far from where it was."""

BATCH, TESTS = 32, 16
"""Sequences per step, and how many such batches of other training sequences the subspaces are chosen on."""

LONGEST = 150
"""Steps of a sequence that is learned from: the last ones."""

LEAST_VARIANCE = 1e-6
"""Fraction of the largest variance; directions in which states vary less are left out."""

WIDEST = 8.0
"""Coordinates are clipped to so many of their standard deviations: a network held on few of them may explode."""

BALANCED_AXES = 32
"""Balanced coordinates that are axes of the coordinates in which is learned."""

TESTED_EVERY = 50
"""After this many steps each subspace is tested on sequences that are not learned from. The one with the smallest loss
is taken; it may be the start."""

PURPOSE = 7
"""Of the random numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Directions from which is learned."""

    directions: Float[Array, "d k"]
    rate: float = 1.0
    """In multiples of `RATE`."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate:
    """A subspace on the path of gradient descent."""

    step: int
    directions: Float[Array, "d k"]
    kept: float
    """Decisions kept on the test batches; of values 0."""
    loss: float
    """Mean loss there."""


class Learner:
    """Learns subspaces of the states of one network."""

    def __init__(self, case: Case, spread: MeanAndCovariance, balanced: Float[Array, "d q"], *, seed: int):
        self._case, self._rng = case, generator(seed, PURPOSE)
        values, vectors = np.linalg.eigh(spread.covariance)
        varies = values > LEAST_VARIANCE * values[-1]
        deviations, vectors = np.sqrt(values[varies]), vectors[:, varies]
        # Coordinates of variance 1, the first of them balanced. Gradients differ most in size between these, which
        # Adam makes up for.
        whitened = deviations[:, None] * (vectors.T @ balanced[:, :BALANCED_AXES])
        axes, _ = np.linalg.qr(np.concatenate([whitened, np.eye(len(deviations))], axis=1))
        self._read, self._write = _tensor(vectors / deviations @ axes), _tensor(axes.T * deviations @ vectors.T)
        self._mean = _tensor(spread.mean)
        target = only_target(case.network, case.layer, case.state)
        self._place: Any = {"target": target, "state": case.state, "width": spread.dim}
        sequences = _by_length(case.learning)
        self._learning = [each for i, each in enumerate(sequences) if i % TESTS]
        held_out = sequences[::TESTS]
        places = np.linspace(0, max(0, len(held_out) - BATCH), TESTS).astype(int)
        self._tests = [self._with_answers(_stacked(held_out[place : place + BATCH])) for place in places]

    def random_directions(self, count: int) -> Float[Array, "d k"]:
        """Draw directions uniformly among those of the units."""
        return self._rng.normal(size=(len(self._read), count))

    def learn(self, starts: Sequence[Start], *, steps: int = STEPS) -> list[list[Candidate]]:
        """Follow the gradient from each start.

        Returns the tested subspaces of each path, the first of them the start.
        """
        turned = self._whitened([start.directions for start in starts]).requires_grad_()
        counts = [start.directions.shape[1] for start in starts]
        rates = _tensor([RATE / turned.shape[1] ** 0.5 * start.rate for start in starts])[:, None, None]
        optimizer = _Adam(turned, rates)
        paths: list[list[Candidate]] = [[] for _ in starts]
        self._test(0, turned, counts, paths)
        for step in range(1, steps + 1):
            place = int(self._rng.integers(max(1, len(self._learning) - BATCH + 1)))
            batch = self._with_answers(_stacked(self._learning[place : place + BATCH]))
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self._losses(*batch, turned).sum(), [turned])
            share = min(1.0, step / WARM_UP) * (1 + np.cos(np.pi * step / steps)) / 2
            with torch.no_grad():
                gradient = gradient - turned @ (turned.mT @ gradient)  # along the sphere
                optimizer.step(_cut(gradient), share)
                _make_orthonormal(turned, counts)
            if step % TESTED_EVERY == 0 or step == steps:
                self._test(step, turned, counts, paths)
        return paths

    def outputs(self, x: Tensor, turned: Float[Tensor, "n r k"]) -> Float[Tensor, "n b ..."]:
        """What the network answers with each set of coordinates kept after every step."""
        n, read, write = len(turned), self._read @ turned, turned.mT @ self._write

        def keep(h: Float[Tensor, "nb d"]) -> Float[Tensor, "nb d"]:
            s = ((h.reshape(n, -1, h.shape[-1]) - self._mean) @ read).clamp(-WIDEST, WIDEST)
            return (self._mean + s @ write).reshape(h.shape)

        with replaced(self._case.network, replace=keep, **self._place):
            return self._case.network(x.repeat(n, *[1] * (x.ndim - 1))).unflatten(0, (n, -1))

    def _with_answers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return x, self._case.network(x)

    def _whitened(self, directions: Sequence[Float[Array, "d k"]]) -> Float[Tensor, "n r k"]:
        """Orthonormal directions in whitened coordinates; missing ones are 0 and keep nothing."""
        most = max(each.shape[1] for each in directions)
        turned = self._read.new_zeros(len(directions), len(self._write), most)
        for row, each in enumerate(directions):
            turned[row, :, : each.shape[1]] = torch.linalg.qr(self._write @ _tensor(each))[0]
        return turned

    def _losses(self, x: Tensor, untouched: Tensor, turned: Float[Tensor, "n r k"]) -> Float[Tensor, " n"]:
        outputs = self.outputs(x, turned)
        return _divergence(outputs, untouched.expand_as(outputs), self._case.outputs)

    def _test(self, step: int, turned: Tensor, counts: Sequence[int], paths: list[list[Candidate]]) -> None:
        kind = self._case.outputs
        with torch.no_grad():
            found = [(self.outputs(x, turned), own) for x, own in self._tests]
            losses, kept = (
                torch.stack([measure(outputs, own.expand_as(outputs), kind) for outputs, own in found]).mean(dim=0)
                for measure in (_divergence, _agreement)
            )
            read = (self._read @ turned).double().numpy()
        for row, (path, count) in enumerate(zip(paths, counts, strict=True)):
            measured = {"loss": float(losses[row]), "kept": float(kept[row])}
            path.append(Candidate(step=step, directions=read[row, :, :count], **measured))


class _Adam:
    """Adam with a rate for each row, which torch's has not."""

    def __init__(self, values: Tensor, rates: Tensor, betas: tuple[float, float] = (0.9, 0.99)):
        self._values, self._rates, self._betas = values, rates, betas
        self._mean, self._square, self._steps = torch.zeros_like(values), torch.zeros_like(values), 0

    def step(self, gradient: Tensor, share: float) -> None:
        self._steps += 1
        (one, two), n = self._betas, self._steps
        self._mean.lerp_(gradient, 1 - one)
        self._square.lerp_(gradient.square(), 1 - two)
        size = (self._square / (1 - two**n)).sqrt().clamp(min=TINIEST)
        self._values -= share * self._rates * (self._mean / (1 - one**n)) / size


def learned_numbers(
    case: Case, *, seed: int, steps: int = STEPS, counts: Sequence[int] = COUNTS
) -> tuple[dict[str, float], dict[str, Any]]:
    """Decisions kept on held-out sequences by balanced and by learned coordinates, and the losses of all paths."""
    where: dict[str, Any] = {"layer": case.layer, "state": case.state}
    balance = kann.balance(case.network, case.fitted, outputs=case.outputs, seed=seed, progress=False, **where)
    states = kann.record(case.network, case.fitted, batch_size=case.batch_size, progress=False, **where)
    spread = mean_and_covariance(states)
    counts = sorted({*(count for count in counts if count < spread.dim), *([case.known] if case.known else [])})
    with evaluation_mode(case.network):
        learner = Learner(case, spread, balance.directions, seed=seed)
        starts = {
            (kind, count): [Start(each, rate) for each, rate in zip(drawn, rates, strict=True)]
            for count in counts
            for kind, drawn, rates in (
                ("balanced", [balance.directions[:, :count]] * len(BALANCED_RATES), BALANCED_RATES),
                ("random", [learner.random_directions(count) for _ in RANDOM_RATES], RANDOM_RATES),
            )
        }
        directions = {f"balanced_{count}": balance.directions[:, :count] for count in counts}
        tested: dict[str, float] = {}
        paths: dict[str, list[list[float]]] = {}
        for number in range(1, ROUNDS + 1):
            found = iter(learner.learn([start for own in starts.values() for start in own], steps=steps))
            for (kind, count), own in starts.items():
                name, from_here = f"{kind}_{count}", [next(found) for _ in own]
                paths.setdefault(name, []).extend([each.loss for each in path] for path in from_here)
                best = min((each for path in from_here for each in path), key=lambda each: each.loss)
                directions[f"learned_{name}"] = best.directions
                tested[f"tested_{name}_round{number}"] = best.kept
                starts[kind, count] = [Start(best.directions, rate) for rate in LATER_RATES]
        kept = _kept(case, directions, states, spread)
    accuracy = {} if case.accuracy is None else {"accuracy": case.accuracy}
    return accuracy | tested | kept, {"losses": paths}


def _kept(
    case: Case, directions: Mapping[str, Float[Array, "d _"]], states: kann.States, spread: MeanAndCovariance
) -> dict[str, float]:
    """Decisions kept with the completion that `kann.effects` chooses, and under ``…_linear`` with the linear one."""
    target = only_target(case.network, case.layer, case.state)
    fills = {}
    for fill, suffix in (("auto", ""), ("linear", "_linear")):
        fitted = fit_fills(list(directions.values()), states, fill, spread=spread)
        fills |= {f"{name}{suffix}": own for name, own in zip(directions, fitted, strict=True)}

    def context(fill: Any) -> Any:
        return lambda: replaced(case.network, target, replacement(fill, keep=True), state=case.state, width=spread.dim)

    source = SequenceData(case.network, case.judged, batch_size=case.batch_size, progress=False)
    scorer = Scorer.of(**dict(case.scored), outputs=case.outputs)
    _, (untouched, *scores) = score_runs(source, [context(fill) for fill in fills.values()], scorer, what="subspaces")
    decided = case.decided or (lambda own, _: own)
    return {name: float(decided(own, untouched).mean()) for name, own in zip(fills, scores, strict=True)}


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)


def _by_length(sequences: Any) -> list[Tensor]:
    """The longest sequence first, so that neighbours have similar lengths."""
    return sorted(sequences, key=len, reverse=True)


def _stacked(sequences: Sequence[Tensor]) -> Tensor:
    """A batch of sequences, cut to the last steps that all of them have."""
    steps = min([LONGEST, *map(len, sequences)])
    return torch.stack([each[-steps:] for each in sequences])


def _divergence(
    outputs: Float[Tensor, "n b ..."], untouched: Float[Tensor, "n b ..."], kind: str
) -> Float[Tensor, " n"]:
    """Mean Kullback-Leibler divergence of answers from those of the untouched network; of values the squared error."""
    if kind == "values":
        return (outputs - untouched).square().flatten(1).mean(dim=1) / untouched[0].var()
    if kind == "class" and outputs.ndim > 2 and outputs.shape[-1] > 1:
        wanted, found = untouched.movedim(-1, 1), outputs.movedim(-1, 1)
        entropy = cross_entropy(wanted, wanted.softmax(dim=1), reduction="none")
        losses = cross_entropy(found, wanted.softmax(dim=1), reduction="none") - entropy
    else:
        wanted = untouched.sigmoid()
        entropy = binary_cross_entropy_with_logits(untouched, wanted, reduction="none")
        losses = binary_cross_entropy_with_logits(outputs, wanted, reduction="none") - entropy
    return losses.flatten(1).mean(dim=1)


def _agreement(
    outputs: Float[Tensor, "n b ..."], untouched: Float[Tensor, "n b ..."], kind: str
) -> Float[Tensor, " n"]:
    """The fraction of decisions that are those of the untouched network; values decide nothing."""
    if kind == "values":
        return outputs.new_zeros(len(outputs))
    if kind == "class" and outputs.ndim > 2 and outputs.shape[-1] > 1:
        same = outputs.argmax(dim=-1) == untouched.argmax(dim=-1)
    else:
        same = (outputs > 0) == (untouched > 0)
    return same.float().flatten(1).mean(dim=1)


def _cut(gradients: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """Gradients of at most `LONGEST_GRADIENT`; zero where they are not finite, as over hundreds of steps they may."""
    finite = torch.where(
        gradients.flatten(1).isfinite().all(dim=1).reshape(-1, *[1] * (gradients.ndim - 1)), gradients, 0.0
    )
    lengths = torch.linalg.vector_norm(finite, dim=tuple(range(1, finite.ndim)), keepdim=True)
    return finite * (LONGEST_GRADIENT / lengths.clamp(min=LONGEST_GRADIENT))


def _make_orthonormal(turned: Float[Tensor, "n r k"], counts: Sequence[int]) -> None:
    """Orthonormal directions of the same span, near the given ones: QR may flip signs, which would undo momentum."""
    for count in set(counts):
        rows = [row for row, own in enumerate(counts) if own == count]
        axes, upper = torch.linalg.qr(turned[rows, :, :count])
        turned[rows, :, :count] = axes * torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1))[:, None]

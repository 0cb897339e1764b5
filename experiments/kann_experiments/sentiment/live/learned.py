"""Learn subspaces by gradient through the running network, to see how far from optimal balanced coordinates are.

A network of which k coordinates are kept after every word, with the state completed by linear regression on them, is a
recurrent network with k units. Many of them, of several k and from several starts, are trained at once. The loss is the
Kullback-Leibler divergence of their answers from those of the untouched network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from kann.data.moments import MeanAndCovariance
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Reviews

STEPS = 300
"""Steps of Adam."""

RATE, SHIFT_RATE = 0.1, 2e-3
"""Its rate at first: how far directions of length 1 turn in a step, about; and how far constants move, in standard
deviations of a coordinate. Both fall to 0 with a cosine."""

TINIEST = 1e-8
"""Gradients below this size are rounding."""

WARM_UP = 20
"""Steps in which the rate rises: Adam's first ones have the same length in all coordinates, whatever the gradient."""

LONGEST_GRADIENT = 0.1
"""Gradients of one subspace are cut to this length: one large gradient would throw it far from where it was."""

BATCH = 128
"""Reviews per step, one of each of as many classes of length."""

LONGEST_REVIEW = 500
"""Words of a review that is learned from: the last ones. The untouched network is given the same."""

LEAST_VARIANCE = 1e-6
"""Fraction of the largest variance; directions in which states vary less are left out."""

WIDEST = 8.0
"""Coordinates are clipped to so many of their standard deviations: a network held on few of them may explode."""

BALANCED_AXES = 32
"""Balanced coordinates that are axes of the coordinates in which is learned."""

TESTED_EVERY = 50
"""After this many steps each subspace is judged on validation reviews; the best of all tests is taken."""

TESTED_TOGETHER = 500
"""Reviews that are judged together."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Padded:
    """Reviews that end at the same step, the longest first."""

    ids: Int[Tensor, "t b"]
    lengths: Int[Array, " b"]
    order: Int[Array, " b"]
    """The review in each column."""
    logits: Float[Tensor, " b"]
    """What the untouched network answers."""

    @staticmethod
    def of(network: SentimentNetwork, reviews: Reviews, which: Int[Array, " b"], *, longest: int) -> "Padded":
        """Some reviews, cut to their last words."""
        lengths = np.minimum(reviews.lengths[which], longest).astype(int)
        order = np.argsort(-lengths, kind="stable")
        lengths, which = lengths[order], which[order]
        ids, starting = np.zeros((2, len(which), lengths[0]), dtype=np.int64)
        for row, (i, length) in enumerate(zip(which, lengths, strict=True)):
            ids[row, -length:] = starting[row, :length] = reviews[i][-length:]
        device = network.readout.weight.device
        with torch.no_grad():
            logits = network(torch.from_numpy(starting).to(device), lengths)
        return Padded(ids=torch.from_numpy(ids.T.copy()).to(device), lengths=lengths, order=which, logits=logits)

    def begun(self, step: int) -> int:
        """How many of them have a word at a step."""
        return int(np.sum(self.lengths >= len(self.ids) - step))


class Reduced:
    """A sentiment network of which only some coordinates are kept after every word: n sets of coordinates at once."""

    def __init__(self, network: SentimentNetwork, mean: Float[Tensor, " d"]):
        layer: Any = network.recurrent
        self._network, self._mean = network, mean
        self._input, self._hidden = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach()
        self._input_bias, self._hidden_bias = layer.bias_ih_l0.detach(), layer.bias_hh_l0.detach()
        self._units = network.readout.in_features
        self._next = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[type(layer).__name__]

    def logits(
        self, reviews: Padded, read: Float[Tensor, "n d k"], write: Float[Tensor, "n k d"], shift: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n b"]:
        """Logits if s = (h − mean) read + shift is kept, and the state completed by mean + s write."""
        n, d, _ = read.shape
        with torch.no_grad():
            inputs = self._network.embedding(reviews.ids) @ self._input.T + self._input_bias
        # What a completed state adds to the gates is a function of its few coordinates.
        gates_of_s = write[..., : self._units] @ self._hidden.T
        gates_of_mean = (self._mean[: self._units] @ self._hidden.T + self._hidden_bias).expand(n, 1, -1)
        offset = (shift - self._mean @ read)[:, None]
        h, gates = read.new_zeros(n, 0, d), read.new_zeros(n, 0, len(self._hidden))
        for step in range(len(reviews.ids)):
            begun = reviews.begun(step)
            if new := begun - h.shape[1]:
                h = torch.cat([h, h.new_zeros(n, new, d)], dim=1)
                gates = torch.cat([gates, self._hidden_bias.expand(n, new, -1)], dim=1)
            h = self._next(inputs[step, :begun], gates, h)
            s = torch.baddbmm(offset, h, read).clamp(-WIDEST, WIDEST)
            h = self._mean + s @ write
            gates = torch.baddbmm(gates_of_mean, s, gates_of_s)
        return h[..., : self._units] @ self._network.readout.weight[0].detach() + self._network.readout.bias.detach()

    def _rnn(self, inputs: Tensor, gates: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(inputs + gates)

    def _gru(self, inputs: Tensor, gates: Tensor, h: Tensor) -> Tensor:
        both = 2 * self._units
        reset, update = torch.sigmoid(inputs[:, :both] + gates[..., :both]).chunk(2, dim=-1)
        new = torch.tanh(torch.addcmul(inputs[:, both:], reset, gates[..., both:]))
        return torch.lerp(new, h, update)

    def _lstm(self, inputs: Tensor, gates: Tensor, h: Tensor) -> Tensor:
        write, forget, new, show = (inputs + gates).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * h[..., self._units :] + torch.sigmoid(write) * torch.tanh(new)
        return torch.cat([torch.sigmoid(show) * torch.tanh(cell), cell], dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Directions from which is learned."""

    directions: Float[Array, "d k"]
    rate: float = 1.0
    """How fast directions turn, relative to `RATE`; 0 leaves them as they are."""
    shift_rate: float = 0.0
    """How fast constants that are added to the coordinates change, relative to `SHIFT_RATE`."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate:
    """A subspace on the path of gradient descent."""

    step: int
    directions: Float[Array, "d k"]
    shift: Float[Array, " k"]
    """What is added to the coordinates; zero where only directions are learned."""
    kept: float
    """Decisions kept on validation reviews, with the linear fill."""
    loss: float
    """Mean Kullback-Leibler divergence there."""


class Learner:
    """Learns subspaces of the states of one network."""

    def __init__(
        self,
        network: SentimentNetwork,
        spread: MeanAndCovariance,
        balanced: Float[Array, "d q"],
        *,
        learning: Reviews,
        validation: Reviews,
    ):
        self._network, self._learning = network, learning
        values, vectors = np.linalg.eigh(spread.covariance)
        varies = values > LEAST_VARIANCE * values[-1]
        deviations, vectors = np.sqrt(values[varies]), vectors[:, varies]
        # Coordinates of variance 1, the first of them balanced. Gradients differ most in size between these, which
        # Adam makes up for.
        whitened = deviations[:, None] * (vectors.T @ balanced[:, :BALANCED_AXES])
        axes, _ = np.linalg.qr(np.concatenate([whitened, np.eye(len(deviations))], axis=1))
        self._read, self._write = (
            self._tensor(vectors / deviations @ axes),
            self._tensor(axes.T * deviations @ vectors.T),
        )
        self._reduced = Reduced(network, self._tensor(spread.mean))
        self._tests = self.padded(validation)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self._network.readout.weight.device)

    def padded(self, reviews: Reviews) -> list[Padded]:
        """All of some reviews, those of similar length together."""
        order = np.argsort(-reviews.lengths, kind="stable")
        chunks = [order[first : first + TESTED_TOGETHER] for first in range(0, len(order), TESTED_TOGETHER)]
        return [Padded.of(self._network, reviews, chunk, longest=int(reviews.lengths.max())) for chunk in chunks]

    def random_directions(self, count: int, rng: np.random.Generator) -> Float[Array, "d k"]:
        """Draw directions uniformly among those of the units."""
        return rng.normal(size=(len(self._read), count))

    def judge_candidates(self, tests: Sequence[Padded], candidates: Sequence[Candidate]) -> tuple[Array, Array]:
        """Decisions kept, and Kullback-Leibler divergence, of candidates on some reviews."""
        turned, shift = self._stacked([each.directions for each in candidates])
        for row, each in enumerate(candidates):
            shift[row, : len(each.shift)] = self._tensor(each.shift)
        return self._judge(tests, turned, shift)

    def _judge(
        self, tests: Sequence[Padded], turned: Float[Tensor, "n r k"], shift: Float[Tensor, "n k"]
    ) -> tuple[Array, Array]:
        found = []
        with torch.no_grad():
            for each in tests:
                logits = self._logits(each, turned, shift)
                same = (logits > 0) == (each.logits > 0)
                found.append(torch.stack([same.float(), _divergence(logits, each.logits)]))
        kept, losses = torch.cat(found, dim=2).mean(dim=2).cpu().numpy()
        return kept, losses

    def learn(self, starts: Sequence[Start], *, rng: np.random.Generator, steps: int = STEPS) -> list[list[Candidate]]:
        """Follow the gradient from each start.

        Returns the tested subspaces of each path, the first of them the start.
        """
        turned, shift = self._stacked([start.directions for start in starts])
        counts = [start.directions.shape[1] for start in starts]
        rates = self._tensor([RATE / turned.shape[1] ** 0.5 * start.rate for start in starts])[:, None, None]
        shift_rates = self._tensor([SHIFT_RATE * start.shift_rate for start in starts])[:, None]
        for each in (turned, shift):
            each.requires_grad_()
        optimizers = [_Adam(turned, rates), _Adam(shift, shift_rates)]
        classes = np.array_split(np.argsort(self._learning.lengths, kind="stable"), BATCH)
        paths: list[list[Candidate]] = [[] for _ in starts]
        self._test(0, turned, shift, counts, paths)
        for step in range(1, steps + 1):
            which = np.array([rng.choice(each) for each in classes])
            batch = Padded.of(self._network, self._learning, which, longest=LONGEST_REVIEW)
            with torch.enable_grad():
                loss = _divergence(self._logits(batch, turned, shift), batch.logits).mean(dim=1).sum()
                of_turned, of_shift = torch.autograd.grad(loss, [turned, shift])
            share = min(1.0, step / WARM_UP) * (1 + np.cos(np.pi * step / steps)) / 2
            with torch.no_grad():
                of_turned = of_turned - turned @ (turned.mT @ of_turned)  # along the sphere
                for optimizer, gradient in zip(optimizers, (of_turned, of_shift), strict=True):
                    optimizer.step(_cut(gradient), share)
                _make_orthonormal(turned, counts)
            if step % TESTED_EVERY == 0 or step == steps:
                self._test(step, turned, shift, counts, paths)
        return paths

    def _stacked(
        self, directions: Sequence[Float[Array, "d k"]]
    ) -> tuple[Float[Tensor, "n r k"], Float[Tensor, "n k"]]:
        """Orthonormal directions in whitened coordinates; missing ones are 0 and keep nothing."""
        most = max(each.shape[1] for each in directions)
        turned = self._read.new_zeros(len(directions), len(self._write), most)
        for row, each in enumerate(directions):
            turned[row, :, : each.shape[1]] = torch.linalg.qr(self._write @ self._tensor(each))[0]
        return turned, turned.new_zeros(len(directions), most)

    def _logits(self, reviews: Padded, turned: Tensor, shift: Tensor) -> Float[Tensor, "n b"]:
        return self._reduced.logits(reviews, self._read @ turned, turned.mT @ self._write, shift)

    def _test(
        self, step: int, turned: Tensor, shift: Tensor, counts: Sequence[int], paths: list[list[Candidate]]
    ) -> None:
        kept, losses = self._judge(self._tests, turned, shift)
        read = (self._read @ turned).detach().cpu().double().numpy()
        constants = shift.detach().cpu().double().numpy()
        for row, (path, count) in enumerate(zip(paths, counts, strict=True)):
            path.append(
                Candidate(
                    step=step,
                    directions=read[row, :, :count],
                    shift=constants[row, :count],
                    kept=float(kept[row]),
                    loss=float(losses[row]),
                )
            )


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


def best(path: Sequence[Candidate]) -> Candidate:
    """The candidate that keeps most decisions on validation reviews; of equal ones that with the smaller loss."""
    return max(path, key=lambda each: (each.kept, -each.loss))


def _divergence(logits: Float[Tensor, "n b"], untouched: Float[Tensor, " b"]) -> Float[Tensor, "n b"]:
    """Kullback-Leibler divergence of the answers from those of the untouched network."""
    wanted = torch.sigmoid(untouched)
    entropy = binary_cross_entropy_with_logits(untouched, wanted, reduction="none")
    return binary_cross_entropy_with_logits(logits, wanted.expand_as(logits), reduction="none") - entropy


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

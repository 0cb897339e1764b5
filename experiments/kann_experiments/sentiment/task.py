"""The networks that tell whether a review is positive, and how they are trained."""

import functools
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.typing import Array, Float, Int
from kann.zoo import ADDED_LATER
from kann.zoo.sentiment_network import Arch, SentimentNetwork
from kann_experiments.configs import known_settings
from kann_experiments.sentiment.corpus import Corpus, Reviews, training_batches
from kann_experiments.training import Training, fingerprint, generator, require_device, require_folder, seeded, train

TRAINING, SPLIT, ANALYSED, FITTED, JUDGED, DELETED = range(6)
"""Purposes of random numbers: batches of training, which reviews validate, which are analysed, which are fitted, which
are judged in the running network, and which words are deleted at random."""

VALIDATION = 0.1
"""Fraction of the official training split that is kept for validation. The paper does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A network for the task and how it is trained, always with Adam."""

    arch: Arch
    """Which recurrent layer."""
    units: int
    """Hidden units."""
    epochs: int
    """How often each review is seen."""
    rate: float
    """Learning rate."""
    gamma: float
    """What the rate is multiplied by after each epoch."""
    clip: float
    """Largest norm of a gradient."""
    weight_decay: float = 1e-3
    """Of the published notebook for the GRU. The paper says that there was one, and not how much."""
    embedding: int = 128
    """Length of the vector that stands for a word."""
    embedding_spread: float = 1.0
    """Standard deviation of the entries of these vectors before training."""
    identity_start: bool = False
    """Whether the hidden matrix of an RNN starts as the identity, so that it forgets nothing."""
    forget_bias: float = 0.0
    """What is added to the bias of an LSTM's forget gates before training: they then start open."""
    batch: int = 64
    """Reviews in a batch. The paper does not say."""
    padding_trained: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the vector of word 0 is trained. In the published code it pads and stands for unknown words."""

    def training(self, reviews: int) -> Training:
        """The plan for this number of training reviews, with a checkpoint and a lower rate after each epoch."""
        per_epoch = math.ceil(reviews / self.batch)
        return Training(
            iterations=self.epochs * per_epoch,
            schedule="exponential",
            gamma=self.gamma,
            falls=self.epochs,
            clip=self.clip,
            every=per_epoch,
        )


PRINTED = {
    "gru": Config(arch="gru", units=256, epochs=5, rate=5e-3, gamma=0.5, clip=15.0),
    "lstm": Config(arch="lstm", units=256, epochs=5, rate=1e-3, gamma=0.3, clip=5.0),
    "rnn": Config(arch="rnn", units=128, epochs=7, rate=5e-3, gamma=0.6, clip=15.0),
}
"""The paper's table of hyperparameters, with the weight decay of its notebook."""

CONFIGS = {
    "gru": PRINTED["gru"],
    "lstm": replace(PRINTED["lstm"], forget_bias=1.0, rate=3e-3, gamma=0.7, weight_decay=3e-4),
    "rnn": replace(PRINTED["rnn"], identity_start=True, embedding_spread=0.1, rate=5e-4, gamma=0.8, clip=1.0),
}
"""What trains each of them, as close to the paper's table as was found."""


def build(config: Config, *, words: int, seed: int) -> SentimentNetwork:
    """An untrained network."""
    with seeded(seed), torch.no_grad():
        network = SentimentNetwork(words=words, arch=config.arch, units=config.units, embedding=config.embedding)
        if config.padding_trained:
            network.embedding.padding_idx = None
            nn.init.normal_(network.embedding.weight[0])
        network.embedding.weight *= config.embedding_spread
        layer: Any = network.recurrent
        if config.identity_start:
            nn.init.eye_(layer.weight_hh_l0)
            layer.bias_hh_l0.zero_()
            layer.bias_ih_l0.zero_()
        if config.forget_bias:  # torch's LSTM has its gates in the order input, forget, cell, output
            layer.bias_hh_l0[config.units : 2 * config.units] += config.forget_bias
        return network


def split(reviews: Reviews) -> tuple[Reviews, Reviews]:
    """Reviews to train with and to validate with, the same for every seed."""
    order = generator(0, SPLIT).permutation(len(reviews))
    held = round(VALIDATION * len(reviews))
    return reviews.take(np.sort(order[held:])), reviews.take(np.sort(order[:held]))


def trained(
    config: Config, corpus: Corpus, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu"
) -> SentimentNetwork:
    """A network that has learnt the task, on ``device``; one that ``folder`` holds is used or trained further."""
    path = require_folder(folder) / "network.safetensors"
    torch_device = require_device(device)
    network = build(config, words=len(corpus.vocabulary), seed=seed).to(torch_device)
    reviews, _ = split(corpus.train)
    plan = config.training(len(reviews))

    @functools.lru_cache(maxsize=1)  # the batches of the current epoch
    def batches(epoch: int) -> list[Int[Array, " _"]]:
        return training_batches(reviews.lengths, size=config.batch, rng=generator(seed, TRAINING, epoch))

    def loss(iteration: int) -> Tensor:
        epoch, place = divmod(iteration, plan.every)
        chosen = batches(epoch)[place]
        ids, lengths = reviews.batch(chosen)  # (b, t) and (b,)
        wanted = torch.as_tensor(reviews.positive[chosen], dtype=torch.float32, device=torch_device)
        return nn.functional.binary_cross_entropy_with_logits(network(ids.to(torch_device), lengths), wanted)

    optimizer = torch.optim.Adam(network.parameters(), lr=config.rate, weight_decay=config.weight_decay)
    made_by = {
        "experiment": "sentiment",
        "seed": seed,
        "words": len(corpus.vocabulary),
        "data": fingerprint(reviews.words, reviews.lengths, reviews.positive),
        "config": known_settings(config),
    }
    train(network, optimizer, loss, plan=plan, path=path, made_by=made_by)
    return network


def accuracy(logits: Float[Array, " s"], reviews: Reviews) -> float:
    """Fraction of reviews whose logit has the right sign."""
    return float(np.mean((logits > 0) == (reviews.positive > 0)))

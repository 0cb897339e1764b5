"""What `kann.Monitor` costs on the copy task, and whether training ends with the same bits.

Times are of this process alone (CPU seconds), so that other work on the machine does not matter.
"""

import sys
import time
from dataclasses import replace

import torch
from kann_experiments.copy.task import ANALYSED, CONFIGS, TRAINING, build, build_optimizer
from kann_experiments.training import generator, repeatable
from torch import nn

import kann

PROBED = 64
"""Sequences of the probe."""


def train(
    arch: str, iterations: int, *, watch: bool
) -> tuple[dict[str, torch.Tensor], float, float, kann.live.History]:
    """The weights at the end, the CPU seconds of training, those of updates, and the history."""
    config = CONFIGS[arch]
    config = replace(config, training=replace(config.training, iterations=iterations))
    network = build(config, seed=0)
    optimizer = build_optimizer(network, config)
    probe, _ = config.task.sequences(config.task.draw(generator(0, ANALYSED), PROBED))
    monitor = kann.Monitor(network, probe)
    spent, begin = 0.0, time.process_time()
    for iteration in range(iterations):
        x, answer = config.task.sequences(config.task.draw(generator(0, TRAINING, iteration), config.batch))
        loss = nn.functional.cross_entropy(network(x).flatten(0, 1), answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if watch:
            started = time.process_time()
            monitor.update(loss=loss)
            spent += time.process_time() - started
    return network.state_dict(), time.process_time() - begin - spent, spent, monitor.history


def main(iterations: int) -> None:
    """Print a line for each architecture."""
    kann.Monitor(nn.GRU(2, 2, batch_first=True), torch.randn(9, 9, 2)).update()  # imports, once
    for arch in ("gru", "lstm", "rnn"):
        with repeatable():
            alone, *_ = train(arch, iterations, watch=False)
            watched, seconds, spent, history = train(arch, iterations, watch=True)
        same = all(torch.equal(alone[name], watched[name]) for name in alone)
        print(
            f"{arch}: {iterations} iterations {seconds:.1f} s, {len(history)} updates {spent:.2f} s, "
            f"{spent / seconds:.2%} of training; the same bits at the end: {same}"
        )


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["1000"])[0]))

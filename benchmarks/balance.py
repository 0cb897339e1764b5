"""The cost of `kann.balance`: its time in step-by-step forward passes, and its memory for very wide states.

    python benchmarks/balance.py           # the table, and a cell of 100,000 units
    python benchmarks/balance.py --quick   # fewer repeats

A step-by-step forward pass runs the network with its state replaced after every step, as live tests do, without
gradients and in batches of the same size. A single output has one draw, which is exact; classes have four.
"""

import argparse
import resource
import time

import torch
from torch import nn

import kann
from kann.live._intervene import only_target, replaced
from kann.recording.runner import evaluation_mode

SEQUENCES, STEPS, UNITS = 256, 200, 256
CASES = (
    # kind, outputs, draws
    (nn.GRU, 1, 1),
    (nn.GRU, 5, 4),
    (nn.LSTM, 1, 1),
    (nn.LSTM, 5, 4),
    (nn.RNN, 5, 4),
)
LIMIT = 5.0
"""Forward passes per draw."""


class Reader(nn.Module):
    """A recurrent layer and a linear readout of its last state."""

    def __init__(self, kind, outputs):
        super().__init__()
        self.rnn, self.head = kind(64, UNITS, batch_first=True), nn.Linear(UNITS, outputs)

    def forward(self, x):
        """The outputs after the last step."""
        return self.head(self.rnn(x)[0][:, -1])


class Wide(nn.Module):
    """A cell of very many units, each with a memory of its own, in a loop."""

    def __init__(self, units):
        super().__init__()
        self.cell, self.head = WideCell(units), nn.Linear(units, 1)

    def forward(self, x):
        """The output after the last step."""
        h = x.new_zeros(len(x), self.cell.keep.numel())
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class WideCell(nn.Module):
    """One step."""

    def __init__(self, units):
        super().__init__()
        self.keep, self.read = nn.Parameter(torch.rand(units)), nn.Linear(8, units)

    def forward(self, x, h):
        """The next state."""
        return torch.tanh(self.keep * h + self.read(x))


def seconds(action, device, repeats):
    """The smallest time of several runs; on a CPU that of the process, which other programs change little."""
    clock, times = time.perf_counter if device == "cuda" else time.process_time, []
    for _ in range(repeats):
        start = clock()
        action()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def table(device, repeats):
    """Print the table; return the largest number of passes per draw."""
    worst = 0.0
    x = torch.randn(SEQUENCES, STEPS, 64, device=device)
    print(f"{'layer':6} {'outputs':>7} {'draws':>5} {'pass':>8} {'balance':>8} {'passes per draw':>15}")
    for kind, outputs, draws in CASES:
        model = Reader(kind, outputs).to(device)
        state = "hc" if kind is nn.LSTM else "h"
        target = only_target(model, None, state)
        width = UNITS * len(state)

        def forward(model=model, target=target, state=state, width=width):
            with evaluation_mode(model), replaced(model, target, lambda h: h + 0, state=state, width=width):
                for part in x.split(64):
                    model(part)

        def balance(model=model, draws=draws):
            kann.balance(model, x, draws=draws, progress=False)

        forward()
        balance()
        one, whole = seconds(forward, device, repeats), seconds(balance, device, repeats)
        worst = max(worst, whole / one / draws)
        print(f"{kind.__name__:6} {outputs:7} {draws:5} {one:6.2f} s {whole:6.2f} s {whole / one / draws:15.1f}")
    return worst


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    start = time.perf_counter()
    balance = kann.balance(Wide(100_000), torch.randn(64, 20, 8), layer="cell", progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"100,000 units on the CPU: {time.perf_counter() - start:.1f} s, at most {peak:.1f} GB in all; {balance!r}")
    worst = table(device, 1 if quick else 3)
    print(f"at most {worst:.1f} passes per draw on {device}; the limit is {LIMIT:g}")


if __name__ == "__main__":
    main()

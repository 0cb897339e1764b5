"""How many modules a call runs through: few enough that a reader can follow it."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import kann


def modules_entered(call):
    """The modules of kann in which the call runs a function."""
    home, entered = str(Path(kann.__file__).parent), set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(home):
            entered.add(frame.f_code.co_filename.removeprefix(home))

    call()  # what is imported when it is first used does not count
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def states_of_a_line(sequences=30, steps=12):
    rng = np.random.default_rng(0)
    states = rng.normal(size=(sequences, steps, 4))
    for t in range(1, steps):
        states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4, 0.1] + 0.1 * states[:, t]
    return states


class Last(nn.Module):
    """Reads sequences and answers once."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        """Return the outputs after the last step."""
        return self.head(self.rnn(x)[0][:, -1])


def test_a_fit_runs_through_at_most_ten_modules():
    states = states_of_a_line()
    entered = modules_entered(lambda: kann.fit(states))
    assert "/fitting/_fit.py" in entered
    assert len(entered) <= 10, sorted(entered)


def test_recording_runs_through_at_most_ten_modules():
    model, x = Last().eval(), torch.randn(20, 9, 3)
    entered = modules_entered(lambda: kann.record(model, x, layer="rnn", progress=False))
    assert "/recording/_record.py" in entered
    assert len(entered) <= 10, sorted(entered)


def test_effects_run_through_at_most_fifteen_modules():
    model, x = Last().eval(), torch.randn(40, 9, 3)
    states = kann.record(model, x, layer="rnn", progress=False)
    balance = kann.balance(model, x, layer="rnn", sequences=16, draws=1, progress=False)
    entered = modules_entered(
        lambda: kann.effects(model, x, balance, states, layer="rnn", counts=(1, 2), progress=False)
    )
    assert "/live/_effects.py" in entered
    assert len(entered) <= 15, sorted(entered)

"""Operators in place of networks of the copy task: a network that is linear is replaced by one without loss."""

from dataclasses import replace

import pytest
import torch
from kann_experiments.copy import stand_ins
from kann_experiments.copy.analysis import QUANTITIES
from kann_experiments.copy.task import CONFIGS, Task, build

from tests.experiments.tiny import TASK, tiny

REGISTER = Task(digits=3, blanks=2, letters=5)
UNITS = REGISTER.letters * (REGISTER.digits + REGISTER.blanks + 1)


@pytest.fixture
def shifting():
    """An RNN in the linear part of tanh: a register that moves by one place each step, and is read at its end."""
    network = build(replace(CONFIGS["rnn"], units=UNITS, task=REGISTER), seed=0).eval()
    layer, letters, small = network.recurrent, REGISTER.letters, 1e-3
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
        layer.weight_ih_l0[:letters, 1 : letters + 1] = small * torch.eye(letters)  # character 0 is the blank
        layer.weight_hh_l0[letters:, :-letters] = torch.eye(UNITS - letters)
        network.readout.weight[1:, -letters:] = torch.eye(letters)
        network.readout.bias[1:] = -0.5 * small
    return network


@pytest.mark.filterwarnings("ignore::kann.errors.KannWarning")  # a register is defective, and tells what it read
def test_a_linear_network_is_replaced_without_loss(shifting, monkeypatch):
    monkeypatch.setattr(stand_ins, "COORDINATES", (2, UNITS, UNITS + 1))
    x, answer = REGISTER.sequences(REGISTER.every())
    with torch.no_grad():
        assert (shifting(x).argmax(-1) == answer).all()
    numbers = stand_ins.stand_in_numbers(shifting, REGISTER, seed=0)
    assert numbers[f"driven_{UNITS}_recall"] == 1.0
    assert numbers["driven_2_recall"] < 0.7
    assert not any(str(UNITS + 1) in key for key in numbers)  # the network has no more units
    assert numbers.keys() <= {quantity.key for quantity in stand_ins.stand_in_quantities()}


@pytest.mark.filterwarnings("ignore::kann.errors.FewPairsWarning")
def test_an_lstm_is_replaced_with_its_cell(monkeypatch):
    monkeypatch.setattr(stand_ins, "COORDINATES", (4, 24))
    config = replace(tiny("lstm"), task=REGISTER)
    numbers = stand_ins.stand_in_numbers(build(config, seed=0).eval(), REGISTER, seed=0)
    assert set(numbers) == {f"{kind}_{count}_recall" for kind in stand_ins.KINDS for count in (4, 24)}


def test_a_task_of_few_sequences_has_no_halves():
    assert stand_ins.stand_in_numbers(build(tiny("gru"), seed=0), TASK, seed=0) == {}
    assert {"standin_8_recall", "driven_32_recall"} <= {quantity.key for quantity in QUANTITIES}

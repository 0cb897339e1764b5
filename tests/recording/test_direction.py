"""States know in which direction the network read the sequences."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import kann
from kann import KannError, States

NAMES = {"l0": False, "l0_reverse": True}


def both_directions(**options):
    """The states of both directions, and what was read: the number of each step, from 1 on."""
    data = [torch.arange(1.0, n + 1)[:, None] for n in (3, 5, 2)]
    rnn = nn.GRU(1, 4, batch_first=True, bidirectional=True)
    return kann.recording.record_layers(rnn, pack_sequence(data, enforce_sorted=False), inputs=True, **options)


@pytest.mark.parametrize("into", ["memory", "store"])
def test_the_second_direction_is_marked_and_its_rows_are_in_the_order_of_reading(into, tmp_path):
    options = {} if into == "memory" else {"into": tmp_path / "both.zarr"}
    for name, states in both_directions(**options).items():
        assert states.reverse is NAMES[name]
        for i, length in enumerate((3, 5, 2)):
            read = np.asarray(states.inputs[states.span(i)])[:, 0]
            expected = np.arange(1, length + 1)
            np.testing.assert_array_equal(read, expected[::-1] if states.reverse else expected)


def test_padded_data_are_marked_too():
    rnn = nn.LSTM(1, 4, batch_first=True, bidirectional=True)
    recorded = kann.recording.record_layers(rnn, torch.randn(2, 3, 1), state="hc", layer="*")
    assert {name: states.reverse for name, states in recorded.items()} == NAMES


def test_only_a_recording_of_one_direction_says_so():
    states = kann.record(nn.GRU(1, 4, bidirectional=True), torch.randn(3, 2, 1), layer="l0_reverse")
    assert states.reverse
    assert repr(states) == "States(2 sequences of 3 steps, 4 units, float32, read from the end)"
    assert not kann.record(nn.GRU(1, 4), torch.randn(3, 2, 1)).reverse


def test_the_direction_survives_slices_files_and_simulation(tmp_path, rng):
    states = States(values=rng.normal(size=(60, 3)), lengths=np.array([20, 25, 15]), reverse=True)
    assert states[:2].reverse
    states.save(tmp_path / "states.zarr")
    assert States.open(tmp_path / "states.zarr").reverse
    assert States.open(tmp_path / "states.zarr")[1:].reverse
    assert kann.hybrid(kann.fit(states), states, known=3).reverse
    assert not States.from_padded(np.ones((2, 3, 4))).reverse


def test_a_store_without_a_direction_was_read_forwards(tmp_path):
    """As those that earlier versions wrote."""
    States.from_padded(np.ones((2, 3, 4))).save(tmp_path / "states.zarr")
    assert "reverse" not in json.loads((tmp_path / "states.zarr" / "zarr.json").read_text())["attributes"]
    assert not States.open(tmp_path / "states.zarr").reverse


@pytest.mark.usefixtures("untyped")
def test_a_direction_that_is_neither_is_refused(tmp_path):
    with pytest.raises(KannError, match=r"reverse=ndarray of .* is neither True nor False; pass one of them"):
        States(values=np.ones((4, 2)), lengths=np.array([4]), reverse=np.ones(2, dtype=bool))
    States.from_padded(np.ones((2, 3, 4))).save(tmp_path / "states.zarr")
    metadata = json.loads((tmp_path / "states.zarr" / "zarr.json").read_text())
    metadata["attributes"]["reverse"] = 3
    (tmp_path / "states.zarr" / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(KannError, match=r"states.zarr is .*damaged \(reverse is 3 .*\); record or save it again"):
        States.open(tmp_path / "states.zarr")

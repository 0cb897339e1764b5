# ruff: noqa: D102  # models in tests say what they are by their names
"""How long networks remember: systems with a known memory, and every way in which sequences are passed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

import kann
from kann.live.results import Memory


class Summing(nn.Module):
    """h ← λ h + x for two units, and their sum; ``last`` gives that of the last step alone."""

    def __init__(self, factors=(1.0, 0.5), *, last=False, **options):
        super().__init__()
        self.rnn = nn.RNN(2, 2, nonlinearity="relu", bias=False, batch_first=True, **options)
        self.head, self.last = nn.Linear(2, 1, bias=False), last
        with torch.no_grad():
            for name, weight in self.rnn.named_parameters():
                weight.copy_(torch.diag(torch.tensor(factors)) if "hh" in name else torch.eye(2))
            self.head.weight.fill_(1.0)

    def forward(self, x):
        states = self.rnn(x)[0]
        return self.head(states[:, -1] if self.last else states[..., :2])


@pytest.fixture
def numbers():
    return torch.rand(30, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("of", ["states", "outputs"])
def test_a_linear_system_forgets_by_its_eigenvalues(numbers, last, of):
    found = kann.memory(Summing(last=last).double(), numbers, untrained=False, channels=("kept", "halved"))
    kept, halved = (found.left(name, of=of) for name in ("kept", "halved"))
    lags = np.array(found.lags)
    if of == "states" or not last:  # one change is seen after every lag: the curve is that of the eigenvalue
        ratio = np.nanmean(found.state_squares[2, :, 1:5] / found.state_squares[2, :, :4], axis=0)
        assert ratio == pytest.approx(0.25 ** np.diff(lags[:5]), abs=0.05)
    # A straight line between lags 1 and 2 gives 1.2 steps at most; 30 changes of random size add noise.
    low, high = found.half_life_interval("halved", of=of)
    assert low - 0.2 <= 1.0 <= high
    assert high < 2
    assert found.half_life("kept", of=of) == np.inf
    assert kept.min() > 0.7 * kept.max()
    assert halved[-1] < 1e-6 * halved[0]


def test_the_difference_of_one_change_decays_exactly(numbers):
    """With changes at a single lag, states differ by λᵏ times the first difference."""
    model = Summing((0.8, 0.8)).double()
    found = kann.memory(model, numbers, untrained=False)
    squares = found.state_squares[0]
    only = squares[:, -1]  # the largest lag has one change for each sequence, the others several
    assert np.isfinite(only).all()
    assert found.half_life(of="states") == pytest.approx(np.log(0.5) / np.log(0.8), rel=0.1)


def test_unrelated_inputs_give_one():
    """A network without memory: its state is the input, and another input is as different as another sequence."""
    x = torch.randn(60, 20, 2, generator=torch.Generator().manual_seed(0)).abs()
    found = kann.memory(Summing((0.0, 0.0)), x, untrained=False)
    assert found.left(of="states")[0] == pytest.approx(1.0, abs=0.1)
    assert (found.left(of="states")[1:] == 0).all()


def test_states_of_an_lstm_are_h_and_c():
    torch.manual_seed(0)
    model, x = nn.LSTM(3, 5, batch_first=True), torch.randn(12, 10, 3)
    both, h = (kann.memory(model, x, state=state, untrained=False) for state in (None, "h"))
    assert both.state_scale > h.state_scale


def test_ways_to_pass_the_same_sequences_agree():
    torch.manual_seed(0)
    model = nn.GRU(2, 4, batch_first=True)
    listed = [torch.randn(n, 2) for n in (12, 9, 5, 7)]
    padded = nn.utils.rnn.pad_sequence(listed, batch_first=True)
    lengths = [len(sequence) for sequence in listed]
    of_list = kann.memory(model, listed, untrained=False)
    of_tensor = kann.memory(model, padded, lengths=lengths, untrained=False)
    packed = kann.memory(model, pack_sequence(listed, enforce_sorted=False), untrained=False)
    for other in (of_tensor, packed):
        assert other.lags == of_list.lags
        assert other.left(of="states") == pytest.approx(of_list.left(of="states"), rel=1e-4)


def test_padding_on_the_left():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    x, mask = torch.randn(6, 10, 2), torch.ones(6, 10, dtype=torch.bool)
    mask[::2, :4] = False
    found = kann.memory(model, x, layer="0", lengths=mask, untrained=False)
    for squares in (found.state_squares[0], found.output_squares[0]):
        assert np.isnan(squares[::2, -1]).all()  # six steps: nothing is known of nine
        assert (squares[:, 0] > 0).all()
        assert (squares[1::2, 1:] == 0).all()


def test_the_second_direction_reads_from_the_end(numbers):
    model = Summing((0.5, 0.5), bidirectional=True).double()
    found = kann.memory(model, numbers, layer="rnn.l0_reverse", untrained=False)
    assert found.half_life(of="states") == pytest.approx(1.0, abs=0.35)


def test_a_module_that_reads_steps_first():
    torch.manual_seed(0)
    model, x = nn.GRU(2, 4), torch.randn(15, 8, 2)
    found = kann.memory(model, x, untrained=False)
    assert found.state_squares.shape[1] == 8
    assert found.lags[-1] == 14


class Strided(nn.Module):
    """Four numbers make one step of the layer."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.rnn(x.reshape(len(x), -1, 4))[0])


def test_several_inputs_for_one_step_are_changed_together():
    torch.manual_seed(0)
    found = kann.memory(Strided(), torch.randn(10, 48, 1), untrained=False)
    assert found.lags[-1] == 11
    assert found.left(of="states")[0] > 0.3


def test_a_model_without_a_recurrent_layer_has_outputs_alone():
    class Window(nn.Module):
        """Sums three steps: what it read four steps ago is gone."""

        def forward(self, x):
            return x + nn.functional.pad(x, (0, 0, 1, 0))[:, :-1] + nn.functional.pad(x, (0, 0, 2, 0))[:, :-2]

    found = kann.memory(Window(), torch.randn(10, 12, 1), untrained=False)
    assert found.compared == ("outputs",)
    assert (found.left()[:3] > 0).all()
    assert (found.left()[3:] == 0).all()
    with pytest.raises(kann.KannError, match="states"):
        found.left(of="states")


def test_tokens_and_one_hot_steps_are_changed_as_a_whole():
    torch.manual_seed(0)
    words = torch.randint(5, (10, 8))
    tokens = kann.memory(nn.Sequential(nn.Embedding(5, 3), nn.GRU(3, 4, batch_first=True)), words, untrained=False)
    one_hot = kann.memory(nn.GRU(5, 4, batch_first=True), nn.functional.one_hot(words).float(), untrained=False)
    assert tokens.names == one_hot.names == ("all inputs",)


def test_a_channel_that_never_varies_changes_nothing(numbers):
    numbers[..., 1] = 1.0
    found = kann.memory(Summing().double(), numbers, untrained=False)
    assert np.isnan(found.left("input 1")).all()
    assert np.isnan(found.half_life("input 1"))
    assert "–" in str(found)


def test_batches_of_a_loader(numbers):
    loader = DataLoader(numbers, batch_size=8)
    found = kann.memory(Summing().double(), loader, sequences=16, untrained=False)
    assert found.state_squares.shape[1] == 16


def test_it_is_the_same_for_the_same_seed_and_leaves_the_model_as_it_was(numbers):
    model = Summing().double().train()
    first, second = (kann.memory(model, numbers, seed=3) for _ in range(2))
    assert model.training
    np.testing.assert_array_equal(first.state_squares, second.state_squares)
    other = kann.memory(model, numbers, seed=4)
    assert not np.array_equal(first.state_squares, other.state_squares, equal_nan=True)


def test_the_untrained_copy_is_measured_too(numbers):
    found = kann.memory(Summing().double(), numbers)
    assert isinstance(found.untrained, Memory)
    assert found.untrained.names == ("all inputs",)
    assert "untrained copy" in str(found)


def test_intervals_hold_the_estimate_and_times_are_in_seconds(numbers):
    found = kann.memory(Summing((0.7, 0.7)).double(), numbers, untrained=False, step_seconds=0.5)
    low, high = found.half_life_interval()
    assert low <= found.half_life() <= high
    ends = found.interval()
    assert (ends[:, 0] <= found.left()).all()
    assert (found.left() <= ends[:, 1]).all()
    assert " s)" in repr(found) or " ms)" in repr(found)


def test_it_is_saved_and_displayed(numbers, tmp_path):
    found = kann.memory(Summing().double(), numbers)
    found.save(tmp_path / "memory.npz")
    again = Memory.load(tmp_path / "memory.npz")
    assert str(again) == str(found)
    assert "<table>" in found._repr_html_()


def test_one_hot_rows_may_have_names_and_are_changed_as_a_whole():
    words = torch.randint(3, (20, 12), generator=torch.Generator().manual_seed(0))
    rows = nn.functional.one_hot(words, 3).double()
    model = nn.GRU(3, 4, batch_first=True).double()
    found = kann.memory(model, rows, untrained=False, channels=("a", "b", "c"))
    assert found.names == ("all inputs",)
    with pytest.raises(kann.KannError, match="2 names in channels= for 3 numbers"):
        kann.memory(model, rows, untrained=False, channels=("a", "b"))


def test_errors_say_what_to_pass(numbers):
    model = Summing().double()
    with pytest.raises(kann.KannError, match="channels="):
        kann.memory(model, numbers, channels=("a", "b", "c"))
    with pytest.raises(kann.KannError, match="at least two"):
        kann.memory(model, numbers[:1])
    with pytest.raises(kann.KannError, match="one of steps"):
        kann.memory(nn.Linear(3, 1), torch.randn(4))
    found = kann.memory(model, numbers, untrained=False)
    with pytest.raises(kann.KannError, match="colour"):
        found.half_life("colour")


def test_one_low_value_of_a_noisy_curve_ends_no_half_life():
    def half_life(left):
        squares = np.square(left)[None, None]
        compared = {"state_squares": None, "output_squares": squares, "state_scale": 1.0, "output_scale": 1.0}
        return Memory(lags=(0, 1, 2, 3, 4, 6, 8), names=("all inputs",), **compared).half_life()

    assert half_life([1.0, 0.9, 0.1, 0.9, 0.8, 0.9, 0.8]) == np.inf
    assert half_life([1.0, 0.5, 0.25, 0.125, 0.06, 0.02, 0.0]) == pytest.approx(1)
    assert half_life([0.2, 1.0, 0.6, 0.2, 0.1, 0.1, 0.1]) == pytest.approx(1.25)

"""The network before training, as a null model."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError


class Handmade(nn.Module):
    """A layer with a parameter of its own, which no method resets."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, 8, batch_first=True)
        self.scale = nn.Parameter(3.0 + 0.1 * torch.randn(2000))
        self.single = nn.Parameter(torch.tensor([2.5]))
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2)


@pytest.fixture
def trained():
    """As after training: every number is far from where it began."""
    model = Handmade()
    with torch.no_grad():
        for parameter in model.cell.parameters():
            parameter.fill_(7.0)
        model.attention.in_proj_weight.fill_(7.0)
        model.norm.running_mean.fill_(5.0)
    model.cell.weight_hh_l0.requires_grad_(False)
    return model.eval()


def test_every_parameter_is_drawn_anew_and_the_model_stays_as_it_is(trained):
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    twin = kann.recording.untrained_twin(trained)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name])
    bound = 8**-0.5  # torch draws a GRU's weights from ±1/√units
    for parameter in twin.cell.parameters():
        assert parameter.abs().max() <= bound
        assert parameter.std() > bound / 4
    assert twin.attention.in_proj_weight.abs().max() < 1
    assert twin.norm.running_mean.abs().max() == 0
    assert type(twin) is Handmade
    assert not twin.training
    assert not twin.cell.weight_hh_l0.requires_grad


def test_parameters_that_no_method_resets_keep_mean_and_spread(trained):
    twin = kann.recording.untrained_twin(trained)
    assert not torch.equal(twin.scale, trained.scale)
    assert float(twin.scale.detach().mean()) == pytest.approx(3.0, abs=0.02)
    assert float(twin.scale.detach().std()) == pytest.approx(0.1, rel=0.1)
    assert twin.single.tolist() == [2.5]  # of a single number no spread is known


def test_a_seed_gives_the_same_twin_and_leaves_random_numbers_alone(trained):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (kann.recording.untrained_twin(trained, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.cell.weight_ih_l0, second.cell.weight_ih_l0)
    assert not torch.equal(first.cell.weight_ih_l0, other.cell.weight_ih_l0)


def test_a_module_is_drawn_after_those_inside_it():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.constant_(self.inner.weight, 0.25)

    assert (kann.recording.untrained_twin(Scaled()).inner.weight == 0.25).all()


def test_the_twin_stands_beside_the_network_in_trust(rng):
    model = nn.GRU(3, 8, batch_first=True).double()
    with torch.no_grad():
        model.weight_hh_l0.mul_(2)
    data = torch.tensor(rng.normal(size=(24, 30, 3)))
    states = kann.record(model, data, inputs=True)
    untrained = kann.record(kann.recording.untrained_twin(model), data, inputs=True)
    found = kann.trust(kann.fit(states, rank=4, driven=True), states, untrained=untrained)
    assert found.untrained is not None
    assert all(np.isfinite(mode.untrained) for mode in found.modes)


@pytest.mark.parametrize(
    ("model", "seed", "message"),
    [
        ("gru", 0, "and not a torch module whose layers can be watched"),
        (nn.GRU(1, 1), -1, "seed=-1 is negative; pass seed>=0"),
        (nn.GRU(1, 1), 0.5, "seed=0.5 is not a whole number"),
        (nn.GRU(1, 1), 2**64, "is too large for torch"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_a_network_or_a_seed_is_refused(model, seed, message):
    with pytest.raises(KannError, match=message):
        kann.recording.untrained_twin(model, seed=seed)

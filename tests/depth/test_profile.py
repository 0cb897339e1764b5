"""The profile along depth finds how many directions the outputs depend on after each block, where this is known."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError

DISTRACTORS = 3
COUNTS = (1, 2, 3, 4, 5, 6, 8)


class Multiply(nn.Module):
    """A residual block that writes the product of two units into another."""

    def __init__(self, first, second, into):
        super().__init__()
        self.first, self.second, self.into = first, second, into

    def forward(self, x):
        """Add the product."""
        added = torch.zeros_like(x)
        added[..., self.into] = x[..., self.first] * x[..., self.second]
        return x + added


class Product(nn.Module):
    """Multiply three units a, b, c of a stream with distractors: 3 units matter, then ab and c, and then abc."""

    def __init__(self, *, per_position):
        super().__init__()
        self.per_position = per_position
        self.blocks = nn.ModuleList([nn.Identity(), Multiply(0, 1, 3), Multiply(3, 2, 4)])

    def forward(self, x, attention_mask=None):
        """Return the product at each position, or at the last real one."""
        h = nn.functional.pad(x, (0, 2))[..., [0, 1, 2, 6, 7, 3, 4, 5]]
        for block in self.blocks:
            h = block(h)
        answers = h[..., 4:5]
        if self.per_position:
            return answers
        if attention_mask is None:
            return answers[:, -1]
        return answers[torch.arange(len(h)), attention_mask.sum(1) - 1]


def inputs(sequences, *, seed, steps=4):
    x = torch.randn(sequences, steps, 3 + DISTRACTORS, generator=torch.Generator().manual_seed(seed))
    x[..., 3:] *= 10  # distractors vary most
    return x


def profiled(model, data, held_out, **options):
    options = {"layer": "blocks.*", "counts": COUNTS, "progress": False} | options
    return kann.depth.profile(model, data, held_out, **options)


@pytest.fixture(scope="module")
def found():
    return profiled(Product(per_position=True), inputs(200, seed=0), inputs(60, seed=1))


@pytest.mark.parametrize("per_position", [True, False], ids=["per position", "per sequence"])
def test_balanced_directions_are_as_many_as_the_outputs_depend_on(per_position):
    profile = profiled(Product(per_position=per_position), inputs(300, seed=0), inputs(200, seed=1))
    needed = profile.needed(0.99)
    assert needed["balanced"].tolist() == [3, 2, 1]
    assert (needed["pca"] >= needed["balanced"] + DISTRACTORS).all()
    assert np.nanmax(profile.kept["random"][:, 0]) < 0.9
    assert profile.none.max() < 0.7  # the sign of a product is a coin


def test_directions_are_the_units_that_matter(found):
    for balance, units in zip(found.balances, ([0, 1, 2], [2, 3], [4]), strict=True):
        energy = np.square(balance.directions[:, : len(units)]).sum(axis=1)
        assert sorted(np.argsort(-energy)[: len(units)]) == units


def test_padding_changes_nothing():
    lengths = torch.tensor([4, 2, 3, 1]).repeat(75)
    is_real = torch.arange(4) < lengths[:, None]
    padded, model = inputs(300, seed=0), Product(per_position=True)
    sequences = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    padded[~is_real] = 1e3
    batches = [
        {"x": padded[i : i + 50], "attention_mask": is_real[i : i + 50].long()} for i in range(0, len(padded), 50)
    ]
    listed = profiled(model, sequences[:200], sequences[200:])
    masked = profiled(model, batches[:4], batches[4:])
    for profile in (listed, masked):
        assert profile.needed(0.99)["balanced"].tolist() == [3, 2, 1]
    np.testing.assert_allclose(masked.kept["pca"], listed.kept["pca"], atol=1e-3)
    # Which sequence is last in a batch does not matter, nor does what padding holds.
    single = profiled(Product(per_position=False), batches[:4], batches[4:])
    assert single.needed(0.99)["balanced"].tolist() == [3, 2, 1]


def test_scores_are_those_of_an_intervention(found):
    model, data, others = Product(per_position=True), inputs(200, seed=0), inputs(60, seed=1)
    states = kann.record(model, data, layer="blocks.1")
    with torch.no_grad(), kann.intervene(model, found.balances[1], states, keep=[0, 1], layer="blocks.1"):
        kept = model(others) > 0
    same = (kept == (model(others) > 0)).double().mean()
    assert found.kept["balanced"][1, 1] == pytest.approx(float(same))


def test_values_are_judged_by_r_squared():
    profile = profiled(Product(per_position=True), inputs(200, seed=0), inputs(60, seed=1), outputs="values")
    assert profile.kept["balanced"][2, 0] > 0.95  # coordinates are clipped to the range of the fitted data
    assert profile.none.max() < 0.1


def test_a_saved_profile_is_the_same(found, tmp_path):
    found.save(tmp_path / "profile.npz")
    loaded = kann.depth.Profile.load(tmp_path / "profile.npz")
    assert str(loaded) == str(found)
    np.testing.assert_array_equal(loaded.interval("pca"), found.interval("pca"))


def test_the_table_has_a_line_for_each_layer_and_method(found):
    lines = str(found).splitlines()
    assert len(lines) == 2 + 3 * 3
    assert "balanced 3/2/1" in repr(found)
    assert "blocks.2" in found._repr_html_()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layer": "nothing.*"}, "no layer matches"),
        ({"counts": ()}, "counts"),
        ({"fill": "cubic"}, "fill"),
        ({"draws": -1}, "draws"),
    ],
)
def test_wrong_options_are_explained(options, match):
    with pytest.raises(KannError, match=match):
        profiled(Product(per_position=True), inputs(8, seed=0), inputs(8, seed=1), **options)


def test_an_iterator_is_refused_since_data_are_read_again():
    with pytest.raises(KannError, match="only once"):
        profiled(Product(per_position=True), iter([inputs(8, seed=0)]), inputs(8, seed=1))


def test_agreement_is_a_fraction(found):
    with pytest.raises(KannError, match="fraction"):
        found.needed(95.0)

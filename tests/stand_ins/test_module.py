"""Operators as torch modules."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import kann


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(30, 3), nn.GRU(3, 6, batch_first=True))


@pytest.fixture(scope="module")
def states(network):
    words = torch.randint(0, 30, (40, 25), generator=torch.Generator().manual_seed(1))
    return kann.record(network, words, inputs=True)


@pytest.mark.parametrize(
    "options",
    [
        {"driven": True},
        {"driven": "bilinear"},
        {"driven": "bilinear", "features": "squares", "lift": "squares"},
        {"driven": "bilinear", "features": kann.features.Components(2)},
        {"driven": "bilinear", "features": kann.features.Fourier(9)},
        {"driven": "bilinear", "features": np.tanh},
        {"driven": True, "basis": np.random.default_rng(0).normal(size=(6, 4))},  # decoded by regression
    ],
)
def test_a_stand_in_simulates_what_the_operator_does(states, network, options):
    koopman = kann.fit(states, rank=4, **options)
    words = torch.randint(0, 30, (5, 12), generator=torch.Generator().manual_seed(2))
    read = network[0](words).detach()
    expected = koopman.simulate(read.numpy())
    module = kann.stand_in(koopman, dtype=torch.float64)
    np.testing.assert_allclose(module(read), expected, atol=1e-10)
    start = torch.full((5, 6), 0.1)
    np.testing.assert_allclose(module(read, start), koopman.simulate(read.numpy(), start.numpy()), atol=1e-7)
    by_word = kann.stand_in(koopman, vocabulary=network[0].weight, dtype=torch.float64)
    np.testing.assert_allclose(by_word(words), expected, atol=1e-6)
    np.testing.assert_allclose(by_word(words), expected, atol=1e-6)  # from matrices that were made before


def test_a_word_s_matrix_is_made_once_and_is_the_operator_s(states, network):
    koopman = kann.fit(states, rank=4, driven="bilinear")
    module = kann.stand_in(koopman, vocabulary=network[0].weight, dtype=torch.float64)
    module(torch.tensor([[3, 7, 3]]))
    assert module.known.nonzero()[:, 0].tolist() == [3, 7]
    weight = network[0].weight.detach().numpy()
    np.testing.assert_allclose(module.table[7, :4], koopman.matrices(weight[7:8])[0], atol=1e-6)
    module.table[7] += 1  # is not made again
    before = module(torch.tensor([[7]]))
    assert not np.allclose(before, koopman.simulate(weight[[7]][None]))


def test_tokens_are_words_themselves(rng):
    tokens = rng.integers(0, 4, size=(30, 20, 1)).astype(float)
    states = kann.States.from_padded(rng.normal(size=(30, 20, 3)), inputs=tokens)
    koopman = kann.fit(states, driven="bilinear", features="tokens", ridge=1e-3)
    module = kann.stand_in(koopman, vocabulary=torch.arange(4.0)[:, None], dtype=torch.float64)
    found = module(torch.as_tensor(tokens[:3, :, 0]).long())
    np.testing.assert_allclose(found, koopman.simulate(tokens[:3]), atol=1e-9)


@pytest.mark.parametrize("driven", [True, "bilinear"])
def test_coordinates_that_are_not_orthonormal_are_decoded_by_the_regression(rng, driven):
    states = kann.States.from_padded(rng.normal(size=(30, 20, 5)), inputs=rng.normal(size=(30, 20, 2)))
    koopman = kann.fit(states, basis=rng.normal(size=(5, 2)), driven=driven)
    module = kann.stand_in(koopman, dtype=torch.float64)
    found = module(torch.as_tensor(states.inputs[None, :20]))
    np.testing.assert_allclose(found, koopman.simulate(states.inputs[None, :20]), atol=1e-9)


@pytest.mark.parametrize("products", [False, True])
def test_a_readout_gives_outputs_instead_of_states(states, network, products):
    koopman = kann.fit(states, rank=4, driven="bilinear")
    readout = kann.stand_ins.fit_readout(koopman, states, states.values[:, :2] ** 2, products=products)
    words = torch.randint(0, 30, (5, 12), generator=torch.Generator().manual_seed(2))
    expected = readout(koopman.encode(koopman.simulate(network[0](words).detach().double().numpy())))
    options = {"readout": readout, "dtype": torch.float64}
    found = kann.stand_in(koopman, **options)(network[0](words).detach())
    assert found.shape == (5, 12, 2)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    by_word = kann.stand_in(koopman, vocabulary=network[0].weight, **options)
    np.testing.assert_allclose(by_word(words), expected, atol=1e-6)


def test_one_output_per_sequence_is_read_after_its_last_step(states, network):
    koopman = kann.fit(states, rank=4, driven="bilinear")
    per_step = kann.stand_ins.fit_readout(koopman, states, states.values[:, :1], products=False)
    readout = replace(per_step, per_sequence=True)
    steps, last = (kann.stand_in(koopman, readout=each) for each in (per_step, readout))
    read = torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(last(read), steps(read)[:, -1])
    found = last(read, lengths=torch.tensor([2, 7, 5]))
    torch.testing.assert_close(found, steps(read)[torch.arange(3), torch.tensor([1, 6, 4])])


def test_weights_are_saved_and_loaded(states, network):
    koopman = kann.fit(states, rank=4, driven="bilinear", features="squares", lift="squares")
    module = kann.stand_in(koopman, vocabulary=network[0].weight)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    other = kann.stand_in(kann.fit(states, rank=4, driven="bilinear", features="squares", lift="squares", ridge=0.1),
                          vocabulary=torch.zeros(30, 3))  # fmt: skip
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    words = torch.tensor([[1, 2, 3]])
    np.testing.assert_array_equal(other(words), module(words))


@pytest.mark.usefixtures("untyped")
def test_what_cannot_stand_in_is_refused(states, network):
    koopman = kann.fit(states, rank=4, driven="bilinear")
    by_word = kann.stand_in(koopman, vocabulary=network[0].weight)
    of_two = kann.stand_ins.fit_readout(kann.fit(states, rank=2, driven=True), states, states.values)
    for call, message in [
        (lambda: kann.stand_in("operator"), "koopman='operator' is no operator"),
        (lambda: kann.stand_in(kann.fit(states)), "autonomous and reads no inputs"),
        (lambda: kann.stand_in(koopman, vocabulary=torch.ones(5, 2)), r"shape \(5, 2\); pass one row of 3 inputs"),
        (lambda: kann.stand_in(koopman)(torch.ones(2, 3)), r"reads inputs \(n, t, 3\)"),
        (lambda: kann.stand_in(koopman, dtype=torch.int64), "dtype=torch.int64 is no floating-point type"),
        (lambda: kann.stand_in(koopman)(torch.ones(2, 3, 3), torch.ones(2, 3)), r"no states; pass a tensor \(2, 6\)"),
        (lambda: by_word(torch.ones(2, 3)), r"reads numbers of words \(n, t\)"),
        (lambda: by_word(torch.tensor([[30]])), "reads numbers of words"),
        (lambda: kann.stand_in(koopman, readout=network[1]), "is no fitted readout"),
        (lambda: kann.stand_in(koopman, readout=of_two), "readout is of 2 coordinates and the operator has 4"),
        (lambda: by_word(torch.ones(2, 3).long(), lengths=torch.ones(2)), "lengths= is for"),
        (lambda: by_word.read(torch.ones(2, 4)), "has no readout"),
    ]:
        with pytest.raises(kann.KannError, match=message):
            call()


def test_other_weights_and_types_forget_the_matrices_of_words(rng):
    states = kann.States.from_padded(rng.normal(size=(20, 30, 4)), inputs=rng.normal(size=(20, 30, 3)))
    other = kann.States.from_padded(rng.normal(size=(20, 30, 4)), inputs=rng.normal(size=(20, 30, 3)))
    vocabulary, words = rng.normal(size=(10, 3)), torch.tensor([[1, 0, 3], [2, 5, 1]])
    ours, theirs = (
        kann.stand_in(kann.fit(each, driven="bilinear"), vocabulary=vocabulary, dtype=torch.float64)
        for each in (states, other)
    )
    before = ours(words)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(words), theirs(words))
    assert not torch.allclose(before, ours(words))
    assert not ours.float().known.any()


def test_word_numbers_may_be_bytes_and_not_truth_values(rng):
    states = kann.States.from_padded(rng.normal(size=(20, 30, 4)), inputs=rng.normal(size=(20, 30, 3)))
    module = kann.stand_in(kann.fit(states, driven="bilinear"), vocabulary=rng.normal(size=(10, 3)))
    words = torch.tensor([[1, 0, 3], [2, 5, 1]])
    torch.testing.assert_close(module(words.to(torch.uint8)), module(words))
    with pytest.raises(kann.KannError, match="numbers of words"):
        module(words > 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_it_is_exported_and_scripting_names_the_ways_that_work(states):
    koopman = kann.fit(states, rank=4, driven="bilinear", features=kann.features.Fourier(9))
    read = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(2))
    for readout in (None, kann.stand_ins.fit_readout(koopman, states, states.values[:, :2], products=True)):
        module = kann.stand_in(koopman, readout=readout)
        torch.testing.assert_close(torch.export.export(module, (read,)).module()(read), module(read))
    with pytest.raises(kann.KannError, match=r"torch\.export\.export or torch\.compile"):
        torch.jit.script(module)

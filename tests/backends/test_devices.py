"""States on an accelerator: everything is computed there. CPU tensors stand in for one; where there is CUDA, it too."""

import numpy as np
import pytest
import torch

import kann
from kann.backends import arrays
from kann.errors import KannError
from kann.fitting import _fit as fitting
from kann.fitting import spectrum
from tests.systems import full_operator, low_rank_states, noisy_states, relative


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")),
    ]
)
def device(request, monkeypatch):
    """CUDA, or the CPU under the pretence that it is no host."""
    if request.param == "cpu":
        monkeypatch.setattr(arrays, "HOST_DEVICES", ("mps",))
    return torch.device(request.param)


@pytest.fixture
def padded(rng):
    lengths = rng.integers(1, 41, 30)
    lengths[:3] = 1, 40, 2
    return noisy_states(rng, sequences=30, steps=40), lengths, rng.normal(size=(30, 40, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("driven", [False, True])
def test_the_operator_is_that_of_the_same_numbers_in_numpy(device, padded, dtype, driven):
    values, lengths, inputs = padded
    on_device = [torch.tensor(part).to(device, dtype) for part in (values, inputs)]
    exact = [part.double().cpu().numpy() for part in on_device]
    ours = kann.fit(kann.States.from_padded(on_device[0], lengths, inputs=on_device[1]), driven=driven, rank=6)
    theirs = kann.fit(kann.States.from_padded(exact[0], lengths, inputs=exact[1]), driven=driven, rank=6)
    assert relative(full_operator(ours), full_operator(theirs)) < 1e-9
    assert isinstance(ours.matrix, np.ndarray)


def test_moments_are_fitted_where_they_are(device, padded):
    values, lengths, _ = padded
    moments = kann.Moments().update(torch.tensor(values, device=device), lengths)
    assert moments.hh.device.type == device.type
    for kind in ("svd", "pca", "fourier"):
        expected = kann.fit(values, lengths=lengths, basis=kind)
        assert relative(full_operator(kann.fit(moments, basis=kind)), full_operator(expected)) < 1e-9


def test_a_rank_above_the_units_is_refused_on_the_device_too(device):
    with pytest.raises(KannError, match="rank=6 exceeds the 4 hidden units recorded"):
        kann.fit(torch.randn(3, 9, 4, device=device), rank=6)


def test_two_readings_and_blurred_states_on_the_device(device, rng, monkeypatch):
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 64)
    wide = low_rank_states(rng, d=64)
    ours, theirs = (kann.fit(states, rank=5) for states in (torch.tensor(wide, device=device), wide))
    assert relative(full_operator(ours), full_operator(theirs)) < 1e-9
    blurred = noisy_states(rng, sequences=30, steps=40) * np.logspace(0, -6, 10)
    ours, theirs = (kann.fit(states) for states in (torch.tensor(blurred, device=device), blurred))
    assert relative(full_operator(ours), full_operator(theirs)) < 1e-9


def test_large_eigenproblems_are_solved_on_the_device(device, padded, monkeypatch):
    values, lengths, _ = padded
    theirs = kann.fit(values, lengths=lengths)
    monkeypatch.setattr(spectrum, "DEVICE_FROM_RANK", 4)
    ours = kann.fit(torch.tensor(values, device=device), lengths=lengths)
    np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues, atol=1e-9)
    np.testing.assert_allclose(ours.right, theirs.right, atol=1e-9)
    np.testing.assert_allclose(ours.left, theirs.left, atol=1e-9)
    assert ours.condition == pytest.approx(theirs.condition, rel=1e-9)


def test_eigenvalues_that_are_not_in_pairs_are_computed_again(monkeypatch):
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    monkeypatch.setattr(spectrum, "DEVICE_FROM_RANK", 2)
    monkeypatch.setattr(arrays, "HOST_DEVICES", ())
    monkeypatch.setattr(torch.linalg, "eig", lambda a: (torch.tensor([1j, -1.0000001j]), torch.eye(2) + 0j))
    found = spectrum.decompose(turn, device_of=torch.zeros(1))
    np.testing.assert_array_equal(found.eigenvalues, [1j, -1j])


def test_projections_stay_on_the_device(device, padded):
    values, lengths, inputs = padded
    koopman = kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), driven=True)
    h, u = (torch.tensor(part, device=device) for part in (values, inputs))
    functions = {
        "encode": lambda h, u: koopman.encode(h),
        "decode": lambda h, u: koopman.decode(h),
        "predict": lambda h, u: koopman.predict(h, inputs=u),
        "rollout": lambda h, u: koopman.rollout(h[:, 0], 5, inputs=u[:, :5]),
        "simulate": lambda h, u: koopman.simulate(u),
        "project": lambda h, u: kann.project(koopman, h),
        "magnitude": lambda h, u: kann.magnitude(koopman, h),
        "reconstruct": lambda h, u: kann.reconstruct(koopman, h, [0, 1]),
    }
    for name, function in functions.items():
        for dtype in (torch.float64, torch.float32):
            ours = function(h.to(dtype), u.to(dtype))
            assert isinstance(ours, torch.Tensor), name
            assert ours.device.type == device.type, name
            theirs = function(h.to(dtype).double().cpu().numpy(), u.to(dtype).double().cpu().numpy())
            np.testing.assert_allclose(ours.cpu().numpy(), theirs, rtol=1e-9, atol=1e-9, err_msg=name)
    with pytest.raises(KannError, match="pass floating-point numbers"):
        koopman.encode(h.int())


def test_analyses_of_states_on_the_device_are_those_on_the_host(device, padded):
    values, lengths, inputs = padded
    host = kann.States.from_padded(values, lengths, inputs=inputs)
    there = kann.States.from_padded(
        torch.tensor(values, device=device), lengths, inputs=torch.tensor(inputs, device=device)
    )
    koopman = kann.fit(host, driven=True)
    readout = torch.nn.Linear(10, 2, dtype=torch.float64, device=device)
    weight = readout.weight.detach()
    for analysis in (
        lambda states: kann.relative_error(koopman, states),
        lambda states: kann.relative_error(koopman, states, reduce="none"),
        lambda states: kann.importance(koopman, states),
        lambda states: kann.relative_error(kann.copying, states),
        lambda states: kann.agreement(koopman, states, readout),
        lambda states: kann.agreement(koopman, states, readout, at="every"),
        lambda states: kann.agreement(kann.copying, states, readout, at="every", outputs="values"),
        lambda states: kann.contributions(koopman, states.values, weight).modes,
    ):
        np.testing.assert_allclose(analysis(there), analysis(host), rtol=1e-9, atol=1e-12)


def test_on_the_host_tensors_give_numpy_arrays(padded):
    values, lengths, _ = padded
    koopman = kann.fit(torch.tensor(values), lengths=lengths)
    assert isinstance(koopman.encode(torch.tensor(values)), np.ndarray)
    assert isinstance(kann.magnitude(koopman, torch.tensor(values)), np.ndarray)

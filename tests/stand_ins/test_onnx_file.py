"""Operators as ONNX files, run by ONNX Runtime."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import kann

FEATURES = ["inputs", "squares", "products", kann.features.Components(2), kann.features.Fourier(7)]


@pytest.fixture
def states(rng):
    return kann.States.from_padded(rng.normal(size=(20, 30, 4)), inputs=rng.normal(size=(20, 30, 3)))


def assert_runs(koopman, path, u, h):
    kann.stand_ins.save_onnx(koopman, path)
    z = koopman.encode(h)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"z": z.astype(np.float32), "u": u.astype(np.float32)}), strict=True))
    expected = koopman.predict(h, inputs=u)
    assert names == ["next", "state"]
    np.testing.assert_allclose(found["state"], expected, atol=1e-5)
    np.testing.assert_allclose(found["next"], koopman.encode(expected), atol=1e-5)


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("lift", [None, "squares"])
def test_a_step_of_the_file_is_the_operator_s(states, tmp_path, rng, features, lift):
    koopman = kann.fit(states, driven="bilinear", rank=3, features=features, lift=lift, ridge=1e-3)
    assert_runs(koopman, tmp_path / "step.onnx", rng.normal(size=(6, 3)), states.values[:6])


def test_driven_operators_and_tokens(states, tmp_path, rng):
    assert_runs(kann.fit(states, driven=True), tmp_path / "step.onnx", rng.normal(size=(6, 3)), states.values[:6])
    tokens = rng.integers(0, 5, size=(20, 30, 1)).astype(float)
    words = kann.States(values=states.values, lengths=states.lengths, inputs=tokens.reshape(-1, 1))
    koopman = kann.fit(words, driven="bilinear", features="tokens", ridge=1e-3)
    assert_runs(koopman, tmp_path / "step.onnx", np.arange(5.0)[:, None], states.values[:5])


def test_a_file_decodes_by_the_regression(states, tmp_path, rng):
    koopman = kann.fit(states, driven=True, basis=rng.normal(size=(states.dim, 2)))
    assert_runs(
        koopman, tmp_path / "step.onnx", rng.normal(size=(5, states.inputs.shape[1])), rng.normal(size=(5, states.dim))
    )


@pytest.mark.parametrize("driven", [True, "bilinear"])
def test_every_number_in_a_file_is_used(states, driven, tmp_path):
    kann.stand_ins.save_onnx(kann.fit(states, driven=driven, rank=2), tmp_path / "step.onnx")
    graph = onnx.load(tmp_path / "step.onnx").graph
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    assert {number.name for number in graph.initializer} <= used


def test_an_operator_along_any_directions_is_decoded_by_regression(states, tmp_path, rng):
    koopman = kann.fit(states, driven=True, basis=rng.normal(size=(4, 2)))
    kann.stand_ins.save_onnx(koopman, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    h, u = states.values[:6], rng.normal(size=(6, 3))
    feed = {"z": koopman.encode(h).astype(np.float32), "u": u.astype(np.float32)}
    np.testing.assert_allclose(session.run(["state"], feed)[0], koopman.predict(h, inputs=u), atol=1e-5)


@pytest.mark.parametrize("products", [False, True])
def test_a_file_with_a_readout_has_its_outputs(states, tmp_path, rng, products):
    koopman = kann.fit(states, driven="bilinear", rank=3, ridge=1e-3)
    readout = kann.stand_ins.fit_readout(koopman, states, states.values[:, :2] ** 2, products=products)
    kann.stand_ins.save_onnx(koopman, tmp_path / "step.onnx", readout=readout)
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    h, u = states.values[:6], rng.normal(size=(6, 3))
    feed = {"z": koopman.encode(h).astype(np.float32), "u": u.astype(np.float32)}
    found, after = session.run(["output", "next"], feed)
    np.testing.assert_allclose(found, readout(after.astype(np.float64)), atol=1e-5)


def test_a_file_is_written_without_torch(tmp_path):
    code = (
        "import sys, numpy, kann; rng = numpy.random.default_rng(0);"
        "states = kann.States.from_padded(rng.normal(size=(20, 30, 4)), inputs=rng.normal(size=(20, 30, 3)));"
        "kann.stand_ins.save_onnx(kann.fit(states, driven=True), 'step.onnx'); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
    assert onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"]).get_outputs()


def test_a_module_without_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import kann; kann.stand_in"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "stand-ins need torch" in answer.stderr
    assert "pip install 'kann[torch]'" in answer.stderr


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_written_is_refused(states, tmp_path):
    with pytest.raises(kann.KannError, match="Python function cannot be written to ONNX"):
        kann.stand_ins.save_onnx(
            kann.fit(states, driven="bilinear", features=np.tanh, ridge=1e-3), tmp_path / "step.onnx"
        )
    with pytest.raises(kann.KannError, match="autonomous and reads no inputs"):
        kann.stand_ins.save_onnx(kann.fit(states), tmp_path / "step.onnx")
    with pytest.raises(kann.KannError, match="is no path"):
        kann.stand_ins.save_onnx(kann.fit(states, driven=True), 3)
    assert not (tmp_path / "step.onnx").exists()

# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Models that torch.jit or torch.export compiled, and what is no torch module at all."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann import KannError
from tests.recording.models import same


class Reader(nn.Module):
    """Gives its states, and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.rnn(x)[0]


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class OnnxSession:
    """As onnxruntime has it: no module, and not even callable."""

    def run(self, names, feed):
        raise NotImplementedError


@pytest.fixture
def x():
    return torch.randn(5, 6, 3)


@pytest.fixture(params=["script", "trace", "freeze", "wrapped"])
def compiled(request, x):
    model = Reader().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is to be replaced, and a trace counts the calls as a constant
        if request.param == "trace":
            return model, torch.jit.trace(model, x, check_trace=False)
        scripted = torch.jit.script(model)
        if request.param == "freeze":
            return model, torch.jit.freeze(scripted)
        if request.param == "wrapped":
            return model, Outer(scripted)
        return model, scripted


def test_the_output_of_a_compiled_model_is_recorded_and_its_buffers_restored(compiled, x):
    model, other = compiled
    same(kann.record(other, x, layer=lambda output: output, batch_size=2), kann.record(model, x))
    for buffer in other.buffers():
        assert buffer.item() == model.calls.item()


def test_the_layers_of_a_compiled_model_cannot_be_watched(compiled, x):
    _, other = compiled
    with pytest.raises(KannError, match=r"was compiled by torch.jit .* layer= a function .* kann.fit"):
        kann.record(other, x)
    names = [name for name, module in other.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    for name in names:
        with pytest.raises(KannError, match=rf"layer '{name}' was compiled by torch.jit"):
            kann.record(other, x, layer=name)
        with pytest.raises(KannError, match=rf"layer '{name}' was compiled by torch.jit"):
            kann.recording.step_of(other, name)


def test_a_compiled_model_takes_the_arguments_that_it_needs(x):
    class TakesLengths(Reader):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return self.rnn(x)[0] * scale * lengths.max()

    model = TakesLengths()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(model)
    lengths, labels = torch.full((5,), 6), torch.zeros(5)
    expected = kann.record(model, [(x, lengths, labels)], layer=lambda output: output)
    for batch in ((x, lengths, labels), {"x": x, "lengths": lengths, "labels": labels}):
        same(kann.record(scripted, [batch], layer=lambda output: output), expected)


@pytest.mark.usefixtures("untyped")
def test_an_exported_program_is_recorded_by_its_output(x):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(x)

    program = torch.export.export(Plain().eval(), (x,))
    recorded = kann.record(program.module(), x, layer=lambda output: output)
    np.testing.assert_allclose(recorded.padded(), program.module()(x).detach(), atol=1e-6)
    with pytest.raises(KannError, match="model is ExportedProgram, and not a torch module"):
        kann.record(program, x)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("model", [OnnxSession(), lambda x: x, None, "model.pt"])
@pytest.mark.parametrize("layer", [None, "rnn", lambda output: output])
def test_what_is_no_torch_module_is_refused_with_the_way_out(model, layer, x):
    with pytest.raises(KannError, match=r"not a torch module .* pass the states that it gives to kann.fit"):
        kann.record(model, x, layer=layer)
    for function in (kann.recording.step_of, kann.recording.readout_of):
        with pytest.raises(KannError, match="not a torch module"):
            function(model)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "call",
    [
        kann.record,
        kann.explain,
        kann.balance,
        kann.memory,
        lambda model, x: kann.effects(model, x, np.eye(4), np.zeros((2, 5, 4))),
    ],
)
def test_a_class_of_models_is_no_model(call, x):
    with pytest.raises(KannError, match="model is the class GRU; pass an object of it that holds the trained weights"):
        call(nn.GRU, x)


def test_a_model_without_layers_says_so(x):
    with pytest.raises(KannError, match=r"the model has no layer 'rnn', nor any other; pass layer= a function"):
        kann.record(nn.Identity(), x, layer="rnn")


def test_what_a_compiled_model_returns_is_a_layer_by_name(compiled, x):
    model, other = compiled
    same(kann.record(other, x, layer="output"), kann.record(model, x))


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A session that reads x and lengths, and gives the states of all steps and the last of each sequence."""
    helper = pytest.importorskip("onnx").helper
    runtime = pytest.importorskip("onnxruntime")
    kind = 1  # float32
    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["states"]),
            helper.make_node("ReduceMean", ["states"], ["pooled"], axes=[1], keepdims=0),
        ],
        "reader",
        [helper.make_tensor_value_info("x", kind, ["s", "t", 3])],
        [
            helper.make_tensor_value_info("states", kind, ["s", "t", 3]),
            helper.make_tensor_value_info("pooled", kind, ["s", 3]),
        ],
    )
    path = tmp_path_factory.mktemp("onnx") / "reader.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.usefixtures("untyped")
def test_outputs_of_an_onnx_session_are_recorded(session, x):
    expected = torch.tanh(x)
    for layer in (None, "states", lambda outputs: outputs["states"]):
        np.testing.assert_allclose(kann.record(session, x, layer=layer).padded(), expected, atol=1e-6)
    ragged = kann.record(session, [x[0], x[1, :2]])
    assert ragged.lengths.tolist() == [6, 2]
    np.testing.assert_allclose(kann.record(session, {"x": x.double().numpy()}).padded(), expected, atol=1e-6)
    with pytest.raises(KannError, match=r"is no output of the session, .*'pooled'.* run it in a loop .* kann.fit"):
        kann.record(session, x, layer="rnn")

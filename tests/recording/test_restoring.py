# ruff: noqa: D102  # models in tests say what they are by their names
"""The model, its outputs and all random numbers are after a recording as they were before."""

import contextlib
import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import kann
from kann.recording.runner import evaluation_mode
from tests.recording.models import EXACT, Failure, Stops, Tagger, by_hand, same


def condition(model):
    """Everything about a model and the random numbers that recording could disturb."""
    return {
        "parameters": {name: (p.detach().clone(), p.requires_grad, p.grad) for name, p in model.named_parameters()},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "modes": [m.training for m in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m)) for m in model.modules()],
        # Python's own numbers have a test of their own: beartype, which checks types here, draws from them.
        "random": (torch.get_rng_state(), np.random.get_state()[1].copy()),  # noqa: NPY002
        "grad": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()),
    }


def equal(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        return bool((torch.as_tensor(a) == torch.as_tensor(b)).all())
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Stateful(Stops):
    """Counts its calls in one buffer, puts a new tensor into another, and has a layer that is frozen in eval mode."""

    def __init__(self, error):
        super().__init__(error)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))
        self.norm = nn.BatchNorm1d(3)
        self.norm.eval()
        self.head.weight.requires_grad_(False)

    def forward(self, words):
        self.count += 1
        self.last = self.count * 2
        np.random.rand()  # noqa: NPY002
        return super().forward(words)


@pytest.mark.parametrize("error", [None, Failure, KeyboardInterrupt])
@pytest.mark.parametrize("layer", ["rnn", "rnn.*", "embed"])
def test_model_hooks_modes_grads_and_random_numbers_are_as_before(error, layer, words):
    model = Stateful(error).train()
    model.norm.eval()
    before = copy.deepcopy(condition(model))
    loader = DataLoader(words, batch_size=1, shuffle=True)
    if error is None:
        kann.recording.record_layers(model, loader, layer=layer)
    else:
        with pytest.raises(error):
            kann.recording.record_layers(model, loader, layer=layer)
    after = condition(model)
    for key in before:
        assert equal(before[key], after[key]), key
    model(words[0][None]).sum().backward()  # gradients flow, and the same layers are trained


def test_pythons_random_numbers_are_as_before(model):
    before = random.getstate()
    with pytest.raises(Failure), evaluation_mode(model):
        random.random()  # noqa: S311
        raise Failure
    assert random.getstate() == before


@pytest.mark.parametrize("error", [None, Failure])
def test_evaluation_with_gradients_restores_everything_too(error, words):
    """Recurrent modules are in training mode inside, for cudnn, but give what they give in evaluation mode."""
    model, data = Tagger(layers=2).train(), pad_sequence(words, batch_first=True)
    model.rnn.dropout = 0.5
    before, stopped = copy.deepcopy(condition(model)), pytest.raises(Failure) if error else contextlib.nullcontext()
    with stopped, evaluation_mode(model, gradients=True):
        output = model(data)
        assert model.rnn.training
        assert not model.dropout.training
        (slopes,) = torch.autograd.grad(output.sum(), [model.embed.weight])
        assert slopes.any()
        if error is not None:
            raise error
    after = condition(model)
    for key in before:
        assert equal(before[key], after[key]), key
    assert model.rnn.dropout == 0.5
    with evaluation_mode(model), torch.no_grad():
        np.testing.assert_allclose(output.detach(), model(data), atol=EXACT)


def test_recording_leaves_the_outputs_of_the_network_alone(words):
    """Layers run one by one give the model what it would have had."""
    model = Tagger(layers=3).eval()
    seen = []
    kann.recording.record_layers(model, words, layer="rnn.*", forward=lambda m, batch: seen.append(m(batch)))
    with torch.no_grad():
        np.testing.assert_allclose(seen[0], model(pad_sequence(words, batch_first=True)), atol=EXACT)


def test_a_forward_that_was_replaced_before_is_put_back(model, words):
    plain = model.rnn.forward
    model.rnn.forward = lambda *args: plain(*args)
    mine = model.rnn.forward
    same(kann.record(model, words), by_hand(model, words))
    assert model.rnn.forward is mine


def test_a_compiled_model_is_recorded_as_it_was_written(model, words):
    compiled = torch.compile(model, backend="eager")
    same(kann.record(compiled, words), by_hand(model, words))


def test_errors_of_the_model_come_through(words):
    def broken(model, batch):
        raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError, match="out of ideas"):
        kann.record(Tagger(), words, forward=broken)


class Remembers(nn.Module):
    """Goes on from the state in which its last call ended."""

    def __init__(self, *, in_buffer=False):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.history, self.counts = [], {"calls": 0}
        if in_buffer:
            self.register_buffer("h", torch.zeros(4, 4))
        else:
            self.h = None

    def forward(self, x):
        path = []
        for now in x.unbind(1):
            self.h = self.cell(now, self.h)
            path.append(self.h)
        self.history.append(self.h)
        self.counts["calls"] += 1
        return torch.stack(path, dim=1)


@pytest.mark.parametrize("in_buffer", [False, True])
def test_a_model_that_keeps_its_state_begins_every_batch_anew_and_is_as_before(in_buffer):
    model, x = Remembers(in_buffer=in_buffer), torch.randn(12, 6, 3)
    states = kann.record(model, x, batch_size=4)
    assert (model.history, model.counts) == ([], {"calls": 0})
    assert model.h is None or not model.h.any()
    for i, batch in enumerate(x.split(4)):
        np.testing.assert_allclose(states.padded()[4 * i : 4 * i + 4], copy.deepcopy(model)(batch).detach(), atol=1e-6)
    model(x[:4])
    kept, content = model.h, model.h.clone()
    kann.record(model, x, batch_size=4)
    assert model.h is kept
    assert torch.equal(kept, content)
    assert (len(model.history), model.counts) == (1, {"calls": 1})


def test_a_model_that_keeps_its_state_is_itself_with_all_coordinates_kept():
    model, x = Remembers(), torch.randn(40, 6, 3)
    states = kann.record(model, x, batch_size=20)
    effects = kann.effects(model, x, states=states, coordinates=np.eye(4), counts=[4], batch_size=20, progress=False)
    np.testing.assert_allclose(effects.kept["directions"], 1)


def test_hooks_that_a_model_installs_when_it_first_runs_are_installed_once():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.calls = nn.GRU(2, 3, batch_first=True), []

        def forward(self, x):
            if not getattr(self, "has_hooks", False):
                self.rnn.register_forward_hook(lambda *_: self.calls.append(1))
                self.has_hooks = True
            return self.rnn(x)[0]

    model, x = Lazy(), torch.randn(6, 4, 2)
    kann.record(model, x, layer="rnn", batch_size=2, progress=False)
    model.calls.clear()
    model(x)
    assert model.calls == [1]

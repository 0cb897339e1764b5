# ruff: noqa: D102  # models say what they are by their names
"""Models in their recurrent form: the same outputs, their own caches as states, and replaced states that go on."""

from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.recording import step_by_step
from tests.recording.language_models import FAMILIES, tiny_model

TOKENS = torch.arange(30).reshape(3, 10) * 7 % 32


class Decay(nn.Module):
    """Complex decays: a convolution over all steps at once, or a loop."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.polar(torch.tensor([0.9, 0.5]), torch.tensor([0.3, -1.0])))

    def forward(self, x):
        t = torch.arange(x.shape[1])
        kernel = self.rate ** (t[:, None] - t).clamp(min=0)[..., None] * (t[:, None] >= t)[..., None]
        return torch.einsum("tsd,bsd->btd", kernel, x.to(kernel.dtype)).real


def step(model, x, state):
    h = model.rate * state["h"] + x
    return h.real, {"h": h}


def initial(model, count):
    return {"h": torch.zeros(count, 2, dtype=torch.cfloat)}


def recurrent_decay():
    return step_by_step(Decay(), step=step, initial=initial, example=torch.randn(2, 9, 2))


def test_states_are_those_of_the_recurrence():
    net, x = recurrent_decay(), torch.randn(5, 12, 2, generator=torch.Generator().manual_seed(0))
    states = kann.record(net, x, layer="layers.h", progress=False)
    h, rate = np.zeros((5, 2), complex), net.model.rate.detach().numpy()
    for t in range(12):
        h = rate * h + x[:, t].numpy()
        np.testing.assert_allclose(
            states.padded()[:, t].reshape(5, 2, 2), np.stack([h.real, h.imag], axis=-1), atol=1e-5
        )
    assert net.parts == {"h": ((2,),)}


def test_a_replaced_state_goes_on():
    net, x = recurrent_decay(), torch.randn(2, 12, 2, generator=torch.Generator().manual_seed(1))
    swapped = outputs_with_swap(net, x, at=4)
    joined = torch.cat([x.flip(0)[:, :4], x[:, 4:]], dim=1)
    torch.testing.assert_close(swapped[:, 4:], net(joined)[:, 4:])


def test_a_recurrent_form_that_differs_raises():
    def forgets(model, x, state):
        return step(model, x, {"h": 0 * state["h"]})

    with pytest.raises(kann.KannError, match="other outputs than its forward pass"):
        step_by_step(Decay(), step=forgets, initial=initial, example=torch.randn(2, 9, 2))


def test_half_of_the_functions_raises():
    with pytest.raises(kann.KannError, match="step= and initial="):
        step_by_step(Decay(), step=step)


def test_a_model_without_cache_raises():
    with pytest.raises(kann.KannError, match="takes no cache"):
        step_by_step(nn.Linear(2, 2))


def outputs_with_swap(net, x, *, at):
    """Outputs if after ``at`` steps the states of two sequences are exchanged."""
    calls = dict.fromkeys(net.layers, 0)

    def swap(name):
        def hook(module, arguments, output):
            calls[name] += 1
            return output.flip(0) if calls[name] == at else None

        return hook

    hooks = [module.register_forward_hook(swap(name)) for name, module in net.layers.items()]
    with torch.no_grad():
        outputs = net(x)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.fixture(params=FAMILIES)
def family(request):
    pytest.importorskip("transformers")
    return request.param


def test_states_are_the_caches_of_step_by_step_generation(family):
    model = tiny_model(family)
    net = step_by_step(model)
    recorded = {name: kann.record(net, TOKENS, layer=f"layers.{name}", progress=False) for name in net.layers}
    for number, tokens in enumerate(TOKENS):  # one sequence alone: transformers' RWKV mixes those of a batch
        for t, states in enumerate(generated_states(model, tokens)):
            for name, state in states.items():
                np.testing.assert_allclose(recorded[name][number][t], state, atol=1e-5, rtol=1e-5)


def generated_states(model, tokens):
    """What a model of transformers carries after each token of one sequence, by layer, from its own cache."""
    for module in model.modules():
        for name in ("recurrent_states", "conv1d_state"):
            if hasattr(module, name):
                setattr(module, name, None)
    from transformers import DynamicCache

    key = next(
        key for key in ("past_key_values", "cache_params", "state") if key in signature(model.forward).parameters
    )
    cache = DynamicCache(config=model.config) if key == "past_key_values" else None
    for t, token in enumerate(tokens):
        position = {"position_ids": torch.tensor([[t]])} if key == "past_key_values" else {}
        with torch.no_grad():
            output = model(input_ids=token[None, None], use_cache=True, **{key: cache}, **position)
        cache = cache if getattr(output, key, None) is None else getattr(output, key)
        yield {name: np.concatenate([part.numpy().ravel() for part in parts]) for name, parts in carried(model, cache)}


def carried(model, cache):
    if isinstance(cache, list):
        return [(str(i), [part[0, :, i] for part in cache]) for i in range(cache[0].shape[2])]
    if hasattr(cache, "rnn_state"):
        return [(str(i), list(parts)) for i, parts in cache.rnn_state.items()]
    if (
        hasattr(model.model if hasattr(model, "model") else model, "layers")
        and "RecurrentGemma" in type(model).__name__
    ):
        blocks = [(i, block.temporal_block) for i, block in enumerate(model.model.layers)]
        return [(str(i), [b.rg_lru.recurrent_states, b.conv1d_state]) for i, b in blocks if hasattr(b, "rg_lru")]
    layers = [(str(i), layer) for i, layer in enumerate(cache.layers) if hasattr(layer, "conv_states")]
    return [(i, [*present(layer.recurrent_states), *present(layer.conv_states)]) for i, layer in layers]


def present(states):
    return [state for state in states.values() if state is not None]


def test_outputs_are_those_of_the_forward_pass(family):
    model = tiny_model(family)
    with torch.no_grad():
        torch.testing.assert_close(step_by_step(model)(TOKENS), model(TOKENS).logits, atol=1e-5, rtol=1e-4)


def test_exchanged_states_continue_the_other_sequence(family):
    if family not in ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"):
        pytest.skip("attention in its other layers reads the tokens of the sequence itself")
    net = step_by_step(tiny_model(family))
    swapped = outputs_with_swap(net, TOKENS[:2], at=5)
    joined = torch.cat([TOKENS[:2].flip(0)[:, :5], TOKENS[:2, 5:]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(swapped[:, 5:], net(joined)[:, 5:], atol=1e-6, rtol=0)


def test_gradients_are_those_of_finite_differences(family):
    net = step_by_step(tiny_model(family))
    name = next(iter(net.layers))
    direction = {}

    def moved(by):
        calls = []

        def hook(module, arguments, output):
            calls.append(output)
            if "at" not in direction:
                noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
                direction["at"] = noise * output.detach().abs()  # in proportion: xLSTM divides by part of its state
            return output + by * direction["at"] if len(calls) == 4 else None

        handle = net.layers[name].register_forward_hook(hook)
        loss = net(TOKENS).double().square().sum()
        handle.remove()
        return loss

    by = torch.zeros((), requires_grad=True)
    (slope,) = torch.autograd.grad(moved(by), by)
    with torch.no_grad():
        difference = (moved(torch.tensor(0.01)) - moved(torch.tensor(-0.01))) / 0.02
    # Parts of these models compute in float32 whatever their weights: its rounding divided by the step is about 1e-4.
    torch.testing.assert_close(slope.double(), difference, rtol=0.02, atol=5e-4)


def test_balanced_coordinates_of_a_language_model(family):
    net = step_by_step(tiny_model(family))
    name = next(iter(net.layers))
    balance = kann.balance(net, TOKENS, layer=f"layers.{name}", outputs="class", sequences=3, draws=1, progress=False)
    states = kann.record(net, TOKENS, layer=f"layers.{name}", progress=False)
    everything = kann.effects(
        net, TOKENS, balance, states, layer=f"layers.{name}", outputs="class", counts=(1,), progress=False
    )
    assert everything.full == pytest.approx(1.0)


def test_a_transformer_without_states_raises():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    with pytest.raises(kann.KannError, match="no state of fixed size"):
        step_by_step(transformers.GPT2LMHeadModel(config).eval())

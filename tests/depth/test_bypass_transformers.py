"""Tiny models of the classes in the gallery: states as transformers itself returns them, and layers bypassed."""

import numpy as np
import pytest
import torch

import kann

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # whatever transformers deprecates

LAYERS, UNITS = 4, 16


@pytest.fixture
def llama():
    """The class of SmolLM2."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=UNITS,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def albert():
    """The class of rxnmapper's network: one block, applied several times."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=40,
        embedding_size=8,
        hidden_size=UNITS,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return transformers.AlbertForMaskedLM(config).eval()


@pytest.fixture
def tokens():
    return torch.randint(40, (12, 9), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_states_of_a_decoder_are_those_that_it_returns(llama, tokens):
    states = kann.record(llama, tokens, layer="model.layers.*", axis="depth", embedding=True)
    own = llama(tokens, output_hidden_states=True).hidden_states
    ours = states.padded().reshape(12, 9, LAYERS + 1, UNITS)
    for k, h in enumerate(own[:-1]):
        assert np.array_equal(ours[:, :, k], h.numpy())
    last = llama.model.norm(torch.from_numpy(ours[:, :, -1]))  # the last ones it returns behind its norm
    assert torch.allclose(last, own[-1], atol=1e-6)


@torch.no_grad()
def test_states_of_a_shared_block_are_those_that_it_returns(albert, tokens):
    block = "albert.encoder.albert_layer_groups.0"
    states = kann.record(albert, tokens, layer=block, axis="depth", embedding=True)
    own = albert(tokens, output_hidden_states=True).hidden_states
    ours = states.padded().reshape(12, 9, LAYERS + 1, UNITS)
    for k, h in enumerate(own):
        assert np.array_equal(ours[:, :, k], h.numpy())


@torch.no_grad()
def test_a_shared_block_is_replaced_at_every_application(albert, tokens):
    block = "albert.encoder.albert_layer_groups.0"
    states = kann.record(albert, tokens, layer=block, axis="depth", embedding=True)
    one = kann.fit(states)
    with kann.depth.bypass(albert, block, block, one):
        replaced = kann.record(albert, tokens, layer=block, axis="depth", embedding=True).padded()
    assert np.allclose(replaced[:, 1:], one.rollout(states.padded()[:, 0], LAYERS), atol=1e-3)  # float32, four times


@torch.no_grad()
def test_the_identity_is_a_decoder_without_these_layers(llama, tokens):
    with kann.depth.bypass(llama, "model.layers.1", "model.layers.2"):
        found = llama(tokens).logits
    llama.model.layers = torch.nn.ModuleList([llama.model.layers[0], llama.model.layers[3]])
    llama.config.num_hidden_layers = 2
    assert torch.allclose(found, llama(tokens, use_cache=False).logits, atol=1e-6)


@pytest.mark.parametrize("span", [("model.layers.0", "model.layers.1"), ("model.layers.2", "model.layers.3")])
@torch.no_grad()
def test_a_bypassed_decoder_generates_with_its_cache_as_without(llama, tokens, span):
    states = kann.record(llama, tokens, layer="model.layers.*", axis="depth", embedding=True)
    maps = kann.depth.fit(states)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with kann.depth.bypass(llama, *span, maps):
        first, second = (llama.generate(tokens[:3], use_cache=each, **options) for each in (True, False))
    assert torch.equal(first, second)


@torch.no_grad()
def test_effects_on_a_decoder_are_judged_by_the_next_token(llama, tokens):
    states = kann.record(llama, tokens[:8], layer="model.layers.*", axis="depth", embedding=True)
    maps = kann.depth.fit(states)
    labels = torch.cat([tokens[:, 1:], torch.full((12, 1), -100)], dim=1)
    spans = [("model.layers.1", "model.layers.2")]
    found = kann.depth.bypass_effects(llama, tokens[8:], maps, states, spans=spans, labels=labels[8:])
    assert found.own["loss"] == pytest.approx(float(llama(tokens[8:], labels=tokens[8:]).loss), rel=1e-5)
    assert found.means["kl"][0, 2] < found.means["kl"][0, 0]  # own maps are closer to the network than skipping

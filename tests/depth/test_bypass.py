# ruff: noqa: D102  # models in tests say what they are by their names
"""Spans of layers replaced by operators in the running model: by hand the same, and the model restored."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.depth._bypass import maps_of, span_of
from kann.errors import KannError

UNITS, LAYERS = 8, 4


class Block(nn.Module):
    """A residual block as transformers' decoder layers are called, in its three ways to return."""

    def __init__(self, returns):
        super().__init__()
        self.inner, self.returns = nn.Linear(UNITS, UNITS), returns

    def forward(self, hidden_states, position_embeddings=None, past=None):
        if past is not None:
            past.append(hidden_states.mean())  # as a cache is filled
        new = hidden_states + torch.tanh(self.inner(hidden_states))
        return {"tensor": new, "tuple": (new, position_embeddings), "dict": {"hidden": new}}[self.returns]


class Decoder(nn.Module):
    """A small language model."""

    def __init__(self, returns="tensor", by_name=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, UNITS), nn.Linear(UNITS, 11)
        self.layers = nn.ModuleList(Block(returns) for _ in range(LAYERS))
        self.by_name, self.cache = by_name, []

    def forward(self, tokens):
        x, self.cache = self.embed(tokens), []
        turned = torch.ones(len(tokens), tokens.shape[1], 2)  # real numbers of another shape
        for layer in self.layers:
            if self.by_name:
                out = layer(position_embeddings=turned, past=self.cache, hidden_states=x)
            else:
                out = layer(x, position_embeddings=turned, past=self.cache)
            x = {"tensor": lambda out: out, "tuple": lambda out: out[0], "dict": lambda out: out["hidden"]}[
                layer.returns
            ](out)
        return self.head(x)


class Residual(nn.Module):
    """A residual network of images whose second stage is narrower and wider."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(6, 3)
        self.stage = nn.Sequential(*(nn.Conv2d(6, 6, 3, padding=1) for _ in range(3)))
        self.second = nn.Sequential(nn.Conv2d(6, 12, 3, stride=2), nn.Conv2d(12, 6, 1))

    def forward(self, x):
        x = self.stage(self.stem(x))
        self.second(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def tokens():
    return torch.randint(11, (30, 6), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Decoder()


def depth_of(model, data, layer="layers.*"):
    return kann.record(model, data, layer=layer, axis="depth", embedding=True)


def by_hand(model, tokens, replace):
    """What the model gives if ``replace(layer, states)`` stands for each layer, unless it is None."""
    x = model.embed(tokens)
    for number, layer in enumerate(model.layers):
        new = replace(number, x)
        if new is None:
            new = x + torch.tanh(layer.inner(x))
        x = new
    return model.head(x)


def mapped(own, x):
    return x @ torch.tensor(own.matrix, dtype=x.dtype) + torch.tensor(own.offset, dtype=x.dtype)


@pytest.mark.parametrize("returns", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("by_name", [False, True])
@torch.no_grad()
def test_the_identity_skips_the_span(tokens, returns, by_name):
    model = Decoder(returns, by_name)
    expected = by_hand(model, tokens, lambda number, x: {1: x, 2: x}.get(number))
    with kann.depth.bypass(model, "layers.1", "layers.2"):
        found = model(tokens)
    assert torch.equal(found, expected)
    assert len(model.cache) == LAYERS  # every layer has filled it


@torch.no_grad()
def test_operators_take_the_place_of_layers(model, tokens):
    states = depth_of(model, tokens)
    maps, span = kann.depth.fit(states), kann.depth.fit_span(states, 1, 2)
    one = maps.one

    def predicted(x):
        return torch.from_numpy(one.predict(x.double())).to(x.dtype)

    cases = [
        (one, lambda number, x: predicted(x) if number in (1, 2) else None),
        (maps, lambda number, x: mapped(maps.each[number], x) if number in (1, 2) else None),
        (span, lambda number, x: {1: lambda: mapped(span, x), 2: lambda: x}.get(number, lambda: None)()),
        ([None, maps.each[0]], lambda number, x: {1: x, 2: mapped(maps.each[0], x)}.get(number)),
    ]
    for operator, replace in cases:
        with kann.depth.bypass(model, "layers.1", "layers.2", operator):
            found = model(tokens)
        assert torch.allclose(found, by_hand(model, tokens, replace), atol=1e-5)  # float32, mapped in another order


@torch.no_grad()
def test_encoders_of_torch_are_bypassed_also_with_padding():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(UNITS, 2, 16, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 3).eval(), torch.randn(4, 5, UNITS)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0, 3:] = True
    with kann.depth.bypass(model, "layers.0", "layers.2"):
        assert torch.equal(model(x, src_key_padding_mask=mask), x)


@torch.no_grad()
def test_of_images_the_channels_are_mapped_at_every_pixel():
    torch.manual_seed(0)
    model, images = Residual(), torch.randn(5, 1, 4, 4)
    states = kann.record(model, images, layer="stage.*", axis="depth", embedding=True)
    maps = kann.depth.fit(states, ridge=0.1)
    x = mapped(maps.each[1], model.stage[0](model.stem(images)).movedim(1, -1)).movedim(-1, 1)
    expected = model.head(model.stage[2](x).mean((2, 3)))
    with kann.depth.bypass(model, "stage.1", "stage.1", maps):
        assert torch.allclose(model(images), expected, atol=1e-5)


@torch.no_grad()
def test_what_is_recorded_inside_is_replaced(model, tokens):
    with kann.depth.bypass(model, "layers.0", "layers.3"):
        states = depth_of(model, tokens).padded()
    assert np.array_equal(states[:, 0], states[:, 4])


def test_gradients_flow_through_the_operator(model, tokens):
    maps = kann.depth.fit(depth_of(model, tokens))
    with kann.depth.bypass(model, "layers.0", "layers.3", maps):
        model(tokens).sum().backward()
    assert model.embed.weight.grad.abs().sum() > 0
    assert model.layers[1].inner.weight.grad is None  # what it gives is not used


@torch.no_grad()
def test_half_precision_stays_half(tokens):
    torch.manual_seed(0)
    model = Decoder().bfloat16()
    maps = kann.depth.fit(depth_of(model, tokens), ridge=0.1)
    seen = []
    model.layers[3].register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    with kann.depth.bypass(model, "layers.1", "layers.2", maps):
        model.head.bfloat16()(torch.zeros(1, UNITS, dtype=torch.bfloat16))
        model.layers[3](model.layers[2](model.layers[1](torch.zeros(1, 2, UNITS, dtype=torch.bfloat16))))
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("failing", [False, True])
@torch.no_grad()
def test_the_model_is_restored_whatever_happens(model, tokens, failing):
    before, hooks = model(tokens), [len(layer._forward_hooks) for layer in model.layers]
    with pytest.raises(ZeroDivisionError), kann.depth.bypass(model, "layers.1", "layers.2"):
        if failing:
            model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)  # an error of the user's own
        model(tokens)
        raise ZeroDivisionError
    model.layers[2]._forward_pre_hooks.clear()
    assert torch.equal(model(tokens), before)
    assert [len(layer._forward_hooks) for layer in model.layers] == hooks
    with kann.depth.bypass(model, "layers.1", "layers.2"):  # and it can be entered again
        assert not torch.equal(model(tokens), before)


@torch.no_grad()
def test_other_layers_can_be_bypassed_inside(model, tokens):
    with kann.depth.bypass(model, "layers.0", "layers.0"), kann.depth.bypass(model, "layers.2", "layers.3"):
        found = model(tokens)
    assert torch.equal(found, by_hand(model, tokens, lambda number, x: None if number == 1 else x))


def test_the_same_layers_cannot_be_bypassed_twice(model):
    message = (
        "states of 'layers.2' are being replaced already, in this thread or another; leave the other kann.depth.bypass"
    )
    with kann.depth.bypass(model, "layers.1", "layers.2"), pytest.raises(KannError, match=message):  # noqa: SIM117
        with kann.depth.bypass(model, "layers.2", "layers.3"):
            pass
    with kann.depth.bypass(model, "layers.3", "layers.3"):  # which the refused one has left free
        pass


def test_other_threads_are_refused(model, tokens):
    found = []

    def run():
        try:
            model(tokens)
        except KannError as error:
            found.append(str(error))

    with kann.depth.bypass(model, "layers.1", "layers.1"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert "another thread runs 'layers.1' inside of kann.depth.bypass" in found[0]


def driven(rng):
    states = kann.States.from_padded(rng.normal(size=(20, 5, UNITS)), inputs=rng.normal(size=(20, 5, 1)))
    return kann.fit(states, rank=2, driven=True)


@pytest.mark.parametrize(
    ("first", "last", "make", "message"),
    [
        ("layers.9", "layers.3", None, r"the model has no layer 'layers.9'; close to it are 'layers"),
        ("layers.2", "layers.1", None, "'layers.2' comes after 'layers.1'; pass the first layer of the span first"),
        ("embed", "layers.1", None, "'embed' and 'layers.1' are not layers of one list, such as 'layers.3'"),
        ("layers.*", "layers.1", None, r"'layers.\*' is no single layer inside the model; pass one such as 'layers.0'"),
        ("", "", None, "'' is no single layer inside the model"),
        (
            "layers.1",
            "layers.2",
            lambda rng: kann.fit(rng.normal(size=(40, 6, 3))),
            "the operator is for 3 units; layer",
        ),
        ("layers.1", "layers.2", driven, "the operator is driven by inputs, which layers do not read"),
        (
            "layers.1",
            "layers.2",
            lambda rng: kann.depth.fit_span(rng.normal(size=(40, 5, 8)), 0, 2),
            "stands for 3 steps, and",
        ),
        ("layers.1", "layers.2", lambda rng: kann.depth.fit(rng.normal(size=(40, 3, 8))), "there are 2 maps"),
        ("layers.1", "layers.2", lambda rng: [None], "there are 1 operators for 2 layers; pass one for each layer"),
        ("embed", "embed", None, "layer 'embed' reads .* and gives .30, 6, 8.; only layers that keep the shape"),
        ("head", "head", None, "layer 'head' reads .* and gives .30, 6, 11.; only layers that keep the shape"),
    ],
)
def test_mistakes_are_explained(model, tokens, rng, first, last, make, message):
    operator = make and make(rng)
    with pytest.raises(KannError, match=message), kann.depth.bypass(model, first, last, operator), torch.no_grad():
        model(tokens)
    assert all(not layer._forward_hooks for layer in model.layers)


def test_layers_that_give_no_states_are_refused():
    class Counting(nn.Module):
        def forward(self, x):
            return len(x)

    model = nn.Sequential(Counting())
    with pytest.raises(KannError, match="gives int without real numbers"), kann.depth.bypass(model, "0", "0"):
        model(torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_torch_compiled_cannot_be_bypassed():
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(KannError, match=r"was compiled by torch\.jit"), kann.depth.bypass(model, "0", "0"):
        pass


def test_what_is_no_name_and_no_operator_is_refused(model):
    with pytest.raises(KannError, match=r"3 is no name of a layer; pass one of model.named_modules"):
        span_of(model, 3, "layers.1")
    span = span_of(model, "layers.1", "layers.2")
    with pytest.raises(KannError, match=r"operator=ndarray of float64, shape .8, 8. cannot take the place of layers"):
        maps_of(np.eye(8), span)
    with pytest.raises(KannError, match="3 is no operator of states; pass a Koopman or an AffineMap"):
        maps_of([None, 3], span)

# models in tests say what they are by their names
"""What forward hooks of the user make of a layer's output is what is recorded, since the model goes on with it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import kann
from tests.recording.models import by_hand, same


def doubled(module, args, output):
    """Twice the output, for any module."""
    if isinstance(output, tuple) and isinstance(output[0], PackedSequence):
        return output[0]._replace(data=2 * output[0].data), output[1]
    if isinstance(output, tuple):
        return 2 * output[0], *output[1:]
    return 2 * output


def doubled_in_place(module, args, output):
    next(part for part in (output if isinstance(output, tuple) else (output,))).mul_(2)


def scaled(states, factor=2):
    return kann.States(values=factor * np.asarray(states.values), lengths=states.lengths)


@pytest.mark.parametrize("hook", [doubled, doubled_in_place])
@pytest.mark.parametrize("layer", ["rnn", "embed", "head"])
@pytest.mark.parametrize("inference", [False, True])
def test_states_are_recorded_after_the_users_hooks(model, words, hook, layer, inference):
    plain = kann.record(model, words, layer=layer)
    model.get_submodule(layer).register_forward_hook(hook)
    with torch.inference_mode(inference):
        same(kann.record(model, words, layer=layer), scaled(plain))


def test_a_hook_that_is_placed_while_the_model_runs_comes_first_too(model, words):
    plain = {name: kann.record(model, words, layer=name) for name in ("rnn", "embed")}

    def forward(model, batch):
        handles = [model.get_submodule(name).register_forward_hook(doubled) for name in ("rnn", "embed")]
        output = model(batch)
        for handle in handles:
            handle.remove()
        return output

    recorded = kann.record(model, words, layer="embed", forward=forward)
    same(recorded, scaled(plain["embed"]))
    model.embed.weight.data /= 2  # so that what the recurrent layer reads is as before
    same(kann.record(model, words, layer="rnn", forward=forward), scaled(plain["rnn"]))


def test_hooks_of_all_modules_count_too(model, words):
    plain = by_hand(model, words)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: doubled(module, args, output) if module is model.rnn else None
    )
    try:
        same(kann.record(model, words), scaled(plain))
    finally:
        handle.remove()


def test_hooks_that_only_look_change_nothing(words):
    """Also where the module returns something else than its states."""

    class LastOnly(nn.GRU):
        def forward(self, x, h=None):
            return super().forward(x, h)[1]

    model = nn.Sequential(nn.Embedding(20, 3), LastOnly(3, 5, batch_first=True))
    plain, seen = kann.record(model, words), []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    same(kann.record(model, words), plain)
    assert seen


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_only_the_last_layer_changes_in_every_layout(batch_first, bidirectional):
    rnn = nn.LSTM(3, 5, num_layers=2, batch_first=batch_first, bidirectional=bidirectional)
    for data in (torch.randn(4, 6, 3), torch.randn(6, 3), pack_sequence([torch.randn(n, 3) for n in (6, 2, 4)], False)):
        plain = kann.recording.record_layers(rnn, data, layer="*", initial=True)
        handle = rnn.register_forward_hook(doubled)
        hooked = kann.recording.record_layers(rnn, data, layer="*", initial=True)
        handle.remove()
        for name in plain:
            same(hooked[name], scaled(plain[name], 1 + name.startswith("l1")))


def test_cell_states_stay_what_the_kernel_computed():
    rnn, x = nn.LSTM(3, 5, batch_first=True), torch.randn(4, 6, 3)
    plain = kann.record(rnn, x, state="hc")
    rnn.register_forward_hook(doubled)
    recorded = kann.record(rnn, x, state="hc")
    np.testing.assert_allclose(recorded.values[:, :5], 2 * plain.values[:, :5], rtol=1e-6)
    np.testing.assert_array_equal(recorded.values[:, 5:], plain.values[:, 5:])
    same(kann.record(rnn, x, state="c"), kann.States(values=plain.values[:, 5:], lengths=plain.lengths))


def test_a_call_that_continues_from_what_a_hook_returned_is_the_same_sequence():
    rnn, x = nn.GRU(3, 5, batch_first=True), torch.randn(4, 6, 3)
    rnn.register_forward_hook(lambda module, args, output: (output[0] / 2, output[1] / 2))

    def in_two_pieces(model, batch):
        _, h = model(batch[:, :3])
        return model(batch[:, 3:], h)

    assert kann.record(rnn, x, forward=in_two_pieces).lengths.tolist() == [6] * 4


@pytest.mark.parametrize("hook", [lambda m, a, o: (o[0][:, -1], o[1]), lambda m, a, o: "nothing"])
def test_a_hook_that_returns_no_states_is_refused(hook):
    rnn = nn.GRU(3, 5, batch_first=True)
    rnn.register_forward_hook(hook)
    with pytest.raises(kann.KannError, match=r"a forward hook changes the output of '' .*remove the hook"):
        kann.record(rnn, torch.randn(4, 6, 3), forward=lambda model, x: model(x))


def test_a_hook_on_states_that_padding_has_reached_is_refused(words):
    model = nn.Sequential(nn.Embedding(20, 3), nn.GRU(3, 5, batch_first=True, bidirectional=True))
    model[1].register_forward_hook(doubled)
    with pytest.warns(kann.errors.PaddingWarning), pytest.raises(kann.KannError, match="pack padded sequences"):
        kann.recording.record_layers(model, words)


def test_blocks_along_depth_are_recorded_after_the_users_hooks():
    model, x = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))), torch.randn(4, 3)
    plain = kann.record(model, x, axis="depth", layer=["1", "2"], embedding="0")
    model[2].register_forward_hook(doubled)
    recorded = kann.record(model, x, axis="depth", layer=["1", "2"], embedding="0")
    np.testing.assert_allclose(recorded.padded()[:, 2], 2 * plain.padded()[:, 2], rtol=1e-6)
    np.testing.assert_array_equal(recorded.padded()[:, :2], plain.padded()[:, :2])

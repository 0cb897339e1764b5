"""The layers of a network as steps of time."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError
from tests.recording.models import EXACT, ResNet, Tagger


def test_a_residual_network_along_depth():
    model, x = ResNet().eval(), torch.randn(3, 3, 6, 6)
    states = kann.record(model, x, axis="depth", layer="stage1.*", embedding="stem", batch_size=2)
    with torch.no_grad():
        path = [model.stem(x)]
        for block in model.stage1:
            path.append(block(path[-1]))
    expected = torch.stack(path, dim=1)  # (3, 4, 4, 6, 6): picture, depth, channel, row, column
    assert (len(states), states.dim) == (3 * 36, 4)
    np.testing.assert_allclose(
        states.padded().reshape(3, 6, 6, 4, 4), expected.permute(0, 3, 4, 1, 2).numpy(), atol=EXACT
    )
    fewer = kann.record(model, x, axis="depth", layer="stage1.*", max_sequences=2)
    assert (len(fewer), set(fewer.lengths.tolist())) == (2 * 36, {3})
    np.testing.assert_allclose(
        fewer.padded().reshape(2, 6, 6, 3, 4), expected[:2, 1:].permute(0, 3, 4, 1, 2).numpy(), atol=EXACT
    )


def test_blocks_of_different_width_are_listed_with_the_longest_run_of_equal_ones():
    with pytest.raises(KannError) as caught:
        kann.record(ResNet(), torch.randn(2, 3, 6, 6), axis="depth", layer=["stage1.*", "stage2.*"], embedding="stem")
    assert "stage1.2: 4 at 36, stage2.0: 6 at 9" in str(caught.value)
    assert "layer=['stem', 'stage1.0', 'stage1.1', 'stage1.2']" in str(caught.value)


def test_a_stack_without_positions_and_a_block_called_again_and_again():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.block(x))
            return x

    model, x = Shared(), torch.randn(5, 4)
    states = kann.record(model, x, axis="depth", layer="block", embedding=True)
    with torch.no_grad():
        path = [x, model.block(x)]
        path += [model.block(torch.tanh(path[-1]))]
        path += [model.block(torch.tanh(path[-1]))]
    np.testing.assert_allclose(states.padded(), torch.stack(path, dim=1), atol=EXACT)


def test_what_depth_cannot_do(model, words):
    with pytest.raises(KannError, match="depth has one state, 'head'"):
        kann.record(model, words, axis="depth", layer="head")
    with pytest.raises(KannError, match="states along depth have no inputs"):
        kann.record(model, words, axis="depth", layer=["head"], inputs=True)
    with pytest.raises(KannError, match="blocks along depth are modules of their own"):
        kann.record(Tagger(layers=2), words, axis="depth", layer="rnn.*")
    with pytest.raises(KannError, match="pass axis='depth' with it"):
        kann.record(model, words, embedding="embed")
    with pytest.raises(KannError, match=r"the model's output .Tensor. holds no hidden_states"):
        kann.record(model, words, axis="depth")


def test_a_block_that_gives_no_real_numbers(words):
    with pytest.raises(KannError, match="block 'embed' has Tensor without real numbers"):
        kann.record(
            nn.ModuleDict({"embed": nn.Identity(), "rest": nn.Identity()}),
            words,
            axis="depth",
            layer=["embed", "rest"],
            forward=lambda m, batch: m["rest"](m["embed"](batch)),
        )


def test_blocks_without_positions_are_listed_by_their_width_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(KannError) as caught:
        kann.record(model, torch.randn(5, 3), axis="depth", layer=["0", "1", "2"])
    assert "(units at positions: 0: 4, 1: 4, 2: 2)" in str(caught.value)
    assert "layer=['0', '1']" in str(caught.value)

"""Lengths of sequences, and padding, which is never recorded."""

import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import kann
from kann.errors import KannError, PaddingWarning
from tests.recording.models import EXACT, Tagger, by_hand, collated, outputs_of, same
from tests.recording.single_steps import Loop, Padding, check, make, padded, sequences


def test_without_lengths_every_step_counts(model, words):
    padded = pad_sequence(words, batch_first=True)
    states = kann.record(model, padded)
    assert states.lengths.tolist() == [7] * 5
    same(states, by_hand(model, padded))


def test_packing_inside_the_model_needs_no_lengths(words):
    class Packing(Tagger):
        def forward(self, words, n):
            return self.rnn(pack_padded_sequence(self.embed(words), n, batch_first=True, enforce_sorted=False))

    model = Packing()
    batches = [collated(words[:3]), collated(words[3:])]
    same(kann.record(model, batches), by_hand(model, words))


def test_left_padding_is_dropped_for_layers_that_mask_it():
    model, x = nn.Linear(3, 3), torch.randn(2, 4, 3)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    states = kann.record(model, {"input": x, "attention_mask": mask}, layer="")
    assert states.lengths.tolist() == [2, 4]
    with torch.no_grad():
        same(states, kann.States.from_sequences([model(x[0, 2:]).numpy(), model(x[1]).numpy()]))


def test_lengths_beside_packed_sequences_are_theirs():
    data = [torch.randn(n, 2) for n in (2, 4, 3)]
    packed = nn.utils.rnn.pack_sequence(data, enforce_sorted=False)
    model = nn.GRU(2, 3)
    expected = outputs_of(model, data)
    for lengths in (0, [2, 4, 3]):
        same(kann.record(model, [(packed, torch.zeros(3))], lengths=lengths), expected)
    with pytest.raises(KannError, match="the data hold text, such as 'words', and models read numbers"):
        kann.record(model, ["words"], lengths=[2, 4, 3], forward=lambda m, batch: m(packed))


def test_lengths_that_do_not_fit(model, words):
    padded = pad_sequence(words, batch_first=True)
    for layer in ("rnn", "embed"):
        with pytest.raises(KannError, match=rf"lengths reach 9 \(sequence 1 of the batch\); layer '{layer}' gave 7"):
            kann.record(model, padded, lengths=[1, 9, 1, 1, 1], layer=layer)
    with pytest.raises(KannError, match="3 lengths and more sequences"):
        kann.record(model, padded, lengths=[1, 2, 3])
    with pytest.raises(KannError, match="6 lengths for 5 sequences"):
        kann.record(model, padded, lengths=[1] * 6)
    with pytest.raises(KannError, match="sequence 2 has length 0"):
        kann.record(model, padded, lengths=[1, 1, 0, 1, 1])
    with pytest.raises(KannError, match=re.escape("lengths are float64 of shape (5,)")):
        kann.record(model, padded, lengths=np.ones(5))
    with pytest.raises(KannError, match=r"lengths='m' is no key of the batch, which has .'n', 'words'."):
        kann.record(model, [collated(words)], lengths="m")
    with pytest.raises(KannError, match="mask of sequence 1 of the batch has holes: 2 real steps between 0 and 2"):
        kann.record(model, padded[:2, :3], lengths=[[1, 1, 1], [1, 0, 1]])
    with pytest.raises(KannError, match="layer 'rnn' gave 5 sequences; there are 2 lengths for this batch"):
        kann.record(model, [{"words": padded}], lengths=lambda batch: [1, 2])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_garbage_in_the_padding_changes_nothing(kind, bidirectional, rng):
    model = Padding(make(kind, num_layers=2, bidirectional=bidirectional, batch_first=True))
    data = sequences(rng)
    state = "hc" if kind == "lstm" else "h"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PaddingWarning)
        clean, *dirty = (
            kann.recording.record_layers(
                model, [padded(data, fill)], layer="rnn.*", state=state, lengths="lengths", inputs=True
            )
            for fill in (0.0, 1e6, float("nan"))
        )
    check(clean, model.rnn, data, state)
    for name, other in ((name, part[name]) for part in dirty for name in clean):
        np.testing.assert_array_equal(clean[name].values, other.values)
        np.testing.assert_array_equal(clean[name].inputs, other.inputs)


def test_without_lengths_the_padding_is_recorded_as_the_network_saw_it(rng):
    module = make("gru", bidirectional=True, batch_first=True)
    data = sequences(rng)
    batch = padded(data)["x"]
    recorded = kann.recording.record_layers(module, batch)
    check(recorded, module, list(batch), "h", prefix="")


def test_left_padding_is_refused_where_the_network_reads_it_first(rng):
    model = Padding(make("gru", batch_first=True))
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(KannError, match="padding of the batch is on the left, where 'rnn' reads it before"):
        kann.record(model, torch.zeros(2, 3, 2), lengths=mask)
    with pytest.raises(KannError, match="padding of the batch is on the left, where 'cell' reads it before"):
        kann.record(Loop(nn.GRUCell(2, 4)), torch.zeros(2, 3, 2), lengths=mask)


def test_a_bidirectional_module_without_padding_is_run_once_and_without_a_warning(rng):
    module = make("gru", bidirectional=True, batch_first=True)
    x = torch.tensor(rng.normal(size=(3, 5, 2)), dtype=torch.float32)
    check(kann.recording.record_layers(module, x, lengths=[5, 5, 5]), module, list(x), "h", prefix="")
    with pytest.raises(KannError, match=r"lengths reach 6 \(sequence 1 of the batch\); layer '' gave 5 steps"):
        kann.recording.record_layers(module, x, lengths=[5, 6, 5])


def test_batches_with_and_without_a_mask_in_one_recording(model, words):
    padded = pad_sequence(words[:3], batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([len(w) for w in words[:3]])[:, None]
    batches = [{"words": padded, "attention_mask": mask.long()}, {"words": words[3][None]}]
    expected = by_hand(model, words[:4])
    same(kann.record(model, batches), expected)
    moments = kann.recording.record_moments(model, batches)
    np.testing.assert_allclose(moments.xy, kann.Moments.of(expected).xy, rtol=1e-5, atol=EXACT)


@pytest.mark.parametrize("padding", [-1e9, -np.inf])
def test_masks_that_attention_adds_are_zero_at_real_steps(model, words, padding):
    padded = pad_sequence(words[:3], batch_first=True)
    real = torch.arange(padded.shape[1]) < torch.tensor([len(w) for w in words[:3]])[:, None]
    mask = torch.where(real, 0.0, padding)
    same(kann.record(model, [{"words": padded, "attention_mask": mask}]), by_hand(model, words[:3]))
    same(
        kann.record(model, [{"words": padded[:1, : len(words[0])], "attention_mask": mask[:1, : len(words[0])]}]),
        by_hand(model, words[:1]),
    )

# ruff: noqa: D102  # models in tests say what they are by their names
"""Data in every form that they may have, and how many of them are run."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import kann
from kann.errors import KannError
from kann.recording.sequence_data import SequenceData
from tests.recording.models import Words, by_hand, collated, outputs_of, same


def forms(words):
    """The same sequences in every form that data may have."""
    padded = pad_sequence(words, batch_first=True)
    lengths = np.array([len(w) for w in words])
    mask = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]
    labels = torch.zeros(len(words))
    return {
        "list": (words, {}),
        "list of arrays": ([w.numpy() for w in words], {}),
        "tensor": (padded, {"lengths": lengths}),
        "tensor and list of lengths": (padded, {"lengths": lengths.tolist()}),
        "array and tensor of lengths": (padded.numpy(), {"lengths": torch.tensor(lengths)}),
        "mask": (padded, {"lengths": mask}),
        "loader": (DataLoader(TensorDataset(padded, labels), batch_size=2), {"lengths": lengths}),
        "loader with lengths": (
            DataLoader(TensorDataset(padded, torch.tensor(lengths), labels), batch_size=2),
            {"lengths": 1},
        ),
        "loader of a stream": (DataLoader(Words(words), batch_size=2, collate_fn=collated), {"lengths": "n"}),
        "batches by key": ([collated(words[:3]), collated(words[3:])], {"lengths": "n"}),
        "attention mask": ({"words": padded, "attention_mask": mask.long()}, {}),
        "key_padding_mask": ({"words": padded, "key_padding_mask": ~mask}, {"lengths": "key_padding_mask"}),
        "function of the batch": ((collated([w]) for w in words), {"lengths": lambda batch: batch["n"]}),
        "samples": (words, {"collate": collated, "lengths": "n"}),
        "stream of samples": (iter(words), {"collate": collated, "lengths": "n"}),
        "dataset": (TensorDataset(padded), {"collate": lambda s: torch.stack([x for (x,) in s]), "lengths": lengths}),
        "own call": (
            [(labels, {"text": padded})],
            {"forward": lambda model, batch: model(batch[1]["text"]), "lengths": lambda batch: lengths},
        ),
    }


@pytest.mark.parametrize("form", forms([torch.zeros(1, dtype=torch.int64)] * 4))
@pytest.mark.parametrize("batch_size", [2, 32])
def test_data_and_lengths_in_every_form_give_the_same_states(model, words, form, batch_size):
    data, options = forms(words)[form]
    same(kann.record(model, data, batch_size=batch_size, **options), by_hand(model, words))


@pytest.mark.parametrize("form", ["list", "loader with lengths", "function of the batch", "samples", "attention mask"])
@pytest.mark.parametrize("count", [1, 3, 4, 99])
def test_max_sequences_stops_in_the_middle_of_a_batch(model, words, form, count):
    data, options = forms(words)[form]
    recorded = kann.record(model, data, batch_size=2, max_sequences=count, **options)
    same(recorded, by_hand(model, words[:count]))


def test_max_sequences_of_packed_data(rng):
    module = nn.GRU(2, 3)
    data = [torch.randn(n, 2) for n in (3, 5, 2)]
    packed = nn.utils.rnn.pack_sequence(data, enforce_sorted=False)
    same(kann.record(module, packed, max_sequences=2), outputs_of(module, data[:2]))


def test_a_time_first_module_by_itself_takes_time_first_tensors_and_lists():
    module = nn.GRU(2, 3)
    data = torch.randn(6, 5, 2)
    expected = kann.States.from_padded(module(data)[0].transpose(0, 1))
    same(kann.record(module, data, batch_size=2), expected)
    same(kann.record(module, list(data.transpose(0, 1)), batch_size=2), expected)


def test_numbers_from_numpy_are_read_in_the_models_precision(rng):
    module = nn.GRU(2, 3, batch_first=True)
    data = rng.normal(size=(4, 5, 2))
    recorded = kann.record(module, data)
    assert recorded.values.dtype == np.float32
    same(recorded, outputs_of(module, torch.tensor(data, dtype=torch.float32)))


def test_lists_of_numbers_are_sequences_and_lists_of_three_axes_are_batches():
    model = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True))
    embed, rnn = model
    numbers = [[1, 2, 3], [4, 5]]
    with torch.no_grad():
        same(kann.record(model, numbers), outputs_of(rnn, [embed(torch.tensor(words)) for words in numbers]))
    batches = [torch.randn(2, 5, 3), torch.randn(3, 4, 3)]
    expected = outputs_of(rnn, [sequence for batch in batches for sequence in batch])
    assert expected.lengths.tolist() == [5, 5, 4, 4, 4]
    same(kann.record(rnn, batches), expected)
    same(kann.record(rnn, iter([b.numpy() for b in batches])), expected)


class TimeFirst(nn.Module):
    """Reads (B, T) words and works on (T, B, d) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.norm = nn.Embedding(20, 3), nn.GRU(3, 4), nn.LayerNorm(4)

    def forward(self, words: Tensor) -> Tensor:
        return self.norm(self.rnn(self.embed(words).transpose(0, 1))[0])


def test_layers_that_work_time_first_are_recorded_sequence_by_sequence_from_a_loader():
    words, model = torch.randint(20, (6, 9)), TimeFirst()
    from_loader = kann.recording.record_layers(model, DataLoader(words, batch_size=6), layer=["rnn", "norm"])
    assert [states.lengths.tolist() for states in from_loader.values()] == [[9] * 6] * 2
    same(from_loader["rnn"], by_hand(model, words))
    with torch.no_grad():
        same(from_loader["norm"], kann.States.from_padded(model(words).transpose(0, 1)))


def test_nothing_to_record(model):
    for data in ([], iter([]), DataLoader(Words([]))):
        with pytest.raises(KannError, match="the data hold no batches"):
            kann.record(model, data)


def test_data_that_cannot_be_used(model, words):
    padded = pad_sequence(words, batch_first=True)
    with pytest.raises(KannError, match="data is int; pass a tensor"):
        kann.record(model, 3)
    with pytest.raises(KannError, match="TensorDataset is a dataset of samples; pass DataLoader"):
        kann.record(model, TensorDataset(padded))
    with pytest.raises(KannError, match="DataLoader has its own collate_fn"):
        kann.record(model, DataLoader(words), collate=collated)
    with pytest.raises(KannError, match=re.escape("data[1] has shape (2, 3), data[0] has (2, 4)")):
        kann.record(model, [torch.zeros(2, 4), torch.zeros(2, 3)])
    with pytest.raises(KannError, match="do not hold equally many sequences"):
        kann.record(model, {"words": padded, "n": torch.zeros(3)})
    with pytest.raises(KannError, match=re.escape("keys ['a'] and the model takes ['words']")):
        kann.record(model, {"a": padded})
    with pytest.raises(KannError, match="batch_size=0 is too small; pass batch_size>=1"):
        kann.record(model, padded, batch_size=0)
    with pytest.raises(KannError, match="has no axis of sequences"):
        kann.record(model, torch.tensor(3))
    with pytest.raises(KannError, match="state='x' is unknown"):
        kann.record(model, padded, state="x")
    with pytest.raises(KannError, match="axis='x' is unknown"):
        kann.record(model, padded, axis="x")


def test_axes_that_are_confused_are_noticed():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 3)

        def forward(self, x):
            return self.rnn(x)[0]

    data = torch.randn(9, 4, 2)  # nine sequences, which the model takes for nine steps
    with pytest.raises(
        KannError, match=r"batch holds 9 sequences and layer 'rnn' saw 4; if the model reads .* forward="
    ):
        kann.record(TimeFirst(), data)
    with pytest.raises(KannError, match=r"layer 'rnn' saw 1; pass \(sequences, steps, channels\), and data\[None\]"):
        kann.record(TimeFirst(), data[:, 0])
    model = TimeFirst()
    expected = outputs_of(model.rnn, data)
    assert expected.lengths.tolist() == [4] * 9
    same(kann.record(model, data, collate=lambda samples: torch.stack(samples, dim=1), batch_size=5), expected)
    same(kann.record(model, iter([data.transpose(0, 1)])), expected)
    same(kann.record(model, data, forward=lambda model, batch: model(batch.swapaxes(0, 1))), expected)


def test_without_a_number_batches_hold_equally_many_steps():
    lengths = [4000, 3000, 1500, 900, *[100] * 400]
    model, data = nn.GRU(2, 3, batch_first=True), [torch.randn(length, 2) for length in lengths]
    sizes = [batch.count for batch in SequenceData(model, data, batch_size=None).batches()]
    assert sizes == [8, 128, 128, 128, 12]  # eight of the longest, although they are too many steps


def test_without_a_number_long_tensors_are_cut_into_small_batches():
    model = nn.GRU(2, 3, batch_first=True)
    for steps, expected in ((10, [128, 72]), (1000, [16] * 12 + [8]), (20_000, [8] * 25)):
        data = torch.empty(200, steps, 2)
        batches = list(SequenceData(model, data, batch_size=None).batches())
        assert [len(batch.content) for batch in batches] == expected
        mapping = SequenceData(model, {"input_ids": torch.empty(200, steps)}, batch_size=None).batches()
        assert [batch.count for batch in mapping] == expected


def test_without_a_number_states_are_the_same():
    model, data = nn.GRU(2, 3, batch_first=True), [torch.randn(length, 2) for length in (900, 40, 7, 30)]
    same(kann.record(model, data, batch_size=None), kann.record(model, data, batch_size=1))

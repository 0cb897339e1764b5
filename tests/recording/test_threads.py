# ruff: noqa: D102  # models in tests say what they are by their names
"""Other threads that use the model, or record too, change neither what is recorded nor what is restored."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import kann
from kann.recording.runner import shared
from tests.recording.models import Tagger, by_hand, same


def in_another_thread(function, *args):
    """Run a function to its end in another thread, and raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def call_elsewhere(model, batch):
    """The model's output for a batch; another thread calls the model before and after."""
    in_another_thread(model, batch)
    output = model(batch)
    in_another_thread(model, batch)
    return output


class CellLoop(nn.Module):
    """A cell that is called once a step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 5)

    def forward(self, x):
        h = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


@pytest.mark.parametrize("record", [kann.recording.record_layers, kann.recording.record_layer_moments])
@pytest.mark.parametrize("layer", ["rnn", "rnn.*", "embed", "head"])
def test_calls_of_other_threads_are_not_recorded(record, layer, words):
    model = Tagger(layers=2)
    expected = record(model, words, layer=layer)
    recorded = record(model, words, layer=layer, forward=call_elsewhere)
    assert repr(recorded) == repr(expected)
    if layer == "rnn" and record is kann.recording.record_layers:
        same(recorded["rnn"], by_hand(model, words))


def test_steps_that_other_threads_make_with_a_cell_are_not_recorded():
    model, x = CellLoop(), torch.randn(4, 6, 3)
    same(kann.record(model, x, forward=call_elsewhere), kann.record(model, x))


@pytest.mark.parametrize("options", [{"embedding": "embed"}, {"embedding": True}, {}])
def test_calls_of_other_threads_are_not_recorded_along_depth(options):
    model = nn.ModuleDict({"embed": nn.Linear(3, 3), "a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})

    def run(_, x):
        return model["b"](model["a"](model["embed"](x)))

    def also_elsewhere(_, x):
        in_another_thread(run, None, x + 1)
        return run(None, x)

    x = torch.randn(4, 3)
    options |= {"axis": "depth", "layer": ["a", "b"]}
    same(kann.record(model, x, forward=also_elsewhere, **options), kann.record(model, x, forward=run, **options))


def test_calls_between_batches_are_not_recorded(model, words):
    """Such as those of a generator that asks the model what to give next."""

    def batches():
        for word in words:
            model(word[None])
            yield word[None]

    same(kann.record(model, batches()), by_hand(model, words))


def test_a_layer_that_only_another_thread_calls_counts_as_not_called(model, words):
    with pytest.raises(kann.KannError, match=r"never called while the model ran .*in the thread that records"):
        kann.record(model, words, forward=in_another_thread)


def switches():
    """What recording sets for all threads."""
    stance = torch._dynamo.eval_frame._stance
    return torch.backends.mha.get_fastpath_enabled(), stance.stance, list(warnings.filters)


def record_overlapping(models, data):
    """Record each model in a thread of its own, so that the first to begin is the first to end."""
    first_began, second_began, first_ended = (threading.Event() for _ in range(3))

    def first(model, batch):
        first_began.set()
        assert second_began.wait(30)
        return model(batch)

    def second(model, batch):
        second_began.set()
        assert first_ended.wait(30)
        assert not model.training
        assert not torch.backends.mha.get_fastpath_enabled()
        return model(batch)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(kann.record, models[0], data, forward=first, progress=False)
        assert first_began.wait(30)
        other = pool.submit(kann.record, models[1], data, forward=second, progress=False)
        result = one.result()
        first_ended.set()
        return result, other.result()


def test_switches_are_restored_when_the_last_of_several_recordings_ends(words):
    models, before = [Tagger(), Tagger()], switches()
    random = torch.get_rng_state()
    for recorded, model in zip(record_overlapping(models, words), models, strict=True):
        same(recorded, by_hand(model, words))
        assert model.training
    assert switches() == before
    assert torch.equal(torch.get_rng_state(), random)


def test_several_threads_record_the_same_model(model, words):
    model.train()
    for recorded in record_overlapping([model, model], words):
        same(recorded, by_hand(model, words))
    assert model.training
    assert "forward" not in vars(model.rnn)
    assert not model.rnn._forward_hooks


def test_a_recording_inside_a_recording_of_the_same_model(model, words):

    def batches():
        for word in words:
            same(kann.record(model, words, progress=False), by_hand(model, words))
            yield word[None]

    same(kann.record(model, batches()), by_hand(model, words))
    assert model.training


def test_a_recording_inside_the_forward_of_a_recorded_model():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            seen.append(kann.record(self.rnn, x, progress=False))
            return self.rnn(2 * x)[0]

    seen, model, x = [], Looks(), torch.randn(9, 7, 3)
    same(kann.record(model, x), kann.record(model.rnn, 2 * x))
    same(seen[0], kann.record(model.rnn, x))


def test_a_change_that_cannot_be_made_leaves_nothing_behind():
    def fails():
        raise OSError("no")

    for _ in range(2):
        with pytest.raises(OSError, match="no"), shared("test", fails):
            pass

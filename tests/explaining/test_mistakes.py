# ruff: noqa: D102  # models in tests say what they are by their names
"""What cannot be explained, and wrong arguments: a clear sentence each."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError, UnfinishedWarning
from kann.explaining import live_test, stages, untrained_copies
from kann.explaining import operators as choosing
from kann.explaining import options as clock
from kann.explaining import setup as setup_stage
from kann.explaining.options import Options
from kann.recording.sequence_data import SequenceData, real_steps
from tests.explaining import networks
from tests.explaining.networks import SEQUENCES, numbers, seeded, words


@pytest.fixture
def reader():
    return seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))


class Named(nn.Module):
    """Takes its data by name too."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


def explain(model, data, **options):
    return kann.explain(model, data, progress=False, **options)


def test_labels_and_tokens_of_another_number_of_sequences(reader, generator):
    x = numbers(generator)
    with pytest.raises(KannError, match="there are 35 labels for 24 sequences; pass one for each"):
        explain(reader, x, labels=[0] * 35)
    with pytest.raises(KannError, match="there are 2 tokens for 24 sequences"):
        explain(reader, x, tokens=[["a"], ["b"]])
    with pytest.raises(KannError, match="label of sequence 0 holds NaN"):
        explain(reader, x, labels=np.full(24, np.nan))
    with pytest.raises(KannError, match="there are 1 groups for 24 sequences"):
        explain(reader, x, groups=[1])


def test_tokens_that_do_not_match_the_states(generator):
    data = words(generator)
    tokens = [[f"w{number}" for number in row] for row in data.tolist()]
    with pytest.raises(KannError, match=r"sequence 0 has 12 states and 11 tokens"):
        explain(seeded(networks.Tagger), data, tokens=[row[1:] for row in tokens])
    with pytest.raises(KannError, match="tokens run in the other direction than the data: turned round they fit"):
        explain(seeded(networks.Tagger), data, tokens=[row[::-1] for row in tokens])


def test_a_readout_of_another_width(reader, generator):
    with pytest.raises(
        KannError, match=r"readout= has a weight of shape \(2, 7\), and the states of 'rnn' have 3 units"
    ):
        explain(reader, numbers(generator), readout=np.ones((2, 7)))


def test_a_network_without_anything_to_explain(generator):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(24, 2))
    with pytest.raises(KannError, match=r"explains networks that read sequences .* no recurrent layer, .* as layer="):
        explain(flat, numbers(generator))


def test_data_that_hold_nothing(reader, generator):
    batches = iter(numbers(generator).split(9))
    list(batches)
    with pytest.raises(KannError, match="a generator can be read only once, so pass a new one"):
        explain(reader, batches)
    with pytest.raises(KannError, match="the data hold no sequences"):
        explain(reader, [])
    with pytest.raises(KannError, match="there are 5 sequences, and whole ones are held out; pass at least 12"):
        explain(reader, numbers(generator)[:5])


def test_wrong_options(reader, generator, untyped):
    x = numbers(generator)
    with pytest.raises(KannError, match="seconds=-1 is no stretch of time; pass seconds>0"):
        explain(reader, x, seconds=-1)
    with pytest.raises(KannError, match="axis='space' is unknown"):
        explain(reader, x, axis="space")
    with pytest.raises(KannError, match="outputs='words' is unknown"):
        explain(reader, x, outputs="words")
    with pytest.raises(KannError, match="model is str, and not a torch module"):
        explain("model", x)
    with pytest.raises(KannError, match="layer= names 2 layers; along time an explanation is of one"):
        explain(reader, x, layer=["rnn", "head"])


def test_out_of_time(reader, generator):
    with pytest.raises(KannError, match=r"out of time: .* of seconds=1e-05 are spent"):
        explain(reader, numbers(generator), seconds=1e-5)


@pytest.fixture
def watch(monkeypatch):
    """A clock that goes on only where a test lets it: ``watch[0]`` is the time in seconds."""
    now = [0.0]
    for module in (clock, setup_stage):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_first_run_does_not_tell_how_long_others_take(reader, generator, watch):
    waits = [100.0]

    def forward(model, x):
        if waits:
            watch[0] += waits.pop()
        return model(x)

    found = setup_stage.look(reader, numbers(generator), Options(seconds=400, forward=forward))
    assert len(found.fitted_numbers) + len(found.held_out) == 24  # a quarter of 300 s would be 18 runs like the first


def test_the_first_live_run_does_not_tell_how_long_others_take(reader, generator, watch, monkeypatch):
    waits, size = [50.0], []
    call, choose = SequenceData.call, live_test.size_in_time

    def slow(source, batch):
        if waits:
            watch[0] += waits.pop()
        return call(source, batch)

    def sized(*arguments):
        monkeypatch.setattr(SequenceData, "call", slow)
        size.append(choose(*arguments))
        return size[-1]

    monkeypatch.setattr(live_test, "size_in_time", sized)
    explain(reader, numbers(generator), seconds=1000)
    assert not waits
    assert set(live_test.SIZES[0]) <= set(size[0])  # the whole test


def test_copies_for_which_there_is_no_time_are_not_made(generator, watch, monkeypatch):
    made, copy = [], untrained_copies.trust_of_copy

    def slow(*arguments):
        watch[0] += 50
        made.append(arguments[-1])
        return copy(*arguments)

    monkeypatch.setattr(untrained_copies, "trust_of_copy", slow)
    found = explain(seeded(networks.LinearNetwork), numbers(generator), seconds=200)
    assert made == [0]
    assert "not compared with untrained copies: there was no time for 5 copies" in " ".join(found.choices)
    assert all(mode.learned is None for mode in found.trust.modes)


def test_what_no_longer_fits_into_the_time_is_left_out(reader, generator, monkeypatch):
    x = numbers(generator)

    fit, budget = stages.fit_operators, []
    monkeypatch.setattr(clock.Clock, "left", property(lambda clock: 0.0 if budget else 600.0))

    def spend(*arguments):
        budget.append(0)  # the fit took all the time that there was
        return fit(*arguments)

    monkeypatch.setattr(stages, "fit_operators", spend)
    found = explain(reader, x, seconds=600)
    assert found.effects is None
    assert found.trust is None
    assert "Time was up before testing live: that part is left out." in found.choices
    assert found.facts.verdict.decided_by == "unmeasured"
    assert "How far modes can be trusted was not measured." in found.choices
    assert any("trust was not measured" in sentence for sentence in found.sentences)


def test_an_interruption_keeps_what_is_finished(reader, generator, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "ask_for_trust", interrupted)
    with pytest.warns(UnfinishedWarning, match="interrupted while asking how far to trust it"):
        found = explain(reader, numbers(generator)[:, :6])
    assert found.effects is not None
    assert found.trust is None
    assert found.movers is None
    assert "Interrupted while asking how far to trust it" in " ".join(found.choices)


def test_groups_are_held_out_together(reader, generator):
    groups = [f"patient {i % 9}" for i in range(SEQUENCES)]
    found = explain(reader, numbers(generator)[:, :6], groups=groups)
    held = {groups[i] for i in found.held_out}
    fitted = {groups[i] for i in range(SEQUENCES) if i not in set(found.held_out.tolist())}
    assert not held & fitted


def test_groups_in_a_tensor_are_held_out_together(reader, generator):
    groups = torch.arange(SEQUENCES) % 6
    found = explain(reader, numbers(generator)[:, :6], groups=groups)
    held = set(groups[found.held_out].tolist())
    assert len(held) == 3
    assert len(found.held_out) == 12  # all four sequences of each


def test_all_sequences_that_are_held_out_are_judged(reader, generator):
    found = explain(reader, numbers(generator), groups=[number // 3 for number in range(SEQUENCES)])
    assert not found.facts.live.are_copies
    assert sorted(found.effects.judged.tolist()) == sorted(found.held_out.tolist())  # by their numbers in the data


@pytest.mark.parametrize("kind", ["tensor", "list", "mapping", "batches"])
def test_repeats_are_held_out_together(kind, generator):
    different = numbers(generator)[:12]
    x = torch.cat([different, different])
    content = {"tensor": x, "list": list(x), "mapping": {"x": x}, "batches": [x[:10], x[10:]]}[kind]
    found = setup_stage.look(seeded(lambda: Named(nn.GRU(2, 3, batch_first=True))), content, Options())
    fitted, held_out = (set((part % 12).tolist()) for part in (found.fitted_numbers, found.held_out))
    assert not fitted & held_out
    assert len(found.fitted_numbers) + len(found.held_out) == 24


def test_copies_count_once_in_intervals(reader, generator):
    """Eight sequences in ten copies each would give intervals of 40 held-out sequences."""
    copies = numbers(generator)[:8].repeat(10, 1, 1)
    found = explain(reader, copies, labels=[i % 2 for i in range(80)])
    held = len(np.unique(found.held_out % 8))
    assert len(np.unique(found.effects.groups)) == held < len(found.held_out)
    assert np.ptp(found.effects.interval("pca")[0]) > 0.3
    assert found.facts.accuracy.high - found.facts.accuracy.low > 0.3
    assert found.facts.live.groups == held
    assert found.facts.live.are_copies


def test_sequences_that_all_read_the_same(reader, generator):
    with pytest.raises(KannError, match="all 24 sequences would be held out, since those of one group, and those that"):
        explain(reader, numbers(generator)[:1].repeat(24, 1, 1))


def test_a_single_group_cannot_be_held_out(reader, generator):
    with pytest.raises(KannError, match=r"all 24 sequences would be held out, .* more and smaller groups"):
        explain(reader, numbers(generator)[:, :6], groups=["one patient"] * SEQUENCES)


def test_gates_are_compared_on_whole_groups(generator, monkeypatch):
    compared = []
    monkeypatch.setattr(choosing, "several_step_error", lambda koopman, states: compared.append(states) or 1.0)
    inputs = numbers(generator).numpy()
    values = np.cumsum(inputs, axis=1) + 0.1 * np.roll(inputs, 1, axis=0)
    states = kann.States.from_padded(values, inputs=inputs)
    groups = [i // 3 for i in range(SEQUENCES)]
    choosing.fit_operators(states, groups, None, None)
    kept = [i for i in range(SEQUENCES) if any(np.array_equal(states[i], own) for own in compared[0])]
    assert kept == [i for i in range(SEQUENCES) if groups[i] % choosing.KEPT_FOR_COMPARING == 0]


def test_the_model_is_left_as_it_was(generator):
    network = seeded(networks.Tagger).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    explain(network, words(generator)[:, :6])
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(part._forward_hooks for part in network.modules())


def test_lengths_that_do_not_fit_the_data(generator):
    model, data = seeded(networks.PackedReader), words(generator)
    with pytest.raises(KannError, match="there are 23 lengths for 24 sequences; pass one for each"):
        explain(model, data, lengths=[5] * (SEQUENCES - 1))
    with pytest.raises(KannError, match="sequence 3 has length 40, and the data have 12 steps"):
        explain(model, data, lengths=np.where(np.arange(SEQUENCES) == 3, 40, 12))
    with pytest.raises(KannError, match=r"data is a pair of shapes \(24, 12\) and \(24,\); pass the first alone"):
        explain(model, (data, torch.full((SEQUENCES,), 12)))


def test_a_model_that_takes_lengths_and_gets_none_is_told_of(generator):
    found = explain(seeded(networks.PackedReader), words(generator))
    assert "The model takes lengths, and none were passed" in " ".join(found.choices)


def test_labels_that_classes_do_not_name(generator):
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    x = numbers(generator)
    with pytest.raises(KannError, match="a label is 1, and classes= has 1 names"):
        explain(reader, x, labels=[0, 1] * (SEQUENCES // 2), classes=["no"])
    names = ["no", "yes"] * (SEQUENCES // 2)
    with pytest.raises(
        KannError, match=r"labels are names, such as 'no', .*; pass classes=\['no', 'yes'\], in the order"
    ):
        explain(reader, x, labels=names)
    with pytest.raises(KannError, match=r"the label 'yes' is not among classes=\['no', 'maybe'\]; pass all names"):
        explain(reader, x, labels=names, classes=["no", "maybe"])


def test_lengths_may_be_a_mask(generator):
    reader = seeded(networks.PackedReader)
    padded = words(generator)
    lengths = torch.tensor([8 + i % 5 for i in range(SEQUENCES)])
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    found = [setup_stage.look(reader, padded, Options(lengths=each)) for each in (lengths, mask)]
    assert found[0].fitted_numbers.tolist() == found[1].fitted_numbers.tolist()
    parts = [real_steps(each.sequences.part(np.arange(5))[1]["lengths"]).lengths.tolist() for each in found]
    assert parts[0] == parts[1]
    with pytest.raises(KannError, match="lengths= is a mask of 5 steps, and the data have 12; pass one mark for each"):
        explain(reader, padded, lengths=mask[:, :5])
    with pytest.raises(KannError, match="a mask with padding before some sequences, and the model takes lengths"):
        explain(reader, padded, lengths=mask.flip(1))


def test_names_of_more_or_fewer_classes_than_there_are(reader, generator):
    with pytest.raises(KannError, match="classes= has 3 names, and the network's 1 outputs tell 2 classes apart"):
        explain(reader, numbers(generator), classes=["a", "b", "c"])
    with pytest.raises(KannError, match="classes= has 2 names, and the network's 1 outputs tell 1 answers apart"):
        explain(reader, numbers(generator), classes=["a", "b"], outputs="labels")

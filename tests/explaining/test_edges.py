"""Data and networks at the edge of what can be explained: what cannot be measured is left out, and said."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import kann
from kann.analysis.decisions import read_out
from kann.errors import KannError
from kann.explaining import setup, stages
from kann.explaining.options import Options
from kann.explaining.outputs import _most_frequent
from kann.explaining.sequences import Sequences
from tests.explaining import networks
from tests.explaining.networks import SEQUENCES, numbers, seeded, words
from tests.reporting.html_pages import content_of


class Overflowing(networks.Reader):
    """Its outputs are no numbers, though its states are."""

    def forward(self, x):
        """NaN for each sequence."""
        return super().forward(x) * torch.nan


def reader(outputs):
    return seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, outputs)))


def explain(model, data, **options):
    return kann.explain(model, data, progress=False, **options)


def test_as_many_classes_as_steps(generator):
    found = explain(reader(6), numbers(generator)[:, :6], outputs="class")
    assert "a linear readout of its last state" in " ".join(found.choices)


@pytest.mark.parametrize(("lowest", "remedy"), [(-1, r"labels \+ 1"), (3, "labels - 3")])
def test_labels_that_no_output_stands_for(lowest, remedy, generator):
    labels = torch.arange(SEQUENCES) % 2 + lowest
    with pytest.raises(KannError, match=f"labels run from {lowest} to {lowest + 1}.* pass {remedy}"):
        explain(reader(2), numbers(generator)[:, :6], labels=labels)
    with pytest.raises(KannError, match=r"pass \(labels > 0\)"):
        explain(reader(2), numbers(generator)[:, :6], labels=torch.arange(SEQUENCES) % 2 * 2 - 1)


def test_the_most_frequent_label_of_all_sequences_is_scored_on_those_held_out():
    labels = [0] * 6 + [1] * 4
    assert _most_frequent(labels, np.array([5, 6, 7, 8])) == 1 / 4  # 1 is more frequent among these
    assert _most_frequent(labels, np.arange(10)) == 6 / 10
    marks = [np.array([1.0, float(i < 2)]) for i in range(6)]  # of two yes-or-no outputs
    assert _most_frequent(marks, np.array([0, 5])) == (1 + 1 / 2) / 2


def test_classes_for_every_step_of_a_network_that_decides_once(generator):
    with pytest.raises(KannError, match=r"the label of sequence 0 has shape \(6,\), and one class is needed"):
        explain(reader(2), numbers(generator)[:, :6], labels=torch.zeros(SEQUENCES, 6).long(), outputs="class")


def test_a_score_that_cannot_be_measured_does_not_take_the_live_test_away(generator, monkeypatch):
    def fails(*arguments):
        raise KannError("labels do not fit")

    monkeypatch.setattr(stages, "measure_accuracy", fails)
    found = explain(reader(2), numbers(generator)[:, :6], labels=torch.zeros(SEQUENCES).long())
    assert found.effects is not None
    assert "Measuring how well it does was left out: labels do not fit." in found.choices


def test_outputs_that_are_not_finite(generator):
    found = explain(
        seeded(lambda: Overflowing(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1))), numbers(generator)[:, :6]
    )
    assert "all outputs of the network are NaN or Inf" in " ".join(found.choices)
    assert found.effects is None


def test_lists_of_numbers_are_words(generator):
    found = explain(seeded(networks.Tagger), words(generator)[:, :6].tolist())
    assert found.movers.by == "tokens"
    assert [len(each) for each in found.page["tokens"]] == found.states.lengths.tolist()


def test_why_there_are_no_untrained_copies(generator):
    network, x = seeded(networks.LinearNetwork), numbers(generator)
    assert "untrained copies" not in " ".join(explain(network, x, forward=lambda model, batch: model(batch)).choices)
    found = explain(network, x, forward=lambda model, batch: network(batch))
    assert "untrained copies: a copy could not be recorded" in " ".join(found.choices)


def test_modes_that_nothing_says_training_made_count_only_if_the_network_is_right(generator, monkeypatch):
    monkeypatch.delattr(networks.LinearUnit, "reset_parameters")
    network, x = seeded(networks.LinearNetwork), numbers(generator)
    verdict = explain(network, x).facts.verdict
    assert (verdict.word, verdict.decided_by) == ("nothing", "untested")
    with torch.no_grad():
        found = explain(network, x, labels=network(x) > 0)
    assert found.facts.verdict.word == "found"
    assert "how the parameters of 'unit' began is not known" in found.facts.not_compared


def test_batches_keep_their_order_so_that_lengths_stay_with_their_sequences(generator):
    x, lengths = numbers(generator), np.arange(SEQUENCES) % 5 + 3
    sequences = Sequences(reader(1), list(x.split(5)), Options(lengths=lengths))
    chosen = sequences.sorted_by_length(np.array([1, 4, 8, 13]))
    data, run = sequences.part(chosen)
    assert torch.equal(torch.cat(list(data)), x[chosen])
    assert run["lengths"].tolist() == lengths[chosen].tolist()


class SigmoidReader(networks.Reader):
    """Gives probabilities, whose sigmoid is no module."""

    def forward(self, x):
        """A number between 0 and 1 for each sequence."""
        return torch.sigmoid(super().forward(x))


@pytest.mark.parametrize("is_module", [True, False])
def test_a_sigmoid_is_seen_on_the_page(is_module, generator, tmp_path):
    x = numbers(generator)
    if is_module:
        model = seeded(
            lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()))
        )
        linear = model.head[0]
    else:
        model = seeded(lambda: SigmoidReader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))
        linear = model.head
    with torch.no_grad():  # half of the sequences are a yes
        logits = linear(model.rnn(x)[0][:, -1])
        linear.bias -= logits.quantile(0.5)
        said = model(x)[:, 0] > 0.5
    found = explain(model, x, outputs="class")
    assert found.effects.outputs == "class"
    _, page, _ = content_of(found.report(tmp_path / "r.html"))
    expected = said[found.held_out].int().tolist()
    assert [row["prediction"] for row in page["sequences"]] == [str(each) for each in expected]
    assert len(set(expected)) == 2


@pytest.mark.parametrize("pooled", [False, True])
def test_a_sigmoid_that_rounds_to_one_is_seen(pooled, generator, tmp_path):
    """In float32 the outputs of large numbers are 1, and no logarithm brings these back."""

    class Sure(networks.Reader):
        def forward(self, x):
            states = self.rnn(x)[0]
            if pooled:
                return torch.sigmoid(self.head(states.mean(dim=1)))
            return torch.sigmoid(self.head(states[:, -1]))

    x, model = numbers(generator), seeded(lambda: Sure(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))
    with torch.no_grad():
        states = model.rnn(x)[0]
        logits = model.head(states.mean(dim=1) if pooled else states[:, -1])
        model.head.weight *= 40 / (logits.max() - logits.min())
        model.head.bias.fill_(0)
        model.head.bias -= torch.logit(model(x), eps=1e-6).quantile(0.5)
        assert model(x).max() == 1
    found = explain(model, x)
    assert any("outputs are the sigmoid of a linear readout" in choice for choice in found.choices)
    assert np.isfinite(found.page["network_outputs"]).all()
    text, page, _ = content_of(found.report(tmp_path / "r.html"))
    assert page["readout_is_all"] != pooled
    assert "alone, which is not all that the network reads" in text  # what is said if it is not all
    assert "reads at the mean" not in text  # nothing is set to a mean where a head reads pooled states


def test_values_are_compared_with_their_labels(generator):
    x, model = numbers(generator), reader(2)
    with torch.no_grad():
        labels = model(x) + 0.02 * torch.randn(24, 2, generator=generator)
    found = explain(model, x, labels=labels)
    assert 0.5 < found.accuracy[0] < 1
    assert found.accuracy[1] == 0
    text = " ".join(found.sentences)
    assert f"The network's outputs match the labels of held-out sequences with an R² of {found.accuracy[0]:.3f}" in text
    assert "decision" not in text
    assert "decide" not in text
    fills = found.numbers()["effects"]["fills"]
    assert fills.keys() == found.effects.kept.keys()
    assert set(fills["balanced"]) <= {"linear", "curve", "quadratic"}


def test_several_answers_are_compared_with_their_labels(generator):
    x, model = numbers(generator), reader(3)
    with torch.no_grad():
        model.head.bias -= model(x).quantile(0.5, dim=0)  # between two outputs, so that none is zero
        marks = 2 * (model(x) > 0).int() - 1  # −1 and 1
    found = explain(model, x, labels=marks, outputs="labels")
    assert found.accuracy[0] == 1
    assert 0.3 < found.accuracy[1] < 0.8
    assert "The network's answers are right in 100.0 % on the held-out sequences" in " ".join(found.sentences)


class Blocks(nn.Module):
    """Reads words through blocks of one width, or through a single one again and again, and a mask over padding."""

    def __init__(self, *, shared=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 2)
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks[:1] if shared else blocks)
        self.uses = 4 // len(self.blocks)

    def forward(self, input_ids, attention_mask):
        """The outputs (b, 2); a position knows what was read before it."""
        x = self.embedding(input_ids).cumsum(dim=1) / 3
        for block in list(self.blocks) * self.uses:
            x = block(x)
        return self.head((x * attention_mask[..., None]).sum(dim=1))


@pytest.mark.parametrize(("shared", "layer"), [(False, "blocks.*"), (True, "blocks.0")])
def test_blocks_named_by_a_pattern_and_a_block_that_is_used_again(shared, layer):
    torch.manual_seed(0)
    lengths = torch.randint(3, 8, (40,))
    data = {
        "input_ids": torch.randint(10, (40, 7)),
        "attention_mask": (torch.arange(7) < lengths[:, None]).long(),
    }
    found = kann.explain(
        Blocks(shared=shared), data, layer=layer, axis="depth", groups=[i // 2 for i in range(40)], progress=False
    )
    assert found.effects is not None
    where = "after every use of block 'blocks.0'" if shared else "after block 'blocks.2', in the middle"
    assert any(where in choice for choice in found.choices)


def test_predictions_on_the_page_are_the_networks_own(generator, tmp_path):
    """Of a head that reads both directions, what it reads of the explained one alone decides otherwise."""
    network, data = seeded(networks.PackedReader), words(generator, ragged=True)
    with torch.no_grad():
        network.head.weight[:, 4:] *= 20  # the other direction decides
        lengths = torch.tensor([len(each) for each in data])
        outputs = network(nn.utils.rnn.pad_sequence(data, batch_first=True), lengths).numpy()
        network.head.bias += torch.tensor([-1.0, 1.0]) * float(np.median(outputs[:, 0] - outputs[:, 1])) / 2
        own = network(nn.utils.rnn.pad_sequence(data, batch_first=True), lengths).argmax(dim=1).numpy()
    found = explain(network, data, layer="lstm.l1")
    _, page, _ = content_of(found.report(tmp_path / "page.html"))
    shown = [int(row["prediction"]) for row in page["sequences"]]
    assert shown == own[found.held_out[: len(shown)]].tolist()
    ends = found.states.starts + found.states.lengths - 1
    assert shown != read_out(found.page["readout"], found.states.values[ends]).argmax(axis=1).tolist()
    assert not page["readout_is_all"]
    assert page["fit"]["agreement"] is None


@pytest.mark.parametrize("kind", ["shuffle", "subset", "weighted", "batch sampler"])
def test_a_loader_that_shuffles_belongs_to_no_labels(kind, generator):
    data = torch.utils.data.TensorDataset(numbers(generator))
    in_batches = BatchSampler(RandomSampler(data), 8, drop_last=False)
    arguments = {
        "shuffle": {"batch_size": 8, "shuffle": True},
        "subset": {"batch_size": 8, "sampler": SubsetRandomSampler(range(SEQUENCES))},
        "weighted": {"batch_size": 8, "sampler": WeightedRandomSampler([1.0] * SEQUENCES, SEQUENCES)},
        "batch sampler": {"batch_sampler": in_batches},
    }
    loader = torch.utils.data.DataLoader(data, **arguments[kind])
    with pytest.raises(kann.KannError, match=r"the DataLoader shuffles, .* labels"):
        explain(reader(2), loader, labels=[0] * SEQUENCES)


class Causal(networks.Encoder):
    """A transformer whose positions see those before them; it decides at the last."""

    def forward(self, tokens):
        """The outputs (b, 2)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.encoder(self.embedding(tokens).cumsum(dim=1), mask=mask, is_causal=True)[:, -1])


def test_causal_attention_is_explained_along_depth(generator):
    found = explain(seeded(Causal), words(generator))
    assert "explained along depth" in found.choices[0]
    assert found.steps is not None


def test_of_very_many_steps_some_sequences_are_left_out(generator, monkeypatch):
    monkeypatch.setattr(setup, "STEPS_FITTED", 13 * networks.STEPS)
    monkeypatch.setattr(setup, "STEPS_HELD_OUT", 6 * networks.STEPS)
    monkeypatch.setattr(setup, "LEAST_HELD_OUT", 6)
    network = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))
    found = kann.explain(network, numbers(generator), progress=False)
    assert "13 of 18 sequences were fitted, and 6 others held out" in " ".join(found.choices)
    assert len(found.held_out) == 6

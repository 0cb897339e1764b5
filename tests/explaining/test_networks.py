"""Networks of all kinds, explained with one call and no option but their data."""

import json
import re
from importlib import resources

import numpy as np
import pytest
import torch
from kann_experiments.copy.task import Task
from torch import nn

import kann
from kann import zoo
from kann.analysis.decisions import read_out
from tests import flipflop
from tests.explaining import networks
from tests.explaining.networks import SEQUENCES, numbers, seeded, words


def explained(network, data, **options):
    found = kann.explain(network, data, progress=False, **options)
    assert 2 <= len(found.sentences) <= 4, found.sentences
    return found


def test_the_three_memories_of_a_flip_flop_are_stated(trained_flip_flop, tmp_path):
    x, _ = flipflop.trials(3, 50, 40, generator=torch.Generator().manual_seed(5), rate=0.08)
    found = explained(trained_flip_flop, x)
    text = " ".join(found.sentences)
    assert "Three memories can be trusted" in text
    low, high = re.search(r"\|λ\| from ([\d.]+) to ([\d.]+)", text).groups()
    assert 0.95 <= float(low) <= float(high) <= 1.01
    assert "Nothing can be concluded" not in text
    assert found.effects.kept["modes"][found.effects.counts.index(3)] > 0.95  # R² with three coordinates kept
    assert found.balance.count == 3
    assert (found.verdict, found.facts.live.fewest.count) == ("found", 3)
    assert [memory.learned for memory in found.facts.memories] == [True] * 3
    assert found.bilinear is not None
    assert "Inputs gate this network" in " ".join(found.choices)
    assert found.report(tmp_path / "report.html").stat().st_size < 8e6


def test_of_two_bidirectional_layers_the_one_that_counts_is_found(generator):
    x, depths = networks.brackets(200, 20, generator)
    tokens = [[".()"[word] for word in row] for row in x.tolist()]
    found = explained(networks.trained(networks.DepthTagger(), "depth_tagger"), x, labels=depths, tokens=tokens)
    assert found.facts.network.layer == "lstm.l0"  # forwards
    assert len(found.facts.scan) == 4
    assert (found.facts.scan[0].layer, found.facts.scan[0].is_explained) == ("lstm.l0", True)
    assert found.facts.live.fewest.count <= 2
    assert found.facts.accuracy.of_steps
    counter = found.facts.memories[0]
    assert ({each.name for each in counter.up} | {each.name for each in counter.down}) >= {"(", ")"}
    assert {each.name for each in counter.up}.isdisjoint({"(", ")"}) is False
    assert not {"(", ")"} <= {each.name for each in counter.up}  # one up, the other down
    text = " ".join(found.sentences)
    assert "'lstm.l0', which reads forwards, matters most" in text
    assert "'lstm.l1_reverse' is not used" in text
    assert "It counts: every input keeps this coordinate" in text
    adds = {fact.name: fact.adds for fact in found.facts.inputs.inputs}
    assert adds["“(”"] * adds["“)”"] < -0.25
    assert abs(adds["“.”"]) < 0.1


def test_parity_is_kept_by_zeros_and_flipped_by_ones(generator):
    x, odd = networks.bits(200, 20, generator)
    found = explained(networks.trained(networks.Parity(), "parity"), x, labels=odd)
    zero, one = found.facts.inputs.inputs
    assert (zero.name, zero.does, one.name, one.does) == ("0", "keeps", "1", "flips")
    assert -1.1 < one.eigenvalue.real < -0.5
    assert "0 keeps it" in " ".join(found.sentences)
    assert "1 flips it (λ = −" in " ".join(found.sentences)
    assert found.effects.kept["balanced"][0] > 0.95
    assert found.verdict != "nothing"


def test_the_modes_of_a_linear_unit_and_those_that_reach_the_output(generator):
    found = explained(seeded(networks.LinearNetwork), numbers(generator))
    eigenvalues = sorted(np.real(found.koopman.eigenvalues), reverse=True)
    np.testing.assert_allclose(eigenvalues, networks.LinearNetwork.EIGENVALUES, atol=1e-3)
    assert found.facts.reaching == (1, 3)
    assert "Two of 5 modes reach the outputs: 1 (λ = 0.9000), 3 (λ = 0.5000)" in " ".join(found.sentences)
    assert "Layer 'unit' is explained" in found.choices[0]
    assert "copying the previous state" in " ".join(found.choices)


def test_the_turning_memories_of_an_orthogonal_network_that_copies_are_stated():
    task, angles = Task(digits=2, blanks=3, letters=7), np.linspace(0.2, 3.0, 10)
    network = seeded(lambda: networks.orthogonal_copier(task, angles))
    x, answers = task.sequences(task.every())
    found = explained(network, x, labels=answers.tolist())
    assert found.accuracy[0] == 1.0
    np.testing.assert_allclose(np.abs(found.koopman.eigenvalues), 1.0, atol=1e-3)
    turned = np.sort(np.abs(np.angle(found.koopman.eigenvalues)))[::2]
    np.testing.assert_allclose(turned, angles, atol=1e-3)
    text = " ".join(found.sentences)
    assert "right on 100.0 % of the held-out steps" in text
    assert "20 memories can be trusted" in text
    assert "(|λ| = 1.000, a pair of eigenvalues counts twice)" in text
    turns = [float(steps) for steps in re.findall(r"no fading was measured, it turns once in ([\d.]+) steps", text)]
    assert len(turns) >= 2  # turns longer than the sequences are not claimed
    for steps in turns:  # each is one of those that were set, to the three digits that are written
        assert np.min(np.abs(2 * np.pi / angles / steps - 1)) < 5e-3


def test_the_shipped_sentiment_network():
    model = zoo.load("sentiment")
    reviews = json.loads(resources.files("kann.zoo").joinpath("sentiment/reviews.json").read_text(encoding="utf-8"))
    located = [model.vocabulary.locate(review["text"]) for review in reviews]
    tokens = [[review["text"][a:b] for a, b in spans] for review, (_, spans) in zip(reviews, located, strict=True)]
    labels = [review["label"] for review in reviews]
    found = explained(
        model.network, [ids for ids, _ in located], tokens=tokens, labels=labels, classes=["negative", "positive"]
    )
    assert found.accuracy[0] > 0.7
    assert found.movers.by == "tokens"
    assert "The network is right on" in " ".join(found.sentences)
    assert "linear readout of its last state" in " ".join(found.choices)
    assert found.page["labels"][0] in ("negative", "positive")


def test_the_shipped_autoencoder_of_heartbeats():
    model = zoo.load("ecg")
    beats = torch.as_tensor(np.asarray(model.beats.values), dtype=torch.float32)[:, ::7]
    found = explained(model.network, beats[::5])
    assert "Layer 'encoder'" in found.choices[0]
    assert found.effects.outputs == "values"
    assert found.movers.by == "steps"
    assert len(found.page["signals"][0]) == beats.shape[1]


def test_two_packed_bidirectional_layers_are_told_their_lengths(generator):
    data = words(generator, ragged=True)
    found = explained(seeded(networks.PackedReader), data)
    choices = " ".join(found.choices)
    assert "'lstm.l1', which reads forwards; pass layer='lstm.l1_reverse'" in choices
    assert "'hc'" in choices
    assert found.koopman.dim == 8
    assert [len(each) for each in found.page["tokens"]] == found.states.lengths.tolist()
    assert found.page["readout"].weight.shape == (2, 8)
    assert not found.page["readout"].weight[:, 4:].any()  # nothing is read of the cell state


def test_an_lstm_whose_head_reads_h(generator):
    network = seeded(lambda: networks.Reader(nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)))
    found = explained(network, numbers(generator))
    assert found.koopman.dim == 8
    ends = found.states.starts + found.states.lengths - 1
    with torch.no_grad():
        truth = network.head(torch.from_numpy(found.states.values[ends, :4])).numpy()
    np.testing.assert_allclose(read_out(found.page["readout"], found.states.values[ends]), truth, atol=1e-5)


def test_stacked_layers_that_decide_at_every_step(generator, tmp_path):
    found = explained(seeded(networks.Tagger), words(generator))
    assert "of the state at every step" in " ".join(found.choices)
    assert found.effects.outputs == "class"
    assert found.movers.by == "tokens"
    assert found.report(tmp_path / "tagger.html").exists()


def test_an_autoencoder(generator):
    found = explained(seeded(networks.Autoencoder), numbers(generator))
    assert "'encoder'" in found.choices[0]
    assert found.effects.outputs == "values"
    assert "R² of" in " ".join(found.sentences)


def test_several_labels(generator):
    network = seeded(lambda: networks.Reader(nn.GRU(2, 5, batch_first=True), nn.Linear(5, 3)))
    with torch.no_grad():  # so that answers differ from sequence to sequence
        network.head.weight.mul_(10)
        network.head.bias.zero_()
    labels = torch.randint(0, 2, (SEQUENCES, 3), generator=generator)
    found = explained(network, numbers(generator), labels=labels)
    assert found.effects.outputs == "labels"
    assert "of the network's answers" in " ".join(found.sentences)


def test_a_transformer_encoder_along_depth(generator, tmp_path):
    found = explained(seeded(networks.Encoder), words(generator))
    assert "along depth" in found.choices[0]
    assert found.page["step_name"] == "layer"
    assert set(found.states.lengths) == {5}  # what the first of four blocks reads, and what each gives
    assert "kept after its middle block" in " ".join(found.sentences)
    assert found.memory.compared == ("outputs",)
    assert found.report(tmp_path / "depth.html").exists()


def test_a_resnet_along_depth(generator):
    found = explained(seeded(networks.ResNet), torch.randn(SEQUENCES, 1, 4, 4, generator=generator))
    assert "'blocks.0' to 'blocks.4'" in found.choices[0]
    assert found.koopman.dim == 6
    assert found.effects is not None
    assert found.trust.folds >= 3
    assert found.memory is None  # it reads images


def test_a_pooled_head_behind_a_relu(generator):
    data = [row[: 8 + i % 5] for i, row in enumerate(numbers(generator))]
    found = explained(seeded(networks.PooledReader), data)
    assert "a head that begins with a linear layer of the mean of its states" in " ".join(found.choices)


@pytest.mark.parametrize("kind", ["loader", "mapping", "packed"])
def test_data_of_other_kinds(kind, generator):
    x = numbers(generator)[:, :8]
    network = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))
    if kind == "loader":
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(len(x))), batch_size=5)
    elif kind == "mapping":
        data = {"x": x}
    else:
        network = seeded(lambda: nn.GRU(2, 3))
        data = torch.nn.utils.rnn.pack_sequence(list(x))
    found = explained(network, data)
    assert found.koopman.dim == 3
    assert len(found.held_out) == 9


def test_a_loader_of_words_reads_as_the_words_themselves(generator):
    data, network = words(generator), seeded(networks.Tagger)
    batches, whole = (explained(network, each) for each in (torch.utils.data.DataLoader(data, batch_size=5), data))
    assert batches.held_out.tolist() == whole.held_out.tolist()
    assert batches.page["tokens"] == whole.page["tokens"]


def test_batches_of_words_and_lengths_from_a_loader_are_tested_live(generator):
    lengths = torch.full((networks.SEQUENCES,), networks.STEPS)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(words(generator), lengths), 5)
    found = explained(seeded(networks.PackedReader), loader, labels=[0, 1] * (networks.SEQUENCES // 2))
    assert found.effects is not None
    assert found.accuracy is not None

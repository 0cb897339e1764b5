"""Mistakes that new users made: each is refused in a sentence that names the remedy, or is said in the choices."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, TensorDataset

import kann
from kann.errors import KannError, PaddingWarning
from kann.explaining import options as clock
from kann.explaining import setup
from kann.explaining.options import Options
from kann.explaining.sequences import Sequences
from kann.zoo.copy_task import Task
from tests import flipflop
from tests.explaining import known, networks
from tests.explaining.networks import SEQUENCES, STEPS, numbers, seeded, words


class Stepwise(nn.Module):
    """A value at each step, with an axis of its own or without."""

    def __init__(self, *, squeezed):
        super().__init__()
        self.rnn, self.head, self.squeezed = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1), squeezed

    def forward(self, x):
        """Values (B, T) or (B, T, 1)."""
        values = self.head(self.rnn(x)[0])
        if self.squeezed:
            return values[..., 0]
        return values


class Masked(networks.Encoder):
    """A transformer that is told of padding, which is word 0."""

    def forward(self, words):
        """The mean over positions decides."""
        h = self.encoder(self.embedding(words), src_key_padding_mask=words == 0)
        return self.head(h.mean(dim=1))


def look(model, data, **options):
    return setup.look(model, data, Options(**options))


@pytest.mark.parametrize(
    ("squeezed", "shape", "message"),
    [
        (
            True,
            (STEPS, 1),
            rf"sequence 0 has shape \({STEPS}, 1\), and the network has {STEPS} outputs; pass \({STEPS},\)",
        ),
        (True, (STEPS - 1,), rf"sequence 0 has shape \({STEPS - 1},\), and the network has {STEPS} outputs; pass"),
        (False, (STEPS - 1,), rf"sequence 0 has shape \({STEPS - 1},\), and the network gave outputs at {STEPS} steps"),
        (False, (STEPS - 1, 1), rf"sequence 0 has shape \({STEPS - 1}, 1\), and the network gave outputs at {STEPS}"),
        (False, (STEPS, 2), rf"sequence 0 has shape \({STEPS}, 2\), and the network has 1 outputs; pass \(steps, 1\)"),
    ],
)
def test_labels_of_another_shape_are_refused(squeezed, shape, message, generator):
    labels = torch.randn(SEQUENCES, *shape, generator=generator)
    with pytest.raises(KannError, match=message):
        look(seeded(lambda: Stepwise(squeezed=squeezed)), numbers(generator), labels=labels)


@pytest.mark.parametrize(("squeezed", "shape"), [(True, (STEPS,)), (False, (STEPS,)), (False, (STEPS, 1))])
def test_labels_of_the_right_shape_are_taken(squeezed, shape, generator):
    labels = torch.randn(SEQUENCES, *shape, generator=generator)
    found = look(seeded(lambda: Stepwise(squeezed=squeezed)), numbers(generator), labels=labels)
    assert found.outputs.kind == "values"


def test_classes_for_fewer_steps_than_there_are(generator):
    data = words(generator)
    with pytest.raises(KannError, match=r"has shape \(11,\), and the network gave outputs at 12 steps; pass one label"):
        look(seeded(networks.Tagger), data, labels=data[:, 1:] % 3)
    assert look(seeded(networks.Tagger), data, labels=data % 3).outputs.kind == "class"


def test_classes_may_be_whole_numbers_in_floats(generator):
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    labels = torch.arange(SEQUENCES) % 2
    found = kann.explain(reader, numbers(generator), labels=labels.float(), progress=False)
    assert found.accuracy is not None


def test_numbers_outside_the_vocabulary(generator):
    message = r"the data hold numbers from \d+ to 1\d, and 'embedding' has 9 rows \(0 to 8\); pass numbers of its voc"
    with pytest.raises(KannError, match=message):
        kann.explain(seeded(networks.Tagger), words(generator) + 9, progress=False)
    with pytest.raises(KannError, match=message):
        kann.record(seeded(networks.Tagger), words(generator) + 9, layer="rnn")


@pytest.mark.parametrize(
    ("ask", "message"), [(lambda x: [x][1], "list index out of range"), (lambda x: x.sum(5), "Dimension out of range")]
)
def test_other_errors_of_indices_are_the_models_own(ask, message, generator):
    class Wrong(networks.Tagger):
        def forward(self, words):
            """Ask for what is not there."""
            return ask(super().forward(words))

    with pytest.raises(IndexError, match=message):
        kann.record(seeded(Wrong), words(generator), layer="rnn")


def test_text_as_data(generator):
    texts = [[str(number) for number in row] for row in words(generator).tolist()]
    message = r"the data hold text, such as '\d', and models read numbers; pass the numbers of the words"
    with pytest.raises(KannError, match=message):
        look(seeded(networks.Tagger), texts)
    with pytest.raises(KannError, match="the data hold text, such as 'a b'"):
        look(seeded(networks.Tagger), ["a b"] * SEQUENCES)


@pytest.mark.parametrize("width", [(), (1,)])
def test_data_and_labels_in_a_pair(width, generator):
    x = numbers(generator)
    with pytest.raises(
        KannError, match=r"data is a pair of shapes \(24, 12, 2\) and \(24, 12.*\); pass the first alone"
    ):
        look(seeded(lambda: Stepwise(squeezed=True)), (x, torch.ones(SEQUENCES, STEPS, *width)))


def test_two_batches_are_no_pair(generator):
    x = numbers(generator)
    found = look(seeded(lambda: Stepwise(squeezed=True)), [x, numbers(generator)])
    assert found.sequences.count == 2 * SEQUENCES


def test_one_text_for_each_sequence(generator):
    data = words(generator)
    with pytest.raises(KannError, match=r"the tokens of sequence 0 are one text, '\d .*; pass a list with one word"):
        look(seeded(networks.Encoder), data, tokens=[" ".join(map(str, row)) for row in data.tolist()])
    found = look(seeded(networks.Encoder), data, tokens=[list(map(str, row)) for row in data.tolist()])
    assert "tokens= was not used: along depth a step is a layer, and no word is read at it." in found.choices


def test_tokens_may_be_an_array(generator):
    data = words(generator)
    assert look(seeded(networks.Tagger), data, tokens=data.numpy().astype(str)).options.tokens.shape == data.shape


def test_time_that_is_up_before_it_began(monkeypatch):
    watch = clock.Clock(4)
    monkeypatch.setattr(clock.Clock, "spent", 4.5)
    with pytest.raises(KannError, match=r"4.5 of seconds=4 are spent before recording began \(a first call also loads"):
        watch.require(0.0, "recording")


def test_positions_of_a_transformer_are_no_memory(generator):
    found = look(seeded(networks.Encoder), words(generator), layer="encoder.layers.3")
    assert "Attention hands no state from one position to the next" in found.choices[0]
    assert "axis='depth'" in found.choices[0]
    found = look(seeded(networks.Tagger), words(generator), layer="rnn")
    assert "Attention" not in found.choices[0]


def test_padding_that_attention_knows_is_told_of(generator):
    model, data = seeded(Masked), words(generator) % 8 + 1
    lengths = torch.tensor([6 + i % 5 for i in range(SEQUENCES)])
    padded = torch.where(torch.arange(STEPS) < lengths[:, None], data, 0)
    options = {"layer": "encoder.layers.*", "axis": "depth"}
    with pytest.warns(PaddingWarning, match="attention masks some positions as padding, .* pass lengths="):
        states = kann.record(model, padded, **options)
    assert len(states) == SEQUENCES * STEPS
    assert len(kann.record(model, padded, lengths=lengths, **options)) == lengths.sum()
    assert len(kann.record(model, data, **options)) == SEQUENCES * STEPS  # nothing is masked: no warning
    found = kann.explain(model, padded, progress=False)
    assert any(choice.startswith("Warning: the network's attention masks some positions") for choice in found.choices)


@pytest.mark.parametrize("kind", ["list", "lengths", "batches"])
def test_labels_may_be_as_long_as_their_sequences(kind, generator):
    ragged = words(generator, ragged=True)
    labels, lengths = [own % 3 for own in ragged], torch.tensor([len(own) for own in ragged])
    padded = nn.utils.rnn.pad_sequence(ragged, batch_first=True)
    options = {"list": {}, "lengths": {"lengths": lengths}, "batches": {"lengths": 1}}[kind]
    data = {"list": ragged, "lengths": padded, "batches": list(zip(padded.split(6), lengths.split(6), strict=True))}[
        kind
    ]
    assert look(seeded(networks.Tagger), data, labels=labels, **options).outputs.kind == "class"
    if kind != "batches":
        with pytest.raises(KannError, match=r"the network gave outputs at .* steps; pass one label for each step"):
            look(seeded(networks.Tagger), data, labels=[own[1:] for own in labels], **options)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("steps", [False, True])
def test_labels_of_one_output_may_have_an_axis_for_it(steps, kind, generator):
    x = numbers(generator)
    model, labels = seeded(lambda: Stepwise(squeezed=False)), (x[..., :1] > 0).to(kind)
    if not steps:
        model, labels = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1))), labels[:, 0]
    plain, own_axis = (look(model, x, labels=each) for each in (labels[..., 0], labels))
    assert own_axis.outputs.kind == "class"
    assert all(map(np.array_equal, own_axis.options.labels, plain.options.labels))


def test_the_accuracy_of_one_output_needs_no_other_shape_of_labels(generator):
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)))
    x = numbers(generator)
    with torch.no_grad():
        reader.head.bias -= reader(x).quantile(0.5)  # both answers are given
    labels = (reader(x).detach() > 0).float()
    labels[::4] = 1 - labels[::4]
    found = kann.explain(reader, x, labels=labels, progress=False)
    wrong = np.mean(found.held_out % 4 == 0)
    assert found.accuracy[0] == pytest.approx(1 - wrong)
    assert set(found.page["labels"]) == {"0.0", "1.0"}


@pytest.mark.parametrize("kind", ["list", "lengths", "left"])
def test_padded_labels_lose_their_padding(kind, generator):
    ragged = words(generator, ragged=True)
    own = [each % 3 for each in ragged]
    side = {"left": "left"}.get(kind, "right")
    data, labels = (nn.utils.rnn.pad_sequence(each, True, 7, side) for each in (ragged, own))
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in ragged], True, 0, side)
    options = {"list": {}, "lengths": {"lengths": mask.sum(1)}, "left": {"lengths": mask}}[kind]
    if kind == "list":
        data, labels = ragged, nn.functional.pad(labels, (0, 3), value=7)
    found = look(seeded(networks.Tagger), data, labels=labels, **options)
    assert all(map(np.array_equal, found.options.labels, own))


def test_labels_that_are_not_padded_are_not_cut(generator):
    ragged = words(generator, ragged=True)
    with pytest.raises(KannError, match="has labels for 13 steps, and the network gave 12; pass one for each step"):
        look(seeded(networks.Tagger), ragged, labels=[torch.cat([own, own[:1]]) % 3 for own in ragged])
    with pytest.raises(KannError, match="sequence 0 has labels for 13 steps, and the network gave 12"):
        look(seeded(networks.Tagger), words(generator), labels=torch.zeros(SEQUENCES, STEPS + 1, dtype=int))
    values = torch.randn(SEQUENCES, 20, generator=generator)  # one for each of 20 outputs, the same at every step
    model = seeded(networks.Tagger)
    model.head = nn.Linear(5, 20)
    assert {len(label) for label in look(model, ragged, labels=values, outputs="values").options.labels} == {20}


def test_padding_of_labels_is_not_the_most_frequent_label(generator):
    ragged, model = words(generator, ragged=True), seeded(networks.Tagger)
    own = [model(each[None])[0].argmax(-1) for each in ragged]
    padded = nn.utils.rnn.pad_sequence(own, batch_first=True, padding_value=2)
    found = [kann.explain(model, ragged, labels=labels, progress=False) for labels in (own, padded)]
    assert found[1].accuracy[0] == 1
    assert found[1].accuracy == found[0].accuracy


def test_one_label_for_outputs_at_every_step_is_refused(generator):
    with pytest.raises(KannError, match="is one class, and the network gave outputs at 12 steps; pass one label for"):
        look(seeded(networks.Tagger), words(generator), labels=torch.zeros(SEQUENCES, dtype=torch.long))


def padded_with_zeros(x):
    lengths = torch.tensor([STEPS - i % 6 for i in range(len(x))])
    return x * (torch.arange(STEPS) < lengths[:, None])[..., None], lengths


@pytest.mark.parametrize("kind", ["tensor", "list", "batches"])
def test_sequences_that_end_in_zeros_are_named(kind, generator):
    x, lengths = padded_with_zeros(numbers(generator))
    data = {"tensor": x, "list": list(x), "batches": DataLoader(TensorDataset(x), batch_size=5)}[kind]
    count = int((lengths <= STEPS - 3).sum())
    found = look(seeded(lambda: Stepwise(squeezed=True)), data)
    assert any(choice.startswith(f"{count} of {SEQUENCES} sequences end in rows of zeros") for choice in found.choices)


def test_words_that_end_in_zeros_are_named(generator):
    data = (words(generator) % 8 + 1)[..., None]
    sequences = Sequences(seeded(networks.Tagger), padded_with_zeros(data)[0][..., 0], Options())
    assert sequences.ending_in_zeros() == SEQUENCES / 2


@pytest.mark.parametrize(
    "make",
    [
        lambda g: flipflop.trials(3, 200, 50, generator=g, rate=0.03)[0],
        lambda g: flipflop.trials(1, 200, 12, generator=g)[0],
        lambda g: known.pulses(200, 25, g)[0],
        lambda g: known.place_pulses(200, 25, g)[0],
        lambda g: known.flagged(200, 25, g)[0],
        lambda g: networks.bits(200, 30, g)[0],
        lambda g: networks.brackets(200, 30, g)[0],
        lambda g: (torch.rand(200, 30, 1, generator=g) < 0.02).float(),
        lambda g: one_hot(words(g), 9).float(),
        lambda g: torch.cat([numbers(g), torch.zeros(SEQUENCES, 20, 2)], dim=1),
        lambda g: Task(zero_blanks=True).sequences(np.arange(300).reshape(100, 3) % 9 + 1)[0],
    ],
)
def test_zeros_that_are_ordinary_are_not_named(make, generator):
    assert Sequences(nn.GRU(1, 2, batch_first=True), make(generator), Options()).ending_in_zeros() == 0


def test_zeros_behind_known_lengths_are_not_named(generator):
    x, lengths = padded_with_zeros(numbers(generator))
    assert Sequences(seeded(lambda: Stepwise(squeezed=True)), x, Options(lengths=lengths)).ending_in_zeros() == 0


@pytest.mark.parametrize("kind", ["tensor", "list", "batches"])
def test_nan_in_the_data_is_found_wherever_it_is(kind, generator):
    x = numbers(generator)
    x[3, 5, 1] = x[7] = torch.nan
    data = {"tensor": x, "list": list(x), "batches": DataLoader(TensorDataset(x), batch_size=5)}[kind]
    with pytest.raises(KannError, match=r"in 2 of 24 sequences; first: sequence 3, step 5, channel 1\); leave"):
        look(seeded(lambda: Stepwise(squeezed=True)), data)


def test_nan_that_the_model_does_not_read_is_no_mistake(generator):
    class Filling(Stepwise):
        def forward(self, x):
            """Read missing values as zeros."""
            return super().forward(x.nan_to_num())

    x, lengths = numbers(generator), torch.tensor([STEPS - 1 - i % 5 for i in range(SEQUENCES)])
    padded = torch.where((torch.arange(STEPS) < lengths[:, None])[..., None], x, torch.nan)
    look(seeded(lambda: Stepwise(squeezed=True)), padded, lengths=lengths)
    look(seeded(lambda: Filling(squeezed=True)), padded)
    with pytest.raises(KannError, match="NaN or infinite numbers in the data reach the outputs"):
        look(seeded(lambda: Stepwise(squeezed=True)), padded)


def test_labels_may_be_a_column(generator):
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    classes, x = torch.arange(SEQUENCES) % 2, numbers(generator)
    for column in (classes[:, None], classes[:, None].float()):
        found = look(reader, x, labels=column)
        assert found.outputs.kind == "class"
        assert [int(label) for label in found.options.labels] == classes.tolist()
    steps = words(generator)[..., None] % 3
    assert look(seeded(networks.Tagger), words(generator), labels=steps).outputs.kind == "class"
    for parts in (classes / 3, classes[:, None] / 3):
        with pytest.raises(KannError, match=r"pass \(2,\) for each sequence, or whole numbers that are classes"):
            look(reader, x, labels=parts)


@pytest.mark.parametrize("labels", [torch.zeros(SEQUENCES), ["a"] * SEQUENCES])
def test_labels_of_the_other_axis(labels, generator):
    x = numbers(generator)
    model = seeded(lambda: Stepwise(squeezed=True))
    with pytest.raises(KannError, match=rf"{SEQUENCES} labels for {STEPS} sequences; .* pass data.swapaxes\(0, 1\) if"):
        look(model, x.swapaxes(0, 1), labels=labels)
    with pytest.raises(KannError, match="there are 5 labels for 24 sequences; pass one for each sequence"):
        look(model, x, labels=labels[:5])


def test_a_matrix_for_a_bare_module_is_one_sequence(generator):
    with pytest.raises(KannError, match="there are 1 sequences, and whole ones are held out; pass at least 12"):
        look(nn.GRU(2, 3, batch_first=True), numbers(generator)[0])


def test_one_hot_labels_are_classes(generator):
    data, classes = words(generator), torch.arange(SEQUENCES) % 2
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    found = look(reader, numbers(generator), labels=nn.functional.one_hot(classes, 2).float())
    assert found.outputs.kind == "class"
    assert [int(label) for label in found.options.labels] == classes.tolist()
    marks = torch.ones(SEQUENCES, 2)
    assert look(reader, numbers(generator), labels=marks).outputs.kind == "labels"
    steps = nn.functional.one_hot(data % 3, 3).float()
    assert look(seeded(networks.Tagger), data, labels=steps).outputs.kind == "class"


def test_steps_whose_label_is_ignored_do_not_count(generator):
    data, model = words(generator), seeded(networks.Tagger)
    labels = model(data).argmax(dim=-1)  # what it gives is right
    labels[:, ::2] = -100
    found = kann.explain(model, data, labels=labels, progress=False)
    assert found.accuracy[0] == 1
    assert found.facts.accuracy.of_steps


def test_sequences_without_labels_do_not_end_an_explanation(generator):
    data, model = words(generator), seeded(networks.Tagger)
    labels = model(data).argmax(dim=-1)
    labels[::3] = -100
    found = kann.explain(model, data, labels=labels, progress=False)
    assert set(found.effects.judged) == {number for number in found.held_out.tolist() if number % 3}
    assert found.memory is not None
    assert not any("nterrupted" in choice for choice in found.choices)


def test_a_class_of_minus_100_is_an_unknown_label_of_a_decision_that_counts(generator):
    data = numbers(generator)
    reader = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    labels = reader(data).argmax(dim=-1)
    labels[::3] = -100
    found = kann.explain(reader, data, labels=labels, progress=False)
    assert found.effects.judged.tolist() == found.held_out.tolist()
    assert found.memory is not None


def test_a_value_of_minus_100_is_a_number(generator):
    labels = torch.randn(SEQUENCES, 1, generator=generator)
    labels[3] = -100
    options = Options(labels=labels)
    assert options.labels_that_mark(np.arange(5), "values") is None
    assert options.labels_that_mark(np.arange(5), "labels") is not None


def test_sequences_beyond_max_sequences_are_not_left_out_for_want_of_time(generator):
    found = look(seeded(networks.Tagger), words(generator), max_sequences=SEQUENCES - 4)
    assert len(found.fitted_numbers) + len(found.held_out) == SEQUENCES - 4
    assert not any("time" in choice for choice in found.choices)

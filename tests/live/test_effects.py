# ruff: noqa: D102  # models in tests say what they are by their names
"""Modes tested in running networks: where the answer is known it is found, and what is wrong is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.analysis.intervals import interval_of_mean
from kann.analysis.modes import first_modes, mode_directions
from kann.data.moments import MeanAndCovariance
from kann.live import _effects as judging
from kann.live._effects import same_spans
from kann.live._intervene import replacement
from kann.live.completion import orthonormal_axes

DECAYS = np.array([0.95, 0.9, 0.8, 0.7, 0.5, 0.3])
READ = (1, 3)
"""The modes of `Diagonal` that reach its readout."""


class DiagonalCell(nn.Module):
    """A linear recurrent unit whose units are its modes, turned by an orthogonal matrix so that no unit is a mode."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
        self.step = turn.T @ torch.diag(torch.tensor(DECAYS)) @ turn
        self.read = torch.eye(6, dtype=torch.float64) @ turn  # each input pushes one mode
        self.turn = turn

    def forward(self, x, h):
        return h @ self.step + x @ self.read


class Diagonal(nn.Module):
    """Decides by two of its modes alone."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = DiagonalCell(), nn.Linear(6, 1, bias=False).double()
        with torch.no_grad():
            self.head.weight.copy_(self.cell.turn[list(READ)].T @ torch.tensor([1.0, -1.0]).double())

    def forward(self, x):
        h = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class First(nn.Module):
    """The outputs of a recurrent module, without its last state."""

    def forward(self, found):
        return found[0]


@pytest.fixture
def diagonal(rng):
    """The network, sequences, and the operator of its states while it reads them."""
    model = Diagonal()
    x = torch.tensor(rng.normal(size=(160, 12, 6)))
    states = kann.record(model, x, layer="cell", inputs=True, progress=False)
    return model, x, kann.fit(states, basis="pca", driven=True), states


def test_the_two_modes_that_decide_come_first_and_alone_suffice(diagonal):
    model, x, koopman, states = diagonal
    np.testing.assert_allclose(np.abs(koopman.eigenvalues), DECAYS, atol=1e-8)
    found = kann.effects(model, x, koopman, states, readout=model.head, layer="cell", counts=(1, 2, 4), progress=False)
    assert set(found.order[:2]) == set(READ)
    assert found.kept["modes"][1] == 1.0
    assert found.kept["modes"][0] < 1.0
    assert found.kept["random"][1] < found.kept["modes"][1]
    assert found.removed["modes"][1] < 0.8
    assert found.recovered["modes"][1] == 1.0
    assert found.full == 1
    np.testing.assert_array_equal(found.judged, np.arange(len(x)))  # nothing is searched on some of them


def test_modes_that_reach_the_readout_suffice_and_the_others_do_not(diagonal):
    model, x, koopman, states = diagonal
    with torch.no_grad():
        own = model(x)
        # The readout reads two directions, and these two modes' coordinates are kept exactly.
        with kann.intervene(model, koopman, states, keep=READ, layer="cell"):
            np.testing.assert_allclose(model(x), own, atol=1e-10)
        with kann.intervene(model, koopman, states, keep=[1], layer="cell"):
            assert not torch.allclose(model(x), own, atol=1e-2)
        with kann.intervene(model, koopman, states, remove=READ, layer="cell"):
            mean = torch.tensor(states.values.mean(axis=0))  # all that the readout still sees
            np.testing.assert_allclose(model(x), model.head(mean).expand(len(x), 1), atol=1e-9)


def test_directions_and_modes_are_compared_side_by_side(diagonal):
    model, x, koopman, states = diagonal
    options = {"readout": model.head, "layer": "cell", "counts": (1, 2, 4), "progress": False}
    directions = mode_directions(koopman, READ)
    found = kann.effects(model, x, directions, states, koopman=koopman, **options)
    assert found.methods == ("directions", "modes", "pca", "readout", "random")
    assert found.kept["directions"][1] == found.kept["modes"][1] == 1.0
    assert np.isnan(found.kept["directions"][2])  # there are two
    assert np.isnan(found.kept["random"][2])  # which are compared with as many
    assert found.fills["directions"][2] == ""
    assert set(found.fills["pca"]) <= {"linear", "curve", "quadratic"}
    alone = kann.effects(model, x, directions, states, **options)
    assert alone.methods == ("directions", "pca", "readout", "random")
    assert alone.koopman is None
    assert alone.order == ()
    np.testing.assert_array_equal(alone.kept_scores["directions"], found.kept_scores["directions"])


class Reader(nn.Module):
    """Reads padded sequences, and decides after the last real step."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x, lengths=None):
        h = self.rnn(x)[0]
        if lengths is None:
            return self.head(h[:, -1])
        return self.head(h[torch.arange(len(h)), torch.as_tensor(lengths) - 1])


class Tagger(Reader):
    """Decides at every step."""

    def forward(self, x):
        return self.head(self.rnn(x)[0])


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def sequences(rng):
    return [torch.tensor(rng.normal(size=(n, 3)), dtype=torch.float32) for n in rng.integers(2, 6, size=60)]


def known(model, data, **options):
    states = kann.record(model, data, inputs=True, progress=False)
    return kann.fit(states, basis="pca"), states


def measured(model, data, **options):
    koopman, states = known(model, data)
    return kann.effects(
        model, data, koopman, states, **{"counts": (1, 4), "draws": 2, "progress": False, "fill": "linear"} | options
    )


def test_sequences_of_like_length_run_together_and_scores_come_in_the_order_of_the_data(reader, sequences):
    found = measured(reader, sequences, labels=[0] * 60, metric="accuracy")
    with torch.no_grad():
        own = np.array([float(reader(each[None])) <= 0 for each in sequences], dtype=float)
    np.testing.assert_array_equal(found.full_scores, own[found.judged])
    assert found.judged.tolist() == sorted(found.judged.tolist())
    assert len(found.judged) == 60
    np.testing.assert_array_equal(found.kept_scores["modes"][1], found.full_scores)  # all four coordinates are kept


def test_all_methods_are_there_with_their_intervals(reader, sequences):
    found = measured(reader, sequences)
    assert found.metric == "agreement"
    assert found.methods == ("modes", "pca", "readout", "random")
    for name in found.methods:
        assert found.kept[name].shape == found.removed[name].shape == (2,)
        low, high = found.interval(name).T
        assert (low <= found.kept[name] + 1e-12).all()
        assert (found.kept[name] <= high + 1e-12).all()
    assert found.random_kept.shape == found.random_removed.shape == (2, 2)
    np.testing.assert_allclose(found.random_kept.mean(axis=0), found.kept["random"])
    assert found.kept["readout"][0] == found.kept["readout"][1]  # there is one such direction
    assert "modes, largest contribution first" in str(found)
    assert f"untouched 1.000, nothing kept {found.none:.3f}" in str(found)
    assert "agreement of" in repr(found)
    assert "<table" in found._repr_html_()


def test_groups_count_together_in_intervals_in_the_order_of_the_data(reader, sequences):
    groups = [i % 3 for i in range(len(sequences))]
    found = measured(reader, sequences, groups=groups)
    assert found.groups.tolist() == [groups[i] for i in found.judged]
    row = found.kept_scores["pca"][0]
    np.testing.assert_array_equal(found.interval("pca")[0], interval_of_mean(row, 0.95, found.judged % 3))
    assert measured(reader, sequences, groups=range(len(sequences))).groups is None
    with pytest.raises(kann.KannError, match="groups has 2 entries"):
        measured(reader, sequences, groups=[0, 1])


def test_labels_that_are_no_number_are_refused(reader, sequences):
    labels = np.zeros(len(sequences))
    labels[2] = np.nan
    with pytest.raises(kann.KannError, match=r"label of sequence 2 holds NaN"):
        measured(reader, sequences, labels=labels)
    with pytest.raises(kann.KannError, match=r"label of sequence 2 holds NaN"):
        kann.balance(reader, sequences, labels=labels)


def test_a_loader_that_shuffles_belongs_to_no_labels_groups_or_lengths(reader, sequences):
    data = torch.utils.data.TensorDataset(torch.randn(6, 5, 3))
    loader, steps = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True), torch.full((6,), 5)
    for options in ({"labels": [0] * 6}, {"groups": range(6)}, {"lengths": steps}):
        with pytest.raises(kann.KannError, match=f"shuffles, .* {next(iter(options))}"):
            kann.effects(reader, loader, *known(reader, sequences), **options)
    for call in (
        lambda: kann.balance(reader, loader, labels=[0] * 6),
        lambda: kann.record(reader, loader, lengths=steps),
        lambda: kann.recording.record_grouped_moments(reader, loader, groups=list("aabbcc")),
    ):
        with pytest.raises(kann.KannError, match="shuffles"):
            call()
    assert len(kann.recording.record_grouped_moments(reader, loader, groups=2)) == 2


def test_results_do_not_depend_on_how_often_they_are_made(reader, sequences):
    first, second = (measured(reader, sequences, counts=(2,)) for _ in range(2))
    for name in first.methods:
        np.testing.assert_array_equal(first.kept_scores[name], second.kept_scores[name])
        np.testing.assert_array_equal(first.removed_scores[name], second.removed_scores[name])


def test_the_model_is_as_it_was(reader, sequences):
    reader.train()
    before, random = {k: v.clone() for k, v in reader.state_dict().items()}, torch.get_rng_state()
    measured(reader, sequences)
    assert reader.training
    assert reader.rnn.training
    assert "forward" not in vars(reader.rnn)
    assert all(torch.equal(v, before[k]) for k, v in reader.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in reader.parameters())


def test_decisions_at_every_step_count_where_the_sequence_is_real(sequences):
    model = Tagger()
    agreement = measured(model, sequences)
    assert agreement.kept["modes"][1] == 1.0
    labels = [torch.zeros(len(each), dtype=torch.long) for each in sequences]
    accuracy = measured(model, sequences, labels=labels)
    with torch.no_grad():
        own = np.array([float((model(each[None]) <= 0).double().mean()) for each in sequences])
    np.testing.assert_allclose(accuracy.full_scores, own[accuracy.judged], atol=1e-12)


class Answers(nn.Module):
    """Three outputs for each step, or for the whole sequence."""

    def __init__(self, *, every):
        super().__init__()
        self.rnn, self.head, self.every = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3), every

    def forward(self, x, lengths=None):
        outputs = self.head(self.rnn(x)[0])
        if self.every:
            return outputs
        if lengths is None:
            lengths = torch.full((len(x),), x.shape[1])
        return outputs[torch.arange(len(x)), lengths - 1]


def own_outputs(model, sequences):
    """What the model gives for each sequence alone, (steps, outputs) or (outputs,)."""
    with torch.no_grad():
        return [model(each[None])[0].numpy().astype(np.float64) for each in sequences]


@pytest.mark.parametrize("every", [False, True])
def test_several_labels_are_answers_of_their_own(every, sequences, rng):
    model = Answers(every=every)
    agreement = measured(model, sequences, outputs="labels", threshold=0.1)
    assert agreement.kept["modes"][1] == 1.0
    own = own_outputs(model, sequences)
    labels = [rng.integers(0, 2, size=each.shape) for each in own]
    for threshold in (0.0, 0.3):
        found = measured(model, sequences, labels=labels, outputs="labels", threshold=threshold)
        right = [np.mean((mine > threshold) == wanted) for mine, wanted in zip(own, labels, strict=True)]
        np.testing.assert_allclose(found.full_scores, np.array(right)[found.judged], atol=1e-12)
    loss = measured(model, sequences, labels=labels, outputs="labels", metric="loss")
    binary = nn.functional.binary_cross_entropy_with_logits
    expected = [float(binary(torch.tensor(a), torch.tensor(b).double())) for a, b in zip(own, labels, strict=True)]
    np.testing.assert_allclose(loss.full_scores, np.array(expected)[loss.judged], atol=1e-6)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_answers_without_a_label_do_not_count(every, metric, sequences, rng):
    model = Answers(every=every)
    own = own_outputs(model, sequences)
    labels = [rng.integers(0, 2, size=each.shape) for each in own]
    missing = [np.where(rng.random(size=each.shape) < 0.5, -100, each) for each in labels]
    for each, known in zip(missing, labels, strict=True):
        each.flat[0] = known.flat[0]  # one answer counts at least
    found = measured(model, sequences, labels=missing, outputs="labels", metric=metric)

    def score(outputs, wanted):
        counts = wanted != -100
        if metric == "accuracy":
            return np.mean((outputs > 0)[counts] == wanted[counts])
        binary = nn.functional.binary_cross_entropy_with_logits
        return float(binary(torch.tensor(outputs[counts]), torch.tensor(wanted[counts]).double()))

    expected = np.array([score(*pair) for pair in zip(own, missing, strict=True)])
    np.testing.assert_allclose(found.full_scores, expected[found.judged], atol=1e-6)


@pytest.mark.parametrize("every", [False, True])
def test_values_are_judged_by_r_squared(every, sequences, rng):
    model = Answers(every=every)
    agreement = measured(model, sequences, outputs="values")
    assert agreement.full == 1.0
    assert agreement.kept["modes"][1] == pytest.approx(1.0, abs=1e-9)
    assert agreement.none < 1e-6  # a constant explains nothing
    assert "agreement (R²)" in str(agreement)
    own = own_outputs(model, sequences)
    targets = [each + 0.1 * rng.normal(size=each.shape) for each in own]
    found = measured(model, sequences, labels=targets, outputs="values")
    mine, wanted = (np.concatenate([np.atleast_2d(values[i]) for i in found.judged]) for values in (own, targets))
    r_squared = 1 - np.sum((mine - wanted) ** 2) / np.sum((wanted - wanted.mean(axis=0)) ** 2)
    assert found.full == pytest.approx(r_squared, abs=1e-6)
    loss = measured(model, sequences, labels=targets, outputs="values", metric="loss")
    expected = [np.mean((a - b) ** 2) for a, b in zip(own, targets, strict=True)]
    np.testing.assert_allclose(loss.full_scores, np.array(expected)[loss.judged], atol=1e-6)


def test_effects_and_agreement_decide_alike(sequences):
    """With nothing but the state at hand, agreement of the readout says what effects say of the untouched network."""
    model = Answers(every=False)
    states = kann.record(model, sequences, progress=False)
    for outputs in ("class", "labels", "values"):
        own = measured(model, sequences, outputs=outputs)
        assert own.full == 1.0
        assert own.outputs == outputs
        assert kann.agreement(kann.copying, states, model.head, outputs=outputs) < 1.0


@pytest.mark.parametrize(
    ("options", "label", "text"),
    [
        (
            {},
            np.zeros((2, 3)),
            r"sequence \d+ has shape \(2, 3\), and one class for each step is needed; .*outputs='labels'",
        ),
        (
            {"outputs": "labels"},
            np.zeros((2, 5)),
            r"shape \(2, 5\), and the network has 3 outputs; pass \(steps, 3\) or",
        ),
        ({"outputs": "values"}, 1.0, r"shape \(\), and the network has 3 outputs"),
        ({"outputs": "labels"}, np.zeros((9, 3)), r"has labels for 9 steps, and the network gave \d"),
        ({}, np.zeros(9), r"has labels for 9 steps, and the network gave \d"),
        ({"outputs": "logits"}, 1, "outputs='logits' is unknown"),
        ({"outputs": "labels", "threshold": "x"}, 1, "threshold='x'"),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_refused(sequences, options, label, text, untyped):
    with pytest.raises(kann.KannError, match=text):
        measured(Answers(every=True), sequences, labels=[label] * 60, **options)


def test_r_squared_needs_values_that_differ(reader, sequences):
    with pytest.raises(kann.KannError, match="are all the same, so R² is not defined"):
        measured(reader, sequences, labels=[1.0] * 60, outputs="values")


def test_the_loss_is_that_of_torch(reader, sequences, rng):
    labels = rng.integers(0, 2, size=60)
    found = measured(reader, sequences, labels=labels, metric="loss")
    with torch.no_grad():
        logits = torch.stack([reader(each[None])[0, 0] for each in sequences])
    losses = nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels).float(), reduction="none")
    np.testing.assert_allclose(found.full_scores, losses.numpy()[found.judged], atol=1e-5)


def test_a_metric_of_the_users_own(reader, sequences):
    found = measured(reader, sequences, metric=lambda outputs, own: np.abs(outputs - own)[:, 0])
    assert found.metric == "own"
    np.testing.assert_allclose(found.full_scores, 0)
    np.testing.assert_allclose(found.kept["modes"][1], 0, atol=1e-5)
    assert (found.kept["modes"][0] > 1e-3).all()
    with pytest.raises(kann.KannError, match=r"metric returned shape \(\)"):
        measured(reader, sequences, metric=lambda outputs, own: 1.0)


def test_tensors_mappings_and_other_ways_to_call_the_model(reader, rng):
    x, few = torch.tensor(rng.normal(size=(24, 4, 3)), dtype=torch.float32), {"counts": (2,), "draws": 1}
    expected = measured(reader, x, **few)
    mapping = measured(reader, {"x": x, "lengths": torch.full((24,), 4)}, lengths="lengths", **few)
    called = measured(reader, x, forward=lambda model, batch: model.head(model.rnn(batch)[0][:, -1]), **few)
    collated = measured(reader, list(x), collate=torch.stack, **few)
    for found in (mapping, called, collated):
        for name in expected.methods:
            np.testing.assert_allclose(found.kept[name], expected.kept[name], atol=1e-12)


def test_pairs_count_as_two_coordinates(rng):
    turn = np.kron(np.diag([0.9, 0.8]), [[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    path = [rng.normal(size=(50, 4))]
    for _ in range(8):
        path.append(path[-1] @ turn)
    koopman = kann.fit(np.stack(path, axis=1), basis="pca")
    assert len(koopman.modes) == 2
    assert first_modes(koopman, [0, 1], 1) == [0]
    assert first_modes(koopman, [0, 1], 2) == [0]
    assert first_modes(koopman, [0, 1], 3) == [0]
    assert first_modes(koopman, [0, 1], 4) == [0, 1]
    assert mode_directions(koopman, [0]).shape == (4, 2)


def test_what_was_finished_is_kept_after_an_interruption(reader, sequences):
    calls, expected = [], measured(reader, sequences, batch_size=16)

    def interrupting(outputs, own):
        calls.append(len(outputs))
        if len(calls) == 35:  # in the middle of the third of four batches
            raise KeyboardInterrupt
        return (outputs[:, 0] > 0) == (own[:, 0] > 0)

    with pytest.warns(kann.errors.UnfinishedWarning, match=r"interrupted after 2 of 4 batches"):
        found = measured(reader, sequences, metric=interrupting, batch_size=16)
    assert 28 <= len(found.judged) <= 32
    for name in expected.methods:
        np.testing.assert_array_equal(found.kept_scores[name], expected.kept_scores[name][:, found.judged])
        np.testing.assert_array_equal(found.removed_scores[name], expected.removed_scores[name][:, found.judged])


def test_an_interruption_before_anything_is_finished_is_one(reader, sequences):
    def interrupting(outputs, own):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(reader, sequences, metric=interrupting)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"counts": ()}, "must be numbers of coordinates"),
        ({"counts": 3}, "must be numbers of coordinates"),
        ({"counts": (0,)}, "counts=0 is too small"),
        ({"fill": "zero"}, "fill='zero' is unknown"),
        ({"metric": "f1"}, "metric='f1' is unknown"),
        ({"metric": "accuracy"}, "needs labels="),
        ({"labels": [1, 2]}, "2 labels for 60 sequences"),
        ({"labels": 3}, "labels=3 is no list"),
        ({"draws": -1}, "draws=-1"),
        ({"readout": np.ones((1, 7))}, r"weight of shape \(1, 7\)"),
        ({"layer": "head"}, "the coordinates are for 4 units; layer 'head' gave"),
        ({"forward": lambda model, batch: torch.ones(7)}, r"returned \(7,\) for 60 sequences"),
        ({"forward": lambda model, batch: 1}, "returns int without real numbers"),
    ],
)
def test_wrong_arguments_are_refused(reader, sequences, options, text, untyped):
    with pytest.raises(kann.KannError, match=text):
        measured(reader, sequences, **options)


def test_a_single_sequence_is_judged_and_none_is_refused(reader):
    x = [torch.randn(5, 3)]
    koopman, states = known(reader, [torch.randn(5, 3) for _ in range(9)])
    assert kann.effects(reader, x, koopman, states, counts=(1,)).judged.tolist() == [0]
    with pytest.raises(kann.KannError, match="hold no batches"):
        kann.effects(reader, iter([]), koopman, states)


def test_intervals_of_means(rng):
    low, high = interval_of_mean(np.repeat([0.0, 1.0], 50), 0.95)
    assert 0.39 < low < 0.41 < 0.59 < high < 0.61
    scores = rng.normal(size=400)
    low, high = interval_of_mean(scores, 0.95)
    np.testing.assert_allclose((high - low) / 2, 1.96 * scores.std(ddof=1) / 20, rtol=1e-3)


def test_an_unknown_method_is_refused(reader, sequences):
    with pytest.raises(kann.KannError, match="no method 'ica'"):
        measured(reader, sequences).interval("ica")


def test_coordinates_of_the_same_span_are_run_once(rng):
    spread = MeanAndCovariance(mean=np.zeros(4), covariance=np.diag([4.0, 3.0, 2.0, 1.0]))
    two = rng.normal(size=(4, 2))
    turned, other = two @ rng.normal(size=(2, 2)), rng.normal(size=(4, 2))
    chosen = (two, turned, other, two[:, :1], 2 * two[:, :1])
    assert same_spans([orthonormal_axes(each, spread) for each in chosen]) == [0, 0, 2, 3, 3]


def test_all_modes_and_as_many_principal_components_are_the_same_run(reader, sequences, monkeypatch):
    states = kann.record(reader, sequences, progress=False)
    koopman, runs = kann.fit(states, basis="pca", rank=2), []

    def counted(fill, *, keep):
        runs.append(fill)
        return replacement(fill, keep=keep)

    monkeypatch.setattr(judging, "replacement", counted)
    found = kann.effects(reader, sequences, koopman, states, counts=(2,), draws=0, progress=False)
    assert len(runs) == 5  # nothing kept; all modes, and the readout, kept and removed
    np.testing.assert_array_equal(found.kept_scores["modes"], found.kept_scores["pca"])


@pytest.mark.parametrize("classes", [1, 3])
def test_ignored_labels_do_not_count(classes, rng):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.GRU(3, 5, batch_first=True), First(), nn.Linear(5, classes)), torch.randn(30, 6, 3)
    states = kann.record(model, x, layer="0")
    labels = rng.integers(0, max(2, classes), size=(30, 6))
    labels[:, :4] = labels[:10] = -100
    with torch.no_grad():
        logits = model(x)[10:, 4:].double().reshape(-1, classes)
    wanted = torch.tensor(labels[10:, 4:]).reshape(-1)
    decided = logits.argmax(1) if classes > 1 else logits[:, 0] > 0
    expected = {"accuracy": (decided == wanted).double().mean()}
    if classes == 1:
        expected["loss"] = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], wanted.double())
    else:
        expected["loss"] = nn.functional.cross_entropy(logits, wanted)
    for metric, value in expected.items():
        found = kann.effects(
            model, x, kann.fit(states), states, layer="0", labels=labels, metric=metric, counts=(1,), draws=1
        )
        assert found.judged.tolist() == list(range(10, 30))
        assert found.full == pytest.approx(float(value), abs=1e-6)
    with pytest.raises(kann.KannError, match="-100"):
        kann.effects(model, x, kann.fit(states), states, layer="0", labels=np.full(30, -100), counts=(1,), draws=1)


def test_agreement_is_measured_where_labels_count(rng):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.GRU(3, 5, batch_first=True), First(), nn.Linear(5, 3)), torch.randn(30, 6, 3)
    states = kann.record(model, x, layer="0")
    balance = kann.balance(model, x, layer="0")
    labels = np.full((30, 6), -100)
    labels[:, 5] = 0
    run = {"layer": "0", "counts": (1,), "draws": 0, "metric": "agreement"}
    found = kann.effects(model, x, balance, states, labels=labels, **run)
    with torch.no_grad():
        untouched = model(x)[:, 5].argmax(1)
        with kann.intervene(model, balance, states, layer="0", keep=[0], fill=found.fills["balanced"][0]):
            kept = model(x)[:, 5].argmax(1)
    np.testing.assert_array_equal(found.kept_scores["balanced"][0], (kept == untouched).numpy())
    assert not np.array_equal(
        kann.effects(model, x, balance, states, **run).kept_scores["balanced"][0], kept == untouched
    )


@pytest.mark.parametrize("form", ["list", "loader"])
def test_max_sequences_takes_the_first_sequences(form):
    torch.manual_seed(0)
    model = nn.Sequential(nn.GRU(3, 5, batch_first=True), First(), nn.Linear(5, 2))
    sequences = [torch.randn(n, 3) for n in range(2, 14)]  # the first are the shortest
    data = sequences if form == "list" else [each[None] for each in sequences]
    states = kann.record(model, sequences, layer="0")
    found = kann.effects(
        model, data, kann.fit(states), states, layer="0", counts=(1,), draws=1, max_sequences=5, labels=[0] * 12
    )
    assert found.judged.tolist() == [0, 1, 2, 3, 4]

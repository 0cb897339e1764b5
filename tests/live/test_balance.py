# ruff: noqa: D102  # models in tests say what they are by their names
"""Balanced coordinates of running networks: their adjoints against finite differences, and what is left as it was."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

import kann
from kann.fitting.balance import OUTPUTS
from kann.live import _balance
from kann.live._intervene import only_target, replaced
from tests.live.models import Blocks, Loop, OwnCell, Reader
from tests.systems import relative


class Judge(nn.Module):
    """Another model, a smooth readout of all that it returns last, and a number for each sequence."""

    def __init__(self, inner, *, outputs=1, every_step=False):
        super().__init__()
        self.inner, self.every_step = inner, every_step
        self.head = nn.LazyLinear(outputs)

    def forward(self, x):
        found = self.inner(x)
        while not isinstance(found, torch.Tensor):
            found = found[0] if isinstance(found, tuple) else found[-1]
        if found.ndim == 3 and not self.every_step:
            found = found[:, -1] if getattr(self.inner, "batch_first", True) else found[-1]
        return torch.sin(self.head(found))


class Words(nn.Module):
    """A GRU that is told lengths, by packing or by reading out at the end of each sequence."""

    def __init__(self, *, packed=False, outputs=1):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(20, 3), nn.GRU(3, 4, batch_first=True)
        self.head, self.packed = nn.Linear(4, outputs), packed

    def forward(self, words, lengths):
        lengths = torch.as_tensor(lengths)
        x = self.embedding(words)
        if self.packed:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])[range(len(x)), lengths - 1]
        return self.head(self.rnn(x)[0][torch.arange(len(x)), lengths - 1])


class Own(nn.Module):
    """The outputs of a GRU through a function."""

    def __init__(self, function):
        super().__init__()
        self.rnn, self.head, self.function = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3), function

    def forward(self, x):
        return self.function(self.head(self.rnn(x)[0]))


def ready(model, x):
    """The model in double precision, after lazy layers have seen data."""
    model = model.double().eval()
    model(x)
    return model


@pytest.fixture
def snapshots(monkeypatch):
    """States, adjoints, energies, sequences and steps before the end of all batches, as they are collected."""
    found = []
    add = _balance._Snapshots.add

    def collect(self, *rows):
        found.append(rows)
        add(self, *rows)

    monkeypatch.setattr(_balance._Snapshots, "add", collect)
    return found


CASES = {
    "rnn": (lambda: Reader(nn.RNN(3, 4, batch_first=True)), {}),
    "gru": (lambda: Reader(nn.GRU(3, 4, batch_first=True)), {}),
    "time first": (lambda: Reader(nn.GRU(3, 4), batch_first=False), {}),
    "lstm": (lambda: Reader(nn.LSTM(3, 4, batch_first=True)), {}),
    "lstm h": (lambda: Reader(nn.LSTM(3, 4, batch_first=True)), {"state": "h"}),
    "lstm c": (lambda: Reader(nn.LSTM(3, 4, batch_first=True)), {"state": "c"}),
    "lstm projected": (lambda: Reader(nn.LSTM(3, 4, proj_size=2, batch_first=True)), {}),
    "lower layer": (lambda: Reader(nn.GRU(3, 4, 2, batch_first=True)), {"layer": "inner.rnn.l0"}),
    "upper layer": (lambda: Reader(nn.GRU(3, 4, 2, batch_first=True, dropout=0.5)), {"layer": "inner.rnn.l1"}),
    "forwards": (
        lambda: Reader(nn.GRU(3, 4, batch_first=True, bidirectional=True)),
        {"layer": "inner.rnn.l0"},
    ),
    "backwards": (
        lambda: Reader(nn.LSTM(3, 4, batch_first=True, bidirectional=True)),
        {"layer": "inner.rnn.l0_reverse"},
    ),
    "packed": (lambda: Reader(nn.LSTM(3, 4, batch_first=True), packed=True), {}),
    "gru cell": (lambda: Loop(nn.GRUCell(3, 4)), {"layer": "inner.cell"}),
    "lstm cell": (lambda: Loop(nn.LSTMCell(3, 4)), {"layer": "inner.cell"}),
    "cell of one's own": (lambda: Loop(OwnCell()), {"layer": "inner.cell"}),
    "block": (Blocks, {"layer": "inner.blocks.0"}),
}


@pytest.mark.parametrize("case", CASES)
def test_adjoints_are_derivatives(case, snapshots):
    inner, where = CASES[case]
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    model = ready(Judge(inner(), every_step=case in ("packed", "backwards", "block")), x)
    balance = kann.balance(model, x, batch_size=5, outputs="values", draws=1, **where)
    states, adjoints, _, sequences, before_end = snapshots[0]
    assert len(states) == len(adjoints) == len(sequences) == len(before_end)
    assert balance.dim == states.shape[1]
    # All derivatives at once: a change of every state along a random direction adds up their changes.
    target = only_target(model, where.get("layer"), where.get("state", "h"))
    state = where.get("state") or ("hc" if isinstance(target.module, nn.LSTM | nn.LSTMCell) else "h")
    torch.manual_seed(0)
    direction = torch.randn(balance.dim, dtype=torch.float64)

    def outputs(eps):
        change = lambda h: h + eps * direction  # noqa: E731
        with torch.no_grad(), replaced(model, target, change, state=state, width=balance.dim):
            return model(x)

    # The same signs and order of the sequences as in balance: from the same seed and the numbers of the sequences.
    order = np.random.default_rng(0).permutation(5)
    x = x[torch.from_numpy(order)]
    shape = model(x).shape[1:]
    drawn = [np.random.default_rng((0, 0, number)).standard_normal(shape, dtype=np.float32) for number in order]
    v = torch.from_numpy(np.sign(drawn))
    expected = (v * (outputs(1e-6) - outputs(-1e-6))).sum() / 2e-6
    assert float((adjoints[:, 0] @ direction).sum()) == pytest.approx(float(expected), rel=1e-6)


def test_each_adjoint_is_the_derivative_of_its_sequence(snapshots):
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    model = ready(Judge(Reader(nn.GRU(3, 4, batch_first=True))), x)
    kann.balance(model, x, batch_size=4)
    states, adjoints, _, sequences, before_end = snapshots[0]
    for row in (0, 7, 19):
        number, step = sequences[row], 4 - before_end[row]
        own, start = states[row], x[[number]]
        with torch.no_grad():
            h = model.inner.rnn(start)[0][0, step]
            np.testing.assert_allclose(h, own, atol=1e-12)

            def after(h, start=start, step=step):
                for t in range(step + 1, 5):
                    h = model.inner.rnn(start[:, [t]], h[None, None])[0][0, 0]
                return torch.sin(model.head(h)).item()

            eye = 1e-6 * torch.eye(4, dtype=torch.float64)
            expected = np.array([(after(h + e) - after(h - e)) / 2e-6 for e in eye])
        ours = adjoints[row, 0].numpy()
        assert min(relative(ours, expected), relative(-ours, expected)) < 1e-6


@pytest.mark.parametrize("packed", [True, False])
def test_padding_is_left_out(packed, snapshots):
    model, words = Words(packed=packed), [torch.arange(n) for n in (3, 8, 5, 1, 8)]
    whole = kann.balance(model, words)
    assert sum(len(rows[0]) for rows in snapshots) == 25
    longest = np.concatenate([rows[4] for rows in snapshots])
    assert sorted(longest) == sorted(np.concatenate([np.arange(n) for n in (3, 8, 5, 1, 8)]))
    # The same as from each sequence alone, which has no padding.
    alone = kann.balance(model, words, batch_size=1)
    np.testing.assert_allclose(alone.values, whole.values, rtol=1e-4)
    np.testing.assert_allclose(alone.mean, whole.mean, rtol=1e-4, atol=1e-6)


def test_masks_of_mappings(snapshots):
    class Masked(Words):
        def forward(self, input_ids, attention_mask):
            states = self.rnn(self.embedding(input_ids))[0]
            return self.head(states)  # at every step, those of padding too

    words, mask = torch.randint(0, 20, (6, 7)), torch.ones(6, 7, dtype=torch.long)
    mask[:3, :4] = 0  # padding on the left
    kann.balance(Masked(outputs=3), {"input_ids": words, "attention_mask": mask})
    assert sum(len(rows[0]) for rows in snapshots) == 3 * 3 + 3 * 7


def test_labels_that_do_not_count(snapshots):
    model, x = Own(lambda y: y), torch.randn(4, 6, 3)
    labels = torch.zeros(4, 6, dtype=torch.long)
    labels[:, 2:] = -100
    labels[3] = -100
    kann.balance(model, x, labels=labels)
    assert sum(len(rows[0]) for rows in snapshots) == 3 * 2


def test_only_differences_between_classes_count():
    torch.manual_seed(1)
    model, x = Own(lambda y: y), torch.randn(30, 5, 3)
    same = Own(lambda y: y + 10 * y.sum(dim=-1, keepdim=True))
    same.load_state_dict(model.state_dict())
    one, other = kann.balance(model, x, outputs="class"), kann.balance(same, x, outputs="class")
    np.testing.assert_allclose(one.values, other.values, rtol=1e-3)
    values = kann.balance(same, x, outputs="values")
    assert not np.allclose(values.values, one.values, rtol=0.1)


def test_values_are_told_by_the_shape_of_the_inputs():
    x = torch.randn(20, 5, 3)
    model = Own(lambda y: y)  # three outputs at every step, and three inputs
    np.testing.assert_array_equal(kann.balance(model, x).values, kann.balance(model, x, outputs="values").values)
    assert not np.array_equal(kann.balance(model, x).values, kann.balance(model, x, outputs="class").values)


def test_seeds_and_draws():
    torch.manual_seed(0)
    model, x = Own(lambda y: y[:, -1]), torch.randn(60, 5, 3)
    one = kann.balance(model, x, sequences=20, seed=1)
    np.testing.assert_array_equal(one.values, kann.balance(model, x, sequences=20, seed=1).values)
    other = kann.balance(model, x, sequences=20, seed=2)
    assert not np.array_equal(one.mean, other.mean)
    many = kann.balance(model, x, draws=64)
    more = kann.balance(model, x, draws=64, seed=3)
    np.testing.assert_allclose(many.values, more.values, rtol=0.05)


def test_one_draw_of_a_single_output_is_exact():
    model, x = Own(lambda y: y[:, -1, 0]), torch.randn(20, 5, 3)
    one, many = kann.balance(model, x, draws=1), kann.balance(model, x, draws=4, seed=5)
    np.testing.assert_allclose(one.values, many.values, rtol=1e-4)
    pair, two = Own(lambda y: y[:, -1, :2]), Own(lambda y: y[:, -1, 0] - y[:, -1, 1])
    two.load_state_dict(pair.state_dict())
    np.testing.assert_allclose(kann.balance(pair, x).values, kann.balance(two, x).values, rtol=1e-4)


def test_gradients_that_explode_do_not_hide_late_steps(snapshots):
    model, x = Own(lambda y: y[:, -1, 0]), torch.randn(20, 30, 3)
    model.rnn = nn.RNN(3, 4, batch_first=True, nonlinearity="relu")
    with torch.no_grad():
        model.rnn.weight_hh_l0.copy_(torch.diag(torch.tensor([1.6, 0.5, 0.5, 0.5])))
        model.rnn.weight_ih_l0.abs_()
        model.head.weight.fill_(1.0)
    balance = kann.balance(model, x.abs())
    assert balance.rank > 1  # unscaled, all others would be below 1e-6 of the first


@pytest.mark.parametrize("form", ["tensor", "numpy", "list", "loader", "tuples", "generator", "collate", "mapping"])
def test_forms_of_data(form):
    x = torch.randn(12, 5, 3)
    model = Own(lambda y: y[:, -1, 0])
    expected = kann.balance(model, x)
    options = {"collate": {"collate": lambda samples: torch.stack([x for x, _ in samples])}}.get(form, {})
    data = {
        "tensor": x,
        "numpy": x.numpy().astype(np.float64),
        "list": list(x),
        "loader": DataLoader(x, batch_size=5),
        "tuples": [(x[:6], 0), (x[6:], 1)],
        "generator": (part for part in x.split(4)),
        "collate": [(each, 0) for each in x],
        "mapping": {"x": x},
    }[form]
    found = kann.balance(model, data, **options)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3)


def test_loaders_are_not_read_to_the_end():
    read = []

    def loader():
        for i in range(1000):
            read.append(i)
            yield torch.randn(4, 5, 3)

    kann.balance(Own(lambda y: y[:, -1, 0]), loader(), sequences=10)
    assert len(read) == 3


def test_a_bare_recurrent_module():
    balance = kann.balance(nn.GRU(3, 4), torch.randn(5, 9, 3))  # time first
    assert balance.dim == 4


def test_thinned_snapshots_are_like_all_of_them(monkeypatch):
    torch.manual_seed(0)
    model, x = Own(lambda y: y[:, -1, 0]), torch.randn(200, 20, 3)
    whole = kann.balance(model, x)
    monkeypatch.setattr(_balance, "MOST_NUMBERS", 4 * 2 * 1000)
    found = []
    of_snapshots = kann.Balance.of_snapshots

    def count(states, *args, **kwargs):
        found.append(len(states))
        return of_snapshots(states, *args, **kwargs)

    monkeypatch.setattr(kann.Balance, "of_snapshots", staticmethod(count))
    thinned = kann.balance(model, x, batch_size=10)
    assert 400 < found[0] <= 1000
    np.testing.assert_allclose(thinned.values[:2], whole.values[:2], rtol=0.2)


def test_batches_are_sized_to_memory(monkeypatch):
    sizes = []
    adjoints = _balance._Network.adjoints

    def count(self, batch, **options):
        sizes.append(len(batch))
        return adjoints(self, batch, **options)

    monkeypatch.setattr(_balance._Network, "adjoints", count)
    monkeypatch.setitem(_balance.GRAPH_BYTES, "cpu", 100_000)
    model, x = Own(lambda y: y[:, -1, 0]), torch.randn(64, 20, 3)
    kann.balance(model, x)
    assert sum(sizes) == 64
    assert 2 <= sizes[0] <= 32, sizes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_model_and_caller_stay_as_they_were(mode, training):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.GRU(3, 4, 2, dropout=0.2)).train(
        training
    )
    model[0].weight.requires_grad_(False)
    model[3].weight_hh_l0.grad = torch.ones(12, 4)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with mode():
        kann.balance(model, torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)), layer="3")
        assert torch.is_grad_enabled() == (mode is torch.enable_grad)
    assert all(module.training == training for module in model.modules())
    assert model[3].dropout == 0.2
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert torch.equal(generator, torch.get_rng_state())
    assert not model[0].weight.requires_grad
    assert torch.equal(model[3].weight_hh_l0.grad, torch.ones(12, 4))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "3.weight_hh_l0")


FAULTS = {
    "detached outputs": lambda y: y.detach(),
    "classes": lambda y: y.argmax(dim=-1).float(),
    "outputs that do not depend": lambda y: torch.zeros(len(y), 1, requires_grad=True) + 1,
    "zero derivatives": lambda y: 0 * y[:, -1],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_networks_without_gradients_name_the_fallback(fault):
    model, x = Own(FAULTS[fault]).train(), torch.randn(6, 5, 3)
    with pytest.raises(kann.KannError, match="of_states"):
        kann.balance(model, x)
    assert model.rnn.training
    assert model.rnn(x)[0].requires_grad


def test_forward_without_gradients():
    class Frozen(Own):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    with pytest.raises(kann.KannError, match="of_states"):
        kann.balance(Frozen(lambda y: y), torch.randn(6, 5, 3))


def test_states_handed_on_without_gradients(snapshots):
    class Truncated(Loop):
        def forward(self, x):
            h = x.new_zeros(len(x), 4)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h.detach())
            return h

    kann.balance(Truncated(nn.GRUCell(3, 4)), torch.randn(6, 5, 3))
    assert len(snapshots[0][0]) == 6  # the last states alone have a gradient


def test_overflow():
    model, x = Own(lambda y: y[:, -1, 0] * 1e38), torch.randn(6, 5, 3)
    with torch.no_grad():
        model.head.weight.fill_(1e3)
    with pytest.raises(kann.KannError, match="overflow"):
        kann.balance(model, x)


def test_few_sequences_have_no_interval():
    balance = kann.balance(Own(lambda y: y[:, -1, 0]), torch.randn(7, 5, 3))
    assert balance.resampled is None
    assert balance.count_interval is None


def test_data_that_are_not_finite():
    with pytest.raises(kann.KannError, match="NaN"):
        kann.balance(Own(lambda y: y), torch.full((6, 5, 3), torch.nan))


def test_wrong_arguments():
    model, x = Own(lambda y: y), torch.randn(6, 5, 3)
    for options in ({"outputs": "logits"}, {"sequences": 0}, {"draws": 0}, {"state": "x"}, {"layer": "no"}):
        with pytest.raises(kann.KannError):
            kann.balance(model, x, **options)
    with pytest.raises(kann.KannError, match="not called"):
        model.extra = nn.GRUCell(3, 4)
        kann.balance(model, x, layer="extra")


@pytest.mark.parametrize("form", ["list", "loader"])
def test_max_sequences_draws_from_the_first(form):
    read = []

    def forward(model, batch):
        read.append(batch.shape[1])
        return model(batch)

    sequences = [torch.randn(n, 3) for n in range(2, 14)]  # the first are the shortest
    data = sequences if form == "list" else [each[None] for each in sequences]
    kann.balance(Own(lambda y: y), data, forward=forward, max_sequences=4)
    assert max(read) == 5


@pytest.mark.parametrize("form", ["tensor", "loader"])
def test_too_few_labels(form):
    x = torch.randn(6, 5, 3)
    data = x if form == "tensor" else list(x.split(2))
    with pytest.raises(kann.KannError, match="4 labels for 6 sequences"):
        kann.balance(Own(lambda y: y), data, labels=np.zeros(4, dtype=int))


@pytest.mark.parametrize("rank", [0, -1])
def test_rank_is_a_number_of_directions(rank):
    states = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(kann.KannError, match="rank"):
        kann.Balance.of_states(states[None], rank=rank)


def test_labels_in_the_batches_do_not_tell_the_kind_of_the_outputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.GRU(3, 8, batch_first=True), Last(), nn.Linear(8, 2))
    x = torch.randn(40, 6, 3)
    with_labels = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.randn(40, 2)), batch_size=40)
    alone = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=40)
    values = [kann.balance(model, data, layer="0").values for data in (with_labels, alone)]
    np.testing.assert_allclose(*values)


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def forward(self, outputs):
        """From what the layer gives."""
        return outputs[0][:, -1]


def test_neither_batches_nor_the_length_of_others_change_what_is_drawn():
    torch.manual_seed(0)
    model, x = Own(lambda y: y), [torch.randn(length, 3) for length in (4, 9, 5, 7, 4, 6, 8, 3)]
    together, alone = (kann.balance(model, x, batch_size=size, outputs="values") for size in (8, 1))
    np.testing.assert_allclose(together.directions, alone.directions, rtol=1e-3, atol=1e-4)  # states are float32
    other = kann.balance(model, x, batch_size=8, outputs="values", seed=1)
    assert not np.allclose(together.directions, other.directions, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "function", "kind"),
    [
        ("auto", lambda y: y[:, -1], "class"),
        ("auto", lambda y: y, "values"),  # as wide as the inputs
        ("labels", lambda y: y[:, -1], "labels"),
        ("class", lambda y: y[:, -1, 0], "single"),
    ],
)
def test_the_table_says_what_the_outputs_were_taken_for(outputs, function, kind, tmp_path):
    balance = kann.balance(Own(function), torch.randn(12, 5, 3), outputs=outputs)
    assert balance.outputs == kind
    assert f"outputs: {OUTPUTS[kind]}" in str(balance).splitlines()[0]
    balance.save(tmp_path / "balance.npz")
    assert kann.Balance.load(tmp_path / "balance.npz").outputs == kind
    assert "outputs" not in str(kann.Balance.of_states(np.random.default_rng(0).normal(size=(20, 5, 3))))


def test_answers_whose_label_is_missing_do_not_count():
    torch.manual_seed(0)
    model, x = Own(lambda y: y[:, -1]), torch.randn(12, 5, 3)
    labels = np.zeros((12, 3))
    labels[:, 1:] = -100  # of three answers the first alone counts
    first = Own(lambda y: y[:, -1, 0])
    first.load_state_dict(model.state_dict())
    one = kann.balance(first, x)
    balance = kann.balance(model, x, labels=labels, outputs="labels")
    assert np.abs(balance.directions[:, 0] @ one.directions[:, 0]) > 0.9 * np.square(one.directions[:, 0]).sum()
    labels[:6] = -100
    some = kann.balance(model, x, labels=labels, outputs="labels")
    np.testing.assert_allclose(some.mean, kann.balance(first, x[6:]).mean, rtol=1e-5)


MARKS = np.array([[1, 1, 0], [0, 1, 1], [-100, 1, 0], [1, 0, 1]])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.arange(12) % 3, "class"),
        (list("abc" * 4), "class"),
        (np.eye(3)[np.arange(12) % 3], "class"),
        (np.tile(MARKS, (3, 1)), "labels"),
        (np.linspace(0, 1, 36).reshape(12, 3), "values"),
    ],
)
def test_labels_imply_the_kind_of_the_outputs(labels, kind):
    balance = kann.balance(Own(lambda y: y[:, -1]), torch.randn(12, 5, 3), labels=labels)
    assert balance.outputs == kind
    assert kind in repr(balance)


def test_a_regression_with_two_outputs_has_two_coordinates():
    """Two leaky sums, each read by one output, and four units that hardly reach an output."""
    model = Own(lambda y: y[:, -1])
    model.rnn, model.head = nn.RNN(3, 6, batch_first=True), nn.Linear(6, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.rnn.weight_hh_l0 += torch.diag(torch.tensor([0.9, 0.9, 0.2, 0.2, 0.2, 0.2]))
        model.rnn.weight_ih_l0 += 0.01 * torch.linalg.qr(torch.randn(6, 6))[0][:, :3]  # so small that tanh is linear
        model.rnn.weight_ih_l0[:2] = 0.01 * torch.eye(2, 3)
        model.head.weight[:] = torch.cat([torch.eye(2), 0.02 * torch.ones(2, 4)], dim=1)
    x = torch.randn(64, 30, 3)
    wanted = model(x).detach()
    assert kann.balance(model, x, labels=wanted).count == 2
    assert kann.balance(model, x, outputs="values").count == 2
    assumed = kann.balance(model, x)
    assert assumed.count == 1  # the difference between two classes
    assert "outputs='values'" in str(assumed)

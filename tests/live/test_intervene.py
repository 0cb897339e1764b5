"""A model whose states are replaced while it runs: with everything kept it is itself, for every kind of layer."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.analysis.modes import mode_directions
from kann.live.completion import FILLS, fit_fills
from tests.live.models import Blocks, Loop, OwnCell, Reader, every, fitted, flat, inputs

ITSELF = 1e-5
"""How far outputs may be from the model's own: float32 rounds by 1e-7 a step, and states are multiplied twice more."""

FUSED = {
    "rnn": lambda **kw: nn.RNN(3, 4, **kw),
    "relu": lambda **kw: nn.RNN(3, 4, nonlinearity="relu", **kw),
    "gru": lambda **kw: nn.GRU(3, 4, **kw),
    "lstm": lambda **kw: nn.LSTM(3, 4, **kw),
    "without bias": lambda **kw: nn.GRU(3, 4, bias=False, **kw),
}


def layers_of(rnn):
    suffixes = ["", "_reverse"][: 1 + rnn.bidirectional]
    return [f"rnn.l{level}{suffix}" for level in range(rnn.num_layers) for suffix in suffixes]


def assert_itself(model, x, *, fill="linear", **where):
    """The model's outputs with every mode kept, and with none removed, are its own."""
    states, koopman = fitted(model, x, **where)
    modes = every(koopman)
    with torch.no_grad():
        own = flat(model(x))
        for chosen in ({"keep": modes}, {"remove": []}):
            with kann.intervene(model, koopman, states, fill=fill, **chosen, **where):
                np.testing.assert_allclose(flat(model(x)), own, atol=ITSELF, rtol=ITSELF)
        with kann.intervene(model, koopman, states, keep=[], fill=fill, **where):
            assert not torch.allclose(flat(model(x)), own, atol=1e-3)  # something is replaced at all
        assert torch.equal(flat(model(x)), own)


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("options", [{}, {"num_layers": 3}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("packed", [False, True])
def test_every_layer_and_direction_of_fused_modules(kind, options, packed):
    rnn = FUSED[kind](batch_first=True, **options)
    model, x = Reader(rnn, packed=packed).eval(), inputs()
    for layer in layers_of(rnn):
        assert_itself(model, x, layer=layer)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("state", ["h", "c", "hc"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}])
@pytest.mark.parametrize("packed", [False, True])
def test_states_of_lstms(state, options, packed):
    rnn = nn.LSTM(3, 4, batch_first=True, **options)
    model, x = Reader(rnn, packed=packed).eval(), inputs()
    for layer in layers_of(rnn):
        assert_itself(model, x, layer=layer, state=state)


@pytest.mark.parametrize("fill", FILLS)
def test_every_fill_leaves_the_model_itself_if_everything_is_kept(fill):
    assert_itself(Reader(nn.GRU(3, 4, batch_first=True)).eval(), inputs(), fill=fill)
    assert_itself(Loop(nn.LSTMCell(3, 4)).eval(), inputs(), fill=fill, state="hc")


def test_time_first_and_a_single_sequence():
    model = Reader(nn.GRU(3, 4), batch_first=False).eval()
    assert_itself(model, inputs())
    rnn, x = nn.GRU(3, 4).eval(), inputs()
    states, koopman = fitted(rnn, x.transpose(0, 1))
    with torch.no_grad(), kann.intervene(rnn, koopman, states, keep=every(koopman), fill="linear"):
        intervened = rnn(x[0])[0]
    np.testing.assert_allclose(intervened, rnn(x[0])[0].detach(), atol=ITSELF)


@pytest.mark.parametrize("cell", [nn.RNNCell(3, 4), nn.GRUCell(3, 4), nn.LSTMCell(3, 4)])
def test_cells_in_a_loop(cell):
    assert_itself(Loop(cell).eval(), inputs())


@pytest.mark.parametrize("state", ["h", "c", "hc"])
@pytest.mark.parametrize("cell", [nn.LSTMCell(3, 4), OwnCell()])
def test_cell_states_of_cells_in_a_loop(cell, state):
    assert_itself(Loop(cell).eval(), inputs(), layer="cell", state=state)


def test_transformer_blocks_and_other_modules():
    assert_itself(Blocks().eval(), inputs(), layer="blocks.0")
    assert_itself(Blocks().eval(), inputs(), layer="read")


def test_convolutions_have_their_units_in_the_middle():
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 1)).eval()
    assert_itself(model, inputs().transpose(1, 2), layer="0")


def one_step_after_the_other(rnn, x, replace):
    """What an intervention should do, written out for one layer of an LSTM or GRU."""
    cell = {nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}[type(rnn)](rnn.input_size, rnn.hidden_size).to(x.dtype)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in rnn.state_dict().items()})
    states, outputs = None, []
    for t in range(x.shape[1]):
        states = cell(x[:, t], states)
        states = replace(states)
        outputs.append(states[0] if isinstance(states, tuple) else states)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("chosen", [[0], [0, 1]])
def test_the_state_is_replaced_after_every_step_of_a_gru(fill, chosen):
    # In float64: rounding decides between two pieces of a curve, and from there on the paths differ.
    rnn, x = nn.GRU(3, 6, batch_first=True).double().eval(), inputs().double()
    states, koopman = fitted(rnn, x)
    (fitted_fill,) = fit_fills([mode_directions(koopman, chosen)], states, fill)

    def keep(h):
        return torch.from_numpy(fitted_fill.kept(h.numpy()))

    with torch.no_grad():
        expected = one_step_after_the_other(rnn, x, keep)
        with kann.intervene(rnn, koopman, states, keep=chosen, fill=fill):
            output, last = rnn(x)
            recorded = kann.record(rnn, x, progress=False)
    np.testing.assert_allclose(output, expected, atol=ITSELF)
    np.testing.assert_allclose(last[0], expected[:, -1], atol=ITSELF)
    np.testing.assert_allclose(recorded.padded(), expected, atol=ITSELF)


def test_both_states_of_an_lstm_are_replaced_after_every_step():
    rnn, x = nn.LSTM(3, 4, batch_first=True).eval(), inputs()
    states, koopman = fitted(rnn, x, state="hc")
    (fill,) = fit_fills([mode_directions(koopman, [0, 1])], states, "linear")

    def remove(pair):
        both = fill.removed(torch.cat(pair, dim=1).double().numpy())
        return torch.from_numpy(both).float().split(4, dim=1)

    with torch.no_grad():
        expected = one_step_after_the_other(rnn, x, remove)
        with kann.intervene(rnn, koopman, states, remove=[0, 1], fill="linear", state="hc"):
            np.testing.assert_allclose(rnn(x)[0], expected, atol=ITSELF)


def test_lower_layers_are_recorded_as_they_were_replaced():
    rnn, x = nn.GRU(3, 4, num_layers=2, batch_first=True).eval(), inputs()
    states, koopman = fitted(rnn, x, layer="l0")
    (fill,) = fit_fills([mode_directions(koopman, [0])], states, "linear")
    with kann.intervene(rnn, koopman, states, keep=[0], fill="linear", layer="l0"):
        both = kann.recording.record_layers(rnn, x, layer=["l0", "l1"], progress=False)
        last = kann.record(rnn, x, progress=False)
    replaced = both["l0"].values.astype(float)
    np.testing.assert_allclose(fill.kept(replaced), replaced, atol=ITSELF)
    np.testing.assert_allclose(both["l1"].values, last.values, atol=ITSELF)


@pytest.mark.parametrize("chosen", [{"keep": [0]}, {"remove": [0]}])
@pytest.mark.parametrize("fill", ["linear", "curve"])
def test_gradients_flow_through_the_replaced_states(chosen, fill):
    rnn, x = nn.GRU(3, 4, batch_first=True).double(), inputs(60).double()
    states, koopman = fitted(rnn, x)
    x = x[:2, :4].requires_grad_()
    with kann.intervene(rnn, koopman, states, fill=fill, **chosen):
        assert torch.autograd.gradcheck(lambda each: rnn(each)[0], (x,), fast_mode=True)
        rnn(x)[0].sum().backward()
    assert rnn.weight_hh_l0.grad is not None
    assert rnn.weight_hh_l0.grad.any()


@pytest.mark.parametrize("layer", ["rnn.l0", "rnn.l1_reverse"])
def test_gradients_flow_through_several_layers_and_directions(layer):
    model = Reader(nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), packed=True)
    x = inputs()
    # Where a state is clipped to the range that was recorded, no gradient flows: a wider range leaves these inside.
    states, koopman = fitted(model, torch.cat([x, 3 * x]), layer=layer)
    with kann.intervene(model, koopman, states, keep=every(koopman), fill="linear", layer=layer):
        flat(model(x)).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    flat(model(x)).sum().backward()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-3, atol=1e-3, err_msg=name)


def test_dropout_between_layers_is_drawn_while_training():
    model, x = Reader(nn.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True)), inputs()
    states, koopman = fitted(model, x, layer="rnn.l0")
    with torch.no_grad(), kann.intervene(model.train(), koopman, states, keep=every(koopman), layer="rnn.l0"):
        assert not torch.equal(model(x)[0], model(x)[0])
    assert model.rnn.training


def test_coarse_numbers_are_replaced_in_float32():
    rnn, x = nn.GRU(3, 4, batch_first=True).bfloat16(), inputs().bfloat16()
    states, koopman = fitted(rnn, x)
    with torch.no_grad(), kann.intervene(rnn, koopman, states, keep=every(koopman), fill="linear"):
        output = rnn(x)[0]
    assert output.dtype is torch.bfloat16
    np.testing.assert_allclose(output.float(), rnn(x)[0].detach().float(), atol=0.05)  # bfloat16 has 8 bits


def test_a_compiled_model_runs_with_its_states_replaced():
    model, x = Reader(nn.GRU(3, 4, batch_first=True)).eval(), inputs()
    states, koopman = fitted(model, x)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(x)[0]
        with kann.intervene(compiled, koopman, states, keep=[]):
            held = compiled(x)[0]
        np.testing.assert_allclose(held[:, 1:].std(dim=0), 0, atol=ITSELF)
        assert torch.equal(compiled(x)[0], before)


def test_balances_and_arrays_name_their_coordinates_by_column(rng):
    rnn, x = nn.GRU(3, 4, batch_first=True).eval(), inputs()
    states, koopman = fitted(rnn, x)
    directions = mode_directions(koopman, range(len(koopman.modes)))
    with torch.no_grad():
        for mode in range(len(koopman.modes)):
            columns = [
                sum(len(koopman.modes[i].indices) for i in range(mode)) + j
                for j in range(len(koopman.modes[mode].indices))
            ]
            found = []
            for coordinates, keep in (
                (koopman, mode),
                (directions, columns),
                (directions[:, columns], range(len(columns))),
            ):
                with kann.intervene(rnn, coordinates, states, keep=keep):
                    found.append(rnn(x)[0])
            np.testing.assert_allclose(found[1], found[0], atol=ITSELF)
            np.testing.assert_allclose(found[2], found[0], atol=ITSELF)


@pytest.mark.parametrize(
    ("coordinates", "options", "text"),
    [
        (np.eye(4), {"keep": [4]}, "coordinate 4 does not exist; there are coordinates 0 to 3"),
        (np.eye(4), {"keep": [-1]}, "coordinate=-1"),
        (np.eye(4), {"keep": "all"}, "coordinate='all'"),
        (np.eye(4), {}, "either keep= or remove="),
        (np.eye(4), {"keep": [0], "remove": [1]}, "either keep= or remove="),
        (np.ones(4), {"keep": [0]}, r"pass direction\[:, None\]"),
        (np.eye(4) * np.nan, {"keep": [0]}, "pass finite ones"),
        (np.eye(4) + 1j, {"keep": [0]}, "complex"),
        (np.eye(5), {"keep": [0]}, "for 5 units; the recorded states have 4"),
        (np.eye(4), {"keep": [0], "fill": "mean"}, "fill='mean' is unknown"),
    ],
)
def test_wrong_coordinates_are_refused(coordinates, options, text, untyped):
    rnn, x = nn.GRU(3, 4, batch_first=True).eval(), inputs()
    states, _ = fitted(rnn, x)
    with pytest.raises(kann.KannError, match=text), kann.intervene(rnn, coordinates, states, **options):
        pass


def test_of_an_lstm_the_width_of_the_states_tells_which_state_it_is():
    rnn, x = nn.LSTM(3, 4, batch_first=True).eval(), inputs()
    for recorded in ("h", "hc"):
        states, koopman = fitted(rnn, x, state=recorded)
        found = []
        for state in (None, recorded):
            with torch.no_grad(), kann.intervene(rnn, koopman, states, keep=[0], state=state):
                found.append(rnn(x)[0])
        assert torch.equal(*found)

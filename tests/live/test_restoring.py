"""The model is as it was after an intervention, and what cannot work is refused with a remedy."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import kann
from tests.live.models import Blocks, Loop, Reader, every, fitted, inputs
from tests.recording.models import Failure
from tests.recording.test_restoring import condition, equal
from tests.recording.test_threads import in_another_thread


@pytest.fixture
def known(model, words):
    return fitted(model, words)


def assert_refused(text, model, koopman, states, **options):
    with pytest.raises(kann.KannError, match=text), kann.intervene(model, koopman, states, **options):
        pass


@pytest.mark.parametrize("error", [None, Failure, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["fused", "cell", "block"])
def test_hooks_weights_modes_and_random_numbers_are_as_before(error, kind):
    model = {"fused": lambda: Reader(nn.GRU(3, 4, batch_first=True)), "cell": lambda: Loop(nn.GRUCell(3, 4))}.get(
        kind, Blocks
    )()
    where = {"layer": {"fused": "rnn", "cell": "cell", "block": "blocks.0"}[kind]}
    model.train()
    x = inputs()
    states, koopman = fitted(model, x, **where)
    before = copy.deepcopy(condition(model))
    try:
        with kann.intervene(model, koopman, states, keep=[0], fill="linear", **where):
            model(x)
            if error:
                raise error
    except (Failure, KeyboardInterrupt):
        pass
    after = condition(model)
    for key in before:
        assert equal(before[key], after[key]), key


def test_an_error_of_the_model_itself_comes_through_and_leaves_it_as_it_was(model, words, known):
    states, koopman = known
    with pytest.raises(IndexError), kann.intervene(model, koopman, states, keep=[0]):
        model(words + 100)
    assert "forward" not in vars(model.rnn)
    with kann.intervene(model, koopman, states, keep=[0]):  # can be entered again
        model(words)


def test_a_forward_that_was_replaced_before_is_put_back(model, words, known):
    states, koopman = known
    plain = model.rnn.forward
    model.rnn.forward = mine = lambda *args: plain(*args)
    with kann.intervene(model, koopman, states, keep=[0]):
        model(words)
    assert model.rnn.forward is mine


def test_interventions_on_the_same_layer_are_not_nested(model, words, known):
    states, koopman = known
    with kann.intervene(model, koopman, states, keep=[0]):
        assert_refused("replaced already.*leave the other", model, koopman, states, remove=[0])
        model(words)
    with kann.intervene(model, koopman, states, remove=[0]):
        model(words)


def test_interventions_on_two_layers_may_be_nested():
    model, x = Blocks().eval(), inputs()
    first, second = fitted(model, x, layer="read"), fitted(model, x, layer="blocks.1")
    with (
        torch.no_grad(),
        kann.intervene(model, first[1], first[0], keep=every(first[1]), fill="linear", layer="read"),
        kann.intervene(model, second[1], second[0], keep=[], layer="blocks.1"),
    ):
        output = model(x)
    np.testing.assert_allclose(output.numpy() - second[0].values.mean(axis=0), 0, atol=1e-5)


def test_other_threads_must_not_run_the_model_meanwhile(model, words, known):
    states, koopman = known
    with kann.intervene(model, koopman, states, keep=[0]):
        with pytest.raises(kann.KannError, match=r"another thread runs 'rnn'.*give each thread a copy"):
            in_another_thread(model, words)
        with pytest.raises(kann.KannError, match="replaced already, in this thread or another"):
            in_another_thread(lambda: kann.intervene(model, koopman, states, keep=[0]).__enter__())
        model(words)
    in_another_thread(model, words)


def test_cells_and_blocks_are_refused_to_other_threads_too():
    model, x = Loop(nn.GRUCell(3, 4)).eval(), inputs()
    states, koopman = fitted(model, x)
    with (
        kann.intervene(model, koopman, states, keep=[0]),
        pytest.raises(kann.KannError, match="another thread runs 'cell'"),
    ):
        in_another_thread(model, x)


def test_threads_with_models_of_their_own_do_not_meet(model, words, known):
    states, koopman = known
    other = copy.deepcopy(model)

    def held():
        with kann.intervene(other, koopman, states, keep=[]), torch.no_grad():
            return other(words)

    with torch.no_grad(), kann.intervene(model, koopman, states, keep=every(koopman), fill="linear"):
        assert in_another_thread(held).std(dim=0).max() < 1e-5
        np.testing.assert_allclose(model(words), other(words), atol=1e-5)


def test_an_operator_of_other_units_is_refused(model, known, rng):
    states, koopman = known
    narrow = kann.fit(rng.normal(size=(4, 9, 3)), basis="pca")
    assert_refused(r"for 3 units; the recorded states have 5", model, narrow, states, keep=[0])
    own = kann.States.from_padded(rng.normal(size=(4, 9, 3)))
    assert_refused(r"for 3 units; state='h' of 'rnn' has 5.*state= that belong", model, narrow, own, keep=[0])
    with (
        pytest.raises(kann.KannError, match=r"for 5 units; layer 'embed' gave \(1, 2, 3\)"),
        kann.intervene(model, koopman, states, keep=[0], layer="embed"),
    ):
        model(torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "either keep= or remove="),
        ({"keep": [0], "remove": [1]}, "not both"),
        ({"keep": [99]}, "mode 99 does not exist"),
        ({"keep": [0], "fill": "zero"}, "fill='zero' is unknown; pass 'auto' or 'linear' or 'curve'"),
        ({"keep": [0], "state": "x"}, "state='x' is unknown"),
        ({"keep": [0], "state": "hc"}, "state='hc' is for LSTMs; 'rnn' is GRU"),
        ({"keep": [0], "layer": "nowhere"}, "no layer 'nowhere'"),
        ({"keep": [0], "layer": "hidden_states.2"}, "read off the model's output"),
        ({"keep": [0], "layer": ["rnn", "head"]}, "states of one layer are replaced"),
    ],
)
def test_wrong_arguments_are_refused(model, known, options, text, untyped):
    states, koopman = known
    assert_refused(text, model, koopman, states, **options)
    assert_refused("must be a Balance, a Koopman or an array", model, "operator", states, keep=[0])


def test_one_direction_must_be_named(known):
    states, koopman = known
    model = Reader(nn.GRU(3, 5, batch_first=True, bidirectional=True))
    assert_refused(re.escape("['rnn.l0', 'rnn.l0_reverse']"), model, koopman, states, keep=[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_compiled_code_is_refused(known):
    states, koopman = known
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 5)))
    assert_refused("compiled by torch.jit", model, koopman, states, keep=[0], layer="0")


def test_a_curve_of_too_many_coordinates_is_refused(rng):
    states = kann.States.from_padded(rng.normal(size=(40, 9, 50)))
    koopman = kann.fit(states, basis="pca", rank=40)
    model = nn.GRU(3, 50, batch_first=True)
    chosen = {"keep": every(koopman)}
    assert_refused("at most 32 coordinates, and 40 were chosen", model, koopman, states, fill="curve", **chosen)
    with kann.intervene(model, koopman, states, **chosen):  # of as many, the linear one is taken
        pass


def test_a_layer_without_a_cell_state_is_refused_when_it_is_called(words, model, known):
    states, koopman = known
    with (
        pytest.raises(kann.KannError, match="state='c' is not among what 'head'"),
        kann.intervene(model, koopman, states, keep=[0], layer="head", state="c"),
    ):
        model(words)


def test_cell_states_cannot_be_recorded_inside():
    model, x = nn.LSTM(3, 4, batch_first=True).eval(), inputs()
    states, koopman = fitted(model, x)
    with kann.intervene(model, koopman, states, keep=[0]):
        kann.record(model, x, progress=False)
        with pytest.raises(kann.KannError, match=r"state='hc'.*inside of kann.intervene"):
            kann.record(model, x, state="hc", progress=False)


def test_states_that_are_not_finite_are_refused(model):
    values = np.ones((3, 4, 5))
    values[1, 2, 3] = np.nan
    koopman = kann.fit(np.random.default_rng(0).normal(size=(9, 9, 5)), basis="pca")
    assert_refused("NaN at sequence 1, step 2, unit 3", model, koopman, values, keep=[0])

"""Along depth each layer has a map of its own, and a sentence says which layers are linear."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import kann
from kann._format import percent
from kann.analysis._trust import Trust
from kann.explaining import depth_stage, stages
from kann.explaining import sentences as wording
from kann.explaining.context import Findings
from kann.explaining.depth_stage import layer_names, layers_in_words
from tests.explaining import networks
from tests.explaining.networks import seeded, words


@pytest.fixture(scope="module")
def encoder():
    """A transformer encoder, explained."""
    data = words(torch.Generator().manual_seed(0))
    return kann.explain(seeded(networks.Encoder), data, progress=False)


def steps_of(states):
    return kann.depth.trust(kann.depth.fit(states), states)


def findings(steps, *, layer=None, errors=(0.18, 0.44)):
    trust = None
    if errors is not None:
        trust = Mock(Trust, error=np.array(errors[:1]), copying_error=np.array(errors[1:]), horizons=np.array([1]))
    return Mock(Findings, steps=steps, trust=trust, place=SimpleNamespace(layer=layer, axis="depth", step_name="layer"))


def three_quiet_layers_and_a_loud_one(rng):
    """The one operator does what the last layer does, and is worse than copying at the others."""
    first = rng.normal(size=(300, 4))
    noise = rng.normal(size=(2, *first.shape))
    return np.stack([first, 1.01 * first + 0.05 * noise[0], 1.02 * first, 1.03 * first + 0.5, -9 * first], axis=1)


def test_maps_of_all_layers_come_with_an_explanation(encoder, tmp_path):
    steps = encoder.steps
    assert isinstance(steps, kann.depth.StepTrust)
    assert len(steps) == 4  # blocks, the first of which reads what was recorded as the embedding
    assert encoder.page["step_names"] == [f"encoder.layers.{block}" for block in range(4)]
    assert sum("a linear map of its own is surely better than copying" in each for each in encoder.sentences) == 1
    saved = json.loads(json.dumps(encoder.numbers()))["steps"]["layers"]
    assert [layer["name"] for layer in saved] == encoder.page["step_names"]
    assert [layer["each"][0] for layer in saved] == steps.errors["each"].tolist()
    assert 'id="layers"' in encoder.report(tmp_path / "depth.html").read_text(encoding="utf-8")


def test_one_operator_beside_the_maps_is_the_one_that_is_explained(encoder, monkeypatch):
    maps = []
    monkeypatch.setattr(depth_stage, "fit", lambda *data, **how: maps.append(kann.depth.fit(*data, **how)) or maps[-1])
    found = stages.look(
        seeded(networks.Encoder), words(torch.Generator().manual_seed(0)), stages.Options(progress=False)
    )
    for name in ("recording", "fitting", "fitting a map for each layer"):
        stages.STAGES[name](found)
    assert np.allclose(maps[0].one.eigenvalues, encoder.koopman.eigenvalues)
    assert np.allclose(found.steps.errors["each"], encoder.steps.errors["each"])


def test_out_of_time_it_is_left_out_with_a_sentence(generator, monkeypatch):
    model, data = seeded(networks.Encoder), words(generator)
    found = stages.look(model, data, stages.Options(seconds=600, progress=False))
    fit = stages.fit_operators

    def spend(found):
        fit(found)
        found.clock._seconds = 0

    monkeypatch.setitem(stages.STAGES, "fitting", spend)
    stages.run_stages(found)
    assert found.steps is None
    assert "Time was up before fitting a map for each layer: that part is left out." in found.choices


def test_maps_that_would_take_too_long_are_left_out_with_a_sentence(rng, monkeypatch):
    monkeypatch.setattr(depth_stage, "SECONDS_FOR_EACH", 10.0)
    states = kann.States.from_padded(rng.normal(size=(20, 3, 2)))
    fitted = SimpleNamespace(states=states, groups=list(range(20)))
    found = Mock(Findings, fitted=fitted, clock=SimpleNamespace(left=100.0), choices=[], steps=None)
    depth_stage.map_each_layer(found)
    assert found.steps is None
    expected = "No map was fitted to each layer: that takes about 160 seconds, and 100 are left; pass more seconds."
    assert found.choices == [expected]


def test_a_mean_that_one_layer_makes_is_not_praised(rng):
    steps = steps_of(three_quiet_layers_and_a_loud_one(rng))
    assert steps.one_is_worse == (0, 1, 2)
    text = layers_in_words(findings(steps, layer=["a", "b", "c", "d"]))
    assert text.startswith(
        "On held-out sequences a linear map of its own is surely better than copying the state for 2 of the 4 layers; "
        "the most linear is “d” (its map tells 100.0 % of what it does), the least “"
    )
    assert steps.better_than_identity == (2, 3)
    assert "misses more than copying at 3 of the 4, so that its mean over layers says little" in text
    assert "own maps miss below 0.001 % to " in text


def test_an_operator_that_holds_for_all_layers_is_said_to(rng):
    states = rng.normal(size=(200, 1, 3)) * 0.5 ** np.arange(5)[:, None]
    text = layers_in_words(findings(steps_of(states), errors=(0.01, 0.9)))
    assert "says little" not in text
    assert "One operator for all layers misses 1.0 % of the states' variance, and copying 90.0 %" in text
    assert "for each of the 4 layers; of what a layer does, its map tells 100.0 %." in text
    assert text.endswith("own maps miss 0.0 %.")
    assert "at 0 of the 4" in layers_in_words(findings(steps_of(states), errors=None))


def test_noise_has_no_layer_that_is_linear(rng):
    text = layers_in_words(findings(steps_of(rng.normal(size=(60, 3, 6)) + 100 * np.arange(3)[:, None]), errors=None))
    assert "; of what a layer does, its map tells nothing." in text
    copied = steps_of(np.repeat(rng.normal(size=(60, 1, 3)), 3, axis=1))
    assert "surely better than copying the state for none of the 2 layers. One" in layers_in_words(findings(copied))


def test_where_nothing_is_known_of_layers_the_errors_are_those_of_the_operator(rng):
    assert layers_in_words(findings(None)) is None
    found = findings(None)
    found.fitted = None
    assert "one layer of the operator misses 18.0 %" in wording._errors(found)


def test_layers_are_named_by_what_they_give(rng):
    steps = steps_of(rng.normal(size=(60, 3, 2)))
    assert layer_names(findings(steps, layer=["a", "b", "c"])) == ["b", "c"]  # what a reads was not recorded
    assert layer_names(findings(steps, layer=["a", "b"])) == ["a", "b"]
    assert layer_names(findings(steps, layer="hidden_states")) is None


def test_small_errors_are_written_with_the_same_digits(rng):
    first, noise = rng.normal(size=(300, 4)), rng.normal(size=(2, 300, 4))
    steps = steps_of(np.stack([first, 2 * first + 0.05 * noise[0], -first + 0.05 * noise[1]], axis=1))
    text = layers_in_words(findings(steps, errors=(0.0003, 0.0009)))
    assert "misses 0.03 % of the states' variance, and copying 0.09 %; own maps miss " in text
    low, high = steps.errors["each"]
    assert text.endswith(f"own maps miss {percent(low)} to {percent(high)}.")
    assert 0.0005 < low < 0.001  # with one digit it would read as more than copying misses

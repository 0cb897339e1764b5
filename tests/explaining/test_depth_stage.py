"""Along depth each layer has a map of its own, and a sentence says which layers are linear."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import kann
from kann._format import percent
from kann.errors import KannError
from kann.explaining import stages
from kann.explaining.facts import layer_names
from kann.explaining.operators import Operators
from kann.explaining.options import Clock, Options
from kann.explaining.sentences import details_of
from kann.explaining.setup import look
from tests.explaining import networks
from tests.explaining.networks import seeded, words
from tests.explaining.test_sentences import NETWORK, TRUST, facts


@pytest.fixture(scope="module")
def encoder():
    """A transformer encoder, explained."""
    data = words(torch.Generator().manual_seed(0))
    return kann.explain(seeded(networks.Encoder), data, progress=False)


def steps_of(states):
    return kann.depth.trust(kann.depth.fit(states), states)


def layers_in_words(steps, *, layer=None, errors=(0.18, 0.44)):
    """The sentence about layers, given the errors of the one operator and of copying."""
    known = None
    if errors is not None:
        own, copying = errors
        known = replace(TRUST, horizons=np.array([1]), error=np.array([own]), copying_error=np.array([copying]))
    names = () if steps is None else tuple(layer_names(len(steps), layer))
    network = replace(NETWORK, axis="depth", depth=4.0)
    found = details_of(facts(network=network, steps=steps, step_names=names, trust=known, balanced=False))
    return next(each for each in found if each.startswith("On held-out"))


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
    assert sum("a separate linear map is surely better than copying" in each for each in encoder.choices) == 1
    saved = json.loads(json.dumps(encoder.numbers()))["steps"]["layers"]
    assert [layer["name"] for layer in saved] == encoder.page["step_names"]
    assert [layer["each"][0] for layer in saved] == steps.errors["each"].tolist()
    assert 'id="layers"' in encoder.report(tmp_path / "depth.html").read_text(encoding="utf-8")


def test_one_operator_beside_the_maps_is_the_one_that_is_explained(encoder, monkeypatch):
    maps = []
    monkeypatch.setattr(stages, "fit_maps", lambda *data, **how: maps.append(kann.depth.fit(*data, **how)) or maps[-1])
    found = stages.run_stages(
        look(seeded(networks.Encoder), words(torch.Generator().manual_seed(0)), Options(progress=False))
    )
    assert np.allclose(maps[0].one.eigenvalues, encoder.koopman.eigenvalues)
    assert np.allclose(found.steps.errors["each"], encoder.steps.errors["each"])


def test_out_of_time_it_is_left_out_with_a_sentence(generator, monkeypatch):
    model, data = seeded(networks.Encoder), words(generator)
    found = look(model, data, Options(seconds=600, progress=False))
    fit = stages.fit_operators

    def spend(*arguments):
        found.clock._seconds = 0
        return fit(*arguments)

    monkeypatch.setattr(stages, "fit_operators", spend)
    results = stages.run_stages(found)
    assert results.steps is None
    assert "Time was up before fitting a map for each layer: that part is left out." in results.choices


def test_maps_that_would_take_too_long_are_left_out_with_a_sentence(rng, monkeypatch):
    monkeypatch.setattr(stages, "SECONDS_FOR_EACH", 10.0)
    states = kann.States.from_padded(rng.normal(size=(20, 3, 2)))
    monkeypatch.setattr(Clock, "left", 100.0)
    setup = look(seeded(networks.Encoder), words(torch.Generator().manual_seed(0)), Options())
    found = Operators(koopman=kann.fit(states), kind="autonomous", states=states, groups=None)
    with pytest.raises(KannError, match="it takes about 160 seconds, and 100 are left; pass more seconds"):
        stages.map_each_layer(setup, found)


def test_a_mean_that_one_layer_makes_is_not_praised(rng):
    steps = steps_of(three_quiet_layers_and_a_loud_one(rng))
    assert steps.one_is_worse == (0, 1, 2)
    text = layers_in_words(steps, layer=["a", "b", "c", "d"])
    assert text.startswith(
        "On held-out sequences a separate linear map is surely better than copying the state for 2 of the 4 layers; "
        "the most linear is “d” (its map tells 100.0 % of what it does), the least “"
    )
    assert steps.better_than_identity == (2, 3)
    assert "misses more than copying at 3 of the 4, so that its mean over layers says little" in text
    assert "own maps miss below 0.001 % to " in text


def test_an_operator_that_holds_for_all_layers_is_said_to(rng):
    states = rng.normal(size=(200, 1, 3)) * 0.5 ** np.arange(5)[:, None]
    text = layers_in_words(steps_of(states), errors=(0.01, 0.9))
    assert "says little" not in text
    assert "One operator for all layers misses 1.0 % of the states' variance, and copying 90.0 %" in text
    assert "for each of the 4 layers; of what a layer does, its map tells 100.0 %." in text
    assert text.endswith("own maps miss 0.0 %.")
    assert "at 0 of the 4" in layers_in_words(steps_of(states), errors=None)


def test_noise_has_no_layer_that_is_linear(rng):
    text = layers_in_words(steps_of(rng.normal(size=(60, 3, 6)) + 100 * np.arange(3)[:, None]), errors=None)
    assert "; of what a layer does, its map tells nothing." in text
    copied = steps_of(np.repeat(rng.normal(size=(60, 1, 3)), 3, axis=1))
    assert "surely better than copying the state for none of the 2 layers. One" in layers_in_words(copied)


def test_where_nothing_is_known_of_layers_the_errors_are_those_of_the_operator():
    assert "one layer of the operator misses 18.0 %" in layers_in_words(None)


def test_layers_are_named_by_what_they_give():
    assert layer_names(2, ["a", "b", "c"]) == ["b", "c"]  # what a reads was not recorded
    assert layer_names(2, ["a", "b"]) == ["a", "b"]
    assert layer_names(2, "hidden_states") == []


def test_small_errors_are_written_with_the_same_digits(rng):
    first, noise = rng.normal(size=(300, 4)), rng.normal(size=(2, 300, 4))
    steps = steps_of(np.stack([first, 2 * first + 0.05 * noise[0], -first + 0.05 * noise[1]], axis=1))
    text = layers_in_words(steps, errors=(0.0003, 0.0009))
    assert "misses 0.03 % of the states' variance, and copying 0.09 %; own maps miss " in text
    low, high = steps.errors["each"]
    assert text.endswith(f"own maps miss {percent(low)} to {percent(high)}.")
    assert 0.0005 < low < 0.001  # with one digit it would read as more than copying misses

"""What pushes modes, where the pushes are known."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.analysis._movers import means_by_label
from kann.errors import KannError

WORDS = ("good", "bad", "the", "film")
PUSHES = np.array([[1.0, 0.0], [-1.0, 0.2], [0.0, 0.0], [0.1, -0.7]])
"""How each word pushes two modes of eigenvalues 0.9 and 0.5."""


def read_words(rng, *, sequences=40, steps=30, noise=0.0):
    """A linear system of two modes that words push, with its words."""
    numbers = rng.integers(len(WORDS), size=(sequences, steps))
    states = np.zeros((sequences, steps, 2))
    states[:, 0] = PUSHES[numbers[:, 0]]
    for t in range(1, steps):
        states[:, t] = states[:, t - 1] * [0.9, 0.5] + PUSHES[numbers[:, t]]
    states += noise * rng.normal(size=states.shape)
    inputs = np.eye(len(WORDS))[numbers]
    return kann.States.from_padded(states, inputs=inputs), np.array(WORDS)[numbers].tolist()


def test_pushes_of_words_are_those_of_the_system(rng):
    states, words = read_words(rng)
    koopman = kann.fit(states, driven=True)
    found = kann.movers(koopman, states, words, readout=np.eye(2), modes=range(2))
    assert found.by == "tokens"
    assert set(found.names) == set(WORDS)
    scale = states.values.std(axis=0)
    for column in range(2):
        push = np.array([found.push[found.names.index(word), column] for word in WORDS])
        # The offset of the operator takes what all words push alike.
        np.testing.assert_allclose(
            (push - push[2]) * scale[column], PUSHES[:, column] - PUSHES[2, column], rtol=1e-6, atol=1e-6
        )
    assert found.up(0)[0].name == "good"
    assert found.down(0)[0].name == "bad"
    assert found.down(1)[0].name == "film"
    assert all(each.sure for each in (found.up(0)[0], found.down(0)[0], found.down(1)[0]))


def test_counts_are_those_of_the_words_behind_the_first(rng):
    states, words = read_words(rng)
    found = kann.movers(kann.fit(states), states, words)
    every = [word for own in words for word in own[1:]]
    assert found.of("good", 0).count == every.count("good")
    assert found.of("good", 0).sequences == sum("good" in own[1:] for own in words)


def test_one_unit_of_a_real_mode_adds_its_outputs(rng):
    states, words = read_words(rng, noise=0.1)
    koopman, weight = kann.fit(states), rng.normal(size=(3, 2))
    found = kann.movers(koopman, states, words, readout=weight, modes=range(2))
    own = kann.contributions(koopman, states.values, weight).modes  # (n, modes, outputs)
    for column in range(2):
        expected = np.abs(found.outputs[column])  # the standard deviation of the number is one
        np.testing.assert_allclose(own[:, column].std(axis=0), expected, rtol=1e-9)
        most = np.abs(found.outputs[column]).argmax()
        assert found.outputs[column, most] > 0  # up raises the output that the mode moves most


def test_a_pair_is_followed_along_its_widest_axis(rng):
    angle = 0.5
    turn = 0.95 * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    kicks = rng.integers(2, size=(60, 40))
    states = np.zeros((60, 40, 2))
    for t in range(1, 40):
        states[:, t] = states[:, t - 1] @ turn + kicks[:, t, None] * [1.0, 0.0]
    data = kann.States.from_padded(states, inputs=kicks[..., None].astype(float))
    koopman = kann.fit(data, driven=True)
    words = [["kick" if kick else "rest" for kick in row] for row in kicks]
    found = kann.movers(koopman, data, words, readout=np.array([[1.0, 0.0]]))
    assert found.modes == (0,)
    together = found.of("kick", 0).push - found.of("rest", 0).push
    assert abs(together) <= 1 / np.sqrt(np.linalg.eigvalsh(np.cov(data.values.T))[-1]) * 1.001
    changed = koopman.modes[0]
    assert len(changed.indices) == 2
    assert abs(together) > 0.1


def test_intervals_over_sequences_cover_the_truth(rng):
    covered = []
    for _ in range(300):
        sequences = np.repeat(np.arange(20), 15)
        own = rng.normal(size=20)[sequences]  # every sequence has a level of its own
        values = (own + rng.normal(size=300))[:, None]
        means = means_by_label(values, np.zeros(300, dtype=int), sequences, count=1)
        covered.append(abs(means.mean[0, 0]) <= means.half_width(0.95)[0, 0])
    assert 0.91 < np.mean(covered) < 0.985  # four standard errors about 95 %


def test_a_word_of_one_sequence_is_never_sure(rng):
    states, words = read_words(rng)
    words[0][5] = "once"
    found = kann.movers(kann.fit(states), states, words)
    assert found.of("once", 0).low == -np.inf
    assert not found.of("once", 0).sure


def test_a_phrase_that_differs_from_its_words_is_found(rng):
    numbers = rng.integers(3, size=(80, 30))  # 0: good, 1: not, 2: the
    push = np.where(numbers == 0, 1.0, 0.0)
    turned = (numbers[:, 1:] == 0) & (numbers[:, :-1] == 1)
    push[:, 1:][turned] = -1.0
    states = np.cumsum(push, axis=1)[..., None] * 0.1 + 0.001 * rng.normal(size=(80, 30, 1))
    words = np.array(["good", "not", "the"])[numbers].tolist()
    found = kann.movers(kann.fit(states), states, words, readout=np.array([[1.0]]))
    first = found.phrases[0][0]
    assert first.words == ("not", "good")
    assert first.push < 0 < first.expected
    assert first.high < 0
    assert first.sure


def test_without_tokens_inputs_are_regressed_on(rng):
    inputs = rng.normal(size=(40, 30, 3)) * [1.0, 2.0, 0.5]
    weights = np.array([0.5, -0.2, 0.0])
    states = np.zeros((40, 30, 1))
    for t in range(1, 30):
        states[:, t, 0] = 0.8 * states[:, t - 1, 0] + inputs[:, t] @ weights
    data = kann.States.from_padded(states, inputs=inputs)
    found = kann.movers(kann.fit(data, driven=True), data, readout=np.array([[1.0]]))
    assert found.by == "inputs"
    scale = data.values.std()
    np.testing.assert_allclose(found.push[:, 0] * scale, weights * [1.0, 2.0, 0.5], atol=0.03)
    assert found.up(0)[0].name == "input 0"
    assert found.down(0)[0].name == "input 1"
    assert found.of("input 0", 0).sequences == 40


def test_without_tokens_and_inputs_the_time_pushes(rng):
    states = 0.01 * rng.normal(size=(30, 20, 1))
    states[:, 12:] += 1.0
    found = kann.movers(kann.fit(states), states, readout=np.array([[1.0]]))
    assert found.by == "steps"
    assert found.up(0)[0].name == "step 12"
    long = np.cumsum(rng.normal(size=(10, 200, 1)), axis=1)
    assert kann.movers(kann.fit(long), long).names[:2] == ("steps 1 to 5", "steps 6 to 10")


def test_words_are_turned_round_for_a_direction_that_reads_from_the_end(rng):
    states, words = read_words(rng)
    koopman = kann.fit(states)
    expected = kann.movers(koopman, states, words)
    from_the_end = [own[::-1] for own in words]
    found = kann.movers(koopman, replace(states, reverse=True), from_the_end)
    np.testing.assert_array_equal(found.push, expected.push)
    assert found.names == expected.names


@pytest.mark.parametrize("kind", ["torch", "dask", "store"])
def test_it_does_not_matter_where_the_states_are(rng, kind, tmp_path):
    states, words = read_words(rng, noise=0.1)
    koopman = kann.fit(states)
    expected = kann.movers(koopman, states, words)
    other = states
    if kind == "torch":
        other = kann.States.from_sequences(
            [torch.from_numpy(states.values[states.span(i)]) for i in range(len(states))]
        )
    if kind == "dask":
        other = replace(states, values=da.from_array(states.values, chunks=(70, 2)), inputs=None)
    if kind == "store":
        states.save(tmp_path / "states.zarr")
        other = kann.States.open(tmp_path / "states.zarr")
    found = kann.movers(koopman, other, words)
    np.testing.assert_allclose(found.push, expected.push, rtol=1e-9)
    np.testing.assert_allclose(found.low, expected.low, rtol=1e-9)


def test_a_notebook_shows_what_pushes(rng):
    states, words = read_words(rng)
    html = kann.movers(kann.fit(states), states, words, readout=np.eye(2))._repr_html_()
    assert "pushed up by" in html
    assert "good +" in html


def test_bad_arguments_are_refused(rng):
    states, words = read_words(rng)
    koopman = kann.fit(states)
    with pytest.raises(KannError, match="there are tokens for 39 sequences and states for 40"):
        kann.movers(koopman, states, words[1:])
    with pytest.raises(KannError, match="sequence 0 has 30 states and 29 tokens"):
        kann.movers(koopman, states, [own[1:] for own in words])
    with pytest.raises(KannError, match="by='tokens' needs tokens; pass tokens"):
        kann.movers(koopman, states, by="tokens")
    with pytest.raises(KannError, match="by='inputs' needs inputs; record the states with inputs=True"):
        kann.movers(koopman, states.values.reshape(40, 30, 2), by="inputs")
    with pytest.raises(KannError, match=r"weight of shape \(2, 3\); pass a linear one"):
        kann.movers(koopman, states, words, readout=np.ones((2, 3)))
    with pytest.raises(KannError, match=r"level=1\.0 is no confidence level"):
        kann.movers(koopman, states, words, level=1.0)
    with pytest.raises(KannError, match="every sequence has one state only"):
        kann.movers(koopman, states.values[:, None], [[word] for own in words for word in own])
    found = kann.movers(koopman, states, words, modes=[0])
    with pytest.raises(KannError, match="mode 1 was not studied"):
        found.up(1)
    with pytest.raises(KannError, match="'never' is not among the 4 tokens"):
        found.of("never", 0)

"""Words as pairs of numbers: what they keep and what they add."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import kann
from kann.stand_ins import WordPairs, fit_readout, word_pairs

WORDS = ("good", "bad", "forget", "not", "the", "never read")
KEEPS = np.array([0.95, 0.9, 0.0, -0.5, 1.0, 0.0])
ADDS = np.array([1.0, -1.5, 0.0, 0.2, 0.0, 0.0])


def scores(rng, *, steps=30, sequences=50):
    """Scores that words keep and add to, and the words that were read."""
    read = rng.choice(5, size=(sequences, steps), p=[0.2, 0.2, 0.1, 0.1, 0.4])
    found = np.zeros((sequences, steps))
    for t in range(1, steps):
        found[:, t] = KEEPS[read[:, t]] * found[:, t - 1] + ADDS[read[:, t]]
    return found, read


@pytest.fixture
def scored(rng):
    score, read = scores(rng)
    # Two units show the score, shifted and scaled; one does not.
    h = np.stack([2 * score + 3, -score, rng.normal(size=score.shape)], axis=2)
    states = kann.States.from_padded(h, inputs=read[..., None].astype(float))
    koopman = kann.fit(states, driven="bilinear", features="tokens", ridge=0.0, basis=np.array([[1.0], [0.0], [0.0]]))
    return states, koopman, score, np.array(WORDS)[read].tolist()


def test_keeps_and_adds_of_a_scalar_system_are_recovered(scored):
    states, koopman, score, tokens = scored
    readout = fit_readout(koopman, states, score[..., None], products=False)
    pairs = word_pairs(koopman, states, tokens, readout=readout)
    assert pairs.number == "output"
    order = [pairs.words.index(word) for word in WORDS[:5]]
    np.testing.assert_allclose(pairs.keeps[order], KEEPS[:5], atol=1e-6)
    np.testing.assert_allclose(pairs.adds[order], ADDS[:5], atol=1e-4)


def test_only_words_that_occur_are_quoted_with_their_counts(scored):
    states, koopman, _, tokens = scored
    pairs = word_pairs(koopman, states, tokens)
    assert set(pairs.words) == set(WORDS[:5])
    steps = [word for words in tokens for word in words[1:]]  # nothing is known of what led to the first state
    assert dict(zip(pairs.words, pairs.counts.tolist(), strict=True)) == {word: steps.count(word) for word in WORDS[:5]}
    assert (np.diff(pairs.counts) <= 0).all()
    assert pairs.number == "coordinate"
    i = pairs.words.index("the")
    assert (pairs.keeps[i], pairs.adds[i]) == (pytest.approx(1.0, abs=1e-6), pytest.approx(0.0, abs=1e-6))


def test_pairs_are_means_where_a_word_comes_with_other_inputs(rng):
    loud = rng.choice([0.0, 1.0], size=(40, 30))
    score = np.zeros((40, 30, 1))
    for t in range(1, 30):
        score[:, t, 0] = 0.5 * score[:, t - 1, 0] + 2 * loud[:, t]
    states = kann.States.from_padded(score, inputs=loud[..., None])
    pairs = word_pairs(kann.fit(states, driven="bilinear", ridge=0.0), states, [["a"] * 30] * 40)
    mean = score.mean()
    # In units of the coordinate, zero is the mean score.
    np.testing.assert_allclose(pairs.adds, 2 * loud[:, 1:].mean() - 0.5 * mean, atol=1e-6)


def test_a_table_shows_words_that_are_read_often(scored):
    states, koopman, score, tokens = scored
    pairs = word_pairs(koopman, states, tokens, readout=fit_readout(koopman, states, score[..., None], products=False))
    lines = pairs.table(2).splitlines()
    assert lines[0].split() == ["word", "keeps", "adds", "read"]
    assert lines[1].startswith("adds most")
    assert "good" in lines[1]
    assert "bad" in lines[3]
    assert "not" in lines[5]
    assert str(pairs).startswith("WordPairs(5 words")
    with pytest.raises(kann.KannError, match="pass least<="):
        pairs.table(least=10_000)


def test_pairs_are_saved_and_loaded(scored, tmp_path):
    states, koopman, _, tokens = scored
    pairs = word_pairs(koopman, states, tokens)
    pairs.save(tmp_path / "pairs.npz")
    loaded = WordPairs.load(tmp_path / "pairs.npz")
    assert loaded.words == pairs.words
    np.testing.assert_array_equal(loaded.adds, pairs.adds)


def test_the_plane_shows_all_words_and_names_do_not_overlap(rng):
    count = 300
    pairs = WordPairs(
        words=tuple(f"word{i}" for i in range(count)),
        counts=np.sort(rng.integers(20, 1000, size=count))[::-1].copy(),
        keeps=1 + 0.02 * rng.normal(size=count),
        adds=rng.normal(size=count),
        number="output",
    )
    ax = kann.plots.draw_word_plane(pairs, ax=Figure(figsize=(4, 3)).subplots(), count=40)
    assert len(ax.collections[0].get_offsets()) == count
    boxes = [text.get_window_extent() for text in ax.texts]
    assert 5 < len(boxes) <= 40
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    ax = Figure().subplots()
    ax.set(xlim=(0.99, 1.01), ylim=(-1, 1))
    kann.plots.draw_word_plane(pairs, ax=ax)
    assert ax.get_xlim() == (0.99, 1.01)
    assert all(0.99 <= text.xy[0] <= 1.01 for text in ax.texts)
    assert ax.get_xlabel() == "keeps of the output"


@pytest.mark.usefixtures("untyped")
def test_what_is_no_pair_is_refused(scored):
    states, koopman, score, tokens = scored
    two = kann.fit(states, driven="bilinear", features="tokens", ridge=1e-3, rank=2)
    lifted = kann.fit(states, driven="bilinear", features="tokens", ridge=1e-3, rank=1, lift="squares")
    curved = fit_readout(koopman, states, score[..., None] ** 2, products=True)
    for call, message in [
        (lambda: word_pairs(two, states, tokens), "2 coordinates"),
        (lambda: word_pairs(lifted, states, tokens), "with products"),
        (lambda: word_pairs(kann.fit(states, driven=True), states, tokens), "koopman"),
        (lambda: word_pairs(koopman, states, tokens[:-1]), "tokens for 49 sequences"),
        (lambda: word_pairs(koopman, states, tokens, readout=curved), "is no line"),
        (lambda: word_pairs(koopman, kann.States.from_padded(states.padded()), tokens), "no inputs"),
    ]:
        with pytest.raises(kann.KannError, match=message):
            call()

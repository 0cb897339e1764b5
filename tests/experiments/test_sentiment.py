import functools
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from kann_experiments import sentiment as sentiment_module
from kann_experiments.sentiment import (
    archive,
    comparisons,
    ngrams,
    one_pass,
    operators,
    reading,
    reproduce,
    stand_ins,
    surrogate,
    text_figures,
    top_words,
    trained,
    word_sentiment,
)
from kann_experiments.sentiment import corpus as corpus_module
from kann_experiments.sentiment import figures as figures_module
from kann_experiments.sentiment import task as task_module
from kann_experiments.sentiment.analysis import study_network
from kann_experiments.sentiment.corpus import Reviews, load_corpus, train_vocabulary
from kann_experiments.sentiment.highlighting import WORD_KINDS
from kann_experiments.sentiment.live import bench, words
from kann_experiments.sentiment.live.measurements import LiveResult
from kann_experiments.sentiment.quantities import QUANTITIES
from kann_experiments.sentiment.shipped import ShippedOperator, ship
from kann_experiments.sentiment.task import CONFIGS, PRINTED, build, split

import kann
from kann.errors import KannError
from kann.zoo.sentiment_network import pretrained
from tests.experiments.reviews import AMPLIFIERS, BAD, GOOD, PLAIN, write_archive
from tests.experiments.test_sentiment_published import PublishedModel

PER_FOLDER = 120
STEPS = 40


def tiny(arch="gru"):
    return replace(CONFIGS[arch], units=12, embedding=6, epochs=3, batch=16, rate=1e-2)


@pytest.fixture(scope="module")
def small():
    """Everything as it is, but smaller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "PER_FOLDER", PER_FOLDER)
        for module in (corpus_module, operators, ngrams):
            patch.setattr(module, "LONGEST", STEPS)
        patch.setattr(operators, "FITTED_REVIEWS", 60)
        patch.setattr(operators, "BATCH", 16)
        patch.setattr(word_sentiment, "RARE", 5)
        patch.setattr(top_words, "OFTEN", 20)
        patch.setattr(surrogate, "RANKS", (1, 4, 8, 16))
        patch.setattr(text_figures, "SHORTEST", 10)
        patch.setattr(text_figures, "LONGEST", 30)
        patch.setitem(figures_module.STYLE, "figure.dpi", 50)
        patch.setattr(bench, "RECORDED_REVIEWS", 40)
        patch.setattr(bench, "JUDGED_ON_CPU", 40)
        patch.setattr(words, "WORDS_REVIEWS_ON_CPU", 20)
        patch.setattr(stand_ins, "COORDINATES", (4,))
        patch.setattr(stand_ins, "COMPONENTS", 6)
        patch.setattr(words, "captum_attributions", lambda _: {})
        for arch in CONFIGS:
            patch.setitem(task_module.CONFIGS, arch, tiny(arch))
        yield patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sentiment")


@pytest.fixture(scope="module")
def corpus(small, folder):
    return load_corpus(write_archive(folder / "reviews.tar.gz", PER_FOLDER), cache=folder)


@pytest.fixture(scope="module")
def network(corpus, folder):
    return trained(tiny(), corpus, seed=0, folder=folder / "gru")


@pytest.fixture(scope="module")
def result(network, corpus):
    return study_network(network, tiny(), corpus, seed=0)


def test_the_papers_hyperparameters():
    rows = {a: (c.epochs, c.units, c.rate, c.gamma, c.clip, c.embedding) for a, c in PRINTED.items()}
    assert rows == {
        "rnn": (7, 128, 5e-3, 0.6, 15.0, 128),
        "gru": (5, 256, 5e-3, 0.5, 15.0, 128),
        "lstm": (5, 256, 1e-3, 0.3, 5.0, 128),
    }
    assert CONFIGS["gru"] is PRINTED["gru"]
    assert CONFIGS["lstm"].forget_bias == 1


def test_the_rate_falls_after_each_epoch():
    plan = PRINTED["gru"].training(640)
    assert (plan.iterations, plan.every) == (50, 10)
    assert [plan.factor(i) for i in (0, 9, 10, 49)] == [1, 1, 0.5, 0.5**4]


def test_an_unknown_architecture():
    with pytest.raises(KannError, match="architecture 'transformer' is unknown; pass one of gru, lstm, rnn"):
        reproduce("transformer")


def test_no_seeds(tmp_path):
    with pytest.raises(KannError, match="there are no seeds"):
        reproduce("gru", seeds=[], out=tmp_path)


def test_starting_weights_are_as_configured():
    config = replace(CONFIGS["rnn"], units=8)
    network = build(config, words=2000, seed=0)
    torch.testing.assert_close(network.recurrent.weight_hh_l0.detach(), torch.eye(8))
    assert float(network.embedding.weight.detach().std()) == pytest.approx(0.1, rel=0.02)
    plain, open_gates = (build(c["lstm"], words=5, seed=0).recurrent.bias_hh_l0.detach() for c in (PRINTED, CONFIGS))
    expected = torch.zeros(4 * 256)
    expected[256:512] = 1.0
    torch.testing.assert_close(open_gates - plain, expected)


def test_validation_is_apart_from_training(corpus):
    training, validation = split(corpus.train)
    assert len(training) + len(validation) == len(corpus.train)
    assert len(validation) == round(0.1 * len(corpus.train))
    again = split(corpus.train)[1]
    np.testing.assert_array_equal(validation.words, again.words)


def test_a_seed_fixes_the_trained_network(corpus, network, tmp_path):
    again = trained(tiny(), corpus, seed=0, folder=tmp_path).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in network.state_dict().items())


def test_other_settings_are_not_taken_for_the_same(corpus, network, folder):
    with pytest.raises(KannError, match="was trained with other settings"):
        trained(replace(tiny(), rate=2e-2), corpus, seed=0, folder=folder / "gru")


def test_word_sentiment_by_hand():
    reviews = Reviews(words=np.array([2, 2, 3, 4, 3, 2]), lengths=np.array([2, 2, 2]), positive=np.array([1, 0, 1]))
    found = word_sentiment.count_word_sentiment(reviews, words=6)
    assert found.seen.tolist() == [0, 0, 2, 2, 1, 0]
    # two positive reviews, both with word 2; one negative without it
    assert found.log_odds[2] == pytest.approx(np.log((3 / 4) / (1 / 3)))
    assert found.log_odds[0] == found.log_odds[1] == 0
    log_odds = found.classify(reviews)
    assert log_odds[0] == pytest.approx(found.log_odds[2])
    assert log_odds[2] == pytest.approx(found.log_odds[3] + found.log_odds[2])


def test_telling_words_are_found(result, corpus):
    positive, negative = (
        {corpus.vocabulary.words[i] for i in np.flatnonzero(kind)}
        for kind in (result.sentiment.positive, result.sentiment.negative)
    )
    assert len(positive & set(GOOD)) >= 4
    assert len(negative & set(BAD)) >= 4
    assert not positive & set(BAD + PLAIN)
    assert not negative & set(GOOD + PLAIN)


def test_contributions_are_those_of_the_library_and_sum_to_the_logit(result):
    op = result.operators
    h = op.word_states.values.astype(np.float64)
    expected = kann.contributions(op.unpadded, h, op.readout.weight, op.readout.bias)
    np.testing.assert_allclose(
        h @ operators.contribution_vectors(op.unpadded, op.readout), expected.modes[..., 0], atol=1e-9
    )
    with torch.no_grad():
        logits = result.network.readout(torch.as_tensor(op.word_states.values)).numpy()
    np.testing.assert_allclose(expected.total, logits, atol=1e-4)
    assert result.numbers["contribution_gap"] < 1e-4


def every_state(result, corpus):
    sequences = [torch.from_numpy(corpus.test[i]) for i in range(len(corpus.test))]
    return kann.record(result.network, sequences, layer="recurrent", inputs=True, progress=False)


def test_one_pass_gives_what_the_library_gives_for_all_states_at_once(result, corpus):
    states, found, op = every_state(result, corpus), result.statistics, result.operators
    for name, koopman in (op.by_name | {"copying": kann.copying}).items():
        expected = kann.relative_error(koopman, states)
        assert found.errors[name] == pytest.approx(expected, rel=1e-4)  # float32 against float64
        expected = kann.agreement(koopman, states, op.readout, at="every")
        assert found.unchanged[name] == pytest.approx(expected, abs=1e-3)  # a logit of zero may round to either side
    np.testing.assert_allclose(found.last, operators.last_of_each(states), atol=1e-6)
    np.testing.assert_allclose(found.logits, op.readout(found.last)[:, 0], atol=1e-5)
    assert result.numbers["agreement"] == pytest.approx(kann.agreement(op.padded, states, op.readout))
    assert result.numbers["agreement_unpadded"] == pytest.approx(kann.agreement(op.unpadded, states, op.readout))
    copied = kann.agreement(kann.copying, states, op.readout)
    assert result.numbers["agreement_copying"] == pytest.approx(copied)
    assert result.confusion.sum() == len(corpus.test)


def test_held_out_reviews_are_none_of_those_that_were_fitted(result):
    op, numbers = result.operators, result.numbers
    fitted, held_out = op.states.padded(), op.held_out.states.padded()
    assert fitted.shape == held_out.shape == (16, STEPS, 12)
    assert not any(np.array_equal(ours, theirs) for ours in held_out for theirs in fitted)
    # threads may sum in another order, which changes the last digit
    error = kann.relative_error(op.padded, op.held_out.states)
    assert numbers["relative_error_held_out"] == pytest.approx(error, rel=1e-12)
    h = held_out.astype(float)
    errors = ((h[:, 1:] - h[:, :-1]) ** 2).sum(-1) / (h[:, 1:] ** 2).sum(-1)  # (b, t - 1)
    is_word = np.arange(1, STEPS) < op.held_out.lengths[:, None]
    assert numbers["relative_error_copying"] == pytest.approx(errors.mean())
    assert numbers["relative_error_real_copying"] == pytest.approx(errors[is_word].mean())
    assert numbers["relative_error_padding_copying"] == pytest.approx(errors[~is_word].mean())


def test_batches_of_the_pass_do_not_matter(result, corpus, monkeypatch):
    op, first = result.operators, result.statistics
    embedding = result.network.embedding.weight
    matrices = one_pass.prepare_matrices(op, result.groups, result.sentiment, first.modes, embedding)
    small_batches = functools.partial(corpus_module.batches_by_length, tokens=100)
    monkeypatch.setattr(reading, "batches_by_length", small_batches)
    again = one_pass.pass_over(result.network, corpus.test, matrices, result.sentiment)
    np.testing.assert_allclose(again.mean_change, first.mean_change, atol=1e-5)
    for kind in WORD_KINDS:
        assert again.marked[kind].total.tolist() == first.marked[kind].total.tolist()
        # a word whose magnitude is half of the largest to the last digit may fall on either side
        assert np.abs(again.marked[kind].marked - first.marked[kind].marked).sum() <= 2


def test_highlighted_and_moving_words_by_brute_force(result, corpus):
    op, found = result.operators, result.statistics
    column = op.padded.modes[result.groups["padded"].positive[0]].indices[0]
    changes = {}
    for i in range(len(corpus.test)):
        ids = corpus.test[i]
        with torch.no_grad():
            h = result.network.states(torch.from_numpy(ids)[None])[0].numpy()
        size = kann.magnitude(op.padded, h)[:, column]
        size = (size - size.min()) / (size.max() - size.min())
        liked = result.sentiment.positive[ids]
        assert found.marked["positive"].total[i] == liked.sum()
        near = np.abs(size - 0.5) < 1e-4
        assert abs(found.marked["positive"].marked[i] - (liked & (size >= 0.5)).sum()) <= near.sum()
        contribution = kann.contributions(op.unpadded, h, op.readout.weight).modes[:, found.modes[0], 0]
        for word, change in zip(ids, np.diff(contribution, prepend=0.0), strict=True):
            changes.setdefault(int(word), []).append(change)
    for word, seen in changes.items():
        assert found.counts[word] == len(seen)
        assert found.mean_change[word, 0] == pytest.approx(np.mean(seen), abs=1e-5)


def test_top_words_are_sorted_and_known(result):
    for top in result.top_words:
        up, down = ([change for _, change in side] for side in (top.up, top.down))
        assert up == sorted(up, reverse=True)
        assert down == sorted(down)
        assert not {"<pad>", "<unk>"} & {word for word, _ in top.up + top.down}


@pytest.mark.parametrize("basis", ["svd", "pca"])
@pytest.mark.parametrize("rank", [1, 5])
def test_the_filter_is_the_simulated_linear_system(result, corpus, basis, rank):
    op = result.operators
    koopman = kann.fit(op.moments, driven=True, rank=rank, basis=basis)
    embedding = result.network.embedding.weight.detach().double().numpy()
    some = corpus.test.take(np.arange(0, len(corpus.test), 9))
    ours = surrogate.simulate_logits(koopman, embedding, op.readout, some)
    for i in range(len(some)):
        states = koopman.simulate(embedding[some[i]][None])[0]
        assert ours[i] == pytest.approx(op.readout(states[-1:])[0, 0], abs=1e-4)  # the table is float32


def test_the_filter_needs_a_driven_operator(result):
    with pytest.raises(KannError, match="reads no words; fit it with driven=True"):
        surrogate.impulse_response(result.operators.padded, result.operators.readout, 3)


def test_all_modes_together_decide_as_the_network(result):
    decisions = result.decisions
    assert sorted(decisions.order.tolist()) == list(range(len(result.operators.unpadded.modes)))
    assert (np.abs(decisions.correlation) <= 1 + 1e-9).all()
    if len(decisions.order) == len(decisions.together):
        # what lies outside the basis is one direction of twelve, the one of least energy
        assert decisions.together[-1] > 0.98
    assert decisions.together[0] == decisions.alone[0]


def test_groups_split_the_leading_modes(result):
    op, groups = result.operators, result.groups["padded"]
    assert sorted(groups.negative + groups.positive) == list(range(4))
    last = operators.last_of_each(op.word_states)
    low, high = (
        op.readout(kann.reconstruct(op.padded, last, list(group)))[:, 0] for group in (groups.negative, groups.positive)
    )
    assert groups.split == np.mean((low < 0) & (high > 0))


def test_phrases_are_found_and_amplified():
    reviews = Reviews(
        words=np.array([7, 5, 6, 8, 5, 6, 5, 6, 9]), lengths=np.array([4, 2, 1, 2]), positive=np.array([0, 0, 1, 1])
    )
    # the third and fourth review hold 5 and 6, but 5 ends one and 6 begins the other
    found = ngrams.find_phrases(reviews, [(5, 6)])
    assert {i: places.tolist() for i, places in found.items()} == {0: [2], 1: [1]}
    pairs = reviews.take(np.array(list(found)))
    triples, ends = ngrams.amplify(pairs, list(found.values()), [20, 21])
    assert triples[0].tolist() == [7, 5, 20, 6, 8]
    assert triples[1].tolist() == [5, 21, 6]
    assert [places.tolist() for places in ends] == [[3], [2]]


def test_responses_to_phrases_are_relative_to_other_words(result):
    phrases = result.phrases
    assert phrases.of_triples.responses.shape == (len(phrases.of_triples.order), 3)
    assert phrases.of_pairs.responses.shape == (len(phrases.of_pairs.order), 2)
    for modes in (phrases.of_triples, phrases.of_pairs):
        assert np.isfinite(modes.responses).all()
        assert set(modes.groups) <= {1, 2, 3}
        assert (np.diff(modes.importance[modes.order]) <= 0).all()


def test_eigenvalues_correspond_to_themselves(rng):
    values = rng.normal(size=9) + 1j * rng.normal(size=9)
    assert comparisons.eigenvalue_distance(values, rng.permutation(values)) == 0
    assert comparisons.eigenvalue_distance(values, values + 0.25, count=1) <= 0.25


def test_shuffled_reviews_end_where_their_states_end(result, corpus):
    for trajectory in result.trajectories:
        (ids,) = corpus.vocabulary.encode([trajectory.text])
        assert trajectory.network.shape == (5, 2)
        with torch.no_grad():
            assert trajectory.logit == pytest.approx(float(result.network(torch.from_numpy(ids)[None])), abs=1e-5)


def test_what_padding_does_is_told_apart(result):
    n = result.numbers
    real, padding = n["relative_error_real"], n["relative_error_padding"]
    lengths = result.operators.lengths
    word_fraction = (lengths - 1).sum() / (len(lengths) * (STEPS - 1))  # nothing predicts the first state
    assert n["relative_error"] == pytest.approx(word_fraction * real + (1 - word_fraction) * padding)
    assert n["padding"] == pytest.approx(1 - lengths.sum() / (len(lengths) * STEPS))
    assert n.keys() <= {quantity.key for quantity in QUANTITIES}


def without_live_tests(patch):
    """Leave out what runs the network with its state replaced, and what stands in for it: each has tests of its own."""
    from kann_experiments import sentiment

    patch.setattr(sentiment, "live_result", lambda *_, **__: LiveResult(numbers={}, details={}))
    patch.setattr(sentiment, "stand_in_numbers", lambda *_, **__: {})


def test_the_whole_experiment(small, corpus, folder, monkeypatch):
    from kann_experiments import sentiment

    monkeypatch.setattr(sentiment, "load_corpus", lambda: corpus)
    with monkeypatch.context() as patch:
        without_live_tests(patch)
        patch.setattr(
            sentiment, "draw_figures", lambda studies, corpus, *, folder: ()
        )  # those of the other are looked at
        reproduce("rnn", out=folder / "out", seeds=[0])
    found = reproduce("gru", out=folder / "out", seeds=[0])
    assert found.title == "sentiment, gru"
    printed = {row.quantity.key for row in found.rows if row.printed is not None}
    assert {"accuracy_test", "agreement", "relative_error", "positive_words", "negative_words"} <= printed
    assert {"results.json", "tables.md", "words.png", "surrogate.svg"} <= {path.name for path in found.files}
    for path in found.files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314 - our own file
    content = json.loads((folder / "out" / "gru" / "results.json").read_text())
    assert content["measured"]["0"]["accuracy_test"] == found.rows[2].mean
    assert len(content["details"]["0"]["surrogates"]["rank"]) >= 3
    assert content["rows"]["live_reviews"]["mean"] == 40
    assert content["details"]["0"]["live"]["rank of the modes"]
    assert "words_gradient" not in content["rows"]  # Captum is not there
    rnn = json.loads((folder / "out" / "rnn" / "results.json").read_text())
    assert {key for key, row in rnn["rows"].items() if row["printed"] is not None} == {
        "positive_words",
        "negative_words",
    }


def test_the_papers_setting_is_kept_apart(small, corpus, tmp_path, monkeypatch):
    from kann_experiments import sentiment

    monkeypatch.setattr(sentiment, "load_corpus", lambda: corpus)
    monkeypatch.setitem(task_module.PRINTED, "lstm", replace(tiny("lstm"), epochs=1, forget_bias=0.0))
    monkeypatch.setattr(sentiment, "draw_figures", lambda studies, corpus, *, folder: ())
    without_live_tests(monkeypatch)
    found = reproduce("lstm", out=tmp_path, seeds=[3], printed=True)
    assert found.files[0] == tmp_path / "lstm-as-printed" / "results.json"
    assert found.notes == ()


def test_the_authors_network_is_analysed_on_their_word_pieces(small, corpus, folder, tmp_path, monkeypatch):
    from kann_experiments.sentiment import published

    monkeypatch.setattr(published, "obtain", lambda _: folder / "reviews.tar.gz")
    monkeypatch.setattr(sentiment_module, "draw_figures", lambda studies, corpus, *, folder: ())
    without_live_tests(monkeypatch)
    pieces = ("<unk>", *PLAIN, *GOOD, *BAD, *AMPLIFIERS)
    (tmp_path / "imdb.vocab").write_text("".join(f"{piece}\n" for piece in pieces))
    torch.save(PublishedModel(len(pieces), 6, 12).state_dict(), tmp_path / "gru.pt")
    found = reproduce("gru", out=tmp_path, seeds=[0], pieces=tmp_path / "imdb.vocab", weights=tmp_path / "gru.pt")
    assert found.files[0] == tmp_path / "gru-authors" / "results.json"
    numbers = {row.quantity.key: row.mean for row in found.rows}
    assert 0 <= numbers["agreement"] <= 1
    assert 0 <= numbers["accuracy_test"] <= 1


def shipped_operator(result):
    koopman = kann.fit(result.operators.states, rank=4)
    trust = kann.trust(koopman, result.operators.states, folds=3)
    return ShippedOperator(koopman=koopman, trust=trust, modes=np.array([1, 0]))


@pytest.fixture
def shipped(result, corpus, tmp_path):
    ship(
        result.network,
        corpus.vocabulary,
        shipped_operator(result),
        provenance={"seed": 0},
        folder=tmp_path,
    )
    return tmp_path


def test_what_was_shipped_is_read_again(shipped, result, corpus):
    found = pretrained(shipped)
    assert found.modes == (1, 0)
    ids = torch.from_numpy(corpus.test[0])[None]
    with torch.no_grad():
        ours, theirs = found.network(ids), result.network(ids)
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=0)  # half precision
    expected = shipped_operator(result)
    np.testing.assert_array_equal(found.koopman.matrix, expected.koopman.matrix)
    assert [mode.why for mode in found.trust.modes] == [mode.why for mode in expected.trust.modes]


def test_a_vocabulary_that_does_not_fit(shipped, result):
    other = train_vocabulary(["one two three"], size=4)
    with pytest.raises(KannError, match="the vocabulary has 4 words and the network knows"):
        ship(result.network, other, shipped_operator(result), provenance={}, folder=shipped / "other")
    assert not (shipped / "other").exists()
    (shipped / "vocabulary.json").write_text(other.to_json())
    with pytest.raises(KannError, match=r"the vocabulary has 4 words and the weights .* are for"):
        pretrained(shipped)


def test_files_that_are_missing_or_broken(shipped, rng):
    kept = pretrained(shipped).koopman
    kann.fit(rng.normal(size=(2, 30, 3))).save(shipped / "koopman.npz")
    with pytest.raises(KannError, match="is for 3 hidden units; the network has 12"):
        pretrained(shipped)
    replace(kann.Trust.load(shipped / "trust.npz"), modes=()).save(shipped / "trust.npz")
    kept.save(shipped / "koopman.npz")
    with pytest.raises(KannError, match=r"trust\.npz has 0 modes and the operator"):
        pretrained(shipped)
    (shipped / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(KannError, match="holds no weights of this network"):
        pretrained(shipped)
    (shipped / "koopman.npz").unlink()
    with pytest.raises(KannError, match=r"lacks koopman.npz"):
        pretrained(shipped)


def test_statements_taken_word_by_word(small, result):
    """Against the formulas as printed, with V and U of the paper's operator."""
    koopman, operators_, numbers = result.operators.padded, result.operators, result.numbers
    last = operators.last_of_each(operators_.word_states)
    weight, bias = operators_.readout.weight[0], operators_.readout.bias[0]
    V, U = koopman.right, koopman.left
    logits = [
        np.real(last @ koopman.basis @ V[:, part] @ U[part]) @ koopman.basis.T @ weight + bias
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert numbers["literal_split"] == np.mean((logits[0] < 0) & (logits[1] > 0))
    assert numbers["literal_reverse"] == np.mean((logits[0] > 0) & (logits[1] < 0))
    for side, column in (("positive", 0), ("negative", 2)):
        high = asked = 0
        for i, length in enumerate(operators_.lengths):
            words = operators_.ids[i, :length].numpy()
            magnitude = np.abs(operators_.word_states[i] @ koopman.basis @ V[:, column])
            told = getattr(result.sentiment, side)[words]
            high, asked = high + (magnitude[told] >= 0.5).sum(), asked + told.sum()
        assert numbers[f"literal_{side}_none"] == pytest.approx(high / asked)


def test_bases_cut_short_miss_more(result):
    for basis in ("svd", "pca", "fourier"):
        assert result.numbers[f"rank_4_{basis}"] >= result.numbers[f"rank_8_{basis}"] >= 0
    assert result.numbers["rank_4_fourier"] > result.numbers["rank_4_svd"]


def test_renn_finds_where_the_network_rests(result):
    numbers = result.numbers
    assert numbers["renn_fixed"] + numbers["renn_slow"] >= 1
    assert numbers["renn_modulus"] > 0
    assert numbers["renn_error"] < numbers["renn_silent_error"] < 10

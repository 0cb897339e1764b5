"""What replaced layers do to loss, divergence and decisions: as computed by hand, and on text that was not fitted."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax

import kann
from kann.depth._bypass import spans_of
from kann.errors import KannError, UnfinishedWarning
from tests.depth.test_bypass import Decoder, depth_of

SPANS = [("layers.0", "layers.0"), ("layers.1", "layers.3")]


@pytest.fixture(scope="module")
def case():
    """A model, its maps and states, other tokens, and the next token of each."""
    torch.manual_seed(0)
    model, tokens = Decoder(), torch.randint(11, (60, 6))
    states = depth_of(model, tokens[:40])
    others = tokens[40:]
    labels = torch.cat([others[:, 1:], torch.full((20, 1), -100)], dim=1)
    return {
        "model": model,
        "data": others,
        "maps": kann.depth.fit(states),
        "states": states,
        "labels": labels,
    }


def effects(case, **changed):
    arguments = case | {"spans": SPANS} | changed
    parts = [arguments.pop(name) for name in ("model", "data", "maps", "states")]
    return kann.depth.bypass_effects(*parts, **arguments)


@torch.no_grad()
def test_scores_are_those_computed_by_hand(case):
    model, tokens, labels = case["model"], case["data"], case["labels"]
    found, own = effects(case, batch_size=7), model(tokens)
    operators = [None, case["maps"].one, case["maps"], kann.depth.fit_span(case["states"], 1, 3)]
    for method, operator in enumerate(operators):
        with kann.depth.bypass(model, *SPANS[1], operator):
            other = model(tokens)
        loss = cross_entropy(other[:, :-1].flatten(0, 1), labels[:, :-1].flatten())
        divergence = kl_div(log_softmax(other, -1), log_softmax(own, -1), log_target=True, reduction="none").sum(-1)
        assert found.means["loss"][1, method] == pytest.approx(float(loss), rel=1e-5)
        assert found.scores["kl"][1, method] == pytest.approx(divergence.mean(1).numpy(), rel=1e-3, abs=1e-6)
        same, right = other.argmax(-1) == own.argmax(-1), other.argmax(-1)[:, :-1] == labels[:, :-1]
        assert found.means["agreement"][1, method] == pytest.approx(float(same.double().mean()))
        assert found.means["accuracy"][1, method] == pytest.approx(float(right.double().mean()))


@torch.no_grad()
def test_the_untouched_network_is_the_reference(case):
    found = effects(case)
    loss = cross_entropy(case["model"](case["data"])[:, :-1].flatten(0, 1), case["labels"][:, :-1].flatten())
    assert found.own["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert (found.own["kl"], found.own["agreement"]) == (pytest.approx(0.0, abs=1e-7), 1.0)
    assert np.allclose(found.gaps["loss"], found.means["loss"] - found.own["loss"])


def test_sequences_without_a_label_do_not_count(case):
    labels = case["labels"].clone()
    labels[3:8] = -100
    found, kept = effects(case, labels=labels, batch_size=6), np.r_[:3, 8:20]
    expected = effects(case, data=case["data"][kept], labels=case["labels"][kept])
    assert found.judged.tolist() == kept.tolist()
    for measure in ("kl", "agreement", "loss", "accuracy"):
        assert found.own[measure] == pytest.approx(expected.own[measure], abs=1e-6)
        np.testing.assert_allclose(found.means[measure], expected.means[measure], rtol=1e-5, atol=1e-6)
    with pytest.raises(KannError, match="-100"):
        effects(case, labels=torch.full((20, 6), -100))


def test_no_more_sequences_count_than_were_asked_for(case):
    assert effects(case, max_sequences=10, batch_size=8).judged.tolist() == list(range(10))


def test_of_a_single_layer_one_map_is_its_own(case):
    found = effects(case)
    assert np.array_equal(found.scores["loss"][0, 2], found.scores["loss"][0, 3])


def test_lists_of_different_lengths_are_judged_without_padding(case):
    lists = [tokens[: 3 + i % 4] for i, tokens in enumerate(case["data"])]
    found = effects(case, data=lists, labels=None, batch_size=5)
    one_by_one = effects(case, data=lists[:4], labels=None, batch_size=1)
    assert found.measures == ("kl", "agreement")
    assert np.allclose(found.scores["kl"][..., :4], one_by_one.scores["kl"], atol=1e-6)  # float32
    assert np.array_equal(found.judged, np.arange(20))


def test_one_decision_for_a_sequence_and_a_single_logit_are_judged_too(case):
    for width in (11, 1):
        found = effects(
            case,
            labels=torch.zeros(20, dtype=torch.int64),
            forward=lambda model, tokens, width=width: model(tokens)[:, -1, :width],
        )
        assert found.scores["loss"].shape == (2, 4, 20)
        assert (found.means["kl"][:, 2] >= 0).all()


def test_intervals_of_gaps_are_paired(case):
    found = effects(case)
    gap = found.interval("loss", gap=True)
    assert np.allclose(gap.mean(axis=2), found.gaps["loss"])
    assert found.interval("agreement").shape == (2, 4, 2)
    with pytest.raises(KannError, match="measure='own' is unknown"):
        found.interval("own")


def test_results_tell_what_they_are(case):
    found = effects(case)
    assert found.names == ("layers.0", "layers.1 – 3")
    assert found.layers.tolist() == [1, 3]
    assert "BypassEffects(loss of 20 sequences, untouched" in repr(found)
    assert str(found).count("untouched") == 4  # one line for each measure
    assert "one operator" in found._repr_html_()


def test_what_was_finished_is_returned_if_it_is_interrupted(case):
    calls = []

    def forward(model, tokens):
        calls.append(1)
        if len(calls) > 20:
            raise KeyboardInterrupt
        return model(tokens)

    with pytest.warns(UnfinishedWarning, match="interrupted after 2 of 7 batches; means are over those"):
        found = effects(case, forward=forward, batch_size=3)
    assert len(found.judged) == 6


def test_an_interruption_before_anything_is_finished_is_passed_on(case):
    def forward(model, tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        effects(case, forward=forward)


def test_what_is_no_span_is_refused(case):
    with pytest.raises(KannError, match=r"spans='layers.0' are no spans"):
        spans_of(case["model"], "layers.0")
    with pytest.raises(KannError, match=r"'layers.0' is no span; pass its first and its last layer"):
        spans_of(case["model"], ["layers.0"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"spans": []}, "spans=.. are no spans; pass a list such as"),
        ({"spans": [("layers.0", "layers.7")]}, "the model has no layer 'layers.7'"),
        ({"labels": [1, 2]}, "there are 2 labels for 20 sequences; pass one for each"),
        ({"labels": 3}, "labels=3 is no list"),
        ({"level": 1.0}, "level=1.0 is no confidence level"),
        ({"states": np.ones((4, 5))}, "hidden states have axes"),
        ({"data": []}, "the data hold no batches"),
    ],
)
def test_mistakes_are_explained(case, changed, message):
    with pytest.raises(KannError, match=message):
        effects(case, **changed)

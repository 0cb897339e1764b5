import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.reporting._report import report
from tests.reporting.html_pages import Linear, as_reverse, content_of, turning_states


def test_errors_say_what_does_not_fit(tmp_path):
    states, path = turning_states(), tmp_path / "r.html"
    koopman = kann.fit(states)
    with pytest.raises(KannError, match="tokens for 1 sequences and states for 6"):
        report(path, koopman, states, tokens=[["a"]])
    with pytest.raises(KannError, match="sequence 0 has 30 states and 1 tokens"):
        report(path, koopman, states, tokens=[["a"]] * 6)
    with pytest.raises(KannError, match="there are 2 labels for 6 sequences"):
        report(path, koopman, states, labels=["a", "b"])
    with pytest.raises(KannError, match="classes= has 1 names"):
        report(path, koopman, states, readout=Linear(np.ones((1, 5)), np.array([99.0])), classes=["bad"])
    with pytest.raises(KannError, match="the operator has 5"):
        report(path, koopman, np.zeros((2, 4, 3)))
    with pytest.raises(KannError, match="tokens of sequence 0 are str; pass a list"):
        report(path, koopman, states, tokens=["a" * length for length in states.lengths])
    with pytest.raises(KannError, match="the signal of sequence 1 holds NaN or Inf"):
        report(path, koopman, states, signals=[np.full(len(h), np.nan if i == 1 else 0) for i, h in enumerate(states)])
    assert not path.exists()


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"others": {"driven": "C"}}, r"others\['driven'\]='C' is no Koopman; pass one"),
        ({"others": 5}, "others=5 has no entries by name; pass a dict of operators"),
        ({"others": {1: None}}, "has no entries by name"),
        ({"others": {"svd": np.eye(2)}}, r"others\['svd'\]=ndarray of float64, shape \(2, 2\) is no Koopman"),
        ({"classes": 2}, "classes=2 is no list"),
    ],
)
def test_what_is_compared_is_checked(tmp_path, options, message):
    states = turning_states()
    with pytest.raises(KannError, match=message):
        report(tmp_path / "r.html", kann.fit(states), states, signals=[h[:, 0] for h in states], **options)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.__setitem__((33, 2), np.nan), "states hold NaN at sequence 1, step 3, unit 2"),
        (lambda values: values.__setitem__((33, 2), np.inf), "states hold inf at sequence 1, step 3, unit 2"),
        (lambda values: values.__imul__(1e200), "the squares of the states exceed float64"),
    ],
)
def test_states_that_no_number_can_be_read_off_are_refused(tmp_path, change, message):
    states = turning_states()
    koopman = kann.fit(states)
    change(states.values)
    with pytest.raises(KannError, match=message):
        report(tmp_path / "r.html", koopman, states)
    assert not (tmp_path / "r.html").exists()


def test_large_states_are_shown(tmp_path):
    states = turning_states()
    large = kann.States(values=states.values * 1e150, lengths=states.lengths)
    _, _, tables = content_of(report(tmp_path / "r.html", kann.fit(states), large))
    assert 1e149 < np.abs(tables["coordinate"]).max() < 1e152


class NanPoints:
    """Fixed points that are not finite."""

    points = np.full((1, 5), np.nan)
    kinds = ("fixed",)


class OtherPoints:
    """Fixed points of a smaller network."""

    points = np.zeros((1, 2))
    kinds = ("fixed",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modes": -1}, "modes=-1 is too small; pass modes>=0"),
        ({"fixed_points": NanPoints()}, "fixed_points= holds NaN or Inf"),
        ({"fixed_points": OtherPoints()}, r"fixed_points= holds points of shape \(1, 2\)"),
        ({"fixed_points": 7}, "fixed_points= holds points of shape"),
        ({"signals": ["abc"] * 6}, "the signal of sequence 0 is no array of real numbers"),
        ({"readout": Linear(np.full((1, 5), np.nan), 0.0)}, "NaN|nan"),
        ({"network_outputs": np.zeros((5, 1))}, r"network_outputs has shape \(5, 1\) for 6 sequences"),
        ({"network_outputs": ["a"] * 6}, "network_outputs are str.*; pass real numbers"),
        ({"network_outputs": np.zeros(6) * 1j}, "network_outputs are complex128; pass real numbers"),
        ({"network_outputs": np.full((6, 1), np.nan)}, r"network_outputs hold NaN at \(0, 0\); find out for which"),
        (
            {"network_outputs": np.zeros((6, 2)), "readout": Linear(np.ones((3, 5)), 0.0)},
            r"network_outputs has shape \(6, 2\), and the readout gives \(6, 3\) for the last states; pass what",
        ),
    ],
)
def test_bad_arguments_are_refused(tmp_path, settings, message):
    states = turning_states()
    with pytest.raises(KannError, match=message):
        report(tmp_path / "r.html", kann.fit(states), states, **settings)
    assert not (tmp_path / "r.html").exists()


def test_outputs_of_the_network_may_lack_the_axis_of_a_single_output(tmp_path):
    states, own = turning_states(), np.arange(6) % 2 - 0.5
    path = report(
        tmp_path / "r.html", kann.fit(states), states, readout=Linear(np.ones((1, 5)), 0.0), network_outputs=own
    )
    assert [row["prediction"] for row in content_of(path)[1]["sequences"]] == ["0", "1"] * 3


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("modes", [None, 2.5, True, "3"])
def test_a_number_of_modes_is_whole(modes, tmp_path):
    with pytest.raises(KannError, match="is not a whole number; pass modes>=0"):
        report(tmp_path / "r.html", kann.fit(turning_states()), turning_states(), modes=modes)


def test_tokens_and_signals_follow_the_direction_of_the_states(tmp_path):
    forward = turning_states()
    states = as_reverse(forward)
    tokens = [[f"word{t}" for t in range(length)] for length in states.lengths]
    signals = [np.arange(length) for length in states.lengths]
    koopman = kann.fit(states)
    _, page, tables = content_of(report(tmp_path / "r.html", koopman, states, tokens=tokens, signals=signals))
    assert page["reverse"]
    assert page["sequences"][1]["tokens"] == tokens[1][::-1]
    np.testing.assert_allclose(tables["signal"][states.span(1), 0], signals[1][::-1], atol=1e-3)
    _, page, _ = content_of(report(tmp_path / "r.html", koopman, forward, tokens=tokens))
    assert not page["reverse"]
    assert page["sequences"][1]["tokens"] == tokens[1]


def test_an_option_that_does_not_exist_is_a_type_error(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokenz'"):
        report(tmp_path / "r.html", kann.fit(turning_states()), turning_states(), tokenz=[])

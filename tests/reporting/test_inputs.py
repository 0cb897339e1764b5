import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.reporting.page import report
from tests.reporting.html_pages import Linear, turning_states


def test_errors_say_what_does_not_fit(tmp_path):
    states, path = turning_states(), tmp_path / "r.html"
    koopman = kann.fit(states)
    with pytest.raises(KannError, match="tokens for 1 sequences and states for 6"):
        report(path, koopman, states, tokens=[["a"]])
    with pytest.raises(KannError, match="sequence 0 has 30 states and 1 tokens"):
        report(path, koopman, states, tokens=[["a"]] * 6)
    with pytest.raises(KannError, match="there are 2 labels for 6 sequences"):
        report(path, koopman, states, labels=["a", "b"])
    with pytest.raises(KannError, match=r"decode= gave shape \(3,\) for 30 states"):
        report(path, koopman, states, signals=[h[:, 0] for h in states], decode=lambda h: h[:3, 0])
    with pytest.raises(KannError, match="classes= has 1 names"):
        report(path, koopman, states, readout=Linear(np.ones((1, 5)), np.array([99.0])), classes=["bad"])
    with pytest.raises(KannError, match="the operator has 5"):
        report(path, koopman, np.zeros((2, 4, 3)))
    with pytest.raises(KannError, match="tokens of sequence 0 are str; pass a list"):
        report(path, koopman, states, tokens=["a" * length for length in states.lengths])
    with pytest.raises(KannError, match="the signal of sequence 1 holds NaN or Inf"):
        report(path, koopman, states, signals=[np.full(len(h), np.nan if i == 1 else 0) for i, h in enumerate(states)])
    with pytest.raises(KannError, match="decode= gave NaN or Inf"):
        report(path, koopman, states, signals=[h[:, 0] for h in states], decode=lambda h: np.full(len(h), np.nan))
    assert not path.exists()

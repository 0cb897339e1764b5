import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kann._display import visible


@given(st.text(max_size=50))
def test_what_can_be_seen_stays(text):
    once = visible(text)
    assert visible(once) == once
    seen = "".join(sign for sign in text if unicodedata.category(sign)[0] not in "CZ")
    assert visible(seen) == seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\r\nc\x85d", "a b\nc\nd"),
        ("\x00\x1b\x7f\x9b", "\u2400\u241b\u2421\ufffd"),
        ("\u202egood\u2069 \ud800", "good \ufffd"),
        ("שלום 😀", "שלום 😀"),
    ],
)
def test_what_would_steer_a_terminal_is_replaced(text, expected):
    assert visible(text) == expected

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kann_experiments.sentiment.corpus import train_vocabulary

from kann.errors import KannError
from kann.zoo.sentiment_network import PAD, UNKNOWN, Vocabulary


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(["It's good. It's<br />bad!", "don't, DON'T good", "<pad> <unk>"], size=50)


def test_words_are_split_as_people_would(vocabulary):
    numbers, spans = vocabulary.locate("Don't say <br/>it's GOOD, (naïve)")
    text = "Don't say <br/>it's GOOD, (naïve)"
    assert [text[start:stop] for start, stop in spans] == ["Don't", "say", "it's", "GOOD", ",", "(", "naïve", ")"]
    words = [vocabulary.words[i] for i in numbers]
    assert words == ["don't", UNKNOWN, "it's", "good", ",", UNKNOWN, UNKNOWN, UNKNOWN]


def test_padding_cannot_be_typed(vocabulary):
    assert vocabulary.words[:2] == (PAD, UNKNOWN)
    assert 0 not in vocabulary.encode(["<pad> <PAD> <unk> pad"])[0]


@given(st.text(max_size=40))
def test_any_text_can_be_numbered(text):
    small = train_vocabulary(["a b c"], size=5)
    numbers, spans = small.locate(text)
    assert len(numbers) == len(spans)
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert numbers.tolist() == small.encode([text])[0].tolist()


def test_a_vocabulary_survives_as_json(vocabulary):
    again = Vocabulary.from_json(vocabulary.to_json())
    assert again.words == vocabulary.words
    assert again.encode(["It's bad"])[0].tolist() == vocabulary.encode(["It's bad"])[0].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "cannot be read as a vocabulary"),
        (lambda text: '"' + 2000 * "9" + '"', r"cannot be read as a vocabulary \(.{200}…\); build it anew"),
        (lambda text: text.replace('"<pad>"', '"<none>"'), "does not begin with"),
        (lambda text: re.sub(r'"bad": ?\d+', '"bad":2147483648', text), "does not number its words from 0 on"),
    ],
)
def test_what_is_no_vocabulary(vocabulary, change, message):
    with pytest.raises(KannError, match=message):
        Vocabulary.from_json(change(vocabulary.to_json()))


def test_a_word_that_is_not_known(vocabulary):
    with pytest.raises(KannError, match="'zebra' is not in the vocabulary of"):
        vocabulary.number("zebra")

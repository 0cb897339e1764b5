import gzip
import json
import os
import tarfile
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kann_experiments.sentiment import archive as archive_module
from kann_experiments.sentiment import corpus as corpus_module
from kann_experiments.sentiment.archive import read_archive
from kann_experiments.sentiment.corpus import Reviews, batches_by_length, load_corpus, training_batches

from kann.errors import KannError, KannWarning
from tests.experiments.reviews import add, texts, write_archive

SMALL = 12


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(archive_module, "PER_FOLDER", SMALL)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("imdb") / "reviews.tar.gz", SMALL)


def test_every_review_is_read_and_nothing_else(archive):
    found = read_archive(archive, per_folder=SMALL)
    assert {folder: [text for _, text in sorted(entries)] for folder, entries in found.items()} == texts(SMALL)


@pytest.mark.parametrize("folder", [("train", "pos"), ("test", "neg")])
def test_a_missing_folder_is_named(tmp_path, folder):
    path = write_archive(tmp_path / "a.tar.gz", SMALL, leave_out=[folder])
    with pytest.raises(KannError, match=rf"lacks the folder aclImdb/{folder[0]}/{folder[1]}: .*12 each are due"):
        read_archive(path, per_folder=SMALL)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (SMALL - 1, "holds more than 11 reviews in train/neg"),
        (SMALL + 1, "does not hold as many reviews as it should: 12 in train/neg"),
    ],
)
def test_wrong_counts(archive, wanted, message):
    with pytest.raises(KannError, match=message):
        read_archive(archive, per_folder=wanted)


HOSTILE = {
    "../out.txt": ({}, "leads out of its folder"),
    "aclImdb/train/../../../out.txt": ({}, "leads out of its folder"),
    "/etc/out.txt": ({}, "leads out of its folder"),
    "C:\\out.txt": ({}, "leads out of its folder"),
    "aclImdb/train/pos/900_9.txt": ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "holds the link"),
    "aclImdb/train/pos/901_9.txt": ({"type": tarfile.LNKTYPE, "linkname": "aclImdb/README"}, "holds the link"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_leads_elsewhere_is_refused(tmp_path, few, name):
    settings, message = HOSTILE[name]
    content = b"" if settings else b"text"
    path = write_archive(tmp_path / "a.tar.gz", SMALL, extra=lambda archive: add(archive, name, content, **settings))
    cache = tmp_path / "cache"
    with pytest.raises(KannError, match=message):
        load_corpus(path, cache=cache)
    assert sorted(tmp_path.iterdir()) == [path]  # nothing was extracted and nothing half-written


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = write_archive(
        tmp_path / "a.tar.gz", SMALL, extra=lambda archive: add(archive, "aclImdb/test/pos/77_9.txt", b"caf\xe9")
    )
    with pytest.raises(KannError, match=r"aclImdb/test/pos/77_9.txt is not UTF-8 text"):
        read_archive(path, per_folder=SMALL + 1)


def test_a_member_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_REVIEW_BYTES", 300)
    path = write_archive(
        tmp_path / "a.tar.gz", SMALL, extra=lambda archive: add(archive, "aclImdb/test/pos/77_9.txt", b"x" * 301)
    )
    with pytest.raises(KannError, match=r"77_9.txt has 301 bytes; a review has at most 300"):
        read_archive(path, per_folder=SMALL + 1)


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"no archive", lambda raw: b""])
def test_a_broken_archive(tmp_path, archive, damage):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(KannError, match="is no whole tar archive"):
        read_archive(path, per_folder=SMALL)


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(KannError, match="cannot be read"):
        load_corpus(tmp_path / "none.tar.gz", cache=tmp_path)


def test_what_was_numbered_once_is_not_read_again(tmp_path, few, archive, monkeypatch):
    first = load_corpus(archive, cache=tmp_path)
    monkeypatch.setattr(corpus_module, "read_archive", lambda path: pytest.fail("read again"))
    second = load_corpus(archive, cache=tmp_path)
    for split in ("train", "test"):
        for name in ("words", "lengths", "positive"):
            ours, theirs = (getattr(getattr(each, split), name) for each in (first, second))
            np.testing.assert_array_equal(ours, theirs)
    assert first.vocabulary.words == second.vocabulary.words
    assert [len(first.train), len(first.test)] == [2 * SMALL, 2 * SMALL]
    assert first.train.positive.tolist() == [0] * SMALL + [1] * SMALL


def test_other_settings_and_other_archives_have_caches_of_their_own(tmp_path, few, archive):
    same = tmp_path / "same.tar.gz"
    same.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()), mtime=1))
    load_corpus(archive, cache=tmp_path / "cache")
    smaller = load_corpus(archive, words=20, cache=tmp_path / "cache")
    load_corpus(same, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert len(smaller.vocabulary) == 20
    assert smaller.train.words.max() < 20


def test_a_broken_cache_is_made_anew(tmp_path, few, archive):
    before = load_corpus(archive, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.warns(KannWarning, match="damaged or of another version; the reviews are numbered anew"):
        after = load_corpus(archive, cache=tmp_path)
    np.testing.assert_array_equal(before.test.words, after.test.words)


def edited_words(arrays):
    arrays["test_words"] = arrays["test_words"][::-1].copy()


def without_checksum(arrays):
    header = json.loads(bytes(arrays["header"]))
    del header["checksum"]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)


@pytest.mark.parametrize("edit", [edited_words, without_checksum])
def test_a_cache_that_holds_something_else_is_made_anew(tmp_path, few, archive, edit):
    before = load_corpus(archive, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    with np.load(kept) as file:
        arrays = dict(file)
    edit(arrays)
    np.savez(kept, **arrays)
    with pytest.warns(KannWarning, match="the reviews are numbered anew"):
        after = load_corpus(archive, cache=tmp_path)
    np.testing.assert_array_equal(before.test.words, after.test.words)
    np.testing.assert_array_equal(load_corpus(archive, cache=tmp_path).test.words, before.test.words)


def test_a_flipped_bit_in_the_cache_is_found(tmp_path, few, archive, rng):
    before = load_corpus(archive, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    for place in rng.integers(len(whole), size=60).tolist():
        kept.write_bytes(flipped(whole, place))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KannWarning)
            after = load_corpus(archive, cache=tmp_path)
        np.testing.assert_array_equal(before.test.words, after.test.words)
        assert before.vocabulary.words == after.vocabulary.words


def flipped(content, place):
    """The same bytes, with one bit of the byte at ``place`` flipped."""
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def test_a_flipped_bit_in_the_archive_is_found(tmp_path, archive, rng):
    whole, path = archive.read_bytes(), tmp_path / "a.tar.gz"
    expected = read_archive(archive, per_folder=SMALL)
    refused = 0
    for place in rng.integers(len(whole), size=100).tolist():
        path.write_bytes(flipped(whole, place))
        try:
            # The head of a gzip file holds a date and a name, in which a bit does no harm.
            assert read_archive(path, per_folder=SMALL) == expected
        except KannError:
            refused += 1
    assert refused > 90


def test_an_archive_that_is_not_the_published_one_is_named(tmp_path, few, archive, monkeypatch):
    path = tmp_path / "aclImdb_v1.tar.gz"
    path.write_bytes(archive.read_bytes())
    with pytest.warns(KannWarning, match=r"is not the published aclImdb_v1.tar.gz .* run 'kann data fetch imdb'"):
        load_corpus(path, cache=tmp_path / "cache")
    monkeypatch.setattr(corpus_module, "obtain", lambda name: archive)
    with pytest.warns(KannWarning, match="is not the published"):
        load_corpus(cache=tmp_path / "cache")


def declares(archive, name, size, **settings):
    """Put the head of a member into an open archive that declares more than follows."""
    member = tarfile.TarInfo(name)
    member.size = size
    for key, value in settings.items():
        setattr(member, key, value)
    archive.fileobj.write(member.tobuf(tarfile.GNU_FORMAT))
    archive.offset += 512


PETABYTE = 2**50


@pytest.mark.parametrize(
    "member",
    [
        ("aclImdb/urls.txt", PETABYTE, {}),
        ("aclImdb/train/pos/77_9.txt", PETABYTE, {}),
        ("pax", PETABYTE, {"type": tarfile.XHDTYPE}),
        ("long", 2**32, {"type": tarfile.GNUTYPE_LONGNAME}),
    ],
)
def test_an_archive_that_declares_a_petabyte(tmp_path, member):
    name, size, settings = member
    path = write_archive(tmp_path / "a.tar.gz", SMALL, extra=lambda archive: declares(archive, name, size, **settings))
    with pytest.raises(KannError, match=r"declares|has 1125899906842624 bytes"):
        read_archive(path, per_folder=SMALL)


def test_an_archive_of_too_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 20)
    with pytest.raises(KannError, match="more than 20 members"):
        read_archive(write_archive(tmp_path / "a.tar.gz", SMALL), per_folder=SMALL)


def test_a_named_pipe_is_no_archive(tmp_path):
    os.mkfifo(tmp_path / "a.tar.gz")
    with pytest.raises(KannError, match="not a regular file"):
        load_corpus(tmp_path / "a.tar.gz", cache=tmp_path)


def test_long_reviews_are_cut(tmp_path, few, archive, monkeypatch):
    monkeypatch.setattr(corpus_module, "LONGEST", 11)
    found = load_corpus(archive, cache=tmp_path)
    assert found.test.lengths.max() == 11
    assert found.test.lengths.sum() == len(found.test.words)


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


@given(LENGTHS, st.integers(1, 9), st.integers(0, 5))
def test_an_epoch_holds_every_review_once(lengths, size, seed):
    batches = training_batches(lengths, size=size, rng=np.random.default_rng(seed), pool=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert max(map(len, batches)) <= size
    assert len(batches) == -(-len(lengths) // size)  # as many as `Config.training` counts on
    again = training_batches(lengths, size=size, rng=np.random.default_rng(seed), pool=3)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_batches_hold_reviews_of_similar_length(rng):
    lengths = rng.integers(1, 1000, size=2000)
    padded = sum(len(batch) * lengths[batch].max() for batch in training_batches(lengths, size=50, rng=rng))
    assert padded < 1.1 * lengths.sum()  # in random batches it is nearly twice the sum


@given(LENGTHS, st.integers(1, 200))
def test_batches_by_length_stay_within_their_bound(lengths, tokens):
    batches = batches_by_length(lengths, tokens=tokens)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= tokens for batch in batches)


def test_batches_are_padded_with_zeros():
    reviews = Reviews(words=np.array([5, 6, 7, 8, 9]), lengths=np.array([2, 3]), positive=np.array([0, 1]))
    ids, lengths = reviews.batch(np.array([1, 0]))
    assert ids.tolist() == [[7, 8, 9], [5, 6, 0]]
    assert lengths.tolist() == [3, 2]
    assert reviews.batch(np.array([0]), length=4)[0].tolist() == [[5, 6, 0, 0]]
    assert reviews.take(np.array([1])).words.tolist() == [7, 8, 9]

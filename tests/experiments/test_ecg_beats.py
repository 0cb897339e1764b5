import os
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from kann_experiments import data
from kann_experiments.ecg.beats import LARGEST_FILE, parse, read_beats, read_file

from kann.errors import KannError
from tests.experiments.beat_files import COUNTS, WRITERS, some_beats, two_splits

ROUNDING = 1e-6
"""Eight digits are written, and a beat reaches about 5."""


@pytest.fixture
def folder(tmp_path):
    for split, beats in two_splits().items():
        (tmp_path / f"ECG5000_{split}.txt").write_text(WRITERS[".txt"](beats))
    return tmp_path


def zipped(path, files, *, packed=False):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_what_was_written(tmp_path, suffix):
    beats = some_beats(7, 5)
    path = tmp_path / f"ECG5000_TRAIN{suffix}"
    path.write_text(WRITERS[suffix](beats))
    read = read_file(path)
    np.testing.assert_allclose(read.values, beats.values, atol=ROUNDING)
    np.testing.assert_array_equal(read.labels, beats.labels)


@pytest.mark.parametrize("inner", ["", "ECG5000/"])
@pytest.mark.parametrize("suffix", WRITERS)
def test_a_zip_reads_as_a_folder_does(folder, tmp_path, suffix, inner):
    files = {f"{inner}ECG5000_{split}{suffix}": WRITERS[suffix](beats) for split, beats in two_splits().items()}
    path = zipped(tmp_path / "ECG5000.zip", {f"{inner}README.md": "about"} | files)
    from_folder, from_zip = (read_beats(each, counts=COUNTS) for each in (folder, path))
    np.testing.assert_allclose(from_zip.values, from_folder.values, atol=ROUNDING)
    np.testing.assert_array_equal(from_zip.labels, from_folder.labels)
    assert len(from_zip.normal) == COUNTS.normal
    assert len(from_zip.anomalous) == COUNTS.train + COUNTS.test - COUNTS.normal


def test_collapsed_classes_are_read_too(folder):
    beats = {split: replace(each, labels=np.minimum(each.labels, 2)) for split, each in two_splits().items()}
    (folder / "ECG5000_TEST.txt").write_text(WRITERS[".txt"](beats["TEST"]))
    assert len(read_beats(folder, counts=COUNTS).normal) == COUNTS.normal


def test_nothing_is_unpacked(folder, tmp_path):
    path = zipped(tmp_path / "a.zip", {name.name: name.read_bytes() for name in folder.glob("*.txt")})
    before = sorted(tmp_path.rglob("*"))
    read_beats(path, counts=COUNTS)
    assert sorted(tmp_path.rglob("*")) == before


DAMAGED = {
    "empty": (lambda text, suffix: "", "holds no beats"),
    "only a header": (
        lambda text, suffix: "\n".join(text.splitlines()[: {".ts": 5, ".arff": 6}.get(suffix, 0)]),
        "holds no",
    ),
    "cut inside a beat": (lambda text, suffix: text[: len(text) - 400], "samples; a beat has 140"),
    "a beat too short": (lambda text, suffix: _drop_entry(text, suffix), "139 samples; a beat has 140"),
    "a word": (
        lambda text, suffix: _replace_entry(text, suffix, "heart"),
        "could not convert string to float: 'heart'",
    ),
    "missing": (lambda text, suffix: _replace_entry(text, suffix, "?"), "could not convert"),
    "not a number": (lambda text, suffix: _replace_entry(text, suffix, "nan"), "a sample is not finite"),
    "infinite": (lambda text, suffix: _replace_entry(text, suffix, "1e999"), "a sample is not finite"),
    "another class": (lambda text, suffix: _replace_label(text, suffix, "7"), "class '7' is none of 1, 2, 3, 4, 5"),
    "a fractional class": (lambda text, suffix: _replace_label(text, suffix, "1.5"), "class '1.5' is none of"),
    "a named class": (lambda text, suffix: _replace_label(text, suffix, "normal"), "class 'normal' is none of"),
}


def _edit(text, suffix, change):
    """Change the entries of the last beat: class and samples."""
    *head, last = text.splitlines()
    if suffix == ".txt":
        label, *entries = last.split()
        label, entries = change(label, entries)
        return "\n".join([*head, " ".join([label, *entries])])
    between = ":" if suffix == ".ts" else ","
    series, _, label = last.rpartition(between)
    label, entries = change(label, series.split(","))
    return "\n".join([*head, ",".join(entries) + between + label])


def _drop_entry(text, suffix):
    return _edit(text, suffix, lambda label, entries: (label, entries[:-1]))


def _replace_entry(text, suffix, by):
    return _edit(text, suffix, lambda label, entries: (label, [*entries[:9], by, *entries[10:]]))


def _replace_label(text, suffix, by):
    return _edit(text, suffix, lambda label, entries: (by, entries))


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused_by_line(suffix, damage):
    change, message = DAMAGED[damage]
    content = change(WRITERS[suffix](some_beats(2, 1)), suffix).encode()
    with pytest.raises(KannError, match="ECG5000_TEST") as caught:
        parse(content, name=f"ECG5000_TEST{suffix}")
    assert message in str(caught.value)


def test_bytes_that_are_no_text():
    with pytest.raises(KannError, match=r"ECG5000_TEST.txt is no text .* at byte 2"):
        parse(b"1 \xff\xfe", name="ECG5000_TEST.txt")


def test_an_unknown_kind(tmp_path):
    with pytest.raises(KannError, match=r"ECG5000.csv is of no known kind; pass one of .txt, .ts, .arff"):
        parse(b"", name="ECG5000.csv")
    with pytest.raises(KannError, match="cannot be read"):
        read_file(tmp_path / "none.txt")


def test_a_file_cut_between_beats(folder):
    path = folder / "ECG5000_TEST.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-3]))
    with pytest.raises(KannError, match=r"ECG5000_TEST.txt in .* holds 27 beats; there should be 30"):
        read_beats(folder, counts=COUNTS)


def test_beats_that_are_not_those_of_the_archive(folder):
    with pytest.raises(KannError, match="holds 25 normal beats; there should be 24"):
        read_beats(folder, counts=replace(COUNTS, normal=24))
    beats = two_splits()["TEST"]
    (folder / "ECG5000_TEST.txt").write_text(WRITERS[".txt"](replace(beats, values=1.01 * beats.values)))
    with pytest.raises(KannError, match="whose variance is not 1"):
        read_beats(folder, counts=COUNTS)


def test_half_of_the_files(folder):
    (folder / "ECG5000_TEST.txt").unlink()
    with pytest.raises(KannError, match=r"has no ECG5000_TEST \(.txt, .ts, .arff\)"):
        read_beats(folder, counts=COUNTS)
    with pytest.raises(KannError, match="there is nothing at"):
        read_beats(folder / "elsewhere", counts=COUNTS)


@pytest.mark.parametrize(
    "name", ["../ECG5000_TEST.txt", "/ECG5000_TEST.txt", "a/../../b.txt", "..\\b.txt", "C:\\b.txt"]
)
def test_a_zip_with_paths_that_leave_its_folder(tmp_path, name):
    path = zipped(tmp_path / "bad.zip", {name: "1 2 3"})
    with pytest.raises(KannError, match="a path that leaves its folder"):
        read_beats(path, counts=COUNTS)
    assert list(tmp_path.iterdir()) == [path]


def test_a_zip_that_swells(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ECG5000_TEST.txt", b" " * (LARGEST_FILE + 1))
    with pytest.raises(KannError, match="no file of ECG5000 is as large"):
        read_beats(path, counts=COUNTS)


def test_a_zip_of_many_large_files_is_not_unpacked_whole(folder, tmp_path):
    megabytes = 4  # of each; the two files that are used have less
    files = {name.name: name.read_bytes() for name in folder.glob("*.txt")}
    blanks = {f"ECG5000_{i}.txt": b" " * megabytes * 2**20 for i in range(20)}
    path = zipped(tmp_path / "a.zip", files | blanks, packed=True)
    tracemalloc.start()
    read_beats(path, counts=COUNTS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * megabytes * 2**20


def test_a_named_pipe_is_not_waited_for(folder, tmp_path, monkeypatch):
    (folder / "ECG5000_TEST.txt").unlink()
    os.mkfifo(folder / "ECG5000_TEST.txt")
    with pytest.raises(KannError, match="not a regular file"):
        read_beats(folder, counts=COUNTS)
    with pytest.raises(KannError, match="not a regular file"):
        read_file(folder / "ECG5000_TEST.txt")
    monkeypatch.setenv(data.VARIABLE, str(folder))
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path / "none")
    assert data.find("ecg5000") is None


def test_a_file_that_is_too_large_is_not_read(folder):
    with open(folder / "ECG5000_TRAIN.txt", "ab") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(KannError, match="no file of ECG5000 is as large"):
        read_beats(folder, counts=COUNTS)


def test_a_damaged_zip(folder, tmp_path):
    path = zipped(tmp_path / "a.zip", {name.name: name.read_bytes() for name in folder.glob("*.txt")})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KannError, match="is no whole zip"):
        read_beats(path, counts=COUNTS)
    path.write_bytes(whole[:2000] + b"000" + whole[2003:])
    with pytest.raises(KannError, match=r"is no whole zip \(Bad CRC"):
        read_beats(path, counts=COUNTS)
    name = whole.index(b"ECG5000_TEST.txt")  # after its length, which claims that more belongs to it
    path.write_bytes(whole[: name - 4] + (2000).to_bytes(2, "little") + whole[name - 2 :])
    with pytest.raises(KannError, match=r"is no whole zip \(File name in directory") as caught:
        read_beats(path, counts=COUNTS)
    assert len(str(caught.value)) < 500
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"")
    with pytest.raises(KannError, match=r"c\.zip (is no whole zip|has no ECG5000_TRAIN)"):  # Python 3.11, and later
        read_beats(tmp_path / "c.zip", counts=COUNTS)
    packed = zipped(tmp_path / "b.zip", {name.name: name.read_bytes() for name in folder.glob("*.txt")}, packed=True)
    packed.write_bytes(packed.read_bytes()[:100] + b"\xff" * 400 + packed.read_bytes()[500:])
    with pytest.raises(KannError, match="is no whole zip"):
        read_beats(packed, counts=COUNTS)


real = pytest.mark.skipif(
    not os.environ.get(data.VARIABLE) or data.find("ecg5000") is None,
    reason="needs the real data: set KANN_DATA_DIR to a folder that holds ecg5000",
)


@real
def test_the_official_files_agree():
    path = data.locate("ecg5000")
    files = [path / f"ECG5000_TRAIN{suffix}" for suffix in WRITERS]
    if not all(file.is_file() for file in files):
        pytest.skip("the training split is not there in all three formats")
    txt, *others = (read_file(file) for file in files)
    assert txt.values.shape == (500, 140)
    assert np.bincount(txt.labels).tolist() == [0, 292, 177, 10, 19, 2]
    for other in others:
        np.testing.assert_allclose(other.values, txt.values, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(other.labels, txt.labels)


@real
def test_the_official_data_set():
    beats = read_beats(data.locate("ecg5000"))
    assert beats.values.shape == (5000, 140)
    assert (len(beats.normal), len(beats.anomalous)) == (2919, 2081)

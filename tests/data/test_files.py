"""The one way to read: whatever is done to a file, it is read as it was saved or refused in one line."""

import dataclasses
import io
import json
import os
import warnings
import zipfile

import numpy as np
import pytest

import kann
from kann import zoo
from kann.data.archives import open_npy, read_npz
from kann.data.serialization import save_arrays
from kann.errors import KannError


@pytest.fixture(params=["koopman", "driven", "moments"])
def saved(request, tmp_path, rng):
    """The path of a saved result, its loader and its arrays."""
    states = kann.States.from_padded(rng.normal(size=(4, 30, 6)), inputs=rng.normal(size=(4, 30, 2)))
    path = tmp_path / "saved.npz"
    if request.param == "moments":
        kann.Moments.of(states).save(path)
        load = kann.Moments.load
    else:
        kann.fit(states, driven=request.param == "driven").save(path)
        load = kann.Koopman.load
    with np.load(path) as arrays:
        return path, load, dict(arrays)


def _refused(path, load, arrays, *, sealed=False, **edits):
    """Both as it is edited by hand, and sealed with a true checksum, as by an attacker."""
    edited = {name: array for name, array in (arrays | edits).items() if array is not None}
    if sealed:
        save_arrays(path, kind=json.loads(bytes(edited.pop("header")))["kind"], arrays=edited)
    else:
        np.savez(path, **edited)
    with pytest.raises(KannError, match=r"saved\.npz (is not a whole kann file|has |holds ).*; \w+") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_every_edited_field_is_refused(saved):
    path, load, arrays = saved
    load(path)
    for name, array in arrays.items():
        if name == "header":
            continue
        _refused(path, load, arrays, **{name: array.real.astype(np.float32)})
        for sealed in (False,) if name == "content" else (False, True):
            _refused(path, load, arrays, sealed=sealed, **{name: None})
            _refused(path, load, arrays, sealed=sealed, **{name: array[None]})
            _refused(path, load, arrays, sealed=sealed, **{name: array.astype(str)})
            _refused(path, load, arrays, sealed=sealed, **{name: array[..., :-1]})
            _refused(path, load, arrays, sealed=sealed, **{name: array[:0]})
            if array.dtype.kind in "fc" and name != "residuals":
                _refused(path, load, arrays, sealed=sealed, **{name: array * np.nan})
            if name not in ("mean", "offset", "drive", "sum_h", "sum_x", "sum_y", "sum_u", "xy", "xu", "uy"):
                _refused(path, load, arrays, sealed=sealed, **{name: -1.0 - np.abs(array)})
    _refused(path, load, arrays, another=np.ones(3))
    np.savez(path, **arrays)
    load(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"kind": 3, "version": 1}',
        b'{"kind": "KIND"}',
        b'{"kind": "KIND", "version": null}',
        b'{"kind": "KIND", "version": "1"}',
        b'{"kind": "KIND", "version": true}',
        b'{"kind": "KIND", "version": 0}',
        b'{"kind": "KIND", "version": 3}',
        b"[" * 9000,
        b"\xff\xfe",
    ],
)
def test_every_edited_header_is_refused(saved, header):
    path, load, arrays = saved
    kind = json.loads(bytes(arrays["header"]))["kind"].encode()
    _refused(path, load, arrays, header=np.frombuffer(header.replace(b"KIND", kind), dtype=np.uint8))
    _refused(path, load, arrays, header=arrays["header"].astype(np.int64))


def _seal(path, arrays):
    """Write edited arrays with a true checksum."""
    header = json.loads(bytes(arrays["header"]))
    save_arrays(path, kind=header["kind"], arrays={name: array for name, array in arrays.items() if name != "header"})


def _content(arrays, **fields):
    """The content of a file with other fields."""
    content = json.loads(bytes(arrays["content"]))
    content["fields"] |= fields
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def test_fields_that_contradict_each_other_are_refused(tmp_path, rng):
    states = rng.normal(size=(4, 30, 6))
    path = tmp_path / "saved.npz"
    kann.fit(states).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    messages = {
        "basis": (arrays["basis"] * 1.1, "its basis is not orthonormal"),
        "matrix": (arrays["matrix"] + 0.01, "are not those of its matrix"),
        "eigenvalues": (arrays["eigenvalues"] * 1.01, "are not those of its matrix"),
        "left": (arrays["left"] * 1.01, "not the inverse of the right ones"),
        "residuals": (-arrays["residuals"], "holds numbers below 0"),
        "content": (_content(arrays, condition=0.5), "holds numbers below 1"),
    }
    for name, (edited, message) in messages.items():
        _seal(path, arrays | {name: edited})
        with pytest.raises(KannError, match=message):
            kann.Koopman.load(path)
    order = np.argsort(np.abs(arrays["eigenvalues"]), kind="stable")
    turned = {
        "eigenvalues": arrays["eigenvalues"][order],
        "right": arrays["right"][:, order],
        "left": arrays["left"][order],
    }
    _seal(path, arrays | turned)
    with pytest.raises(KannError, match=r"not sorted by modulus|side by side"):
        kann.Koopman.load(path)
    kann.Moments.of(states).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    for edits, message in (
        ({"content": _content(arrays, states=3)}, "contradict each other"),
        ({"content": _content(arrays, pairs=10**9)}, "contradict each other"),
        ({"content": _content(arrays, sequences=True)}, "'sequences' is True, not int"),
        ({"hh": np.triu(arrays["hh"]) * 2}, "no Gram matrix"),
        ({"content": _content(arrays, rounding=2.0)}, "no spacing of numbers"),
    ):
        _seal(path, arrays | edits)
        with pytest.raises(KannError, match=message):
            kann.Moments.load(path)


def test_what_was_saved_loads_also_when_it_is_extreme(tmp_path, rng):
    """Defective, of rank 1, infinite residuals and condition, empty: all that `save` can write."""
    for data in (np.array([[[1.0, 0], [0, 1], [0, 0]]]), rng.normal(size=(2, 9, 1)) * 1e-150, np.ones((3, 5, 4))):
        for basis in ("svd", "fourier"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = kann.fit(data, basis=basis)
            fitted.save(tmp_path / "k.npz")
            np.testing.assert_array_equal(kann.Koopman.load(tmp_path / "k.npz").residuals, fitted.residuals)
    kann.Moments().save(tmp_path / "m.npz")
    assert kann.Moments.load(tmp_path / "m.npz").states == 0


def test_the_operator_that_ships_loads():
    assert kann.Koopman.load(zoo.folder("sentiment") / "koopman.npz").dim == 256


def test_every_flipped_byte_gives_the_same_file_or_one_line(saved, rng):
    path, load, _ = saved
    whole, expected = path.read_bytes(), repr(load(path))
    directory = whole.index(b"PK\x01\x02")  # where most of what zipfile trusts is
    for place in [*rng.integers(0, len(whole), 60), *rng.integers(directory, len(whole), 60)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            told = repr(load(path))
        except KannError as error:
            told = str(error)
        assert told == expected or ("saved.npz" in told and "\n" not in told)


def _npy(shape, dtype="<f8", data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize("load", [kann.Koopman.load, kann.Moments.load, kann.States.open, read_npz])
def test_nothing_is_unpacked_beyond_what_it_may_claim(tmp_path, load):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("values.npy", "w") as member:
        member.write(_npy((2**24,)))
        for _ in range(128):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(KannError, match=r"bomb\.npz .*it would unpack from"):
        load(path)
    for shape in ((10**12,), (2**62, 2**62), (-1,)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("values.npy", _npy(shape, data=bytes(64)))
            archive.writestr("header.npy", _npy(shape, "|u1", data=bytes(64)))
        with pytest.raises(KannError, match=r"bomb\.npz .*not what the file has room for"):
            load(path)


def test_archives_that_numpy_would_not_write_are_refused(tmp_path):
    path = tmp_path / "odd.npz"
    member = _npy((1,), data=bytes(8))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("values.npy", member)
        with pytest.raises(KannError, match="packed in a way that numpy does not use"):
            read_npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("values.npy", member)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("values.npy", member)
    with pytest.raises(KannError, match="holds 'values' twice"):
        read_npz(path)


def test_a_damaged_npy_file_is_refused(tmp_path):
    path = tmp_path / "x.npy"
    for content in (
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((",
        b"\x93NUMPY\x09\x00" + bytes(90),
        _npy((10**12, 3)),
        _npy((2, 2), data=bytes(31)),
        _npy((2, 2), data=bytes(33)),
        b"PK\x03\x04" + bytes(30),
    ):
        path.write_bytes(content)
        with pytest.raises(KannError, match=r"x\.npy cannot be read as plain arrays \(.+\); save it again"):
            kann.States.open(path)
    np.save(path, np.ones((2, 3)))
    assert open_npy(path).shape == (2, 3)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.zarr"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for load in (kann.Koopman.load, kann.Moments.load, kann.States.open):
        with pytest.raises(KannError, match="is a FIFO, not a regular file"):
            load(tmp_path / name)


def test_other_arrays_in_a_users_file_are_left_alone(tmp_path):
    np.savez(tmp_path / "x.npz", values=np.ones((2, 5, 3)), words=np.array(["a", "b"]))
    assert len(kann.States.open(tmp_path / "x.npz")) == 2
    assert read_npz(tmp_path / "x.npz")["words"].tolist() == ["a", "b"]


def test_the_error_of_a_file_of_many_arrays_is_short(tmp_path):
    path = tmp_path / "many.npz"
    np.savez(path, **{f"array{i}": np.zeros(1) for i in range(3000)})
    for load in (kann.States.open, kann.Koopman.load):
        with pytest.raises(KannError, match=r"many.npz") as caught:
            load(path)
        assert len(str(caught.value)) < 400 + len(str(path))


def test_text_in_place_of_a_function_is_refused(rng):
    states = kann.States.from_padded(rng.normal(size=(6, 20, 2)), inputs=rng.normal(size=(6, 20, 1)))
    koopman = kann.fit(states, driven="bilinear", ridge=1e-3)
    features = dataclasses.replace(koopman.features, function="print")
    with pytest.raises(ValueError, match="with a function 'print'"):
        dataclasses.replace(koopman, features=features)._check()

"""Every result class is saved and loaded by one serialiser: nothing is lost, and no field comes from another file."""

import importlib
import json
import pkgutil
import warnings

import numpy as np
import pytest

import kann
from kann.data.archives import read_npz
from kann.data.serialization import STORED, Decoder, Encoder, Saved, Stored, save_arrays
from kann.errors import KannError
from tests.reporting.histories import history
from tests.saved import Maker, assert_same

for module in pkgutil.walk_packages(kann.__path__, "kann."):
    if "__main__" not in module.name and "integrations" not in module.name:
        importlib.import_module(module.name)

CLASSES = sorted(
    (cls for cls in STORED.values() if issubclass(cls, Saved) and cls is not Saved), key=lambda cls: cls.__name__
)
NAMES = {
    "Koopman",
    "Bilinear",
    "Moments",
    "Trust",
    "Effects",
    "Movers",
    "StepMaps",
    "Comparison",
    "History",
    "FixedPoints",
}


def made(cls, seed):
    rng = np.random.default_rng(seed)
    states = kann.States.from_padded(rng.normal(size=(6, 9, 4)), inputs=rng.normal(size=(6, 9, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        koopman = kann.fit(states, rank=3)
        bilinear = kann.fit(states, driven="bilinear", rank=2, ridge=0.1)
    features = kann.fitting.features.FeatureMap(kind="inputs", inputs=2, count=2)
    balance = kann.fitting.balance.Balance.of_states(states)
    readout = kann.fitting.readout.Readout(
        weight=rng.normal(size=(2, 3)), constant=rng.normal(size=3), rank=2, per_sequence=True, r_squared=0.5
    )
    words = kann.analysis.word_pairs.WordPairs(
        words=("good", "bad"),
        counts=np.array([3, 2]),
        keeps=rng.normal(size=2),
        adds=rng.normal(size=2),
        number="output",
    )
    made_whole = (koopman, bilinear, balance, readout, words, kann.Moments.of(states), history(first=seed))
    real = {type(each): each for each in made_whole}
    return Maker(rng, real | {kann.fitting.features.FeatureMap: features}).instance(cls)


def test_all_results_can_be_saved():
    assert {cls.__name__ for cls in CLASSES} >= NAMES


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_everything_comes_back(cls, tmp_path):
    for seed in range(10):
        one = made(cls, seed)
        one.save(tmp_path / "saved.npz")
        assert_same(one, cls.load(tmp_path / "saved.npz"))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_of_another_file_is_refused(cls, tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    made(cls, 0).save(one)
    made(cls, 1).save(other)
    arrays, others = read_npz(one), read_npz(other)
    for name in arrays.keys() & others.keys():
        if arrays[name].shape == others[name].shape and arrays[name].tobytes() == others[name].tobytes():
            continue
        np.savez(one, **arrays | {name: others[name]})
        with pytest.raises(KannError, match="checksum"):
            cls.load(one)
    np.savez(one, **arrays)
    cls.load(one)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_of_wrong_types_are_refused_in_one_line(cls, tmp_path):
    """Also with a true checksum, as an attacker writes it (a test of all fields, each with several values)."""
    path = tmp_path / "saved.npz"
    made(cls, 0).save(path)
    arrays = read_npz(path)
    del arrays["header"]
    content = json.loads(bytes(arrays["content"]))
    for name in content["fields"]:
        for value in ({"dict": [["a", 1]]}, {"result": "Path", "fields": {}}, {"again": 99}, {"array": "absent"}):
            edited = content | {"fields": content["fields"] | {name: value}}
            text = np.frombuffer(json.dumps(edited).encode(), dtype=np.uint8)
            save_arrays(path, kind=f"kann.{cls.__name__}", arrays=arrays | {"content": text})
            with pytest.raises(KannError, match=r"saved\.npz is not a whole kann file \(.*\); save it again") as caught:
                cls.load(path)
            assert "\n" not in str(caught.value)


def test_a_file_of_another_class_is_refused(tmp_path):
    kann.Moments().save(tmp_path / "m.npz")
    with pytest.raises(KannError, match=r"holds kann\.Moments, not kann\.Trust"):
        kann.Trust.load(tmp_path / "m.npz")


def test_an_operator_is_stored_once():
    koopman = made(kann.Koopman, 0)
    points = [koopman, (koopman, {"again": koopman})]
    encoder = Encoder()
    plain = json.loads(json.dumps(encoder.plain(points, "x")))
    first, (second, third) = Decoder(encoder.arrays).value(plain)
    assert first is second is third["again"]


def test_what_no_file_can_hold_is_refused():
    with pytest.raises(KannError, match=r"page\.metric is <function made.*, which no file can hold"):
        Encoder().plain({"metric": made}, "page")


def test_two_classes_of_one_name_are_an_error():
    with pytest.raises(TypeError, match="both define a stored class Koopman"):
        type("Koopman", (Stored,), {})

import os
import shutil
import subprocess
import sys

import pytest
import torch

from kann import zoo
from kann.errors import KannError
from kann.zoo import autoencoder, sentiment_network


def test_an_unknown_model():
    for function in (zoo.folder, zoo.provenance, zoo.load):
        with pytest.raises(KannError, match="model 'mnist' is unknown; pass one of copy, ecg, sentiment"):
            function("mnist")


def test_a_model_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "folder", lambda name: tmp_path / name)
    with pytest.raises(KannError, match="model 'ecg' is not part of this installation"):
        zoo.provenance("ecg")


@pytest.mark.parametrize("model", ["ecg", "sentiment"])
def test_a_fifo_in_place_of_the_weights_is_never_opened(tmp_path, model):
    place = shutil.copytree(zoo.folder(model), tmp_path / model)
    (place / "weights.safetensors").unlink()
    os.mkfifo(place / "weights.safetensors")
    writer = os.open(place / "weights.safetensors", os.O_RDWR)  # so that opening it would not hang this test
    try:
        with pytest.raises(KannError, match=f"model '{model}' lacks weights.safetensors in .*; reinstall kann"):
            {"ecg": autoencoder, "sentiment": sentiment_network}[model].pretrained(place)
    finally:
        os.close(writer)


DAMAGE = (b"", b"{", b"[1]", b"\xff\xfe", b"{}")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("ecg", "provenance.json"),
        ("ecg", "weights.safetensors"),
        ("sentiment", "provenance.json"),
        ("sentiment", "weights.safetensors"),
        ("sentiment", "vocabulary.json"),
        ("sentiment", "koopman.npz"),
        ("sentiment", "trust.npz"),
    ],
)
def test_a_damaged_installation_is_named(tmp_path, model, name, damage):
    load = {"ecg": autoencoder.pretrained, "sentiment": sentiment_network.pretrained}[model]
    place = shutil.copytree(zoo.folder(model), tmp_path / model)
    (place / name).write_bytes(damage)
    with pytest.raises(KannError, match=name) as caught:
        load(place)
    assert "\n" not in str(caught.value)


def test_importing_the_zoo_is_light():
    heavy = ("torch", "safetensors", "tokenizers", "kann_experiments")
    code = f"import sys, kann.zoo; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("model", "missing"), [("ecg", "torch"), ("ecg", "safetensors"), ("sentiment", "tokenizers")])
def test_a_missing_package_is_named_with_its_extra(model, missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from kann import zoo; zoo.load({model!r})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the networks of kann.zoo need more packages")
    assert missing in last
    assert last.count("pip install") == last.count("pip install 'kann[cli]'") == 1


@pytest.mark.parametrize("name", zoo.MODELS)
def test_loading_leaves_the_callers_random_numbers_alone(name):
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    zoo.load(name)
    torch.testing.assert_close(torch.rand(2), wanted)

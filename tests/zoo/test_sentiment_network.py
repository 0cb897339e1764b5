import os
import tarfile

import numpy as np
import pytest
import torch
from kann_experiments.configs import known_settings
from kann_experiments.data import locate
from kann_experiments.sentiment.archive import FOLDERS, iterate_reviews
from kann_experiments.sentiment.task import PRINTED

from kann import zoo
from kann.zoo.sentiment_network import SentimentNetwork


@pytest.mark.parametrize("arch", ["gru", "lstm", "rnn"])
def test_padding_does_not_change_the_answer(arch, rng):
    network = SentimentNetwork(words=30, arch=arch, units=12, embedding=6).eval()
    ids = torch.as_tensor(rng.integers(2, 30, size=(3, 9)))
    lengths = torch.tensor([9, 4, 1])
    longer = torch.nn.functional.pad(ids, (0, 5), value=7)
    torch.testing.assert_close(network(longer, lengths), network(ids, lengths))
    torch.testing.assert_close(network(ids[1:2, :4]), network(ids, lengths)[1:2])


def test_the_model_that_comes_with_kann():
    place = zoo.folder("sentiment")
    assert sum(path.stat().st_size for path in place.iterdir()) < 8e6
    about = zoo.provenance("sentiment")
    assert about["accuracy"]["test"] >= 0.87
    assert about["accuracy"]["test_single_precision"] - about["accuracy"]["test"] < 0.01
    assert about["config"] == known_settings(PRINTED["gru"])
    found = zoo.load("sentiment")
    assert len(found.vocabulary) == found.network.words == about["words"]
    assert found.koopman.dim == 256
    assert found.koopman.rank == found.koopman.rank_curve.chosen <= 32
    assert np.abs(found.koopman.mean).max() > 0
    assert [mode.eigenvalue for mode in found.trust.modes] == [mode.eigenvalue for mode in found.koopman.modes]
    assert found.trust.folds == 10


@pytest.mark.skipif(not os.environ.get("KANN_DATA_DIR"), reason="KANN_DATA_DIR is not set: no real reviews here")
def test_the_model_judges_real_reviews(tmp_path, monkeypatch):
    # The paths of the archive are read, and a few reviews of each folder, not all of them.
    kept = {folder: [] for folder in FOLDERS}
    with open(locate("imdb"), "rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for folder, _, text in iterate_reviews(archive):
            kept[folder].append(text)
            if len(kept["test", "neg"]) >= 60 and len(kept["test", "pos"]) >= 60:
                break
    model = zoo.load("sentiment")
    right = total = 0
    for label, side in (("neg", False), ("pos", True)):
        for text in kept["test", label][:60]:
            (ids,) = model.vocabulary.encode([text])
            with torch.no_grad():
                right += (float(model.network(torch.from_numpy(ids[:1000])[None])) > 0) == side
            total += 1
    assert right / total > 0.8  # 89 % over all; of 120 less than 80 % would be three deviations off

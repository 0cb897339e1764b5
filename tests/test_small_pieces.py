"""Pieces that the other tests use without looking at them."""

import os
import sys

import numpy as np
import pytest
import torch

import kann
from kann.backends.arrays import gram
from kann.data.files import replacing
from kann.data.rows import MappedRows, PaddedRows
from kann.notebook import table
from kann.progress import progress
from tests.systems import noisy_states


def test_progress_yields_everything_with_and_without_tqdm(monkeypatch):
    assert list(progress(range(3), what="things")) == [0, 1, 2]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress(range(3), what="things")) == [0, 1, 2]


@pytest.mark.parametrize("width", [1, 31, 128, 130, 300])
def test_gram_is_the_product_with_itself_in_strips_too(rng, width):
    rows = rng.normal(size=(50, width))
    product = gram(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(product, rows.T @ rows, atol=1e-12)
    np.testing.assert_array_equal(gram(rows), rows.T @ rows)


def test_lazy_rows_index_like_an_array(rng):
    values, lengths = rng.normal(size=(3, 5, 2)), np.array([4, 1, 5])
    rows = PaddedRows(values, lengths)
    whole = np.concatenate([value[:n] for value, n in zip(values, lengths, strict=True)])
    for key in (
        3,
        -1,
        slice(None),
        slice(2, 7),
        slice(8, 1, -3),
        slice(4, 4),
        [1, 9, 0],
        np.array([2]),
        slice(0, 0, 2),
    ):
        np.testing.assert_array_equal(rows[key], whole[key])
    np.testing.assert_array_equal(np.asarray(rows), whole)
    matrix, mean = rng.normal(size=(2, 3)), rng.normal(size=2)
    np.testing.assert_allclose(MappedRows(rows, matrix, mean)[1:4], (whole[1:4] - mean) @ matrix)


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    old, moves = tmp_path / "folder", []
    old.mkdir()
    (old / "kept").write_text("precious")
    move = os.replace

    def fail_on_the_second(source, target):
        moves.append((source, target))
        if len(moves) == 2:
            raise OSError(28, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", fail_on_the_second)
    with pytest.raises(OSError, match="could not save: No space left on device"), replacing(old) as temporary:
        temporary.mkdir()
    assert (old / "kept").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_notebook_shows_modes_and_spectrum(rng):
    koopman = kann.fit(noisy_states(rng, d=5))
    shown = koopman._repr_html_()
    assert shown.count("<tr>") == 1 + len(koopman.modes)
    assert shown.count("<circle") == 1 + koopman.rank


def test_a_notebook_shows_states_and_fixed_points(rng):
    states = kann.States.from_padded(rng.normal(size=(3, 4, 2)))
    assert states._repr_html_().count("<tr>") == 1 + 3
    points = kann.find_fixed_points(lambda h, x: 0.5 * h, np.ones((1, 2)))
    shown = points._repr_html_()
    assert shown.count("<tr>") == 2
    assert "<td>fixed</td><td>True</td>" in shown


def test_cells_are_escaped():
    assert "<td>&lt;b&gt;</td>" in table("a", ("b",), [("<b>",)])

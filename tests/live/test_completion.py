"""What fills the rest of a state: known conditional means are found, and what is kept is kept exactly."""

import numpy as np
import pytest
import torch

import kann
from kann.analysis.modes import mode_directions, mode_variances, mode_vectors
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.live._effects import principal_components, random_like, readout_directions
from kann.live.completion import FILLS, fit_fills


def states_of(rows):
    return kann.States(values=rows, lengths=[len(rows)])


def fitted(directions, rows, fill):
    (found,) = fit_fills([directions], states_of(rows), fill)
    return found


@pytest.fixture
def rows(rng):
    return rng.normal(size=(4000, 5)) @ rng.normal(size=(5, 5)) + 3 * rng.normal(size=5)


@pytest.fixture
def koopman(rng):
    """An operator with a real mode and complex ones."""
    x = [rng.normal(size=(300, 6))]
    step = np.linalg.qr(rng.normal(size=(6, 6)))[0] * 0.9
    for _ in range(9):
        x.append(x[-1] @ step + 0.1 * rng.normal(size=(300, 6)))
    return kann.fit(np.stack(x, axis=1), basis="pca")


def test_mean_and_covariance_are_those_of_numpy(rows):
    spread = mean_and_covariance(states_of(rows))
    np.testing.assert_allclose(spread.mean, rows.mean(axis=0))
    np.testing.assert_allclose(spread.covariance, np.cov(rows.T, bias=True), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_kept_coordinates_are_kept_exactly_and_removed_ones_are_gone(fill, count, rows, rng):
    directions = rng.normal(size=(5, count))
    found = fitted(directions, rows, fill)
    mean = rows.mean(axis=0)
    kept = found.kept(rows)
    np.testing.assert_allclose((kept - mean) @ directions, (rows - mean) @ directions, atol=1e-9)
    np.testing.assert_allclose(found.kept(kept), kept, atol=1e-9)
    np.testing.assert_allclose((found.removed(rows) - mean) @ directions, 0, atol=1e-9)
    if count == 5:
        np.testing.assert_allclose(kept, rows, atol=1e-9)


def test_directions_and_vectors_of_modes_keep_what_reconstruct_keeps(koopman, rng):
    rows = rng.normal(size=(500, 6)) + koopman.mean
    for chosen in ([0], [1, 2], range(len(koopman.modes))):
        parts = [mode_vectors(koopman, mode) for mode in chosen]
        kept = koopman.mean + sum((rows - koopman.mean) @ directions @ vectors for directions, vectors in parts)
        np.testing.assert_allclose(kept, kann.reconstruct(koopman, rows, chosen), atol=1e-9)
        np.testing.assert_array_equal(mode_directions(koopman, chosen), np.hstack([part[0] for part in parts]))


def test_vectors_are_dual_to_directions(koopman):
    modes = range(len(koopman.modes))
    directions, vectors = (np.concatenate([mode_vectors(koopman, m)[i] for m in modes], axis=1 - i) for i in (0, 1))
    np.testing.assert_allclose(vectors @ directions, np.eye(koopman.rank), atol=1e-9)
    assert any(len(mode.indices) == 2 for mode in koopman.modes)


def test_the_linear_fill_is_the_regression(rows, rng):
    directions = rng.normal(size=(5, 2))
    s = np.column_stack([(rows - rows.mean(axis=0)) @ directions, np.ones(len(rows))])
    expected = s @ np.linalg.lstsq(s, rows, rcond=None)[0]
    np.testing.assert_allclose(fitted(directions, rows, "linear").kept(rows), expected, atol=1e-8)


def test_the_curve_follows_a_curve(rng):
    s = rng.uniform(-2, 2, size=20_000)
    rows = np.column_stack([s, np.sin(2 * s), np.cos(s)]) + np.array([5, 0, 0])
    noisy = rows + rng.normal(size=rows.shape) * [0, 0.1, 0.1]
    kept = fitted(np.eye(3)[:, :1], noisy, "curve").kept(rows)
    # A bin holds 50 states: their mean is known to 0.1/7, and its width, 0.01, bends the curve by less than that.
    np.testing.assert_allclose(kept, rows, atol=0.08)
    assert np.abs(fitted(np.eye(3)[:, :1], noisy, "linear").kept(rows) - rows).max() > 0.5


def test_several_coordinates_are_filled_with_a_quadratic(rng):
    s = rng.normal(size=(3000, 2))
    rows = np.column_stack([s, s[:, 0] * s[:, 1], s[:, 0] ** 2 - s[:, 1]])
    found = fitted(np.eye(4)[:, :2], rows, "curve")
    np.testing.assert_allclose(found.kept(rows), rows, atol=1e-4)  # the ridge takes 1e-6 of the products


def test_coordinates_are_clipped_to_what_was_recorded(rows, rng):
    directions = rng.normal(size=(5, 1))
    for fill in FILLS:
        found = fitted(directions, rows, fill)
        far = rows.mean(axis=0) + 1e3 * directions[:, 0]
        s = (found.kept(far[None]) - rows.mean(axis=0)) @ directions
        recorded = (rows - rows.mean(axis=0)) @ directions
        np.testing.assert_allclose(s, recorded.max(), rtol=1e-9)


@pytest.mark.parametrize("sequences", [1, 40])
def test_the_fill_is_chosen_by_the_error_on_held_out_sequences(sequences, rng):
    s = rng.normal(size=(2000, 3))
    linear = np.column_stack([s, s @ rng.normal(size=(3, 4)) + rng.normal(size=(2000, 4))])
    bent = np.column_stack([s, s**2, s[:, :1] * s[:, 1:2]]) + 0.1 * rng.normal(size=(2000, 7))
    noise = rng.normal(size=(80, 20))  # 45 products and 80 states: a quadratic regression fits noise
    for rows, count, kinds in ((linear, 1, {"linear"}), (bent, 1, {"curve"}), (linear, 3, {"linear"})):
        states = kann.States(values=rows, lengths=[len(rows) // sequences] * sequences)
        (found,) = fit_fills([np.eye(7)[:, :count]], states, "auto")
        assert {found.kind} == kinds, (count, kinds)
    for rows, count, kind in ((bent, 3, "quadratic"), (noise, 8, "linear")):
        states = kann.States(values=rows, lengths=[len(rows) // sequences] * sequences)
        (found,) = fit_fills([np.eye(rows.shape[1])[:, :count]], states, "auto")
        assert found.kind == kind
        (same,) = fit_fills([np.eye(rows.shape[1])[:, :count]], states, "linear" if kind == "linear" else "curve")
        np.testing.assert_array_equal(found.kept(rows), same.kept(rows))  # fitted to all sequences in the end


@pytest.mark.parametrize("fill", FILLS)
def test_few_states_are_enough(fill, rng):
    for count in (1, 3, 30):
        rows = rng.normal(size=(count, 4))
        assert np.isfinite(fitted(np.eye(4)[:, :1], rows, fill).kept(rows)).all()
        assert np.isfinite(fitted(np.eye(4)[:, :2], rows, fill).kept(rows)).all()


def test_directions_that_depend_on_each_other_count_once(rows):
    twice = np.ones((5, 2))
    np.testing.assert_allclose(
        fitted(twice, rows, "linear").kept(rows), fitted(twice[:, :1], rows, "linear").kept(rows), atol=1e-9
    )
    with pytest.raises(kann.KannError, match="the direction 0"):
        fitted(np.zeros((5, 1)), rows, "linear")


@pytest.mark.parametrize("fill", FILLS)
def test_states_in_chunks_of_dask_and_on_disk_give_the_same(fill, rows, rng, tmp_path):
    dask = pytest.importorskip("dask.array")
    directions = rng.normal(size=(5, 2))[:, : 1 + (fill != "curve")]
    expected = fitted(directions, rows, fill).kept(rows)
    lazy = kann.States(values=dask.from_array(rows, chunks=(1000, 5)), lengths=[len(rows)])
    states_of(rows).save(tmp_path / "states.zarr")
    for states in (lazy, kann.States.open(tmp_path / "states.zarr")):
        (found,) = fit_fills([directions], states, fill)
        np.testing.assert_allclose(found.kept(rows), expected, atol=1e-9)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_fill_of_tensors_is_the_same_fill(fill, count, rows, rng):
    found = fitted(rng.normal(size=(5, count)), rows + rows[:, :1] ** 2, fill)
    far = np.concatenate([rows, 100 * rows[:50]])  # outside of the range that was recorded too
    tensors = found.on(torch.from_numpy)
    np.testing.assert_allclose(tensors.kept(torch.from_numpy(far)), found.kept(far), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(tensors.removed(torch.from_numpy(far)), found.removed(far), rtol=1e-9, atol=1e-9)


def test_the_curve_joins_the_means_of_its_bins(rng):
    """Written out: in each of 400 bins of about equally many states the mean, with straight lines between them."""
    s = np.sort(rng.uniform(-2, 2, size=20_000))
    rows = np.column_stack([s, np.sin(2 * s)]) + 3
    found = fitted(np.eye(2)[:, :1], rows, "curve")
    bins = np.array_split(rows, 400)
    middles = np.array([each.mean(axis=0) for each in bins])
    at = middles[:-1, 0] + 0.3 * np.diff(middles[:, 0])
    expected = np.interp(at, middles[:, 0], middles[:, 1])
    # Cells of a bin are a fifth of its width wide, so that its border is known to that.
    np.testing.assert_allclose(found.kept(np.column_stack([at, 0 * at]))[:, 1], expected, atol=2e-3)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # of some versions of torch, the first time it is used
@pytest.mark.parametrize(("fill", "count", "most"), [("curve", 1, 26), ("curve", 2, 32), ("linear", 2, 20)])
def test_a_step_takes_few_operations(fill, count, most, rows):
    """On a GPU each is a launch. Written out step by step these are 59, 42 and 25 operations of torch."""
    quick = fitted(np.eye(5)[:, :count], rows, fill).on(torch.from_numpy)
    h = torch.from_numpy(rows[:8])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        quick.kept(h)
    names = [event.name for event in profile.events() if event.name.startswith("aten::")]
    operations = [name for name in names if name != "aten::resolve_conj"]  # launches nothing
    assert 3 < len(operations) <= most, operations


def test_random_directions_hold_the_variance_of_the_axes(rng):
    scales = np.array([9.0, 4.0, 2.0, 1.0, 0.5, 0.1])
    spread = MeanAndCovariance(mean=np.zeros(6), covariance=np.diag(scales))
    for own in ([5], [1], [0], [0, 5], [2, 3, 4]):
        found = random_like(np.eye(6)[:, own], spread, rng)
        np.testing.assert_allclose(found.T @ found, np.eye(len(own)), atol=1e-9)
        np.testing.assert_allclose(np.trace(spread.along(found)), scales[own].sum(), rtol=1e-6)


def test_directions_of_the_readout_and_of_principal_components(rng):
    spread = MeanAndCovariance(mean=np.zeros(4), covariance=np.diag([1.0, 9.0, 4.0, 2.0]))
    np.testing.assert_allclose(np.abs(principal_components(spread)[:, :2]), np.eye(4)[:, [1, 2]], atol=1e-12)
    single = readout_directions(np.array([[0.0, 1.0, 2.0, 0.0]]), spread)
    np.testing.assert_allclose(np.abs(single[:, 0]), [0, 1, 2, 0], atol=1e-12)
    weight = np.array([[1.0, 1, 0, 0], [1.0, -1, 0, 0]])  # what both outputs read alike decides nothing
    assert readout_directions(weight, spread, largest_decides=False).shape[1] == np.linalg.matrix_rank(weight)
    difference = readout_directions(weight, spread)
    assert difference.shape == (4, 1)
    np.testing.assert_allclose(difference[[0, 2, 3], 0], 0, atol=1e-12)


def test_variances_of_modes_are_those_of_their_contributions(koopman, rng):
    rows = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    weight = rng.normal(size=(2, 6))
    parts = kann.contributions(koopman, rows, weight).modes
    found = mode_variances(koopman, mean_and_covariance(states_of(rows)), weight)
    np.testing.assert_allclose(found, parts.var(axis=0).sum(axis=1), rtol=1e-8)

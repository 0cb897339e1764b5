from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import kann
from kann.errors import KannError
from kann.live.results import Effects
from kann.reporting.plots import (
    COLOURS,
    draw_decay,
    draw_decision_map,
    draw_effects,
    draw_horizons,
    draw_movers,
    draw_pseudospectrum,
    draw_rank_curve,
    draw_spectrum,
)
from tests.reporting.html_pages import made_effects, turning_states
from tests.systems import noisy_states


@pytest.fixture
def ax():
    return Figure(figsize=(4, 3)).subplots()


@pytest.fixture
def koopman(rng):
    return kann.fit(noisy_states(rng))


def square(n=41, radius=2.0):
    axis = np.linspace(-radius, radius, n)
    return axis[None, :] + 1j * axis[:, None]


def texts(ax):
    return {text.get_text(): text.get_position() for text in ax.texts}


def test_without_axes_a_figure_is_made(koopman):
    drawn = [
        draw_spectrum(koopman),
        draw_decision_map(np.zeros((3, 3), dtype=int), square(3)),
        draw_decay(koopman.modes[:2], steps=5),
    ]
    assert len({ax.figure for ax in drawn}) == len(drawn)
    for ax in drawn:
        plt.close(ax.figure)


def test_the_spectrum_shows_every_eigenvalue_where_it_is(ax, koopman):
    assert draw_spectrum(koopman, ax=ax) is ax
    (dots,) = ax.collections
    places = dots.get_offsets()
    np.testing.assert_allclose(places[:, 0] + 1j * places[:, 1], koopman.eigenvalues)
    np.testing.assert_allclose(dots.get_array(), np.clip(koopman.residuals, 1e-2, 1))
    (circle,) = ax.lines
    np.testing.assert_allclose(np.hypot(*circle.get_data()), 1)
    assert ax.get_aspect() == 1
    assert ax.get_legend() is None


def test_other_eigenvalues_have_their_name(ax, koopman):
    draw_spectrum(koopman, ax=ax, others={"J": np.array([0.5 + 0.5j, 1.0 + 0j])})
    crosses = ax.collections[1]
    np.testing.assert_allclose(crosses.get_offsets(), [[0.5, 0.5], [1, 0]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["eigenvalues", "J"]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("others", "message"),
    [
        (np.ones(2), "others=ndarray .* has no entries by name; pass a dict of eigenvalues"),
        ({"J": np.ones((2, 2))}, r"eigenvalues of 'J' are ndarray of float64, shape \(2, 2\); pass a row of complex"),
        ({"J": ["a"]}, "eigenvalues of 'J' are ndarray of <U1"),
        ({"J": [1.0, np.nan]}, r"eigenvalues of 'J' hold NaN at \(1,\); leave them out"),
    ],
)
def test_eigenvalues_that_are_none_are_refused(ax, koopman, others, message):
    with pytest.raises(KannError, match=message):
        draw_spectrum(koopman, ax=ax, others=others)


@pytest.mark.parametrize("flipped", [False, True])
def test_regions_are_named_where_they_are(ax, flipped):
    grid = square()[::-1] if flipped else square()
    outputs = np.where(np.real(grid) < 0, 0, np.where(np.imag(grid) < 0, 1, 2))
    draw_decision_map(outputs, grid, ax=ax, names=["left", "below", "above"])
    found = texts(ax)
    assert found.keys() == {"left", "below", "above"}
    assert found["left"][0] < 0 < found["below"][0]
    assert found["below"][1] < 0 < found["above"][1]
    (image,) = ax.images
    shown = np.asarray(image.get_array())
    assert image.get_extent() == [-2, 2, -2, 2]
    assert image.origin == "lower"
    np.testing.assert_array_equal(shown, np.where(np.real(square()) < 0, 0, np.where(np.imag(square()) < 0, 1, 2)))


def test_slivers_get_no_name(ax):
    grid = square()
    outputs = np.zeros(grid.shape, dtype=int)
    outputs[:, :20] = 1
    outputs[:, 20] = 2  # one column of forty-one
    draw_decision_map(outputs, grid, ax=ax)
    assert texts(ax).keys() == {"0", "1"}


def test_a_name_along_a_stripe_is_in_its_middle(ax):
    grid = square()
    outputs = np.where(np.real(grid) < -1.5, 1, 0)
    draw_decision_map(outputs, grid, ax=ax)
    across, up = texts(ax)["1"]
    assert -2 < across < -1.5
    assert abs(up) < 0.2


def test_a_path_goes_from_light_to_dark(ax):
    path = np.exp(1j * np.arange(5))
    draw_decision_map(np.zeros((41, 41), dtype=int), square(), ax=ax, path=path)
    (dots,) = ax.collections
    np.testing.assert_allclose(dots.get_offsets(), np.stack([path.real, path.imag], axis=1))
    assert np.all(np.diff(dots.get_alpha()) > 0)


def test_every_output_has_a_colour_of_its_own(ax):
    outputs = np.tile(np.arange(10), (10, 1))
    draw_decision_map(outputs, square(10), ax=ax)
    shades = ax.images[0].cmap(ax.images[0].norm(np.arange(10)))
    assert len(np.unique(shades, axis=0)) == 10
    assert len(set(COLOURS)) == 9


def test_a_map_that_does_not_fit_its_grid(ax):
    with pytest.raises(KannError, match=r"outputs \(3, 4\) and grid \(4, 3\) do not fit"):
        draw_decision_map(np.zeros((3, 4), dtype=int), np.zeros((4, 3), dtype=complex), ax=ax)


def test_decay_is_the_power_of_the_modulus(ax, koopman):
    assert draw_decay(koopman.modes[:2], ax=ax, steps=12) is ax
    for line, mode in zip(ax.lines, koopman.modes, strict=False):
        np.testing.assert_allclose(line.get_ydata(), mode.modulus ** np.arange(13))
    assert len(ax.get_legend().get_texts()) == 2


def test_decay_is_drawn_until_little_is_left_in_steps_or_seconds(ax, koopman):
    slowest = koopman.modes[0]
    assert slowest.modulus < 1
    draw_decay(koopman.modes[:2], ax=ax, step_seconds=0.02)
    last = ax.lines[0].get_xdata()[-1]
    assert last == pytest.approx(0.02 * max(10, np.ceil(1.3 * slowest.horizon())))
    assert ax.get_xlabel() == "seconds"
    grown = [replace(slowest, eigenvalue=1.01 + 0j)]
    assert draw_decay(grown, ax=Figure().subplots()).lines[0].get_xdata()[-1] == 500
    assert len(draw_decay(koopman, ax=Figure().subplots()).lines) == min(6, len(koopman.modes))


def test_legends_lie_above_the_curves_also_in_small_axes():
    states = turning_states()
    koopman = kann.fit(states)
    trust = kann.trust(koopman, states, folds=6)
    figure = Figure(figsize=(6.5, 5), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    draw_spectrum(koopman, ax=axes[0], trust=trust)
    draw_horizons(trust, ax=axes[1])
    draw_decay(koopman.modes, ax=axes[2])
    draw_effects(made_effects(koopman, (0, 1, 2, 3), (70, 98, 98)), ax=axes[3])
    FigureCanvasAgg(figure).draw()
    for ax in axes:
        assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1 - 1
    own, bar = axes[0].get_window_extent(), axes[0].child_axes[0].get_window_extent()
    assert own.x1 < bar.x0 < own.x1 + 0.1 * own.width


def test_one_score_far_out_does_not_rule_the_range(ax, koopman):
    found = made_effects(koopman, (0,), (60, 98, 98))
    far = {**found.kept_scores, "pca": np.full((3, 100), -6.0)}
    draw_effects(replace(found, kept_scores=far), ax=ax)
    low, high = ax.get_ylim()
    assert low > -0.5
    assert high < 1.5


def test_movers_are_bars_with_intervals(ax):
    states = turning_states(count=8)
    koopman = kann.fit(states)
    rng = np.random.default_rng(0)
    tokens = [rng.choice(["a", "$b", "c"], size=length).tolist() for length in states.lengths]
    found = kann.movers(koopman, states, tokens)
    assert draw_movers(found, 0, ax=ax, count=2) is ax
    bars = [patch.get_width() for patch in ax.patches]
    expected = sorted(each.push for each in (*found.up(0, 2), *found.down(0, 2)))
    np.testing.assert_allclose(bars, expected)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert {label.replace("\\", "") for label in labels} == {each.name for each in (*found.up(0, 2), *found.down(0, 2))}
    assert ax.get_xlabel() == "push of mode 0 (standard deviations)"


def names(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_without_trust_colours_are_residuals_on_the_fitted_data(ax, koopman):
    draw_spectrum(koopman, ax=ax)
    assert ax.child_axes[0].get_ylabel() == "residual on the fitted data"


def test_with_trust_the_spectrum_shows_intervals_and_trusted_modes(ax):
    states = turning_states()
    koopman = kann.fit(states)
    trust = kann.trust(koopman, states, folds=6)
    draw_spectrum(koopman, ax=ax, trust=trust)
    dots, boxes, rings = ax.collections
    own_trust = [own for mode, own in zip(koopman.modes, trust.modes, strict=True) for _ in mode.indices]
    np.testing.assert_allclose(dots.get_array(), np.clip([own.residual for own in own_trust], 1e-2, 1))
    assert ax.child_axes[0].get_ylabel() == "residual on held-out sequences"
    trusted = [value for number in trust.trusted for value in koopman.eigenvalues[list(koopman.modes[number].indices)]]
    np.testing.assert_allclose(rings.get_offsets() @ [1, 1j], trusted)
    assert names(ax) == ["eigenvalues", "95 % interval", f"trusted ({len(trust.trusted)} modes)"]
    edges = [path.vertices @ [1, 1j] for path in boxes.get_paths()]
    for value, edge, own in zip(koopman.eigenvalues, edges, own_trust, strict=True):
        np.testing.assert_allclose([np.abs(edge).min(), np.abs(edge).max()], own.interval)
        assert np.ptp(np.angle(edge / value)) == pytest.approx(own.angle[1] - own.angle[0], abs=1e-9)


def test_the_trust_of_another_operator_is_refused(ax):
    states = turning_states()
    trust = kann.trust(kann.fit(states), states, folds=6)
    with pytest.raises(KannError, match="another operator"):
        draw_spectrum(kann.fit(states, rank=2), ax=ax, trust=trust)


def test_the_rank_curve_shows_every_error_and_the_choice(ax):
    koopman = kann.fit(turning_states(), rank="auto")
    curve = koopman.rank_curve
    draw_rank_curve(koopman, ax=ax)
    for i in range(len(curve.horizons)):
        line, copied = ax.lines[2 * i], ax.lines[2 * i + 1]
        np.testing.assert_array_equal(line.get_xdata(), curve.ranks)
        np.testing.assert_array_equal(line.get_ydata(), curve.errors[:, i])
        assert set(copied.get_ydata()) == {curve.copying[i]}
    assert set(ax.lines[-1].get_xdata()) == {curve.chosen}
    assert names(ax)[-3:] == ["copying the state", "predicting the mean", f"chosen: rank {curve.chosen}"]
    assert "held-out error" in ax.get_ylabel()


def test_an_operator_of_a_given_rank_has_no_rank_curve(ax, koopman):
    with pytest.raises(KannError, match="fit it with rank='auto'"):
        draw_rank_curve(koopman, ax=ax)


def test_horizons_stand_beside_copying_and_the_mean(ax):
    states = turning_states()
    trust = kann.trust(kann.fit(states), states, folds=6)
    draw_horizons(trust, ax=ax)
    operator, copying, mean = ax.lines
    np.testing.assert_array_equal(operator.get_data(), [trust.horizons, trust.error])
    np.testing.assert_array_equal(copying.get_data(), [trust.horizons, trust.copying_error])
    assert set(mean.get_ydata()) == {1.0}
    assert names(ax) == ["operator", "copying the state", "predicting the mean"]


def test_the_pseudospectrum_is_drawn_where_it_is(ax):
    states = turning_states()
    koopman = kann.fit(states)
    found = kann.pseudospectrum(koopman, states)
    draw_pseudospectrum(found, ax=ax, koopman=koopman)
    assert ax.get_xlim() == (found.grid.real.min(), found.grid.real.max())
    np.testing.assert_allclose(ax.collections[-1].get_offsets() @ [1, 1j], koopman.eigenvalues)
    assert ax.figure.axes[1].get_ylabel() == "smallest residual of any vector"
    with pytest.raises(KannError, match="has no contours"):
        draw_pseudospectrum(kann.pseudospectrum(koopman, states, grid=np.array([0.5, 1.0])), ax=ax)


def test_effects_are_lines_over_the_number_of_coordinates(ax, koopman, rng):
    scores = {name: (rng.random((3, 40)) > 0.3).astype(float) for name in ("modes", "pca", "random")}
    found = Effects(
        counts=(1, 2, 4),
        metric="agreement",
        fill="curve",
        order=(0,),
        koopman=koopman,
        kept_scores=scores,
        removed_scores={name: 1 - each for name, each in scores.items()},
        full_scores=np.ones(40),
        none_scores=np.repeat([0.0, 1.0], 20),
        random_kept=rng.random((2, 3)),
        random_removed=rng.random((2, 3)),
        judged=np.arange(40),
    )
    assert draw_effects(found, ax=ax) is ax
    *lines, nothing = ax.lines
    for line, name in zip(lines, scores, strict=True):
        np.testing.assert_allclose(line.get_xydata(), np.column_stack([found.counts, scores[name].mean(axis=1)]))
    assert nothing.get_ydata()[0] == 0.5
    assert names(ax) == ["modes, largest contribution first", "principal components", "random directions"]
    assert ax.get_xlabel() == "coordinates kept"
    assert ax.get_ylabel() == "fraction of decisions that\nstay the network's"
    assert len(ax.collections) == 3
    ax.clear()
    draw_effects(found, ax=ax, removed=True)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 1 - scores["modes"].mean(axis=1))
    assert ax.get_xlabel() == "coordinates removed"

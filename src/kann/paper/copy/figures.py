"""The figures of the copy task, as PNG and as SVG."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import kann
from kann.paper.copy.analysis import RENN, RENN_NEAREST, Analysis, Study, in_coordinates
from kann.paper.drawing import COLUMN, WIDE, save_figures
from kann.reporting.plots import STYLE, draw_curves, draw_decision_map, draw_matrix, draw_spectrum
from kann.typing import Array, Complex

MAPS = 6
"""How many modes are shown, the most important ones."""

GRID = 241
"""Points of a decision map along each axis."""


def draw_figures(studies: Sequence[Study], *, folder: Path) -> tuple[Path, ...]:
    """Draw all figures: accuracy over all seeds, the others of the first."""
    first = studies[0].analysis
    with rc_context(STYLE):
        figures = {
            "accuracy": accuracy_figure(studies),
            "digits": digits_figure(first),
            "matrices": matrices_figure(first),
            "spectrum": spectrum_figure(first),
        }
        return save_figures(figures, folder)


def accuracy_figure(studies: Sequence[Study]) -> Figure:
    """Digits recalled against the share of states that are true, for the network, KANN and RENN."""
    task = studies[0].analysis.config.task
    positions = np.arange(1, task.length + 1) / task.length
    names = [name for name in studies[0].curves if _is_shown(name, studies)]
    curves = {"network": np.array([np.full(task.length, each.numbers["accuracy"]) for each in studies])}
    curves |= {name: np.array([each.curves[name] for each in studies]) for name in names}
    # The paper's dots: where all digits have been read, and where the answer begins.
    marks = {name: (task.length - task.digits if name.startswith("RENN") else task.digits) for name in names}
    figure = Figure(figsize=(COLUMN, 3.6), layout="constrained")
    ax = figure.subplots()
    draw_curves(
        {name: 100 * runs for name, runs in curves.items()},
        positions,
        ax=ax,
        marks={name: known / task.length for name, known in marks.items()},
    )
    ax.set(xlabel="true states, l / T", ylabel="digits recalled [%]", xlim=(0, 1.02), ylim=(-3, 104))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _is_shown(name: str, studies: Sequence[Study]) -> bool:
    """Whether a curve exists in all seeds, and is not another one's double.

    Where there is hardly more than one fixed point, that one is the nearest.
    """
    if not all(name in each.curves for each in studies):
        return False
    doubles = [np.abs(each.curves[RENN_NEAREST] - each.curves[RENN]).max() < 0.05 for each in studies]
    return name != RENN_NEAREST or not all(doubles)


def digits_figure(analysis: Analysis) -> Figure:
    """Which character the network answers to the most important modes, with the coefficients of one input on top."""
    koopman, states = analysis.koopman, analysis.states
    weight = kann.importance(koopman, states)
    modes = sorted(enumerate(koopman.modes), key=lambda entry: -weight[entry[1].indices[0]])[:MAPS]
    figure = Figure(figsize=(WIDE, 4.9), layout="constrained")
    grid_of_axes = figure.subplots(2, MAPS // 2, squeeze=False)
    for ax, (place, mode) in zip(grid_of_axes.flat, modes, strict=False):
        # A pair's part of a state is Re(z u) with z twice the coefficient of one of the two.
        path = len(mode.indices) * kann.project(koopman, states[0])[:, mode.indices[0]]
        grid = _square(1.15 * float(np.abs(path).max()))
        outputs = kann.decision_map(koopman, mode, analysis.network.readout, grid)
        draw_decision_map(outputs, grid, ax=ax, names=_names(outputs), path=path)
        period = f"{mode.period:.3g}" if math.isfinite(mode.period) else "∞"
        ax.set_title(f"mode {place}, |λ| {mode.modulus:.3f}, period {period}")
    for ax in grid_of_axes.flat[len(modes) :]:
        ax.set_axis_off()
    return figure


def _square(radius: float) -> Complex[Array, "n n"]:
    axis = np.linspace(-radius, radius, GRID)
    return axis[None, :] + 1j * axis[:, None]


def _names(outputs: Array) -> list[str]:
    """A blank is written as in the paper's sequences."""
    return ["–", *map(str, range(1, int(outputs.max()) + 1))]


def matrices_figure(analysis: Analysis) -> Figure:
    """RENN's two Jacobians and KANN's operator, and the recurrent Jacobian once more in the operator's coordinates."""
    points, koopman = analysis.points, analysis.koopman
    matrices = {
        "$J_{rec}$": points.jacobians[0],
        "$J_{inp}$": points.input_jacobians[0],
        "$C$": koopman.matrix,
        "$B^T J_{rec}^T B$": in_coordinates(points.jacobians[0], koopman),
    }
    limit = float(np.abs(koopman.matrix).max())
    figure = Figure(figsize=(WIDE, 2.1), layout="constrained")
    panels = figure.subplots(1, 4, width_ratios=[1, 0.25, 1, 1])
    for ax, (title, matrix) in zip(panels, matrices.items(), strict=True):
        draw_matrix(matrix, ax=ax, limit=limit if ax in panels[2:] else None).set_title(title)
        ax.set_ylabel("row" if ax is panels[0] else "")
    return figure


def spectrum_figure(analysis: Analysis) -> Figure:
    """Eigenvalues of the operator and of RENN's recurrent Jacobian, with the unit circle."""
    figure = Figure(figsize=(COLUMN, 2.9), layout="constrained")
    draw_spectrum(analysis.koopman, ax=figure.subplots(), others={"$J_{rec}$": analysis.points.eigenvalues[0]})
    return figure

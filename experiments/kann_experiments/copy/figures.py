"""The figures of the copy task, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import kann
from kann.reporting.plots import STYLE, draw_decision_map, draw_spectrum
from kann.typing import Array, Complex
from kann_experiments.copy.analysis import RENN, RENN_NEAREST, Analysis, Study
from kann_experiments.copy.renn import jacobian_in_basis
from kann_experiments.copy.task import Task
from kann_experiments.drawing import COLUMN, WIDE, draw_curves, draw_matrix, save_figures

MAPS = 6
"""How many modes have a decision map, the most important ones."""

GRID = 241
"""Points of a decision map along each axis."""

SAME_CURVE = 0.05
"""Two curves that are nowhere further apart than this are drawn as one."""


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
    """Digits recalled against the fraction of states that are true, for the network, KANN and RENN."""
    task = studies[0].analysis.config.task
    fractions = np.arange(1, task.length + 1) / task.length  # (t,)
    names = [name for name in studies[0].curves if name != RENN_NEAREST or _nearest_differs(studies)]
    curves = {"network": np.array([np.full(task.length, study.numbers["accuracy"]) for study in studies])}  # (seeds, t)
    curves |= {name: np.array([study.curves[name] for study in studies]) for name in names}
    figure = Figure(figsize=(COLUMN, 3.6), layout="constrained")
    ax = figure.subplots()
    draw_curves(
        {name: 100 * runs for name, runs in curves.items()},
        fractions,
        ax=ax,
        marks={name: _marked(name, task) / task.length for name in names},
    )
    ax.set(xlabel="true states, l / T", ylabel="digits recalled [%]", xlim=(0, 1.02), ylim=(-3, 104))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _nearest_differs(studies: Sequence[Study]) -> bool:
    """Whether RENN at the nearest point is another curve than RENN at one point, in any seed.

    It is not where there is hardly more than one fixed point: that one is then the nearest.
    """
    gaps = [float(np.abs(study.curves[RENN_NEAREST] - study.curves[RENN]).max()) for study in studies]
    return max(gaps) >= SAME_CURVE


def _marked(name: str, task: Task) -> int:
    """How many true states the paper's dot is at: before the answer for RENN, behind the digits for the others."""
    if name.startswith("RENN"):
        return task.length - task.digits
    return task.digits


def digits_figure(analysis: Analysis) -> Figure:
    """Which character the network answers to the most important modes, with the coefficients of one input on top."""
    koopman, states = analysis.koopman, analysis.states
    weight = kann.importance(koopman, states)  # (r,)
    modes = sorted(enumerate(koopman.modes), key=lambda entry: -weight[entry[1].indices[0]])[:MAPS]
    figure = Figure(figsize=(WIDE, 4.9), layout="constrained")
    grid_of_axes = figure.subplots(2, MAPS // 2, squeeze=False)
    for ax, (number, mode) in zip(grid_of_axes.flat, modes, strict=False):
        # A pair's part of a state is Re(z u) with z twice the coefficient of one of the two.
        path = len(mode.indices) * kann.project(koopman, states[0])[:, mode.indices[0]]  # (t,)
        grid = _complex_square(1.15 * float(np.abs(path).max()))
        outputs = kann.decision_map(koopman, mode, analysis.network.readout, grid)
        draw_decision_map(outputs, grid, ax=ax, names=_character_names(outputs), path=path)
        period = f"{mode.period:.3g}".replace("inf", "∞")  # of a real, positive eigenvalue
        ax.set_title(f"mode {number}, |λ| {mode.modulus:.3f}, period {period}")
    for ax in grid_of_axes.flat[len(modes) :]:
        ax.set_axis_off()
    return figure


def _complex_square(radius: float) -> Complex[Array, "n n"]:
    """Points of the complex plane up to this far from zero along both axes."""
    axis = np.linspace(-radius, radius, GRID)
    return axis[None, :] + 1j * axis[:, None]


def _character_names(outputs: Array) -> list[str]:
    """Names of the network's outputs; a blank is written as in the paper's sequences."""
    return ["–", *map(str, range(1, int(outputs.max()) + 1))]


def matrices_figure(analysis: Analysis) -> Figure:
    """RENN's two Jacobians and KANN's operator, and the recurrent Jacobian once more in the operator's coordinates."""
    points, koopman = analysis.points, analysis.koopman
    matrices = {
        "$J_{rec}$": points.jacobians[0],
        "$J_{inp}$": points.input_jacobians[0],
        "$C$": koopman.matrix,
        "$B^T J_{rec}^T B$": jacobian_in_basis(points.jacobians[0], koopman),
    }
    # The last two are to be compared, so they have the same colours; the others each have their own.
    shared = float(np.abs(koopman.matrix).max())
    limits = [None, None, shared, shared]
    figure = Figure(figsize=(WIDE, 2.1), layout="constrained")
    panels = figure.subplots(1, 4, width_ratios=[1, 0.25, 1, 1])
    for ax, (title, matrix), limit in zip(panels, matrices.items(), limits, strict=True):
        draw_matrix(matrix, ax=ax, limit=limit).set_title(title)
        ax.set_ylabel("")
    panels[0].set_ylabel("row")
    return figure


def spectrum_figure(analysis: Analysis) -> Figure:
    """Eigenvalues of the operator and of RENN's recurrent Jacobian, with the unit circle."""
    figure = Figure(figsize=(COLUMN, 2.9), layout="constrained")
    draw_spectrum(analysis.koopman, ax=figure.subplots(), others={"$J_{rec}$": analysis.points.eigenvalues[0]})
    return figure

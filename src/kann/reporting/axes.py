"""What all figures share: their colours and dashes, and the axes that they are drawn on."""

from kann.checks import require_instance

try:
    from matplotlib import pyplot
    from matplotlib.axes import Axes
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'kann[report]'") from error

INK = "#222222"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#F0E442", "#332288")
"""Colours that people with any common colour blindness can tell apart: Okabe and Ito's, and two of Tol's."""

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
"""Lines differ in their dashes too, for print without colour."""

SHORT_LABEL = 12
"""Letters of labels of which two fit side by side above axes that are a quarter of a page wide."""


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes to draw on: those of the caller, or those of a new figure."""
    if ax is None:
        _, ax = pyplot.subplots(layout="constrained")
    require_instance(ax, Axes, "ax")
    return ax


def legend_above(ax: Axes) -> None:
    """A legend above the axes, where it covers no curve; the figure makes room for it."""
    _, labels = ax.get_legend_handles_labels()
    columns = 1
    if max(map(len, labels), default=0) <= SHORT_LABEL:
        columns = 2
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        fontsize="small",
        labelspacing=0.2,
        frameon=False,
        borderaxespad=0.2,
    )

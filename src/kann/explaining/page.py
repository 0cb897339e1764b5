"""What the page shows of the sequences of an explanation: signals, tokens, labels, and the network's own outputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann.analysis.decisions import read_out
from kann.backends.arrays import as_numpy
from kann.explaining.facts import Facts
from kann.explaining.readout_search import outputs_before_sigmoid
from kann.explaining.sequences import signals_of, tokens_of
from kann.explaining.setup import positions_of
from kann.explaining.stages import Results
from kann.typing import Array, Shaped


def page_of(results: Results, facts: Facts) -> dict[str, Any]:
    """Return the arguments of `kann.report` that belong to the sequences which are shown."""
    setup, recorded = results.setup, results.recorded
    options, shown, numbers, reading = setup.options, recorded.shown, setup.shown_numbers, recorded.reading
    page: dict[str, Any] = {"step_seconds": options.step_seconds, "step_name": setup.place.step_name}
    page["title"] = f"What {type(setup.model).__name__} learned"
    if options.classes is not None:
        page["classes"] = list(options.classes)
    labels = None if options.labels is None else [options.labels[i] for i in numbers]
    if setup.place.axis == "depth":
        page["step_names"] = list(facts.step_names) or None
        positions = positions_of(setup.sequences, numbers, len(shown))
        if labels is not None:
            labels = [labels[i] for i in np.repeat(np.arange(len(labels)), positions)]
    else:
        page["tokens"] = tokens_of(options.tokens, setup.sequences, numbers, shown)
        if page["tokens"] is None:
            page["signals"] = signals_of(setup.sequences, numbers, shown)
            if page["signals"] is not None:
                page["channels"] = setup.channels
    page["labels"] = _label_names(labels, options.classes)
    page["others"] = dict(results.operators.others)
    page["readout"] = reading.readout
    if recorded.outputs is not None:
        page["outputs"] = recorded.outputs.kind
        page["threshold"] = 0.0 if reading.before_sigmoid else recorded.outputs.threshold
        page["network_outputs"] = _own_outputs(results)
    return page


def _own_outputs(results: Results) -> Shaped[Array, "s ..."] | None:
    """Return what the network gave for the sequences that are shown, if it decides once, at the end.

    The readout may read more than the states that are explained, such as another direction, and decide otherwise.
    """
    reading, shown = results.recorded.reading, results.recorded.shown
    if reading.readout is None:
        return None
    own = results.setup.sequences.outputs(results.setup.shown_numbers)
    ends = as_numpy(shown.values[shown.starts + shown.lengths - 1])
    if own.shape != read_out(reading.readout, ends).shape or not np.isfinite(own).all():
        return None
    return outputs_before_sigmoid(reading.readout, ends, own) if reading.before_sigmoid else own


def _label_names(labels: list[Any] | None, classes: Sequence[str] | None) -> list[Any] | None:
    """Return labels as text, by the names of their classes if there are some; several labels as they are."""
    if labels is None or any(getattr(label, "ndim", 0) or isinstance(label, list | tuple) for label in labels):
        return labels
    plain = [getattr(label, "item", lambda label=label: label)() for label in labels]
    names = dict(enumerate(classes or ()))
    return [str(names.get(label, label)) for label in plain]

"""``kann.explain``: what a network learned, in one call."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from kann.analysis.decisions import read_out
from kann.backends.arrays import as_numpy
from kann.errors import KannWarning, UnfinishedWarning
from kann.explaining.context import Findings, positions_of
from kann.explaining.depth_stage import layer_names
from kann.explaining.explanation import Explanation, rows_of
from kann.explaining.options import Options
from kann.explaining.readout_search import outputs_before_sigmoid
from kann.explaining.sentences import sentences_of
from kann.explaining.stages import look, run_stages
from kann.explaining.tokens import signals_of, tokens_of
from kann.recording.layer_selection import require_module
from kann.typing import Array, Shaped


def explain(
    model: nn.Module,
    data: Any,
    *,
    labels: Any = None,
    tokens: Any = None,
    readout: Any = None,
    groups: Any = None,
    layer: Any = None,
    state: str | None = None,
    axis: str | None = None,
    lengths: Any = None,
    classes: Sequence[str] | None = None,
    channels: Sequence[str] | None = None,
    outputs: str | None = None,
    step_seconds: int | float | None = None,
    seconds: int | float | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 128,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Explanation:
    """Explain what a network learned: which few coordinates it decides by, what pushes them, how long it remembers.

    Records the states of its recurrent layer, holds sequences out, chooses between operators by held-out errors and by
    tests in the running network, asks how far each mode can be trusted, and finds what pushes it. Everything that is
    not passed is found and said in ``.choices``. Ctrl-C keeps what is finished.

    >>> import kann, torch
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> found = kann.explain(Reader(), torch.randn(24, 12, 2), progress=False)
    >>> print(found.choices[0])
    Layer 'rnn' (GRU) is explained: it is the only recurrent one.

    Parameters
    ----------
    model
        Any torch module.
    data
        What it reads, as for `kann.record`; at least twelve sequences, better hundreds. A model whose ``forward`` takes
        lengths besides is told them.
    labels
        The true class of each sequence, or of each of its steps; its marks or values for several outputs.
    tokens
        For text: what is read at each step, a list of words for each sequence. Without it, words are called by their
        numbers.
    readout
        What reads the states: a module or its name, a weight (outputs, units), or a function. Found if there is only
        one linear layer that fits.
    groups
        For each sequence who it comes from, such as a patient: sequences of one group are held out together.
    layer, state, axis
        Whose states are explained, as in `kann.record`. Without them: the recurrent layer (h and c of an LSTM), another
        layer with a memory, or the blocks of a network along depth.
    lengths, forward, collate, batch_size, device
        How to read the data and to call the model, as in `kann.record`.
    classes
        The names of the classes.
    channels
        The names of the numbers that are read at each step, such as ``["force", "gate"]``: sentences, cards and charts
        call them so, and not "input 0", "input 1".
    outputs
        ``"class"``, ``"labels"`` or ``"values"``, as in `kann.effects`; told by labels and shapes if None.
    step_seconds
        How long a step lasts.
    seconds
        A budget of time: stages are made smaller or left out to keep it, and ``.choices`` says so.
    seed
        Of what is drawn at random: the sequences that are held out, and random directions.
    progress
        Whether to show progress bars if it takes long.
    """
    require_module(model)
    options = Options(
        labels=labels,
        tokens=tokens,
        readout=readout,
        groups=groups,
        layer=layer,
        state=state,
        axis=axis,
        lengths=lengths,
        classes=classes,
        channels=channels,
        outputs=outputs,
        step_seconds=step_seconds,
        seconds=seconds,
        forward=forward,
        collate=collate,
        batch_size=batch_size,
        device=device,
        seed=seed,
        progress=progress,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = look(model, data, options)
        run_stages(found)
    return _explanation(found, _warned(caught))


def _warned(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """What kann itself warned of, each once; other warnings are given to whoever listens."""
    texts: dict[str, None] = {}
    for each in caught:
        if issubclass(each.category, KannWarning) and not issubclass(each.category, UnfinishedWarning):
            texts[f"Warning: {each.message}."] = None
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return list(texts)


def _explanation(found: Findings, warned: Sequence[str]) -> Explanation:
    """The result, with what the page needs to know about the sequences that are shown."""
    fitted: Any = found.fitted
    shown: Any = found.shown
    accuracy = None
    if found.rightness is not None:
        accuracy = found.rightness.score, found.rightness.baseline
    return Explanation(
        sentences=sentences_of(found),
        choices=(*found.choices, *fitted.why, *warned),
        koopman=fitted.koopman,
        gated=fitted.gated,
        states=shown,
        trust=found.trust,
        steps=found.steps,
        effects=found.effects,
        alone=found.alone,
        movers=found.movers,
        accuracy=accuracy,
        held_out=found.held_out,
        page=_page(found),
    )


def _page(found: Findings) -> dict[str, Any]:
    """Arguments of `kann.report` that belong to the sequences which are shown."""
    options, shown, numbers = found.options, found.shown, found.shown_numbers
    assert shown is not None  # noqa: S101  # recorded by the first stage
    page: dict[str, Any] = {"step_seconds": options.step_seconds, "step_name": found.place.step_name}
    page["title"] = f"What {type(found.model).__name__} learned"
    if options.classes is not None:
        page["classes"] = list(options.classes)
    labels = rows_of(options.labels, numbers)
    if found.place.axis == "depth":
        page["step_names"] = layer_names(found)
        positions = positions_of(found.sequences, numbers, len(shown))
        if labels is not None:
            labels = [label for label, count in zip(labels, positions.tolist(), strict=True) for _ in range(count)]
    else:
        page["tokens"] = tokens_of(options.tokens, found.sequences, numbers, shown)
        if page["tokens"] is None:
            page["signals"] = signals_of(found.sequences, numbers, shown)
            if page["signals"] is not None:
                page["channels"] = found.channels
    page["labels"] = _label_names(labels, options.classes)
    if found.fitted is not None:
        page["others"] = found.fitted.others
    if found.reading is not None:
        page["readout"] = found.reading.readout
    if found.outputs is not None:
        page["outputs"], page["threshold"] = found.outputs.kind, found.outputs.threshold
        if found.reading is not None and found.reading.before_sigmoid:
            page["threshold"] = 0.0
        page["network_outputs"] = _own_outputs(found)
    return page


def _own_outputs(found: Findings) -> Shaped[Array, "s ..."] | None:
    """What the network gave out for the sequences that are shown, if it decides once, at the end, as the readout does.

    The readout may read more than the states that are explained, such as another direction, and decide otherwise.
    """
    reading, shown = found.reading, found.shown
    if reading is None or reading.readout is None or shown is None:
        return None
    own = found.probe.outputs(found.shown_numbers)
    ends = as_numpy(shown.values[shown.starts + shown.lengths - 1])
    if own.shape != read_out(reading.readout, ends).shape or not np.isfinite(own).all():
        return None
    if reading.before_sigmoid:
        return outputs_before_sigmoid(reading.readout, ends, own)
    return own


def _label_names(labels: list[Any] | None, classes: Sequence[str] | None) -> list[Any] | None:
    """Labels as text, by the names of their classes if these have one; several labels of a sequence as they are."""
    if labels is None or any(getattr(label, "ndim", 0) or isinstance(label, list | tuple) for label in labels):
        return labels
    plain = [getattr(label, "item", lambda label=label: label)() for label in labels]
    names = dict(enumerate(classes or ()))
    return [str(names.get(label, label)) for label in plain]

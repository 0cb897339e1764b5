"""``kann.explain``: what a network learned, in one call."""

import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from torch import nn

from kann.analysis.decisions import read_out
from kann.backends.arrays import as_numpy
from kann.errors import KannWarning, UnfinishedWarning
from kann.explaining.explanation import Explanation
from kann.explaining.facts import Facts, facts_of
from kann.explaining.options import ExplainOptions, Options
from kann.explaining.readout_search import outputs_before_sigmoid
from kann.explaining.sentences import details_of, sentences_of
from kann.explaining.sequences import signals_of, tokens_of
from kann.explaining.setup import look, positions_of
from kann.explaining.stages import Results, run_stages
from kann.recording.layer_selection import require_module
from kann.typing import Array, Shaped


def explain(
    model: nn.Module,
    data: Any,
    *,
    labels: Any = None,
    tokens: Any = None,
    groups: Any = None,
    layer: Any = None,
    classes: Sequence[str] | None = None,
    channels: Sequence[str] | None = None,
    seconds: int | float | None = None,
    seed: int = 0,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Explain what a network learned: the few coordinates it decides by, what pushes them, how long it remembers.

    Records the states of its recurrent layer, holds sequences out, finds the coordinates that its outputs depend on,
    fits an operator to them, judges its modes on held-out sequences and against untrained copies of the network, and
    tests all of it in the running network. Everything that is not passed is found and said in ``.choices``. Ctrl-C
    keeps what is finished.

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
        Input of the model, as for `kann.record`; twelve sequences or more, better hundreds. A model whose ``forward``
        takes lengths gets them.
    labels
        The true class of each sequence, or of each of its steps; its marks or values for several outputs.
    tokens
        For text: what is read at each step, a list of words for each sequence. Without it, words are called by their
        numbers.
    groups
        For each sequence who it comes from, such as a patient: sequences of one group are held out together.
    layer
        Whose states are explained, as in `kann.record`. Without it: the recurrent layer (h and c of an LSTM), another
        layer with a memory, or the blocks of a network along depth.
    classes
        The names of the classes.
    channels
        The names of the numbers that are read at each step, such as ``["force", "gate"]``, for sentences, cards and
        charts; "input 0", "input 1" without it.
    seconds
        A budget of time: stages are made smaller or left out to keep it, and ``.choices`` names them.
    seed
        Of what is drawn at random: the sequences that are held out, and random directions.
    options
        ``readout``, ``state``, ``axis``, ``outputs`` and ``step_seconds``: see `ExplainOptions`. ``lengths``,
        ``forward``, ``collate``, ``batch_size`` (default None), ``max_sequences``, ``device``
        and ``progress``: as in `kann.record`.
    """
    require_module(model)
    given = Options.of(
        options,
        labels=labels,
        tokens=tokens,
        groups=groups,
        layer=layer,
        classes=classes,
        channels=channels,
        seconds=seconds,
        seed=seed,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = run_stages(look(model, data, given))
    facts = facts_of(results)
    return Explanation(
        sentences=sentences_of(facts),
        choices=(*results.choices, *details_of(facts), *_warned(caught)),
        facts=facts,
        koopman=results.operators.koopman,
        bilinear=results.operators.bilinear,
        balance=results.balance,
        states=results.recorded.shown,
        trust=results.trust,
        steps=results.steps,
        effects=results.effects,
        alone=results.alone,
        movers=results.movers,
        memory=results.memory,
        accuracy=(facts.accuracy.score, facts.accuracy.baseline) if facts.accuracy else None,
        held_out=results.setup.held_out,
        page=page_of(results, facts),
    )


def _warned(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return what kann itself warned of, each once; other warnings are given to whoever listens."""
    texts: dict[str, None] = {}
    for each in caught:
        if issubclass(each.category, KannWarning) and not issubclass(each.category, UnfinishedWarning):
            texts[f"Warning: {each.message}."] = None
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return list(texts)


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

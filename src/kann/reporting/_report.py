"""One HTML file that shows what an operator says about a network, to be opened, explored and passed on.

It works offline: everything that it shows is in the file, and its security policy forbids any access to a network.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kann._version import __version__
from kann.analysis._movers import Movers
from kann.analysis._trust import Trust
from kann.analysis.decisions import Readout
from kann.checks import require_instance, require_number, require_path, require_text
from kann.data.atomic_write import replacing
from kann.data.states import checked_tokens
from kann.depth._trust import StepTrust
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.mode_selection import modes_that_matter, opened_mode
from kann.live.results import Effects
from kann.reporting.answers import last_outputs, readout_is_all
from kann.reporting.cards import mode_cards
from kann.reporting.curves import effect_numbers
from kann.reporting.inputs import (
    ReportInputs,
    checked_alone,
    checked_channels,
    checked_classes,
    checked_count,
    checked_effects,
    checked_labels,
    checked_movers,
    checked_operators,
    checked_outputs,
    checked_outputs_of_network,
    checked_points,
    checked_sentences,
    checked_signals,
    checked_states,
    checked_step_name,
    checked_step_names,
    checked_step_seconds,
    checked_steps,
    layer_numbers,
    where_copying_is_better,
)
from kann.reporting.offline import as_html
from kann.reporting.operators import (
    SLOW_FROM,
    copying_quality,
    mode_importance,
    mode_rows,
    modes_to_show,
    operator_quality,
)
from kann.reporting.sequences import (
    drawn_output_names,
    embedding,
    modes_decoded,
    output_gains,
    sequence_rows,
    sequence_tables,
)
from kann.reporting.trust_payload import (
    KnownTrust,
    known_trust,
    level_in_percent,
    null_radius,
    plane_numbers,
    trust_numbers,
)
from kann.reporting.trust_table import trust_table
from kann.reporting.verdict import verdict
from kann.typing import AnyArray, Array, Float

SENTENCES_FIRST = 5
"""As many of the page's own sentences stand at its top if none are passed; the others follow with the figures."""


def report(
    path: str | os.PathLike[str],
    koopman: Koopman,
    states: Any,
    *,
    tokens: Sequence[Any] | None = None,
    signals: Sequence[AnyArray] | None = None,
    channels: Sequence[str] | None = None,
    readout: Readout | None = None,
    decode: Callable[[Any], Any] | None = None,
    labels: Sequence[Any] | None = None,
    classes: Sequence[str] | None = None,
    driven: Koopman | None = None,
    others: Mapping[str, Koopman] | None = None,
    fixed_points: Any = None,
    title: str = "What this network remembers by",
    about: str = "",
    modes: int = 20,
    trust: Trust | None = None,
    steps: StepTrust | None = None,
    step_names: Sequence[str] | None = None,
    effects: Effects | None = None,
    movers: Movers | None = None,
    sentences: Sequence[str] = (),
    choices: Sequence[str] = (),
    alone: Mapping[int, tuple[float, float]] | None = None,
    step_seconds: float | None = None,
    step_name: str = "step",
    outputs: str | None = None,
    threshold: float = 0.0,
    network_outputs: AnyArray | None = None,
) -> Path:
    """Write a report: overview and verdict, spectrum, modes, sequences, comparison. Returns its path.

    >>> import tempfile, kann, numpy as np
    >>> states = kann.States.from_padded(np.random.default_rng(0).normal(size=(4, 20, 3)))
    >>> path = report(Path(tempfile.mkdtemp()) / "report.html", kann.fit(states), states)
    >>> path.name
    'report.html'

    Parameters
    ----------
    path
        The file to write. A file that exists is replaced.
    koopman, states
        An operator, and the states to show: as many as a person would look at. Some hundred sequences are quick.
    tokens
        For text: what the network read at each step, a list of words for each sequence, in the order of the text. For
        states of a direction that reads from the end, the words are put into its order.
    signals
        For signals: what the network read at each step, (T,) or (T, channels) for each sequence, in the same order.
    channels
        The names of the channels of the signals; "input 0", "input 1", … if None.
    readout
        From states to outputs. A linear one, such as ``torch.nn.Linear``, also gives the contribution of each mode.
    decode
        From the states (T, d) of a sequence to a signal (T,) or (T, channels), to show what each mode decodes to.
    labels, classes
        The true class of each sequence, and the names of the classes that the readout tells apart.
    driven, others, fixed_points
        For comparison: the operator that also reads the inputs, other operators by name, and `FixedPoints`.
    title, about
        The heading, and a paragraph about the network and the data.
    modes
        How many modes are shown for each sequence: half of them the slowest, the others the most important of the rest.
    trust
        What `kann.trust` returned for the operator. Without it, trust is measured on ``states`` if these are the ones
        that the operator was fitted to; otherwise no mode is called the network's own.
    steps, step_names
        Along depth: what `kann.depth.trust` returned, and the names of the layers.
    effects, movers
        What `kann.effects` and `kann.movers` returned for the operator: what its modes do in the running network, and
        what pushes them.
    sentences, choices
        What a reader may quote, shown first in place of the page's own sentences; and what was chosen, and why.
    alone
        For modes by number, the live scores with this mode alone kept, and with it alone removed.
    step_seconds, step_name
        How long a step lasts, to show half-lives in seconds too; and what a step is called, such as ``"layer"``.
    outputs, threshold
        What the readout gives, as in `kann.effects`: ``"class"``, ``"labels"`` or ``"values"``, told by ``effects`` if
        None; and what an output must exceed to be a yes, such as 0.5 behind a sigmoid.
    network_outputs
        What the network itself gave out at the end of each sequence, (sequences, outputs), for a head that reads more
        than these states, such as both directions. Without it predictions are what ``readout`` makes of last states.
    """
    require_path(path)
    require_instance(koopman, Koopman, "koopman")
    require_text(title, "title")
    require_text(about, "about")
    path = Path(path)
    if path.is_dir():
        raise KannError(f"{path} is a folder; pass the name of a file")
    states, modes = checked_states(states), checked_count(modes)
    words = None
    if tokens is not None:
        words = checked_tokens(tokens, states)
    importances = mode_importance(koopman, states)
    known = known_trust(koopman, states, trust)
    live = {
        "effects": checked_effects(effects, koopman),
        "movers": checked_movers(movers, koopman),
        "alone": checked_alone(alone, koopman),
    }
    matter = modes_that_matter(koopman, trust=known.trust, **live)
    steps = checked_steps(steps, states)
    samples = checked_signals(signals, states)
    inputs = ReportInputs(
        koopman=koopman,
        states=states,
        tokens=words,
        signals=samples,
        channels=checked_channels(channels, samples),
        readout=readout,
        decode=decode,
        labels=checked_labels(labels, states),
        classes=checked_classes(classes),
        driven=driven,
        others=checked_operators(driven, others),
        fixed_points=checked_points(fixed_points, koopman),
        matter=matter,
        modes_shown=modes_to_show(importances, modes, matter),
        sentences=checked_sentences(sentences, "sentences"),
        choices=checked_sentences(choices, "choices"),
        step_seconds=checked_step_seconds(step_seconds),
        step_name=checked_step_name(step_name),
        steps=steps,
        step_names=checked_step_names(step_names, steps),
        outputs=checked_outputs(outputs),
        threshold=require_number(threshold, "threshold", remedy="pass the value that an output must exceed"),
        network_outputs=checked_outputs_of_network(network_outputs, states, readout),
        **live,
    )
    tables = sequence_tables(inputs)
    page = {"title": title, "about": about, "version": __version__, **_findings(inputs, importances, known)}
    page["tables"] = {name: table.as_json() for name, table in tables.items()}
    with replacing(path) as temporary:
        temporary.write_text(as_html(page, tables), encoding="utf-8", errors="replace")
    return path


def _findings(inputs: ReportInputs, importances: Float[Array, " m"], known: KnownTrust) -> dict[str, Any]:
    """Everything that the page shows except the tables with a row for each state, which are packed."""
    return {
        **_about_operators(inputs, known),
        **_about_sequences(inputs, known),
        "units": inputs.koopman.dim,
        "steps": int(inputs.states.lengths.sum()),
        "modes": mode_rows(inputs.koopman, importances, known, step_name=inputs.step_name),
        "matter": inputs.matter,
        "matter_live": bool(modes_that_matter(inputs.koopman, effects=inputs.effects, alone=inputs.alone)),
        "opens_on": opened_mode(inputs.matter, inputs.modes_shown, known.trust),
        "threshold": inputs.threshold,
        "effects": effect_numbers(inputs.effects),
        "trust": trust_numbers(known),
        "layers": layer_numbers(inputs.steps, inputs.step_names),
        "level": level_in_percent(known),
        "null_radius": null_radius(inputs.koopman, known),
        "plane": plane_numbers(inputs.koopman, inputs.states),
        "sentences": inputs.sentences,
        "sentences_first": SENTENCES_FIRST,
        "choices": inputs.choices,
        "step": inputs.step_name,
        "limits": {"slow": SLOW_FROM},
    }


def _about_operators(inputs: ReportInputs, known: KnownTrust) -> dict[str, Any]:
    """How well this operator and those it is compared with predict the network, and what to make of it."""
    quality = operator_quality(inputs, inputs.koopman, known)
    copying = copying_quality(inputs)
    driven_quality = None
    if inputs.driven is not None:
        driven_quality = operator_quality(inputs, inputs.driven, known_trust(inputs.driven, inputs.states))
    others = {
        name: operator_quality(inputs, other, known_trust(other, inputs.states))
        for name, other in inputs.others.items()
    }
    doubt = where_copying_is_better(quality, copying, steps=inputs.steps, step_name=inputs.step_name)
    wording: dict[str, Any] = {"known": known, "step_name": inputs.step_name, "doubt": doubt}
    return {
        "fit": quality,
        "copying": copying,
        "driven": driven_quality,
        "others": others,
        "doubt": doubt,
        "verdict": verdict(quality, copying=copying, driven=driven_quality, **wording),
        "trust_table": trust_table(quality, copying=copying, **wording),
    }


def _about_sequences(inputs: ReportInputs, known: KnownTrust) -> dict[str, Any]:
    """The sequences one by one, the modes that matter in them, and what their outputs are called."""
    outputs = last_outputs(inputs)
    rows = sequence_rows(inputs, outputs)
    channels = 0
    if inputs.signals:
        channels = inputs.signals[0].shape[1]
    return {
        "sequences": rows,
        "cards": mode_cards(inputs, known, rows, outputs),
        "shown": list(inputs.modes_shown),
        "decoded": list(modes_decoded(inputs)),
        "outputs": output_gains(inputs, outputs),
        "output_names": drawn_output_names(inputs, outputs),
        "outputs_kind": inputs.outputs_kind,
        "readout_is_all": readout_is_all(inputs),
        "classes": inputs.classes,
        "channels": channels,
        "channel_names": inputs.channel_names,
        "reverse": inputs.states.reverse,
        "embedding": embedding(inputs),
    }

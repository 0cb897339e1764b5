"""One HTML file about a network, to be opened, explored and passed on.

It works offline: everything that it shows is in the file, and its security policy forbids any access to a network.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from kann._format import confidence
from kann._version import __version__
from kann.analysis._movers import Movers
from kann.analysis._trust import Trust
from kann.analysis.decisions import Readout
from kann.analysis.fidelity import copying
from kann.checks import file_to_write
from kann.live.results import Effects, Memory
from kann.reporting import offline, operators, sequences, trust
from kann.reporting.cards import mode_cards
from kann.reporting.inputs import VERDICTS, PageOptions, ReportInputs, checked_inputs
from kann.reporting.offline import Packed
from kann.typing import AnyArray

MOST_SENTENCES = 3
"""Number of sentences at the top of the page; all are under "Details"."""

SCRIPTS_BEFORE, SCRIPTS_AFTER = ("content", "formats", "charts"), ("saving", "start")
"""Scripts that those of the sections use, and scripts that use them."""


def report(
    path: str | os.PathLike[str],
    koopman: Any,
    states: Any = None,
    *,
    readout: Readout | None = None,
    trust: Trust | None = None,
    effects: Effects | None = None,
    movers: Movers | None = None,
    memory: Memory | None = None,
    tokens: Sequence[Any] | None = None,
    signals: Sequence[AnyArray] | None = None,
    labels: Sequence[Any] | None = None,
    **page: Unpack[PageOptions],
) -> Path:
    """Write a report: summary, live test, memory, modes, sequences, and folded details. Return its path.

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
        An operator and the states to show: some hundred sequences are quick. Or a `kann.Explanation` alone, which has
        all that follows; what is passed here takes its place.
    readout
        From states to outputs. A linear one, such as ``torch.nn.Linear``, also gives the contribution of each mode.
    trust
        What `kann.trust` returned for the operator. Without it, trust is measured on ``states`` if the operator was
        fitted to them; otherwise no mode is called trusted.
    effects, movers
        What `kann.effects` and `kann.movers` returned for the operator: the effect of its modes in the running network,
        and the inputs that push them.
    memory
        What `kann.memory` returned: what is left of one input after k steps.
    tokens
        For text: the word that the network read at each step, a list of words for each sequence, in the order of the
        text. For states of a direction that reads from the end, the words are put into its order.
    signals
        For signals: the samples that the network read, (T,) or (T, channels) for each sequence, in the same order.
    labels
        The true class or values of each sequence, or those of its steps.
    page
        `kann.reporting.inputs.PageOptions`: ``title``, ``about``, ``modes``, ``channels``, ``classes``,
        ``others``, ``fixed_points``, ``steps``, ``step_names``, ``line``, ``verdict``, ``summary``, ``sentences``,
        ``choices``, ``tables``, ``matter``, ``alone``, ``step_seconds``, ``step_name``, ``outputs``, ``threshold``,
        ``network_outputs``.
    """
    path = file_to_write(path)
    unknown = sorted(page.keys() - PageOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"report() got an unexpected keyword argument {unknown[0]!r}")
    pieces = {"readout": readout, "trust": trust, "effects": effects, "movers": movers}
    pieces |= {"memory": memory, "tokens": tokens, "signals": signals, "labels": labels}
    arguments: dict[str, Any] = {name: piece for name, piece in pieces.items() if piece is not None} | dict(page)
    if states is None and hasattr(koopman, "page_arguments"):
        arguments = koopman.page_arguments() | arguments
        koopman, states = koopman.koopman, arguments.pop("states")
    inputs = checked_inputs(koopman, states, arguments)
    content: dict[str, Any] = {}
    for section in SECTIONS:
        content |= section.numbers(inputs)
    tables: Mapping[str, Packed] = content["packed"]
    content["packed"] = {name: scales for name, (_, scales) in tables.items()}
    sections = [section for section in SECTIONS if not section.needs or content[section.needs]]
    scripts = [*SCRIPTS_BEFORE, *(name for section in sections for name in section.scripts), *SCRIPTS_AFTER]
    html = offline.page(
        "parts/report",
        style="report.css",
        scripts=[f"scripts/{name}" for name in dict.fromkeys(scripts)],
        content=content,
        tables={f"table-{name}": data for name, (data, _) in tables.items()},
        sections=[section for section in sections if not section.is_folded(inputs)],
        details=[section for section in sections if section.is_folded(inputs)],
        page=content,
    )
    return offline.write_page(path, html)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page."""

    name: str
    """The template ``parts/<name>.html.j2`` writes its text and tables; links lead to ``#<name>``."""
    title: str
    """The text of the link to it."""
    numbers: Callable[[ReportInputs], dict[str, Any]] = lambda inputs: {}
    """Return its entries in the content of the page, which template and scripts read as ``page.<entry>``."""
    scripts: tuple[str, ...] = ()
    """Those in ``scripts/`` that draw its charts. Each adds itself to ``sections`` in ``content.js``."""
    needs: str = ""
    """An entry without which the section is left out."""
    is_folded: Callable[[ReportInputs], bool] = lambda inputs: False
    """Whether the section is under "Details". Its charts are then drawn when the details are opened."""


def _overview(inputs: ReportInputs) -> dict[str, Any]:
    states, verdict = inputs.states, None
    if inputs.verdict is not None:
        word, figure = inputs.verdict
        verdict = {"word": word, "title": VERDICTS[word], "figure": figure}
    shown = f"{len(states):,} {'paths through the layers' if inputs.step_name == 'layer' else 'sequences'} shown"
    line = inputs.line or f"{inputs.koopman.dim} units · operator of rank {inputs.koopman.rank}"
    return {
        "title": inputs.title,
        "line": f"{line} · {shown}",
        "about": inputs.about,
        "verdict": verdict,
        "version": __version__,
        "units": inputs.koopman.dim,
        "steps": int(states.lengths.sum()),
        "step": inputs.step_name,
        "step_seconds": inputs.step_seconds,
        "sentences": list(inputs.sentences),
        "choices": list(inputs.choices),
        "more": bool(inputs.sentences or inputs.choices),
    }


def _modes(inputs: ReportInputs) -> dict[str, Any]:
    return {
        "cards": mode_cards(inputs),
        "matter": inputs.matter,
        "doubtful": inputs.doubtful,
        "opens_on": opened_mode(inputs.matter, inputs.modes_shown, inputs.known.trust),
        "outputs_kind": inputs.outputs_kind,
        "channel_names": inputs.channel_names,
    }


def opened_mode(matter: Sequence[int], shown: Sequence[int], trust: Trust | None) -> int:
    """Return the mode that the page opens on: the first trusted one that matters, or else the first trusted one.

    >>> opened_mode([3, 1], [0, 1, 3], None)
    3
    """
    candidates = [*matter, *shown, 0]
    if trust is not None:
        candidates = [number for number in candidates if number in trust.trusted] or candidates
    return candidates[0]


def _tables(inputs: ReportInputs) -> dict[str, Any]:
    tables = [{"id": f"table-{place}", **asdict(table)} for place, table in enumerate(inputs.tables)]
    names = [table["title"] for table in tables if not table["folded"]]
    return {"tables": tables, "open_tables": names, "folded_tables": len(names) < len(tables)}


def _spectrum(inputs: ReportInputs) -> dict[str, Any]:
    return {
        "modes": operators.mode_rows(inputs.koopman, inputs.importances, inputs.known, step_name=inputs.step_name),
        "null_radius": trust.null_radius(inputs.koopman, inputs.known),
        "plane": trust.plane_numbers(inputs.koopman, inputs.states),
        "limits": {"slow": operators.SLOW_FROM},
    }


def _sequences(inputs: ReportInputs) -> dict[str, Any]:
    return {
        "sequences": sequences.sequence_rows(inputs),
        "shown": list(inputs.modes_shown),
        "outputs": sequences.output_gains(inputs),
        "output_names": sequences.output_names(inputs)[: sequences.OUTPUTS_DRAWN],
        "readout_is_all": inputs.readout_is_all,
        "threshold": inputs.threshold,
        "classes": inputs.classes,
        "channels": inputs.signals[0].shape[1] if inputs.signals else 0,
        "reverse": inputs.states.reverse,
        "packed": sequences.sequence_tables(inputs),
    }


def _trust(inputs: ReportInputs) -> dict[str, Any]:
    """Return how well this operator, and those it is compared with, predict the network, and what follows from it."""
    known, step_name = inputs.known, inputs.step_name
    quality = operators.operator_quality(inputs, inputs.koopman, known)
    copied = operators.prediction_quality(inputs, copying)
    others = {
        name: operators.operator_quality(inputs, other, trust.known_trust(other, inputs.states))
        for name, other in inputs.others.items()
    }
    doubt = operators.where_copying_is_better(quality, copied, steps=inputs.steps, step_name=step_name)
    wording: dict[str, Any] = {"known": known, "step_name": step_name, "doubt": doubt}
    table = trust.trust_table(quality, copying=copied, others=others, **wording)
    statements = [f"{row['asked']}: {row['found']}. {row['says'][0].upper()}{row['says'][1:]}." for row in table]
    return {
        "fit": quality,
        "copying": copied,
        "others": others,
        "doubt": doubt,
        "trust": trust.trust_numbers(known),
        "level": None if known.trust is None else confidence(known.trust.level),
        "trust_table": table,
        "caveats": inputs.caveats,
        "summary": list(inputs.summary or inputs.sentences or statements)[:MOST_SENTENCES],
    }


def _always(inputs: ReportInputs) -> bool:
    return True


SECTIONS = (
    Section(name="overview", title="Summary", numbers=_overview),
    Section(
        name="effects",
        title="Live test",
        numbers=lambda inputs: {"effects": operators.effect_numbers(inputs.effects)},
        scripts=("live",),
        needs="effects",
    ),
    Section(
        name="memory",
        title="Memory",
        numbers=lambda inputs: {"memory": operators.memory_numbers(inputs.memory)},
        scripts=("live",),
        needs="memory",
    ),
    Section(name="modes", title="Modes", numbers=_modes, needs="cards"),
    Section(name="tables", title="Tables", numbers=_tables, scripts=("tables",), needs="open_tables"),
    Section(
        name="layers",
        title="Layers",
        numbers=lambda inputs: {"layers": operators.layer_numbers(inputs.steps, inputs.step_names)},
        scripts=("layers",),
        needs="layers",
        is_folded=lambda inputs: bool(inputs.tables),  # which tell what the network does without each layer
    ),
    Section(name="sequences", title="Sequences", numbers=_sequences, scripts=("words", "lines")),
    Section(name="more", title="In full, and choices", needs="more", is_folded=_always),
    Section(name="folded_tables", title="More tables", scripts=("tables",), needs="folded_tables", is_folded=_always),
    Section(
        name="figures",
        title="Figures of the charts",
        numbers=lambda inputs: {"figures": inputs.effects is not None or inputs.memory is not None},
        needs="figures",
        is_folded=_always,
    ),
    Section(
        name="spectrum", title="Spectrum", numbers=_spectrum, scripts=("spectrum", "mode_table"), is_folded=_always
    ),
    Section(
        name="states",
        title="States",
        numbers=lambda inputs: {"embedding": sequences.embedding(inputs)},
        scripts=("states",),
        is_folded=_always,
    ),
    Section(name="trust", title="Trust", numbers=_trust, scripts=("errors",), is_folded=_always),
)
"""All sections, in the order of the page."""

"""One HTML file that shows what an operator says about a network, to be opened, explored and passed on.

It works offline: everything that it shows is in the file, and its security policy forbids any access to a network.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kann._version import __version__
from kann.analysis.decisions import Readout
from kann.analysis.live_effects import Effects
from kann.analysis.movers import Movers
from kann.analysis.trust import Trust
from kann.checks import require_instance, require_path, require_text
from kann.data.files import replacing
from kann.data.tokens import checked_tokens
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.reporting.inputs import (
    ReportInputs,
    checked_alone,
    checked_classes,
    checked_count,
    checked_effects,
    checked_labels,
    checked_movers,
    checked_operators,
    checked_points,
    checked_sentences,
    checked_signals,
    checked_states,
    checked_step_name,
    checked_step_seconds,
)
from kann.reporting.operators import (
    SLOW_FROM,
    copying_quality,
    mode_importance,
    mode_rows,
    operator_quality,
    slowest_and_most_important,
)
from kann.reporting.packing import Packed, compress, compress_json
from kann.reporting.sequences import embedding, sequence_rows, sequence_tables
from kann.reporting.trusting import KnownTrust, known_trust, plane_numbers, trust_numbers
from kann.reporting.verdict import verdict
from kann.typing import AnyArray, Array, Float

try:
    import jinja2
    import plotly
except ImportError as error:
    raise ImportError("reports need plotly and jinja2: pip install 'kann[report]'") from error

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
"""What a page may do: run the scripts with these checksums, and nothing else. It can reach no address."""

SMALLEST_PERCENT = 0.001
"""Nobody reads smaller percents as numbers."""


def report(
    path: str | os.PathLike[str],
    koopman: Koopman,
    states: Any,
    *,
    tokens: Sequence[Any] | None = None,
    signals: Sequence[AnyArray] | None = None,
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
    effects: Effects | None = None,
    movers: Movers | None = None,
    sentences: Sequence[str] = (),
    choices: Sequence[str] = (),
    alone: Mapping[int, tuple[float, float]] | None = None,
    step_seconds: float | None = None,
    step_name: str = "step",
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
    effects, movers
        What `kann.effects` and `kann.movers` returned for the operator: what its modes do in the running network, and
        what pushes them.
    sentences, choices
        What a reader may quote, shown first in place of the page's own sentences; and what was chosen, and why.
    alone
        For modes by number, the live scores with this mode alone kept, and with it alone removed.
    step_seconds, step_name
        How long a step lasts, to show half-lives in seconds too; and what a step is called, such as ``"layer"``.
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
    inputs = ReportInputs(
        koopman=koopman,
        states=states,
        tokens=words,
        signals=checked_signals(signals, states),
        readout=readout,
        decode=decode,
        labels=checked_labels(labels, states),
        classes=checked_classes(classes),
        driven=driven,
        others=checked_operators(driven, others),
        fixed_points=checked_points(fixed_points, koopman),
        modes_shown=slowest_and_most_important(importances, modes),
        effects=checked_effects(effects, koopman),
        movers=checked_movers(movers, koopman),
        sentences=checked_sentences(sentences, "sentences"),
        choices=checked_sentences(choices, "choices"),
        alone=checked_alone(alone, koopman),
        step_seconds=checked_step_seconds(step_seconds),
        step_name=checked_step_name(step_name),
    )
    known = known_trust(koopman, states, trust)
    tables = sequence_tables(inputs)
    page = {"title": title, "about": about, "version": __version__, **_findings(inputs, importances, known)}
    page["tables"] = {name: table.as_json() for name, table in tables.items()}
    with replacing(path) as temporary:
        temporary.write_text(_html(page, tables), encoding="utf-8", errors="replace")
    return path


def _findings(inputs: ReportInputs, importances: Float[Array, " m"], known: KnownTrust) -> dict[str, Any]:
    """Everything that the page shows except the tables with a row for each state, which are packed."""
    koopman, states = inputs.koopman, inputs.states
    quality = operator_quality(inputs, koopman, known)
    copying = copying_quality(inputs)
    driven_quality = None
    if inputs.driven is not None:
        driven_quality = operator_quality(inputs, inputs.driven, known_trust(inputs.driven, states))
    others = {
        name: operator_quality(inputs, other, known_trust(other, states)) for name, other in inputs.others.items()
    }
    return {
        "units": koopman.dim,
        "sequences": sequence_rows(inputs),
        "steps": int(states.lengths.sum()),
        "fit": quality,
        "copying": copying,
        "driven": driven_quality,
        "others": others,
        "verdict": verdict(quality, copying=copying, driven=driven_quality, known=known),
        "modes": mode_rows(koopman, importances, known),
        "trust": trust_numbers(known),
        "plane": plane_numbers(koopman, states),
        "shown": list(inputs.modes_shown),
        "reverse": states.reverse,
        "embedding": embedding(inputs),
        "limits": {"slow": SLOW_FROM},
    }


def _html(page: dict[str, Any], tables: Mapping[str, Packed]) -> str:
    """The page as text. Jinja escapes every value except our own style sheet and script."""
    folder = resources.files("kann.reporting")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    plotly_script = (
        Path(plotly.__file__).with_name("package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["percent"] = percent
    template = environment.from_string(folder.joinpath("report.html.j2").read_text(encoding="utf-8"))
    packed = {"plotly": compress(plotly_script.encode()), "content": compress_json(page)}
    packed |= {f"table-{name}": table.data for name, table in tables.items()}
    policy = POLICY.format(scripts=f"{_checksum(plotly_script)} {_checksum(script)}")
    return template.render(page=page, policy=policy, style=style, script=script, packed=packed)


def percent(fraction: float | None) -> str:
    """A fraction as people read it: two digits, or whole percents from 100 on.

    >>> percent(0.01234), percent(1.0312), percent(1e-9), percent(None)
    ('1.2 %', '103 %', 'below 0.001 %', '–')
    """
    if fraction is None:
        return "–"
    value = 100 * fraction
    if 0 < value < SMALLEST_PERCENT:
        return f"below {SMALLEST_PERCENT} %"
    if value >= 99.5:  # two digits would be written 1e+02
        return f"{value:.0f} %"
    return f"{value:.2g} %"


def _checksum(script: str) -> str:
    """The checksum of a script, as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"

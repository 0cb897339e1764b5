"""One HTML file that shows what an operator says about a network, to be opened, explored and passed on.

It works offline: everything is in it, and it forbids itself any access to the network.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kann._version import __version__
from kann.analysis.decisions import Readout
from kann.backends.arrays import as_numpy
from kann.data.files import replacing
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.reporting import content
from kann.reporting.content import Material
from kann.reporting.packing import zipped, zipped_json
from kann.reporting.verdict import verdict
from kann.typing import AnyArray

try:
    import jinja2
    import plotly
except ImportError as error:
    raise ImportError("reports need plotly and jinja2: pip install 'kann[report]'") from error

POLICY = "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
"""What a page may do: run the scripts whose checksums are given, and nothing else; no address is reachable."""


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
) -> Path:
    """Write a report: overview and verdict, spectrum, modes, sequences, comparison. Returns its path.

    Parameters
    ----------
    path
        The file, which is replaced if it stands there.
    koopman, states
        An operator, and the states to show, as many as a person would look at; some hundred sequences are quick.
    tokens
        For text: what was read at each step, a list of words for each sequence.
    signals
        For signals: what was read at each step, (T,) or (T, channels) for each sequence.
    readout
        From states to outputs. A linear one, such as ``torch.nn.Linear``, gives the signed share of each mode too.
    decode
        From the states (T, d) of a sequence to a signal (T,) or (T, channels), to show what each mode decodes to.
    labels, classes
        The true class of each sequence; the names of the classes that the readout tells apart.
    driven, others, fixed_points
        To compare with: the operator that reads the inputs, other operators by name, and `FixedPoints`.
    title, about
        The heading, and a paragraph about network and data.
    modes
        For how many modes sequences are shown: half of them the slowest, the others the most important of the rest.
    """
    path = Path(path)
    if path.is_dir():
        raise KannError(f"{path} is a folder; pass the name of a file")
    states = as_states(states)
    importance = content.mode_importance(koopman, states)
    material = Material(
        koopman=koopman,
        states=states,
        tokens=_tokens(tokens, states),
        signals=_signals(signals, states),
        readout=readout,
        decode=decode,
        labels=_per_sequence(labels, states, "labels"),
        classes=classes,
        others=dict(others or {}),
        fixed_points=fixed_points,
        shown=content.worth_showing(importance, modes),
    )
    page, tables = _page(material, importance, driven, title=title, about=about)
    with replacing(path) as temporary:
        temporary.write_text(_html(page, tables), encoding="utf-8", errors="replace")
    return path


def _page(
    material: Material, importance: Any, driven: Koopman | None, *, title: str, about: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Everything that the page shows, and the packed tables by name."""
    koopman, states = material.koopman, material.states
    numbers = content.fit_numbers(material, koopman)
    beside = None if driven is None else content.fit_numbers(material, driven)
    packed = {"magnitude": content.magnitudes(material), "share": content.shares(material)}
    packed |= content.decoded(material) or {}
    tables = {name: table for name, table in packed.items() if table is not None}
    page = {
        "title": title,
        "about": about,
        "version": __version__,
        "units": koopman.dim,
        "sequences": content.sequence_rows(material),
        "steps": int(states.lengths.sum()),
        "fit": numbers,
        "driven": beside,
        "others": {name: content.fit_numbers(material, other) for name, other in material.others.items()},
        "verdict": verdict(koopman, numbers, beside),
        "modes": content.mode_rows(koopman, importance),
        "shown": list(material.shown),
        "embedding": content.embedding(material),
        "tables": {name: table.as_json() for name, table in tables.items()},
    }
    return page, {name: table.data for name, table in tables.items()}


def _html(page: dict[str, Any], tables: dict[str, str]) -> str:
    """The page as text. Jinja escapes every value but our own style and script."""
    folder = resources.files("kann.reporting")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    drawing = Path(plotly.__file__).with_name("package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        folder.joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        page=page,
        policy=POLICY.format(scripts=f"{_checksum(drawing)} {_checksum(script)}"),
        style=style,
        script=script,
        packed={"drawing": zipped(drawing.encode()), "content": zipped_json(page)}
        | {f"table-{name}": data for name, data in tables.items()},
    )


def _checksum(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _per_sequence(values: Sequence[Any] | None, states: States, what: str) -> list[str] | None:
    if values is None:
        return None
    if len(values) != len(states):
        raise KannError(f"there are {len(values)} {what} for {len(states)} sequences; pass one for each")
    return [str(value) for value in values]


def _require_aligned(values: Sequence[Any], states: States, what: str) -> None:
    """Refuse what does not have one entry for each state."""
    odd = next((i for i, own in enumerate(values) if isinstance(own, str) or not hasattr(own, "__len__")), None)
    if odd is not None:
        raise KannError(
            f"{what} of sequence {odd} are {type(values[odd]).__name__}; pass a list with one for each state"
        )
    if len(values) != len(states):
        raise KannError(
            f"there are {what} for {len(values)} sequences and states for {len(states)}; pass one list each"
        )
    for i, (own, length) in enumerate(zip(values, states.lengths.tolist(), strict=True)):
        if len(own) != length:
            raise KannError(f"sequence {i} has {length} states and {len(own)} {what}; pass one for each state")


def _tokens(values: Sequence[Any] | None, states: States) -> list[list[str]] | None:
    if values is None:
        return None
    _require_aligned(values, states, "tokens")
    return [[str(token) for token in own] for own in values]


def _signals(values: Sequence[AnyArray] | None, states: States) -> list[Any] | None:
    if values is None:
        return None
    arrays = [as_numpy(value) for value in values]
    _require_aligned(arrays, states, "samples")
    for i, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise KannError(f"the signal of sequence {i} holds NaN or Inf; pass finite samples")
    return [np.asarray(array, dtype=np.float64).reshape(len(array), -1) for array in arrays]

"""The explanation of a network: facts, sentences, page, and all results behind them."""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from kann import _display
from kann._format import finite_or_none
from kann.analysis._movers import Mover, Movers
from kann.analysis._trust import Trust
from kann.backends.arrays import as_numpy
from kann.checks import require_flag, require_path, require_whole_number
from kann.data.atomic_write import replacing_files
from kann.data.serialization import Decoder, Stored, load_npz, save_npz
from kann.data.states import States
from kann.depth._trust import StepTrust
from kann.errors import KannError
from kann.explaining.facts import Facts
from kann.explaining.readout_search import StateReadout, head_of, linear_readout, with_head
from kann.explaining.sentences import shown_facts
from kann.fitting.balance import Balance
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.live.results import Effects, Memory
from kann.reporting.operators import layer_numbers, memory_numbers
from kann.reporting.trust import KnownTrust, mode_trust_rows, trust_numbers
from kann.typing import Array, Int

RESULTS_FILE, GATED_FILE, STATES_FILE = "explanation.npz", "gated.npz", "states.npz"

OWN_FILES = (RESULTS_FILE, GATED_FILE, STATES_FILE, "states.zarr", "koopman.npz", "explanation.json", "report.html")
"""All that `Explanation.save` writes, and what it wrote in version 1."""

WITHOUT_READOUT = (
    "It was opened without its readout, which is not linear, so that no file holds it: the page shows no outputs at "
    "single steps. Pass kann.Explanation.open(folder, readout=...) to have them."
)
"""The choice that is added for a readout that is missing."""

MOVERS_LISTED = 10
"""How many movers of each mode and direction are listed."""


# Files


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SavedReadout(Stored):
    """A readout as a file holds it: a linear layer, or what is read of a state before the head."""

    head: "SavedReadout | str | None" = None
    """The head behind a `StateReadout`; its text if no file can hold it, None for a linear layer."""
    units: int | None = None
    is_rectified: bool = False
    weight: Array | None = None
    bias: Array | None = None

    @staticmethod
    def of(readout: Any) -> "SavedReadout | str":
        """Return what a file can hold of a readout: its text if it is not linear."""
        if isinstance(readout, StateReadout):
            head = SavedReadout.of(readout.head)
            return SavedReadout(head=head, units=readout.units, is_rectified=readout.is_rectified)
        # A layer with a ``forward`` of its own may do anything.
        if getattr(type(readout), "forward", None) is nn.Linear.forward:
            bias = None if readout.bias is None else as_numpy(readout.bias)
            return SavedReadout(weight=as_numpy(readout.weight), bias=bias)
        return str(readout)

    def restored(self) -> Any:
        """Return the readout."""
        if self.head is not None:
            head = self.head.restored() if isinstance(self.head, SavedReadout) else self.head
            return StateReadout(head=head, units=self.units, is_rectified=self.is_rectified)
        if self.weight is None:
            raise ValueError("its readout has no weight")
        return linear_readout(self.weight, self.bias)


def saved_states(states: States) -> dict[str, Any]:
    """Return states as named arrays, which `States.open` reads from an ``.npz`` file too."""
    arrays = {"values": as_numpy(states.values[:]), "lengths": states.lengths, "reverse": np.array(states.reverse)}
    return arrays if states.inputs is None else arrays | {"inputs": as_numpy(states.inputs[:])}


def restored_states(arrays: dict[str, Any]) -> States:
    """Return the states that `saved_states` turned into arrays."""
    return States(**arrays | {"reverse": bool(arrays["reverse"])})


def content_of_version_1(arrays: dict[str, Array], place: Path) -> dict[str, Any]:
    """Return the content of a folder that kann 0.2 wrote: results by name, with flat arrays, and two more files."""

    def as_now(plain: dict[str, Any]) -> dict[str, Any]:
        if "start" in plain:
            name, shape, start = f"array {len(arrays)}", tuple(plain["shape"]), plain["start"]
            flat = arrays[plain["array"]][start : start + math.prod(shape)]
            arrays[name] = flat.reshape(shape, order=plain["order"])
            return {"array": name}
        if "readout" in plain and "fields" not in plain:
            known = {"units": plain.get("units") or None, "is_rectified": plain["readout"] == "RectifiedReadout"}
            return {"result": SavedReadout.__name__, "fields": plain | known}
        return plain

    plain = json.loads(bytes(arrays["content"]), object_hook=as_now)
    decoder = Decoder(arrays, upgrade=True)
    content = {name: decoder.value(value) for name, value in plain.items()}
    states = States.open(place / "states.zarr")
    gated = Bilinear.load(place / GATED_FILE) if (place / GATED_FILE).exists() else None
    content["alone"] = content.get("alone", {})
    return content | {"states": saved_states(states), "bilinear": gated, "facts": None, "balance": None, "memory": None}


def with_readout(explanation: Any, readout: Any) -> Any:
    """Put the user's readout where the saved one was, behind what it read of a state; say so if it is missing."""
    page = dict(explanation.page)
    choices = tuple(choice for choice in explanation.choices if choice != WITHOUT_READOUT)
    kept = page.get("readout")
    if readout is not None:
        page["readout"] = with_head(kept, readout) if head_of(readout) is readout else readout
    elif isinstance(head_of(kept), str):  # its text alone could be kept
        page["readout"] = kept if isinstance(kept, StateReadout) else StateReadout(head=kept)
        choices += (WITHOUT_READOUT,)
    return replace(explanation, page=page, choices=choices)


# The result


def movers_numbers(movers: Movers) -> dict[str, Any]:
    """Draw what pushes each mode, the surest first."""

    def rows(side: list[Mover]) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "push": each.push, "interval": [each.low, each.high], "count": each.count}
            for each in side
        ]

    return {
        "by": movers.by,
        "modes": {
            str(mode): {"up": rows(movers.up(mode, MOVERS_LISTED)), "down": rows(movers.down(mode, MOVERS_LISTED))}
            for mode in movers.modes
        },
    }


def effects_numbers(found: Effects) -> dict[str, Any]:
    """Draw the live test."""

    def table(means: Mapping[str, Any], *, removed: bool) -> dict[str, Any]:
        rows = {name: (mean, found.interval(name, removed=removed)) for name, mean in means.items()}
        return {
            name: {
                "mean": list(map(finite_or_none, mean.tolist())),
                "interval": [list(map(finite_or_none, ends)) for ends in interval.tolist()],
            }
            for name, (mean, interval) in rows.items()
        }

    return {
        "metric": found.metric,
        "outputs": found.outputs,
        "fill": found.fill,
        "counts": list(found.counts),
        "sequences": len(found.judged),
        "full": float(found.full),
        "none": float(found.none),
        "order": list(found.order),
        "kept": table(found.kept, removed=False),
        "removed": table(found.removed, removed=True),
        "fills": {name: list(kinds) for name, kinds in found.fills.items()},
    }


class InlinePage:
    """Shows a page in a frame when a notebook displays it."""

    def __init__(self, html: str, *, height: int):
        self._html, self._height = html, require_whole_number(height, "height")

    def _repr_html_(self) -> str:
        # The page is the frame's own content: no address is asked for, and the notebook's styles do not reach it.
        return (
            f'<iframe title="Explanation" sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width:100%;height:{self._height}px;border:0" srcdoc="{escape(self._html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"InlinePage({len(self._html) / 1e6:.1f} MB; display it in a notebook, or write it with .report(path))"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Explanation(Stored):
    """Explanation of a network: sentences to quote, the figures behind them, and the page that shows them.

    >>> import torch, kann
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> model, data = Reader(), torch.randn(24, 12, 2)
    >>> found = kann.explain(model, data, seconds=20, progress=False)
    >>> found.koopman.dim, len(found.held_out)
    (4, 9)
    >>> print(found.choices[0])
    Layer 'rnn' (GRU) is explained: it is the only recurrent one.
    """

    sentences: tuple[str, ...]
    """A few sentences: findings, evidence and caveats."""
    choices: tuple[str, ...]
    """Choices and their reasons: layer, readout, outputs, sequences, operator."""
    koopman: Koopman
    """The operator whose modes are explained."""
    facts: Facts | None
    """The figures behind the sentences; None in explanations of release 0.2."""
    bilinear: Bilinear | None
    """The operator that its inputs gate, if it predicts clearly better."""
    balance: Balance | None
    """The coordinates that the outputs depend on; None if they could not be found."""
    states: States
    """Held-out sequences to look at, some dozens."""
    trust: Trust | None
    """How far its modes can be trusted; None if there was no time for it."""
    steps: StepTrust | None
    """Along depth, errors of a separate map for each layer, next to copying and the operator; else None."""
    effects: Effects | None
    """Test of the coordinates in the running network; None if it was impossible."""
    alone: Mapping[int, tuple[float, float]]
    """For modes that matter the live score with each alone kept, and alone removed."""
    movers: Movers | None
    """Inputs that push each mode."""
    memory: Memory | None
    """Effect of one input after k steps; None if it could not be measured."""
    accuracy: tuple[float, float] | None
    """On held-out sequences, if labels say it: the fraction of what the network gives that is right, and that of the
    most frequent label; for values R², and 0, which is that of their mean."""
    held_out: Int[Array, " k"]
    """Numbers of the held-out sequences."""
    page: Mapping[str, Any] = field(repr=False)
    """Further arguments of `kann.report` for the sequences that are shown: tokens, signals, labels, readout."""

    @property
    def verdict(self) -> str | None:
        """Verdict: "found", "partly" or "nothing"; ``.facts.verdict`` has the figure that decides."""
        return None if self.facts is None else self.facts.verdict.word

    def report(self, path: str | os.PathLike[str], **others: Any) -> Path:
        """Write the page, which opens offline; ``others`` are arguments of `kann.report`, such as ``title``."""
        from kann.reporting._report import report

        return report(path, self, **others)

    def page_arguments(self) -> dict[str, Any]:
        """Return the states that the page shows, and all arguments of `kann.report`."""
        own = ("states", "trust", "steps", "effects", "movers", "memory", "alone", "sentences", "choices")
        arguments = {**self.page, **{name: getattr(self, name) for name in own}}
        if self.facts is not None:
            arguments |= shown_facts(self.facts)
        if isinstance(head_of(self.page.get("readout")), str):
            arguments["readout"] = None
        return arguments

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a folder that `open` reads: all results, and the sequences that are shown.

        explanation.npz holds everything that `open` needs. The other files are to be used alone: report.html,
        explanation.json with sentences and figures, koopman.npz for `Koopman.load`, gated.npz for `Bilinear.load` if
        inputs gate, and states.npz for `States.open`. The sequences that were fitted are not kept. If writing
        fails, the folder is as it was.
        """
        require_path(folder)
        require_flag(overwrite, "overwrite")
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise KannError(f"{place} is a file; pass the name of a folder")
        there = next((name for name in OWN_FILES if (place / name).exists()), None)
        if there is not None and not overwrite:
            raise KannError(f"{place / there} exists; pass overwrite=True to replace it, or another folder")
        with replacing_files(place, OWN_FILES) as new:
            self.koopman.save(new / "koopman.npz")
            if self.bilinear is not None:
                self.bilinear.save(new / GATED_FILE)
            np.savez(new / STATES_FILE, **saved_states(self.states))
            (new / "explanation.json").write_text(
                json.dumps(self.numbers(), allow_nan=False, indent=1), encoding="utf-8"
            )
            self.report(new / "report.html")
            save_npz(new / RESULTS_FILE, self, as_plain=SavedReadout.of)
        return place

    @staticmethod
    def open(folder: str | os.PathLike[str], *, readout: Any = None) -> "Explanation":
        """Read what `save` wrote, without the network: sentences, figures, plots and the page are the same.

        ``readout`` is the head that reads the states, such as ``model.head``, if it is not linear: no file can hold
        that. The part that it reads, such as h of an LSTM's h and c, or states behind ReLU, is known from the folder.

        >>> import tempfile, kann, torch
        >>> folder = tempfile.mkdtemp() + "/found"
        >>> found = kann.explain(torch.nn.GRU(2, 3, batch_first=True), torch.randn(24, 8, 2), progress=False)
        >>> _ = found.save(folder)
        >>> kann.Explanation.open(folder).sentences == found.sentences
        True
        """
        require_path(folder)
        place = Path(folder)
        if not place.exists():
            raise FileNotFoundError(f"there is no folder {place}")
        if not (place / RESULTS_FILE).is_file():
            raise KannError(f"{place} holds no {RESULTS_FILE}; pass a folder that Explanation.save() wrote whole")
        return with_readout(load_npz(place / RESULTS_FILE, Explanation), readout)

    def _content(self) -> dict[str, Any]:
        content = {each.name: getattr(self, each.name) for each in fields(Explanation)}
        page = dict(self.page)
        if page.get("readout") is not None:
            page["readout"] = SavedReadout.of(page["readout"])
        return content | {"page": page, "states": saved_states(self.states)}

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> "Explanation":
        page = dict(content["page"])
        if isinstance(page.get("readout"), SavedReadout):
            page["readout"] = page["readout"].restored()
        return Explanation(**content | {"page": page, "states": restored_states(content["states"])})

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        return content_of_version_1(arrays, Path(path).parent)

    def numbers(self) -> dict[str, Any]:
        """Return sentences and figures as JSON takes them."""
        koopman, known = self.koopman, KnownTrust(trust=self.trust, reason="")
        judged = mode_trust_rows(known) or [{}] * len(koopman.modes)
        return {
            "sentences": list(self.sentences),
            "choices": list(self.choices),
            "verdict": self.verdict,
            "step_seconds": self.page.get("step_seconds"),
            "units": koopman.dim,
            "rank": koopman.rank,
            "driven": koopman.drive is not None,
            "modes": [
                {"re": mode.eigenvalue.real, "im": mode.eigenvalue.imag, "modulus": mode.modulus, **row}
                for mode, row in zip(koopman.modes, judged, strict=True)
            ],
            "trust": trust_numbers(known),
            "steps": layer_numbers(self.steps, self.page.get("step_names")),
            "effects": None if self.effects is None else effects_numbers(self.effects),
            "alone": {str(mode): list(scores) for mode, scores in self.alone.items()},
            "movers": None if self.movers is None else movers_numbers(self.movers),
            "memory": memory_numbers(self.memory),
            "accuracy": self.accuracy,
            "held_out": self.held_out.tolist(),
        }

    def show(self, *, height: int = 900) -> InlinePage:
        """Return the whole page in a notebook, without network; ``height`` is in pixels."""
        with tempfile.TemporaryDirectory() as folder:
            html = self.report(Path(folder) / "report.html").read_text(encoding="utf-8")
        return InlinePage(html, height=height)

    def __repr__(self) -> str:
        return f"Explanation({self.koopman!r}, {len(self.held_out)} sequences held out)"

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        return _display.paragraphs(repr(self), self.sentences) + _display.paragraphs("Chosen", self.choices)

"""What the modes of a trained network make of a sentence: its words shaded, in the terminal or as a web page.

`shade` computes and prints nothing; `show` prints with rich; `page` gives a standalone HTML page.
"""

import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kann.analysis.contributions import contributions
from kann.analysis.modes import magnitude
from kann.cli.visible import visible
from kann.data.files import replacing
from kann.errors import KannError
from kann.fitting.spectrum import format_eigenvalue
from kann.typing import Array, Float

if TYPE_CHECKING:
    from rich.console import Console

    from kann.zoo.sentiment_network import Pretrained

SHOWN = 2
"""How many modes are shown if none is asked for, the most important first."""

FULL = 0.5
"""A word that changes the logit by this much gets the full colour, unless another one in the text changes it more."""

TRUSTED = 0.1
"""A mode with a larger residual is doubtful: in part it is an artefact of the finite basis."""

FAINT = 0.08
"""Words below this shade are left as they are."""

UP, DOWN, STRONG = (240, 150, 40), (95, 155, 235), (175, 135, 215)
"""Orange raises the logit, blue lowers it, violet is a large magnitude. Orange and blue are told apart by everybody.
Black letters have a contrast of at least 7 on all three."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeShades:
    """What one mode makes of each word."""

    mode: int
    """Its number in ``koopman.modes``."""
    eigenvalue: complex
    residual: float
    """Near 0 it is the network's own mode; near 1 an artefact of the finite basis."""
    magnitudes: Float[Array, " t"]
    """The paper's shade: |ĥ| after each word, from 0 to 1 over the text."""
    changes: Float[Array, " t"]
    """By how much each word changes the mode's share in the logit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shading:
    """A text, its words, and what the network and its modes make of them."""

    text: str
    """The text, with everything replaced that cannot be seen."""
    spans: tuple[tuple[int, int], ...]
    """Where in the text each word begins and ends."""
    unknown: tuple[bool, ...]
    """Which words the network does not know; it reads them all as the same one."""
    logits: Float[Array, " t"]
    """The network's logit after each word: positive for a positive review."""
    changes: Float[Array, " t"]
    """By how much each word changes the logit; all modes and what lies outside them together."""
    modes: tuple[ModeShades, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words as they stand in the text."""
        return tuple(self.text[start:stop] for start, stop in self.spans)

    @property
    def verdict(self) -> str:
        """What the network thinks of the whole text."""
        if not len(self.logits):
            return "there are no words to read"
        logit = float(self.logits[-1])
        strangers = sum(self.unknown)
        words = f"{len(self.spans)} word{'s' * (len(self.spans) != 1)}"
        return (
            f"{'positive' if logit > 0 else 'negative'}: logit {logit:+.2f}, probability of positive "
            f"{100 * _sigmoid(logit):.0f} %; {words}, {strangers} of them unknown"
        )


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, logit))))


def shade(text: str, *, modes: Iterable[int] | None = None, model: "Pretrained | None" = None) -> Shading:
    """Let the trained network read a text; say what each word did to the logit and to some of its modes.

    >>> shading = shade("An amazing plot, but awful acting.")
    >>> shading.changes[shading.words.index("amazing")] > 0 > shading.changes[shading.words.index("awful")]
    True

    ``modes`` are numbers of modes of ``model.koopman``; without them the most important ones are taken. ``model`` is
    what ``kann.zoo.load("sentiment")`` gives, which is taken if none is passed.
    """
    model = _shipped() if model is None else model
    chosen = _chosen(modes, model)
    text = visible(text)
    ids, spans = model.vocabulary.locate(text)
    states, logits = _read(model, ids)
    weight, bias = (part.detach().numpy() for part in (model.network.readout.weight, model.network.readout.bias))
    shares = contributions(model.koopman, states, weight, bias)
    sizes = magnitude(model.koopman, states)
    every = model.koopman.modes
    return Shading(
        text=text,
        spans=tuple(spans),
        unknown=tuple(bool(number == 1) for number in ids),
        logits=logits,
        changes=np.diff(logits, prepend=float(bias[0])),
        modes=tuple(
            ModeShades(
                mode=j,
                eigenvalue=every[j].eigenvalue,
                residual=every[j].residual,
                magnitudes=_from_0_to_1(sizes[:, every[j].indices[0]]),
                changes=np.diff(shares.modes[:, j, 0], prepend=0.0),
            )
            for j in chosen
        ),
    )


def _shipped() -> "Pretrained":
    from kann import zoo

    return zoo.load("sentiment")


def _chosen(modes: Iterable[int] | None, model: "Pretrained") -> list[int]:
    """Numbers of modes, each once."""
    count = len(model.koopman.modes)
    wanted = list(model.modes[:SHOWN]) if modes is None else list(dict.fromkeys(modes))
    for mode in wanted:
        if not 0 <= mode < count:
            raise KannError(f"mode {mode} does not exist; the network's operator has modes 0 to {count - 1}")
    return wanted or list(model.modes[:SHOWN])


def _read(model: "Pretrained", ids: Array) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """The network's states and logits after each word, all in one go; of no word there are none."""
    import torch

    if not len(ids):
        return np.zeros((0, model.koopman.dim)), np.zeros(0)
    with torch.no_grad():
        h = model.network.states(torch.from_numpy(ids)[None])[0]
        logits = model.network.readout(h)[:, 0]
    return h.double().numpy(), logits.double().numpy()


def _from_0_to_1(values: Float[Array, " t"]) -> Float[Array, " t"]:
    if not len(values):
        return values
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class View:
    """One way to show the words."""

    title: str
    values: Float[Array, " t"]
    """A number for each word."""
    full: float
    """The number that gets the full colour."""
    signed: bool

    def shade(self, word: int) -> float:
        """The number of a word as a share of the full one."""
        return float(self.values[word]) / self.full

    def number(self, word: int) -> str:
        """The number of a word as text."""
        return f"{self.values[word]:+.1f}" if self.signed else f"{self.values[word]:.1f}"


def views(shading: Shading) -> list[View]:
    """What is shown: all modes together, then each mode, what it adds and how strong it is."""
    pushes = [shading.changes, *(mode.changes for mode in shading.modes)]
    largest = max([FULL, *(float(np.abs(push).max()) for push in pushes if len(push))])
    together = "what each word adds to the logit, all modes together"
    shown = [View(title=together, values=shading.changes, full=largest, signed=True)]
    for each in shading.modes:
        doubt = "" if each.residual <= TRUSTED else ", doubtful"
        name = f"mode {each.mode}, λ = {format_eigenvalue(each.eigenvalue)}, residual {each.residual:.2f}{doubt}"
        adds, strength = f"{name}: what each word adds to the logit", f"{name}: magnitude after each word"
        shown.append(View(title=adds, values=each.changes, full=largest, signed=True))
        shown.append(View(title=strength, values=each.magnitudes, full=1.0, signed=False))
    return shown


def _rgb(value: float, *, signed: bool) -> str:
    """White for 0, the full colour for 1 (or −1), as rich and style sheets write it."""
    full = (UP if value > 0 else DOWN) if signed else STRONG
    share = min(1.0, abs(value))
    red, green, blue = (round(255 + share * (part - 255)) for part in full)
    return f"rgb({red},{green},{blue})"


def _pieces(shading: Shading) -> list[tuple[str, int | None]]:
    """The text cut into words, with their number, and what stands between them."""
    pieces: list[tuple[str, int | None]] = []
    done = 0
    for number, (start, stop) in enumerate(shading.spans):
        if start > done:
            pieces.append((shading.text[done:start], None))
        pieces.append((shading.text[start:stop], number))
        done = stop
    if done < len(shading.text):
        pieces.append((shading.text[done:], None))
    return pieces


def show(shading: Shading, console: "Console | None" = None) -> None:
    """Print the shaded words. Where there is no colour, words that push stand with a number behind them."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    console.print(Text(shading.verdict, style="bold"))
    if not shading.spans:
        return
    pieces = _pieces(shading)
    for view in views(shading):
        line = Text(overflow="fold")
        for piece, word in pieces:
            if word is None or abs(view.shade(word)) < FAINT:
                line.append(piece)
            elif console.color_system is None:
                line.append(f"{piece}[{view.number(word)}]")
            else:
                line.append(piece, style=f"black on {_rgb(view.shade(word), signed=view.signed)}")
        console.print()
        console.print(Text(view.title, style="dim"))
        console.print(line)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kann highlight</title>
<style>
body {{ font: 16px/1.9 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff; }}
h1 {{ font-size: 1.2rem; }}
h2 {{ font-size: 0.95rem; font-weight: 600; margin: 1.6rem 0 0.2rem; }}
p.text {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }}
span {{ border-radius: 3px; padding: 0.1em 0.15em; }}
span.unknown {{ text-decoration: underline dotted; }}
p.key {{ font-size: 0.85rem; color: #555; }}
</style>
</head>
<body>
<h1>{verdict}</h1>
<p class="key">Orange words raise the logit, blue ones lower it; violet is a large magnitude. Words that the network
does not know are underlined.</p>
{sections}
</body>
</html>
"""


def page(shading: Shading) -> str:
    """A web page that needs nothing else; every sign of the text is escaped."""
    pieces = _pieces(shading)
    sections = "\n".join(
        f'<h2>{html.escape(view.title)}</h2>\n<p class="text" dir="auto">{_spans(shading, pieces, view)}</p>'
        for view in (views(shading) if shading.spans else [])
    )
    return PAGE.format(verdict=html.escape(shading.verdict), sections=sections)


def _spans(shading: Shading, pieces: Sequence[tuple[str, int | None]], view: View) -> str:
    parts = []
    for piece, word in pieces:
        if word is None:
            parts.append(html.escape(piece))
            continue
        ground = _rgb(view.shade(word), signed=view.signed)
        name = ' class="unknown"' if shading.unknown[word] else ""
        note = f"{view.values[word]:+.2f}, logit {shading.logits[word]:+.2f}"
        parts.append(f'<span{name} style="background:{ground}" title="{note}">{html.escape(piece)}</span>')
    return "".join(parts)


def write_page(shading: Shading, path: str | os.PathLike[str]) -> None:
    """Write the web page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(shading), encoding="utf-8")


def read_text(text: str | None, stream: Any) -> str:
    """The text that was passed, or what stands in a stream of bytes if there is none or it is ``-``.

    Bytes that are no UTF-8 are replaced.
    """
    return stream.read().decode("utf-8", errors="replace") if text in (None, "-") else str(text)

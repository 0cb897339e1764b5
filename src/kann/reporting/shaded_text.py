"""Shade the words of a text by their effect on an output and on modes."""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kann._format import format_eigenvalue
from kann.analysis._trust import Trust
from kann.analysis.contributions import contribution_changes, contributions
from kann.analysis.modes import magnitude
from kann.data.atomic_write import replacing
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeShading:
    """How much each word did to one mode."""

    mode: int
    """Its number in ``koopman.modes``."""
    eigenvalue: complex
    residual: float
    """|Y v − λ X v| / |X v|: on held-out sequences if trust is known, on the fitted data if it is not."""
    trusted: bool | None
    """Whether held-out sequences say that the mode is the network's own; None if nothing was held out."""
    magnitudes: Float[Array, " t"]
    """The paper's shade: |ĥ| after each word, scaled so that it goes from 0 to 1 over the text."""
    changes: Float[Array, " t"]
    """How much each word changes the mode's contribution to the logit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Shading:
    """A text, its words, and how much each of them did to the network's logit and to some modes."""

    text: str
    """The text, with every character replaced that cannot be seen."""
    spans: tuple[tuple[int, int], ...]
    """Where in the text each word begins and ends."""
    unknown: tuple[bool, ...]
    """Which words are not in the network's vocabulary; it reads them all as one and the same word."""
    logits: Float[Array, " t"]
    """The network's logit after each word."""
    changes: Float[Array, " t"]
    """How much each word changes the logit: all modes, and what lies outside them, together."""
    modes: tuple[ModeShading, ...]
    verdict: str
    """What the network makes of the whole text, in a line."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words as they stand in the text."""
        return tuple(self.text[start:stop] for start, stop in self.spans)


def shade_modes(
    koopman: Koopman,
    states: Float[Array, "t d"],
    weight: AnyArray,
    modes: Sequence[int],
    *,
    trust: Trust | None = None,
) -> tuple[ModeShading, ...]:
    """How much each word did to these modes, given the states after each word and the weight (1, d) of the readout."""
    parts, strengths = contributions(koopman, states, weight), magnitude(koopman, states)
    # The network starts at zero, which is not the mean of the states.
    before = contributions(koopman, np.zeros(koopman.dim), weight).modes[:, 0]
    residuals, trusted = [mode.residual for mode in koopman.modes], [None] * len(koopman.modes)
    if trust is not None:
        residuals, trusted = [own.residual for own in trust.modes], [own.trusted for own in trust.modes]
    return tuple(
        ModeShading(
            mode=number,
            eigenvalue=koopman.modes[number].eigenvalue,
            residual=residuals[number],
            trusted=trusted[number],
            # The two eigenvectors of a conjugate pair have the same magnitude, so the first one is enough.
            magnitudes=_from_0_to_1(strengths[:, koopman.modes[number].indices[0]]),
            changes=contribution_changes(parts.modes[:, number, 0], before=float(before[number])),
        )
        for number in modes
    )


def _from_0_to_1(values: Float[Array, " t"]) -> Float[Array, " t"]:
    """The values, moved and scaled so that the smallest is 0 and the largest is 1."""
    if not len(values):
        return values
    # Where all values are alike there is nothing to scale; the bound keeps us from dividing by 0.
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


FULL_COLOUR_AT = 0.5
"""A word that changes the logit by this much gets the full colour, unless another one in the text changes it more."""

FAINTEST = 0.08
"""Words with less than this fraction of the full colour are printed without colour."""

RAISES, LOWERS, STRONG = (240, 150, 40), (95, 155, 235), (175, 135, 215)
"""Orange raises the logit, blue lowers it, violet is a large magnitude. People with any common colour blindness can
tell orange from blue. Black letters have a contrast of at least 7 on all three."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layer:
    """One colouring of the words: a number for each of them, and how numbers become colours."""

    title: str
    values: Float[Array, " t"]
    """A number for each word."""
    full_colour_at: float
    """The number that gets the full colour."""
    signed: bool
    """Whether positive and negative numbers have colours of their own."""

    def intensity(self, word: int) -> float:
        """The fraction of the full colour that a word gets, with the sign of its number."""
        return float(self.values[word]) / self.full_colour_at

    def number(self, word: int) -> str:
        """The number of a word, as text."""
        if self.signed:
            return f"{self.values[word]:+.1f}"
        return f"{self.values[word]:.1f}"

    def background(self, word: int) -> str:
        """The colour behind a word, as rich and style sheets write it: white where its number is 0."""
        intensity = self.intensity(word)
        fraction = min(1.0, abs(intensity))
        red, green, blue = (round(255 + fraction * (part - 255)) for part in self._full_colour(intensity))
        return f"rgb({red},{green},{blue})"

    def _full_colour(self, intensity: float) -> tuple[int, int, int]:
        if not self.signed:
            return STRONG
        if intensity > 0:
            return RAISES
        return LOWERS


def layers(shading: Shading) -> list[Layer]:
    """What is drawn: first all modes together, then for each mode what it adds and how strong it is."""
    if not shading.spans:
        return []
    changes = [shading.changes, *(mode.changes for mode in shading.modes)]
    # One scale for all layers, so that their colours can be compared.
    largest = max(FULL_COLOUR_AT, *(float(np.abs(each).max()) for each in changes))
    title = "what each word adds to the logit, all modes together"
    drawn = [Layer(title=title, values=shading.changes, full_colour_at=largest, signed=True)]
    for mode in shading.modes:
        name = _name(mode)
        title = f"{name}: what each word adds to the logit"
        drawn.append(Layer(title=title, values=mode.changes, full_colour_at=largest, signed=True))
        title = f"{name}: magnitude after each word"
        drawn.append(Layer(title=title, values=mode.magnitudes, full_colour_at=1.0, signed=False))
    return drawn


def _name(mode: ModeShading) -> str:
    name = f"mode {mode.mode}, λ = {format_eigenvalue(mode.eigenvalue)}, residual {mode.residual:.2f}"
    if mode.trusted is None:
        return f"{name} on the fitted data"
    if mode.trusted:
        return f"{name} on held-out sequences, trusted"
    return f"{name} on held-out sequences, not trusted"


def _pieces(shading: Shading) -> list[tuple[str, int | None]]:
    """The text in pieces: each word with its number, and what stands between words with None."""
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


def print_shading(shading: Shading, console: "Console | None" = None) -> None:
    """Print the text once for each layer. Where there is no colour, words that matter have a number after them."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    console.print(Text(shading.verdict, style="bold"))
    for layer in layers(shading):
        console.print()
        console.print(Text(layer.title, style="dim"))
        console.print(_terminal_line(shading, layer, coloured=console.color_system is not None))


def _terminal_line(shading: Shading, layer: Layer, *, coloured: bool) -> "Text":
    from rich.text import Text

    line = Text(overflow="fold")
    for piece, word in _pieces(shading):
        if word is None or abs(layer.intensity(word)) < FAINTEST:
            line.append(piece)
        elif coloured:
            line.append(piece, style=f"black on {layer.background(word)}")
        else:
            line.append(f"{piece}[{layer.number(word)}]")
    return line


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What the page may do: nothing but show itself. It has no script and can reach no address."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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
<p class="key">Orange words raise the logit, blue words lower it. Violet means a large magnitude of the mode, on a scale
from its smallest to its largest in this text. Words that the network does not know are underlined.</p>
{sections}
</body>
</html>
"""


def shading_page(shading: Shading) -> str:
    """A web page that needs no other file; every character of the text is escaped."""
    sections = "\n".join(
        f'<h2>{html.escape(layer.title)}</h2>\n<p class="text" dir="auto">{_page_line(shading, layer)}</p>'
        for layer in layers(shading)
    )
    return PAGE.format(policy=POLICY, verdict=html.escape(shading.verdict), sections=sections)


def _page_line(shading: Shading, layer: Layer) -> str:
    parts = []
    for piece, word in _pieces(shading):
        text = html.escape(piece)
        if word is None:
            parts.append(text)
            continue
        attributes = f'style="background:{layer.background(word)}"'
        if shading.unknown[word]:
            attributes = f'class="unknown" {attributes}'
        hint = f"{layer.values[word]:+.2f}, logit {shading.logits[word]:+.2f}"
        parts.append(f'<span {attributes} title="{hint}">{text}</span>')
    return "".join(parts)


def write_shading_page(shading: Shading, path: str | os.PathLike[str]) -> None:
    """Write the web page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(shading_page(shading), encoding="utf-8")

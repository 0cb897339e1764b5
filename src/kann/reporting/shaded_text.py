"""A text with shaded words, drawn in the terminal or as a web page."""

import html
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kann.data.files import replacing
from kann.fitting.spectrum import format_eigenvalue
from kann.reporting.shading import ModeShading, Shading
from kann.typing import Array, Float

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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

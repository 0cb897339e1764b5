"""Shade the words of a text by their effect on an output and on modes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kann._format import format_eigenvalue, signed
from kann.analysis._trust import Trust
from kann.analysis.decisions import contribution_changes, contributions
from kann.analysis.modes import magnitude
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeShading:
    """How much each word did to one mode."""

    mode: int
    """Its number in ``koopman.modes``."""
    eigenvalue: complex
    residual: float
    """|Y v − λ X v| / |X v|: on held-out sequences if trust is known, on the fitted data if it is not."""
    trusted: bool | None
    """True if the mode is trusted on held-out sequences; None if none were held out."""
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
    """The network's judgement of the text, in a line."""

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
    """Measure the effect of each word on these modes from the states after it and the weight (1, d) of the readout."""
    parts, strengths = contributions(koopman, states, weight), magnitude(koopman, states)
    if len(strengths):  # from 0 to 1 over the text; the bound prevents a division by 0 where all are alike
        strengths = (strengths - strengths.min(axis=0)) / np.maximum(np.ptp(strengths, axis=0), 1e-12)
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
            magnitudes=strengths[:, koopman.modes[number].indices[0]],
            changes=contribution_changes(parts.modes[:, number, 0], before=float(before[number])),
        )
        for number in modes
    )


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
    """True if positive and negative numbers have different colours."""

    def intensity(self, word: int) -> float:
        """Return the fraction of the full colour that a word gets, with the sign of its number."""
        return float(self.values[word]) / self.full_colour_at

    def number(self, word: int) -> str:
        """Return the number of a word as text."""
        return signed(float(self.values[word]), 1) if self.signed else f"{self.values[word]:.1f}"

    def background(self, word: int) -> str:
        """Return the colour behind a word, as rich and style sheets write it: white where its number is 0."""
        intensity = self.intensity(word)
        full = (RAISES if intensity > 0 else LOWERS) if self.signed else STRONG
        return "rgb({},{},{})".format(*(round(255 + min(1.0, abs(intensity)) * (part - 255)) for part in full))


def layers(shading: Shading) -> list[Layer]:
    """List the shades: first all modes together, then for each mode its contribution and its strength."""
    if not shading.spans:
        return []
    changes = [shading.changes, *(mode.changes for mode in shading.modes)]
    # One scale for all layers, so that their colours can be compared.
    largest = max(FULL_COLOUR_AT, *(float(np.abs(each).max()) for each in changes))
    title = "what each word adds to the logit, all modes together"
    drawn = [Layer(title=title, values=shading.changes, full_colour_at=largest, signed=True)]
    tested = {None: "the fitted data", True: "held-out sequences, trusted", False: "held-out sequences, not trusted"}
    for mode in shading.modes:
        name = f"mode {mode.mode}, λ = {format_eigenvalue(mode.eigenvalue)}, residual {mode.residual:.2f}"
        name += f" on {tested[mode.trusted]}"
        adds, strength = f"{name}: what each word adds to the logit", f"{name}: magnitude after each word"
        drawn.append(Layer(title=adds, values=mode.changes, full_colour_at=largest, signed=True))
        drawn.append(Layer(title=strength, values=mode.magnitudes, full_colour_at=1.0, signed=False))
    return drawn


def _pieces(shading: Shading) -> list[tuple[str, int | None]]:
    """Return the text in pieces: each word with its number, and the characters between words with None."""
    pieces: list[tuple[str, int | None]] = []
    done = 0
    for number, (start, stop) in enumerate(shading.spans):
        pieces += [(shading.text[done:start], None), (shading.text[start:stop], number)]
        done = stop
    return [*pieces, (shading.text[done:], None)]


def print_shading(shading: Shading, console: "Console | None" = None) -> None:
    """Print the text once for each layer. Where there is no colour, words that matter have a number after them."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    console.print(Text(shading.verdict, style="bold"))
    for layer in layers(shading):
        line = Text(overflow="fold")
        for piece, word in _pieces(shading):
            if word is None or abs(layer.intensity(word)) < FAINTEST:
                line.append(piece)
            elif console.color_system is not None:
                line.append(piece, style=f"black on {layer.background(word)}")
            else:
                line.append(f"{piece}[{layer.number(word)}]")
        console.print()
        console.print(Text(layer.title, style="dim"))
        console.print(line)


def shading_page(shading: Shading) -> str:
    """Return a web page that needs no other file and runs no script; every character of the text is escaped."""
    from kann.reporting.offline import page

    return page("shading", shading=shading, layers=layers(shading), pieces=_pieces(shading))

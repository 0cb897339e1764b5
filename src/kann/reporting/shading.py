"""How much each word of a text did to an output of the network, and to some of its modes, in numbers.

`kann.reporting.shaded_text` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kann.analysis.contributions import contribution_changes, contributions
from kann.analysis.modes import magnitude
from kann.analysis.trust import Trust
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


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

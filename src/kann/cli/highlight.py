"""``kann highlight``: the network that ships with kann reads a text, and its words are shaded by what they did."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from scipy.special import expit

import kann
from kann._display import visible
from kann._format import percent, signed
from kann.analysis.decisions import contribution_changes
from kann.cli.errors import one_line_errors, require_free
from kann.cli.loading import Force
from kann.errors import KannError
from kann.reporting.shaded_text import Shading, print_shading, shade_modes, shading_page
from kann.typing import Array, Float

if TYPE_CHECKING:
    from kann.zoo.sentiment_network import Pretrained


MODES_SHOWN = 2
"""How many modes are shown if the user asks for none: of those that are trusted, the most important ones."""

UNKNOWN_WORD = 1
"""The number of all words that are not in the network's vocabulary."""


@one_line_errors()
def highlight(
    text: Annotated[str | None, typer.Argument(help="The text to read; standard input if it is - or left out.")] = None,
    mode: Annotated[list[int] | None, typer.Option(min=0, help="A mode to show; may be given several times.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a web page instead of printing.")] = None,
    force: Force = False,
) -> None:
    """Let the network that ships with kann read a text, and shade each word by what it does to the network's modes.

    A mode's magnitude is scaled to each text: 0 where it is smallest in the text, 1 where it is largest. So shades
    compare words of one text, and not two texts or two modes.
    """
    require_free(html, force=force)
    shading = shade(read_text(text, sys.stdin.buffer), modes=mode)
    if not shading.spans:
        raise KannError("the text has no words to read; pass some")
    if html is None:
        print_shading(shading)
    else:
        from kann.reporting.offline import write_page

        typer.echo(write_page(html, shading_page(shading)))


def read_text(text: str | None, stream: Any) -> str:
    """Return the text that the user passed; if there is none, or it is ``-``, all of a stream of bytes.

    Bytes that are not UTF-8 are replaced.

    >>> import io
    >>> read_text("fine", None), read_text("-", io.BytesIO(b"good"))
    ('fine', 'good')
    """
    return stream.read().decode("utf-8", errors="replace") if text in (None, "-") else text


def shade(text: str, *, modes: Iterable[int] | None = None, model: "Pretrained | None" = None) -> Shading:
    """Let the trained network read a text, and measure how much each word changed the logit and some modes.

    >>> shading = shade("An amazing plot, but awful acting.")
    >>> bool(shading.changes[shading.words.index("amazing")] > 0 > shading.changes[shading.words.index("awful")])
    True

    ``modes`` are numbers of modes of ``model.koopman``; without them the most important of those that are trusted are
    taken. ``model`` is what ``kann.zoo.load("sentiment")`` returns, which is loaded if none is passed.
    """
    if model is None:
        model = _shipped_network()
    chosen = _chosen_modes(modes, model)
    text = visible(text)
    ids, spans = model.vocabulary.locate(text)
    unknown = tuple(bool(number == UNKNOWN_WORD) for number in ids)
    states, logits = _states_and_logits(model, ids)
    readout = model.network.readout
    return Shading(
        text=text,
        spans=tuple(spans),
        unknown=unknown,
        logits=logits,
        # The bias is the logit before anything was read.
        changes=contribution_changes(logits - float(readout.bias)),
        modes=shade_modes(model.koopman, states, readout.weight, chosen, trust=model.trust),
        verdict=_verdict(logits, unknown),
    )


def _shipped_network() -> "Pretrained":
    return kann.zoo.load("sentiment")


def _chosen_modes(modes: Iterable[int] | None, model: "Pretrained") -> list[int]:
    """Return the numbers of the modes to show, each once; the most important trusted ones if the user named none.

    If no mode is trusted, the most important ones are shown, and their titles say that they are not trusted.
    """
    trusted = [mode for mode in model.modes if model.trust.modes[mode].trusted]
    chosen = list(dict.fromkeys(modes or ())) or trusted[:MODES_SHOWN] or list(model.modes[:MODES_SHOWN])
    count = len(model.koopman.modes)
    for mode in chosen:
        if not 0 <= mode < count:
            raise KannError(f"mode {mode} does not exist; the network's operator has modes 0 to {count - 1}")
    return chosen


def _states_and_logits(model: "Pretrained", ids: Array) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """Return the network's states and logits after each word."""
    import torch

    if not len(ids):  # torch's recurrent layers refuse sequences without steps
        return np.zeros((0, model.koopman.dim)), np.zeros(0)
    with torch.no_grad():
        h = model.network.states(torch.from_numpy(ids)[None])[0]
        logits = model.network.readout(h)[:, 0]
    return h.double().numpy(), logits.double().numpy()


def _verdict(logits: Float[Array, " t"], unknown: tuple[bool, ...]) -> str:
    """Describe how the network judges the text, and how much of it the network knows."""
    if not len(logits):
        return "there are no words to read"
    logit = float(logits[-1])
    judgement = "positive" if logit > 0 else "negative"
    words = f"{len(unknown)} word{'s' * (len(unknown) != 1)}, {sum(unknown)} of them unknown"
    return f"{judgement}: logit {signed(logit)}, probability of positive {percent(float(expit(logit)))}; {words}"

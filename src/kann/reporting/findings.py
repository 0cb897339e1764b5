"""What else a page can show, checked: the live test, what pushes modes, sentences, and what a step is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kann.analysis.decisions import OUTPUTS
from kann.analysis.live_effects import Effects
from kann.analysis.movers import Movers
from kann.checks import (
    require_choice,
    require_instance,
    require_number,
    require_sequence,
    require_text,
    require_whole_number,
    shown,
)
from kann.errors import KannError
from kann.fitting.koopman import Koopman


def checked_effects(effects: Any, koopman: Koopman) -> Effects | None:
    """The live test of this operator's modes."""
    if effects is None:
        return None
    require_instance(effects, Effects, "effects")
    if not np.array_equal(effects.koopman.eigenvalues, koopman.eigenvalues):
        raise KannError(
            f"effects= is of another operator, of rank {effects.koopman.rank}; this one has rank {koopman.rank}, or "
            "other eigenvalues; pass effects.koopman as the operator"
        )
    return effects


def checked_movers(movers: Any, koopman: Koopman) -> Movers | None:
    """What pushes this operator's modes."""
    if movers is None:
        return None
    require_instance(movers, Movers, "movers")
    if max(movers.modes, default=0) >= len(koopman.modes):
        raise KannError(
            f"movers= names mode {max(movers.modes)} and the operator has {len(koopman.modes)} modes; pass what "
            "kann.movers returned for this operator"
        )
    return movers


def checked_sentences(sentences: Any, name: str) -> list[str]:
    """Sentences to show; a string alone would be read as a sentence for each of its letters."""
    if isinstance(sentences, str):
        raise KannError(f"{name}= is a single string; pass a list of sentences")
    require_sequence(sentences, name)
    for sentence in sentences:
        require_text(sentence, f"a sentence of {name}")
    return list(sentences)


def checked_alone(alone: Any, koopman: Koopman) -> dict[int, tuple[float, float]]:
    """For modes by number, the live scores with the mode alone kept, and with it alone removed."""
    if alone is None:
        return {}
    if not isinstance(alone, Mapping):
        raise KannError(f"alone={shown(alone)} has no modes by number; pass a dict such as {{0: (0.9, 0.6)}}")
    found = {}
    for number, scores in alone.items():
        if require_whole_number(number, "a mode of alone", least=0) >= len(koopman.modes):
            raise KannError(
                f"alone= names mode {number}; the operator has {len(koopman.modes)} modes; pass one of them"
            )
        if np.shape(scores) != (2,) or not np.isfinite(scores).all():
            raise KannError(f"alone[{number}]={shown(scores)} are no two numbers; pass (score kept, score removed)")
        found[int(number)] = (float(scores[0]), float(scores[1]))
    return found


def checked_outputs(outputs: Any) -> str | None:
    """What the readout gives."""
    if outputs is None:
        return None
    require_choice(outputs, "outputs", OUTPUTS)
    return outputs


def checked_step_seconds(step_seconds: Any) -> float | None:
    """How long a step lasts."""
    if step_seconds is None:
        return None
    seconds = require_number(step_seconds, "step_seconds", remedy="pass how many seconds a step lasts")
    if not seconds > 0:
        raise KannError(f"step_seconds={seconds} is no length of time; pass how many seconds a step lasts")
    return seconds


def checked_step_name(step_name: Any) -> str:
    """What a step is called."""
    require_text(step_name, "step_name")
    if not step_name.strip():
        raise KannError("step_name= is empty; pass what a step is called, such as 'step' or 'layer'")
    return step_name

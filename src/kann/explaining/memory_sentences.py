"""How long the modes that matter remember, what pushes them, and what that does to the outputs, in sentences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import duration, format_eigenvalue, half_life, number_of_steps, percent, plural
from kann.analysis._movers import Movers, Phrase
from kann.explaining.context import Findings
from kann.fitting.koopman import Koopman
from kann.live.mode_selection import ADDS, modes_that_matter
from kann.live.results import Effects

MODES_NAMED = 3
"""How many modes sentences speak of one by one."""

NEGLIGIBLE = 0.05
"""What pushes a mode by less than this fraction of its strongest push is not named, however sure it is."""

HOLDS_FROM = 0.95
"""From this |λ| on a mode is called a memory: half of it is left after 14 steps."""

GROWS_FROM = 1.0005
"""From this |λ| on a mode is said to grow: less would be written as 0.0 % in a step."""

TELLING = 0.5
"""Two words in a row are named if they push otherwise than their sum by so many standard deviations of the mode."""

NAMES_SHOWN = 4
"""How many tokens or inputs are named that push a mode up, and as many that push it down."""


def memories(found: Findings) -> str | None:
    """The modes that matter: what pushes each and how long it stays."""
    fitted: Any = found.fitted
    koopman: Koopman = fitted.koopman
    holding = _holding(found, koopman)
    parts = [_told(number, found) for number in _named_modes(found, koopman)]
    if not parts:
        return None
    text = "; ".join(parts)
    sentence = f"{text[0].upper()}{text[1:]}."
    count = sum(len(koopman.modes[number].indices) for number in holding)
    if count > 1:
        moduli = sorted({f"{koopman.modes[number].modulus:.3f}" for number in holding})
        sizes = f"|λ| = {moduli[0]}"
        if len(moduli) > 1:
            sizes = f"|λ| from {moduli[0]} to {moduli[-1]}"
        pairs = ""
        if count > len(holding):
            pairs = ", a pair of eigenvalues counts twice"
        sentence = (
            f"{number_word(count)} memories can be trusted{_how_many_learned(found, koopman, holding)}, coordinates "
            f"that {_what_holds(found)} ({sizes}{pairs}). {sentence}"
        )
    return sentence


def _told(number: int, found: Findings) -> str:
    """One mode: how long it stays and what pushes it, or that it does nothing in the running network."""
    fitted: Any = found.fitted
    eigenvalue = format_eigenvalue(fitted.koopman.modes[number].eigenvalue)
    mode = f"mode {number} (λ = {eigenvalue}, {_half_life(number, found)}{_turning(number, found)}"
    if _is_idle(number, found):
        return f"{mode}) alone carries none of the {decisions(found.effects)}"
    if _is_not_named_live(number, found):
        return f"{mode}) is not among those that matter in the live test"
    phrase = _phrase(found.movers, number)
    if phrase:
        phrase = f" ({phrase})"
    return f"{mode}{_raising(number, found)}){_pushed(found.movers, number)}{phrase}"


def _is_idle(number: int, found: Findings) -> bool:
    """Whether the mode, alone kept in the running network, brings back nothing: what pushes it moves no output."""
    effects = found.effects
    if effects is None or number not in found.alone or effects.full == effects.none:
        return False
    return bool((found.alone[number][0] - effects.none) / (effects.full - effects.none) <= ADDS)


def _is_not_named_live(number: int, found: Findings) -> bool:
    """Whether the live test found modes that matter, and this is none of them: what pushes it need not move outputs."""
    effects = found.effects
    if effects is None or not found.alone or effects.full == effects.none:
        return False
    return number not in found.alone


def gated_memory(found: Findings) -> str | None:
    """How long a network remembers whose inputs gate it, while it reads nothing and at the mean input."""
    fitted = found.fitted
    if fitted is None or fitted.gated is None or fitted.kind == "quiet":
        return None
    parts, times = [], set()
    for name, u in (("while it reads zeros", None), ("at the mean input", "mean")):
        slowest = fitted.gated.at(u).modes[0]
        stays = "does not fade"
        if slowest.modulus < 1:
            stays = f"is halved in {_time(slowest.modulus, found)}"
        times.add(stays)
        parts.append(f"{name} the slowest mode (λ = {format_eigenvalue(slowest.eigenvalue)}) {stays}")
    if len(times) == 1:
        return None
    return f"What it reads changes how long it remembers: {', '.join(parts)} (.gated.at(u); no intervals are known)."


def _how_many_learned(found: Findings, koopman: Koopman, holding: Sequence[int]) -> str:
    """How many of these memories training made, unless it made all of them or that is not known."""
    if found.trust is None or found.trust.learned is None or set(holding) <= set(found.trust.learned):
        return ""
    learned = [number for number in holding if number in found.trust.learned]
    if not learned:
        return " (none of them learned)"
    count = sum(len(koopman.modes[number].indices) for number in learned)
    return f" ({number_word(count).lower()} of them learned)"


def _what_holds(found: Findings) -> str:
    if found.place.axis == "depth":
        return "blocks hand on as they are"
    return "hold what was read"


def number_word(count: int) -> str:
    """A count as the first word of a sentence: "Three", or figures above ten."""
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    if count < len(words):
        return words[count]
    return str(count)


def _holding(found: Findings, koopman: Koopman) -> list[int]:
    """The trusted modes that forget slowly."""
    if found.trust is None:
        return []
    return [number for number in found.trust.trusted if koopman.modes[number].modulus >= HOLDS_FROM]


def _named_modes(found: Findings, koopman: Koopman) -> list[int]:
    """The modes that sentences speak of: those that matter and can be trusted, as far as that is known."""
    matter = modes_that_matter(
        koopman, trust=found.trust, effects=found.effects, movers=found.movers, alone=found.alone
    )
    trusted = matter
    if found.trust is not None:
        own = found.trust.learned or found.trust.trusted  # of modes that training made, if there are such
        trusted = [number for number in matter if number in own]
        if not trusted:  # what decides live is not trusted: speak of the modes that are
            trusted = list(own)
    return trusted[:MODES_NAMED]


def _half_life(number: int, found: Findings) -> str:
    """After how many steps half of a mode is left, in steps and seconds, as far as that is known."""
    fitted: Any = found.fitted
    modulus, step_name = fitted.koopman.modes[number].modulus, found.place.step_name
    low = high = modulus
    if found.trust is not None:
        low, high = found.trust.modes[number].interval
        if low > 1 and modulus >= GROWS_FROM:
            return f"it grows by {percent(modulus - 1)} in a {step_name}"
    if number_of_steps(half_life(low)) == "∞":
        return "no fading was measured"
    depth = _depth(found)
    if half_life(modulus) > depth:
        return f"more than half of it is left after all {depth} layers"
    if high >= 1:  # it may not fade at all, so that only the least half-life is known
        return f"half of it is left after {_time(low, found)} or more"
    if modulus < 0.5:
        return f"less than half of it is left after one {step_name}"
    return f"half of it is left after {_time(modulus, found)}"


def _depth(found: Findings) -> int | float:
    """How many layers there are along depth, beyond which nothing goes on; along time there is no such end."""
    if found.place.axis != "depth" or found.states is None:
        return math.inf
    return int(found.states.lengths.max()) - int(found.place.embedding)


def _turning(number: int, found: Findings) -> str:
    """How long a turn of a memory takes that is a pair of eigenvalues: it comes back, and is not held still."""
    fitted: Any = found.fitted
    mode = fitted.koopman.modes[number]
    if len(mode.indices) == 1 or mode.modulus < HOLDS_FROM:
        return ""
    steps = 2 * np.pi / abs(np.angle(mode.eigenvalue))
    if steps > _depth(found):
        return ""
    text = plural(found.place.step_name, f"{steps:.3g}")
    if found.options.step_seconds is not None:
        text += f" = {duration(steps * found.options.step_seconds)}"
    return f", it turns once in {text}"


def _raising(number: int, found: Findings) -> str:
    """What up means for the outputs; nothing if that is not known, or nothing pushes the mode up or down."""
    movers = found.movers
    if movers is None or movers.outputs is None or not _pushed(movers, number).startswith(" is pushed"):
        return ""
    moved = movers.outputs[movers.modes.index(number)]
    return f"; up raises {_output_name(found, int(np.abs(moved).argmax()), len(moved))}"


def _output_name(found: Findings, place: int, count: int) -> str:
    """What an output is called in a sentence; a single one of two classes speaks for the second of them."""
    names = list(found.options.classes or ())
    if count == 1 and len(names) == 2:
        return f"“{names[1]}”"
    if len(names) == count:
        return f"“{names[place]}”"
    if count == 1:
        return "the output"
    return f"output {place}"


def _time(modulus: float, found: Findings) -> str:
    """A half-life in steps, and in seconds if it is known how long a step lasts."""
    steps = half_life(modulus)
    text = plural(found.place.step_name, number_of_steps(steps))
    if found.options.step_seconds is not None:
        text += f" = {duration(steps * found.options.step_seconds)}"
    return text


def _pushed(movers: Movers | None, number: int) -> str:
    if movers is None or number not in movers.modes or movers.by == "steps":
        return ""
    both = movers.up(number), movers.down(number)
    least = NEGLIGIBLE * max((abs(each.push) for side in both for each in side if each.sure), default=0.0)
    up, down = ([each for each in side if each.sure and abs(each.push) >= least] for side in both)
    sides = []
    if up:
        sides.append(f"up by {_names(up)}")
    if down:
        sides.append(f"down by {_names(down)}")
    if not sides:
        return f", surely pushed by none of the {movers.by}"
    return f" is pushed {' and '.join(sides)}"


def _phrase(movers: Movers | None, number: int) -> str:
    """The two words in a row that push the mode most otherwise than their sum, if there are such."""
    found = []
    if movers is not None and number in movers.modes:
        found = [each for each in movers.phrases[movers.modes.index(number)] if _is_telling(each)]
    if not found:
        return ""
    most = max(found, key=lambda each: abs(each.push - each.expected))
    return f"“{' '.join(most.words)}” pushes it by {most.push:+.2f}, its words alone by {most.expected:+.2f}"


def _is_telling(phrase: Phrase) -> bool:
    return phrase.sure and abs(phrase.push - phrase.expected) >= TELLING


def decisions(effects: Effects | None) -> str:
    """What the network gives out, in a word."""
    if effects is None:
        return "outputs"
    return {"class": "decisions", "labels": "answers", "values": "outputs"}[effects.outputs]


def carrier(found: Findings) -> str | None:
    """What pushes the mode that decides most live, where no mode can be trusted: a description, and nothing more."""
    effects, trust = found.effects, found.trust
    if effects is None or trust is None or trust.trusted or not effects.order:
        return None
    number = effects.order[0]
    pushed = _pushed(found.movers, number)
    if not pushed.startswith(" is pushed") or effects.full == effects.none or _is_idle(number, found):
        return None
    more = "; ".join(filter(None, [_raising(number, found).removeprefix("; "), _phrase(found.movers, number)]))
    if more:
        pushed += f" ({more})"
    return f"As a description only: mode {number}, which does most in the running network,{pushed}."


def _names(side: Sequence[Any]) -> str:
    return ", ".join(f"“{each.name}”" for each in side[:NAMES_SHOWN])

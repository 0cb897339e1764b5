"""Render facts: the sentences of an explanation, its verdict, and what the page shows with them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kann._format import (
    confidence,
    duration,
    fixed,
    format_eigenvalue,
    from_to,
    half_life,
    number_of_steps,
    percent,
    plural,
    signed,
)
from kann.analysis._trust import Trust
from kann.depth._trust import StepTrust
from kann.explaining.facts import HOLDS, Facts, Kept, Live, ModeFact, Network, Verdict
from kann.explaining.input_effects import InputFact
from kann.explaining.outputs import Accuracy
from kann.live.results import MOST_MODES, NAMES
from kann.reporting.inputs import PageTable
from kann.reporting.operators import most_are_worse

EXTRAPOLATED = 3.0
"""Half-lives beyond this multiple of the longest sequence are not claimed: they would rest on a small decay."""

UNUSED = 0.995
"""A layer is not used if the network agrees with itself so often while it is held at its mean."""

MUCH_LONGER = 2.0
"""Channels are named if one of them is felt this number of times longer than another."""

LITTLE = 0.01
"""The late effect of an input is written if it is at least this fraction of the largest difference."""

LEFT_AFTER_TURN = 0.1
"""A pair of eigenvalues turns if at least this fraction of the mode is left after one turn."""

REPLACEABLE = 0.9
"""A block is replaceable if this fraction of the decisions stay with its linear map in its place."""

NAMES_SHOWN = 4
"""Number of tokens or inputs that are named as pushing a mode up, and as pushing it down."""

OUTPUTS = {"class": "gives a class", "labels": "gives yes-or-no answers", "values": "gives numbers"}
"""The kinds of outputs in words."""


def sentences_of(facts: Facts) -> tuple[str, ...]:
    """Write at most three findings and the verdict: what decides live, what happens to it, how long it lasts."""
    finding, lasting = _live(facts), _remembered(facts)
    if facts.verdict.word == "nothing":
        parts = [_verdict(facts), finding or _how_many_trusted(facts), lasting]
    else:
        parts = [finding, _what_happens(facts), lasting, _verdict(facts)]
    return tuple(filter(None, parts))


def details_of(facts: Facts) -> tuple[str, ...]:
    """Write what stands under the sentences: errors of the operator and of maps of single layers."""
    return tuple(filter(None, (_layers(facts) or _errors(facts),)))


def _what_happens(facts: Facts) -> str | None:
    """Write what inputs and blocks do to the coordinates, and how long modes remember."""
    about_modes = (_memories(facts), _reaching(facts))
    about_inputs = _inputs(facts)
    if facts.blocks:
        return _blocks(facts)
    if about_inputs is not None and facts.inputs is not None and facts.inputs.is_counter:
        return about_inputs
    return " ".join(filter(None, (about_inputs, *about_modes, None if about_inputs else _gates(facts)))) or None


# The verdict


def _verdict(facts: Facts) -> str:
    """Write how much can be concluded and the figure that decides it, and what must not be concluded."""
    if facts.verdict.word == "nothing":
        return _nothing(facts)
    start = f"Found: {figure_that_decides(facts)}."
    if facts.verdict.word == "partly":
        start = f"Only a part can be concluded: {_why_partly(facts)}."
    return " ".join(filter(None, (start, _how_right(facts), _caveats(facts))))


def _nothing(facts: Facts) -> str:
    """Write that no conclusion is possible, and why."""
    decided_by, network = facts.verdict.decided_by, facts.network
    if decided_by == "score" and facts.accuracy is not None:
        return f"Nothing can be concluded about the task: {_not_right(facts.accuracy)}."
    does = "hands on from block to block" if network.axis == "depth" else "remembers"
    why, other = _best_residual(facts), ""
    if decided_by == "held" and facts.live is not None:
        judged = f"all {facts.live.sequences} held-out sequences"
        does, same = "decides by", f"it decides {judged} as before"
        if facts.live.outputs == "values":
            does, same = "makes its outputs of", f"its outputs for {judged} stay the same"
        why = f"with its state{_part(network)} held at the mean {same}"
        other = f" Pass layer={network.opposite!r} for the other direction." if network.opposite else ""
    elif decided_by == "learned":
        count = len(facts.trusted)
        modes = "the one trusted mode" if count == 1 else f"all {count} trusted modes"
        does, why = "learned", f"modes of untrained copies last as long as {modes}"
    elif decided_by == "untested":
        does = "learned"
        why = f"without labels it has to be compared with untrained copies, and {facts.not_compared}"
    return f"Nothing can be concluded about what the network {does}: {why}.{other}"


def _why_partly(facts: Facts) -> str:
    """Write what decides that only a part is explained."""
    return {
        "residual": _best_residual(facts),
        "learned": "modes of untrained copies last as long as the trusted ones",
        "untested": "the trusted modes were not compared with those of untrained copies",
        "coordinates": f"modes can be trusted, but {_brought_back(facts.verdict)}",
        "untested live": "modes can be trusted, but coordinates were not tested in the running network",
        "unmeasured": "how far modes can be trusted was not measured",
    }[facts.verdict.decided_by]


def _brought_back(verdict: Verdict) -> str:
    """Write what a number of coordinates bring back of the network's score, and how much is enough."""
    if not verdict.count:
        return f"no few coordinates bring back enough of the network's score (limit {confidence(verdict.limit)})"
    which = "one coordinate brings"
    if verdict.count > 1:
        which = f"{number_word(verdict.count).lower()} coordinates bring"
    figure, limit = percent(verdict.figure), confidence(verdict.limit)
    return f"{which} back {figure} of what the network loses without this state (enough: {limit})"


def _best_residual(facts: Facts) -> str:
    """Write the smallest residual of a mode that is not trusted, next to the limit."""
    count = len(facts.memories)
    which = f"none of the {count} modes of its operator can be trusted" if count > 1 else "its mode cannot be trusted"
    figure, limit = facts.verdict.figure, facts.verdict.limit
    if not math.isfinite(figure) or figure <= limit:
        return which
    missed = f"one {facts.network.step_name} misses {percent(figure)} of the best one on held-out sequences"
    return f"{which} ({missed}, limit {confidence(limit)})"


def _not_right(found: Accuracy) -> str:
    """Write that the network does no better on held-out sequences than what needs no network."""
    if found.outputs == "values":
        return (
            f"on held-out sequences its outputs match the labels with an R² of {fixed(found.score)} (95 % interval "
            f"{from_to(found.low, found.high, fixed)}), and the mean of the labels does with 0"
        )
    right = "the network is right in" if found.outputs == "class" else "the network's answers are right in"
    return (
        f"on held-out sequences {right} {percent(found.score)} (95 % interval {percent(found.low)} to "
        f"{percent(found.high)}), and always giving the most frequent label in {percent(found.baseline)}"
        f"{_why_not(found)}"
    )


def _why_not(found: Accuracy) -> str:
    """Write why a score is no evidence: labels in another order, or too few sequences."""
    if found.high < found.baseline:
        return ", which is more: are labels, or classes=, in the order of the outputs?"
    return ", which so few sequences do not tell apart" if found.score > found.baseline else ""


def _how_right(facts: Facts) -> str | None:
    """Write how well the network does."""
    found = facts.accuracy
    if found is None:
        return None
    if found.outputs == "values":
        return f"The network's outputs match the labels of held-out sequences with an R² of {fixed(found.score)}."
    if found.outputs == "labels":
        return f"The network's answers are right in {percent(found.score)} on the held-out sequences."
    return (
        f"The network is right on {percent(found.score)} of the held-out {'steps' if found.of_steps else 'sequences'}."
    )


def _how_many_trusted(facts: Facts) -> str | None:
    if facts.trust is None:
        return None
    if len(facts.memories) == 1:
        return f"The only mode of its operator {'can' if facts.trusted else 'cannot'} be trusted."
    return f"{len(facts.trusted)} of the {len(facts.memories)} modes of its operator can be trusted."


# The live test


def _live(facts: Facts) -> str | None:
    """Write the fewest coordinates that keep the decisions in the running network, next to other bases."""
    live, network = facts.live, facts.network
    if live is None:
        return "How few coordinates are enough was not tested in the running network."
    if not live.matters:
        return None
    kept = live.fewest
    if kept is None:
        return (
            f"In the running network no few coordinates of {network.units} do better than random directions or its "
            f"mean state alone ({_score(live, live.none)})."
        )
    others = [f"{NAMES[name]} {_score(live, kept.others[name])}" for name in ("pca", "random") if name in kept.others]
    others.append(f"its mean state alone {_score(live, live.none)}")
    result = f"{_score(live, kept.score)} of the network's {'decisions' if live.outputs == 'class' else 'answers'}"
    if live.outputs == "values":
        result = f"the network's outputs with an R² of {_score(live, kept.score)}"
    after = f"every step{_part(network)}" if network.is_fed_back else "every step of what it gives"
    after = "its middle block" if network.axis == "depth" else after
    interval = f"{confidence(live.level)} interval {_score(live, kept.low)} to {_score(live, kept.high)}"
    groups = ""
    if live.groups is not None:
        groups = f", {live.groups} of them different" if live.are_copies else f" in {plural('group', str(live.groups))}"
    sentence = (
        f"{_coordinates(kept)} of {network.units}, kept after {after}, {'keeps' if kept.count == 1 else 'keep'} "
        f"{result} ({interval}, {live.sequences} held-out sequences{groups}); {', '.join(others)}."
    )
    more = live.nearly_all
    if more is not None and more.count > kept.count:
        sentence += f" With {more.count}, {NAMES[more.method].split(',')[0]} keep {_score(live, more.score)}."
    if live.like_random is not None:
        fewer = "one" if live.like_random == 1 else number_word(live.like_random).lower()
        sentence += f" With {fewer}, random directions do as well."
    if facts.verdict.word == "nothing":
        sentence += " That says how few are enough for its outputs, not that training made them."
    return f"{sentence}{_scanned(facts)}"


def _scanned(facts: Facts) -> str:
    """Write which layer or direction was found to matter most, and which are not used; empty if there is one."""
    if len(facts.scan) < 2:
        return ""
    explained = next((each for each in facts.scan if each.is_explained), None)
    text = f" Of {len(facts.scan)} recurrent layers and directions"
    if explained is None or explained is not facts.scan[0]:
        text += f" {facts.scan[0].layer!r} matters most"
    else:
        reads = {True: ", which reads forwards,", False: ""}[facts.network.opposite is not None]
        text += f" {explained.layer!r}{reads} matters most"
    unused = [each.layer for each in facts.scan if each.score >= UNUSED and not each.is_explained]
    return (
        f"{text}, and {' and '.join(map(repr, unused))} {'is' if len(unused) == 1 else 'are'} not used."
        if unused
        else f"{text}."
    )


def _coordinates(kept: Kept) -> str:
    one, several = {
        "balanced": ("One balanced coordinate", "balanced coordinates"),
        "modes": ("One mode", "modes"),
        "readout": ("The direction of the readout", "directions of the readout"),
        "pca": ("One principal component", "principal components"),
    }[kept.method]
    return one if kept.count == 1 else f"{number_word(kept.count)} {several}"


def _part(network: Network) -> str:
    """Name the layer and direction that is held, and the untouched ones; empty if there are no others."""
    others = ["the other direction"] if network.has_other_direction else []
    others += ["the other layers"] if network.has_other_layers else []
    return f" of {network.layer!r} ({' and '.join(others)} untouched)" if others else ""


def _score(live: Live, value: float) -> str:
    return fixed(value) if live.outputs == "values" else percent(value)


# Memories


def _memories(facts: Facts) -> str | None:
    """Write how long the modes that matter remember, and what pushes them."""
    parts = [_memory(memory, facts) for memory in facts.memories if memory.is_named]
    if not parts:
        return None
    text = "; ".join(parts)
    sentence = f"{text[0].upper()}{text[1:]}."
    does = "that blocks hand on as they are" if facts.network.axis == "depth" else "that hold what was read"
    growing = [memory for memory in facts.trusted if memory.grows]
    holding = [memory for memory in facts.trusted if abs(memory.eigenvalue) >= HOLDS and not memory.grows]
    counted = []
    for memories in (holding, growing):
        count = sum(memory.dimension for memory in memories)
        if count < 2:
            continue
        moduli = sorted({f"{abs(memory.eigenvalue):.3f}" for memory in memories})
        sizes = f"|λ| = {moduli[0]}" if len(moduli) == 1 else f"|λ| from {moduli[0]} to {moduli[-1]}"
        sizes += ", a pair of eigenvalues counts twice" if count > len(memories) else ""
        number, learned = number_word(count), sum(memory.dimension for memory in memories if memory.learned)
        is_less = not facts.not_compared and learned < count
        of_them = f" ({number_word(learned).lower() if learned else 'none'} of them learned)" if is_less else ""
        if memories is holding:
            counted.append(f"{number} memories can be trusted{of_them}, coordinates {does} ({sizes}).")
        else:
            grow = f"{number} trusted coordinates{of_them} grow with every {facts.network.step_name} ({sizes})"
            counted.append(f"{grow}: they amplify what was read, and do not hold it.")
    return " ".join([*counted, sentence])


def _memory(memory: ModeFact, facts: Facts) -> str:
    """Write one mode: how long it stays, what up means, and what pushes it."""
    raises = f"; up raises {memory.raises}" if memory.raises else ""
    stays = f"{staying(memory, facts.network)}{turning(memory, facts.network)}"
    phrase, telling = memory.phrase, ""
    if phrase is not None:
        words = f"“{' '.join(phrase.words)}” pushes it by {signed(phrase.push)}"
        telling = f" ({words}, its words alone by {signed(phrase.expected)})"
    return f"mode {memory.mode} (λ = {format_eigenvalue(memory.eigenvalue)}, {stays}{raises}){pushed(memory)}{telling}"


def pushed(memory: ModeFact) -> str:
    """Write what pushes a mode."""
    if memory.pushed_by is None:
        return ""
    both = (("up", memory.up), ("down", memory.down))
    named = ((way, ", ".join(f"“{each.name}”" for each in side[:NAMES_SHOWN])) for way, side in both)
    sides = [f"{way} by {names}" for way, names in named if names]
    return f" is pushed {' and '.join(sides)}" if sides else f", surely pushed by none of the {memory.pushed_by}"


def staying(memory: ModeFact, network: Network) -> str:
    """Write after how many steps half of a mode is left, as far as that is known."""
    modulus = abs(memory.eigenvalue)
    low, high = memory.interval or (modulus, modulus)
    if memory.grows:
        return f"it grows by {percent(modulus - 1)} in a {network.step_name}"
    if number_of_steps(half_life(low)) == "∞":
        return "no fading was measured"
    if half_life(modulus) > network.depth:
        return f"more than half of it is left after all {network.depth:.0f} layers"
    if half_life(low) > EXTRAPOLATED * network.longest:
        return f"it hardly fades in the {network.longest:.0f} {network.step_name}s of a sequence"
    if high >= 1:  # it may not fade at all, so that only the least half-life is known
        return f"half of it is left after {_time(low, network)} or more"
    if modulus < 0.5:
        return f"less than half of it is left after one {network.step_name}"
    return f"half of it is left after {_time(modulus, network)}"


def turning(memory: ModeFact, network: Network) -> str:
    """Write how long a turn takes of a memory that is a pair of eigenvalues: it comes back, and is not held still."""
    if not memory.eigenvalue.imag:
        return ""
    steps = 2 * np.pi / abs(np.angle(memory.eigenvalue))
    is_lost = abs(memory.eigenvalue) ** steps < LEFT_AFTER_TURN
    return (
        "" if is_lost or steps > network.longest else f", it turns once in {_duration(steps, f'{steps:.3g}', network)}"
    )


def _time(modulus: float, network: Network) -> str:
    return _duration(half_life(modulus), number_of_steps(half_life(modulus)), network)


def _duration(steps: float, text: str, network: Network) -> str:
    """Write steps, and seconds where the duration of a step is known."""
    seconds = "" if network.step_seconds is None else f" = {duration(steps * network.step_seconds)}"
    return plural(network.step_name, text) + seconds


def _reaching(facts: Facts) -> str | None:
    """Write which modes reach the outputs, if these are few."""
    if not facts.reaching:
        return None
    names = [f"{n} (λ = {format_eigenvalue(facts.memories[n].eigenvalue)})" for n in facts.reaching]
    total, count = len(facts.memories), len(names)
    what = f"{number_word(count)} of {total} modes reach the outputs: {', '.join(names)}"
    if count == 1:
        what = f"Of {total} modes one reaches the outputs: {names[0]}"
    return f"{what}, with {percent(facts.reached)} of what all modes contribute to them."


def number_word(count: int) -> str:
    """Write a count as the first word of a sentence: "Three", or figures above ten."""
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[count] if count < len(words) else str(count)


# Inputs, errors, layers and caveats


def _remembered(facts: Facts) -> str | None:
    """Write how long one input is felt, next to an untrained copy, and what is left of it late."""
    found, network = facts.remembered, replace(facts.network, axis="time")  # steps are those of what it reads
    if found is None:
        return None
    item = facts.network.reads
    if math.isnan(found.half_life):
        return f"Exchanging one {item} never changes its {found.of}."

    def after(steps: float) -> str:
        known = min(steps, float(found.longest))
        text = _duration(known, number_of_steps(known), network)
        return text if known == steps else f"more than {text}"

    effect, (low, high) = f"of the effect of one {item} on its {found.of}", found.interval
    text = f"Half {effect} is gone after {after(found.half_life)}"
    if found.half_life > found.longest:
        text = f"More than half {effect} is left after {after(float(found.longest))}"
    about = [from_to(low, high, number_of_steps)] if low < high else []
    if found.untrained is not None and not math.isnan(found.untrained):
        about.append(f"untrained copy: half is gone after {after(found.untrained)}")
    text += f" ({'; '.join(about)})" if about else ""
    known = {name: steps for name, steps in found.channels.items() if not math.isnan(steps)}
    longest, shortest = (pick(known, key=lambda name: known[name], default="") for pick in (max, min))
    # Beyond the longest lag nothing was measured: two channels may both last longer.
    if known and min(known[longest], found.longest) >= MUCH_LONGER * known[shortest]:
        text += f", that of “{longest}” after {after(known[longest])}, of “{shortest}” after {after(known[shortest])}"
    if found.late is not None and found.half_life < found.late[0] and LITTLE <= found.late_left < 0.5:
        first, last = found.late
        when = plural("step", f"{first} to {last}" if first < last else str(last))
        copy = "" if found.late_untrained is None else f" (untrained: {percent(found.late_untrained)})"
        falls = ", where it no longer falls" if found.levels_off else ""
        text += f", but on average {percent(found.late_left)} is still there after {when}{copy}{falls}"
    return f"{text}."


def _inputs(facts: Facts) -> str | None:
    """Write what each input does, where few different ones occur."""
    cases = facts.inputs
    if cases is None:
        return None
    missed = f"maps for single inputs miss {percent(cases.missed)} on held-out sequences"
    if cases.is_counter:
        moduli = sorted(abs(fact.eigenvalue) for fact in cases.inputs)
        pushes = ", ".join(f"{fact.name} adds {signed(fact.adds or 0.0)}" for fact in cases.inputs)
        return (
            f"It counts: every input keeps this coordinate (λ from {moduli[0]:.2f} to {moduli[-1]:.2f}), and {pushes} "
            f"in standard deviations ({missed})."
        )
    if all(fact.moves for fact in cases.inputs):
        each = "; ".join(_case(fact) for fact in cases.inputs)
        return f"{each[0].upper()}{each[1:]} ({missed})."
    does = ", ".join(f"{fact.name} {_does(fact, 'it')}" for fact in cases.inputs)
    return f"Inputs gate this network: {does} ({missed})."


def _case(fact: InputFact) -> str:
    """Write what happens while one input is read."""
    (first, size), *others = (fact.moves or {}).items()
    moves = f"one standard deviation of “{first}” moves the output by {fixed(size)}"
    moves += "".join(f", of “{name}” by {fixed(other)}" for name, other in others)
    return f"with {fact.name} it {_does(fact, 'its state')}, and {moves}"


def _does(fact: InputFact, state: str) -> str:
    """Write what an input does to the state, with its eigenvalue."""
    angle = abs(np.degrees(np.angle(fact.eigenvalue)))
    if fact.does == "turns":
        return f"turns {state} by {angle:.0f}° (|λ| = {abs(fact.eigenvalue):.2f})"
    verb = {"keeps": "keeps {}", "flips": "flips {}", "clears": "clears {}", "fades": "lets {} fade"}[fact.does]
    return f"{verb.format(state)} (λ = {format_eigenvalue(fact.eigenvalue)})"


def _gates(facts: Facts) -> str | None:
    """Write how long the network remembers while it reads some inputs."""
    gates, network = facts.gates, facts.network
    if gates is None or facts.kind == "quiet" or gates.at_zero is None:
        return None
    times = [
        "does not fade" if abs(each) >= 1 else f"is halved in {_time(abs(each), network)}"
        for each in (gates.at_zero, gates.at_mean)
    ]
    if times[0] == times[1]:
        return None
    zero, mean = format_eigenvalue(gates.at_zero), format_eigenvalue(gates.at_mean)
    return (
        f"Its inputs change how long it remembers: while it reads zeros the slowest mode (λ = {zero}) {times[0]}, "
        f"at the mean input the slowest mode (λ = {mean}) {times[1]} (.bilinear.at(u); no intervals are known)."
    )


def _blocks(facts: Facts) -> str:
    """Write which block a linear map can replace best, and which least."""
    best, worst = (pick(facts.blocks, key=lambda block: block.mapped) for pick in (max, min))
    text = (
        f"A linear map can replace “{best.name}”: {percent(best.mapped)} of the decisions stay the same (block "
        f"skipped: {percent(best.skipped)})"
    )
    if best.mapped < REPLACEABLE:
        text = (
            f"No block can be replaced by a linear map: best is “{best.name}”, with {percent(best.mapped)} of the "
            f"decisions kept (skipped: {percent(best.skipped)})"
        )
    if worst is not best:
        text += f"; in place of “{worst.name}” it keeps {percent(worst.mapped)} (skipped: {percent(worst.skipped)})"
    return f"{text}."


def _errors(facts: Facts) -> str:
    """Write held-out errors of the operator next to those of copying."""
    trust, step_name = facts.trust, facts.network.step_name
    if trust is None:
        return "How far modes can be trusted was not measured."
    of = "its balanced coordinates" if facts.balanced else "the states"
    text = (
        f"On held-out sequences{', where nothing is read,' if facts.kind == 'quiet' else ''} one {step_name} of the "
        f"operator misses {percent(trust.error[0])} of the variance of {of}, and copying the previous state "
        f"{percent(trust.copying_error[0])}"
    )
    if len(trust.horizons) > 1:
        last = f"{percent(trust.error[-1])} and {percent(trust.copying_error[-1])}"
        text += f"; over {trust.horizons[-1]} {step_name}s {last}"
    return f"{text}."


def _layers(facts: Facts) -> str | None:
    """Write which layers are linear; None if no maps were fitted to single layers."""
    steps = facts.steps
    if steps is None:
        return None
    total, better = len(steps), len(steps.better_than_identity)
    which = {0: "none", total: "each"}.get(better, str(better))
    return (
        f"On held-out sequences a separate linear map is surely better than copying the state for {which} of the "
        f"{total} layers{_most_and_least(steps, facts.step_names)}. {_one_operator(facts.trust, steps)}"
    )


def _most_and_least(steps: StepTrust, names: Sequence[str]) -> str:
    """Write which layer is most linear and which is least, unless that reads the same."""
    parts = steps.linear_part
    names = [f"“{name}”" for name in names] or [f"layer {number + 1}" for number in range(len(parts))]
    if np.isnan(parts).all():
        return ""
    most, least = int(np.nanargmax(parts)), int(np.nanargmin(parts))
    best, worst = (percent(part) if part > 0 else "nothing" for part in (parts[most], parts[least]))
    if best == worst and np.isfinite(parts).sum() > 1:
        return f"; of what a layer does, its map tells {best}"
    text = f"; the most linear is {names[most]} (its map tells {best} of what it does)"
    return text if most == least else f"{text}, the least {names[least]} ({worst})"


def _one_operator(trust: Trust | None, steps: StepTrust) -> str:
    """Write the one operator for all layers next to copying and own maps; no praise of a mean that few layers make."""
    low, high = percent(steps.errors["each"].min()), percent(steps.errors["each"].max())
    own = f"own maps miss {low}" if low == high else f"own maps miss {low} to {high}"
    worse, total, figures = len(steps.one_is_worse), len(steps), ""
    if trust is not None:
        own_error, copying = percent(trust.error[0]), percent(trust.copying_error[0])
        figures = f"misses {own_error} of the states' variance, and copying {copying}"
    if most_are_worse(worse, total):
        says = f"One operator for all layers misses more than copying at {worse} of the {total}"
        more = f", so that its mean over layers says little (it {figures})" if figures else ""
        return f"{says}{more}; {own}."
    return f"One operator for all layers {figures or f'misses more than copying at {worse} of the {total}'}; {own}."


def _caveats(facts: Facts) -> str:
    """Write what must not be concluded."""
    parts = []
    if facts.trust is None:
        parts.append("no mode may be called the network's own, since trust was not measured")
    else:
        total, trusted = len(facts.memories), len(facts.trusted)
        if trusted < total:
            parts.append(f"nothing follows from the {total - trusted} of {total} modes that are not trusted")
        if facts.not_compared:
            parts.append("that training made these modes was not tested")
        elif len(facts.learned) < trusted:
            own = trusted - len(facts.learned)
            parts.append(f"{own} of the trusted modes need no training: modes of untrained copies last as long")
    if not facts.balanced and facts.network.axis == "time":
        parts.append("modes are those of principal components, which the outputs need not depend on")
    if facts.kind == "driven" and facts.gates is None:
        parts.append(
            "the half-life of a mode is that of one coordinate on average over what was read, and later inputs may "
            "outweigh a single one in the outputs sooner"
        )
    parts.append("figures hold for data like these")
    return f"Caveats: {'; '.join(parts)}."


# The page


def shown_facts(facts: Facts) -> dict[str, Any]:
    """Return the arguments of `kann.report` that are made from facts."""
    return {
        "line": line_of(facts),
        "verdict": (facts.verdict.word, figure_that_decides(facts)),
        "caveats": "" if facts.verdict.word == "nothing" else _caveats(facts),
        "matter": [] if facts.verdict.word == "nothing" else modes_with_cards(facts),
        "tables": [table for table in (_scan_table(facts), _blocks_table(facts)) if table is not None],
    }


def modes_with_cards(facts: Facts) -> list[int]:
    """Return the modes that sentences name, and further learned ones up to the number of coordinates that decide."""
    fewest = facts.live and facts.live.fewest
    found = [each for each in facts.memories if each.is_named]
    for each in sorted(facts.learned, key=lambda mode: -(mode.kept or 0)):
        if each not in found and fewest and sum(mode.dimension for mode in found) < fewest.count:
            found.append(each)
    return [each.mode for each in found][:MOST_MODES]


def line_of(facts: Facts) -> str:
    """Write the line under the title: layer, outputs, whether inputs gate, accuracy."""
    network = facts.network
    layer = f"layers {network.layer}" if network.axis == "depth" else f"layer {network.layer!r}"
    parts = [
        f"{layer}, {network.units} units",
        facts.live and OUTPUTS[facts.live.outputs],
        facts.gates and "inputs gate it",
    ]
    return " · ".join(filter(None, [*parts, facts.accuracy and _accuracy(facts.accuracy)]))


def _accuracy(found: Accuracy) -> str:
    if found.outputs == "values":
        return f"R² {fixed(found.score)}"
    of = "steps" if found.of_steps else "answers" if found.outputs == "labels" else "sequences"
    return f"right on {percent(found.score)} of held-out {of}"


def figure_that_decides(facts: Facts) -> str:
    """Write the figure that decides the verdict, next to its limit."""
    verdict, step = facts.verdict, facts.network.step_name
    missed = "no mode holds"
    if math.isfinite(verdict.figure):
        missed = f"a {step} misses {percent(verdict.figure)} of its best mode (limit {confidence(verdict.limit)})"
    return {
        "coordinates": _brought_back(verdict),
        "residual": missed,
        "learned": "modes of untrained copies last as long",
        "untested": "its modes were not compared with those of untrained copies",
        "held": "its outputs are the same with this state held at its mean",
        "score": "it does no better than guessing",
        "untested live": "coordinates were not tested in the running network",
        "unmeasured": "how far modes can be trusted was not measured",
    }[verdict.decided_by]


def _scan_table(facts: Facts) -> PageTable | None:
    """Return the candidate layers, with what is left of the outputs while each is held at its mean."""
    if len(facts.scan) < 2:
        return None
    return PageTable(
        title="Layers and directions",
        about="Agreement with the untouched network while the layer's state is held at its mean: low where it matters.",
        head=("Layer", "Held at its mean", "Explained here"),
        rows=[(each.layer, percent(each.score), "yes" if each.is_explained else "") for each in facts.scan],
        folded=True,
    )


def _blocks_table(facts: Facts) -> PageTable | None:
    """Return what is left of the decisions with each block replaced by its linear map, and with it skipped."""
    if not facts.blocks:
        return None
    return PageTable(
        title="Blocks replaced",
        about="Fraction of the decisions that stay with one block replaced by its linear map, and with it skipped.",
        head=("Block", "Linear map in its place", "Skipped"),
        rows=[(each.name, percent(each.mapped), percent(each.skipped)) for each in facts.blocks],
        folded=True,
    )

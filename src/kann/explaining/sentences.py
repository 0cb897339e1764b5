"""Render facts: the sentences of an explanation, and what the page shows with them."""

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
)
from kann.analysis._trust import Trust
from kann.analysis.decisions import read_out
from kann.backends.arrays import as_numpy
from kann.depth._trust import StepTrust
from kann.explaining.facts import (
    HOLDS,
    Facts,
    Kept,
    Live,
    ModeFact,
    Network,
)
from kann.explaining.outputs import Accuracy
from kann.explaining.readout_search import outputs_before_sigmoid
from kann.explaining.sequences import signals_of, tokens_of
from kann.explaining.setup import positions_of
from kann.explaining.stages import Results
from kann.live.results import NAMES
from kann.reporting.operators import most_are_worse
from kann.typing import Array, Shaped

EXTRAPOLATED = 3.0
"""Half-lives longer than so many times the longest sequence are not claimed: they would rest on a small decay."""

UNUSED = 0.995
"""A layer is not used if the network agrees with itself so often while it is held at its mean."""

MUCH_LONGER = 2.0
"""Channels are named if one of them is felt so many times longer than another."""

NAMES_SHOWN = 4
"""How many tokens or inputs are named that push a mode up, and as many that push it down."""


def sentences_of(facts: Facts) -> tuple[str, ...]:
    """Write three to five sentences: what decides live, modes, what inputs do, errors, caveats."""
    errors, remembered = _layers(facts) or _errors(facts), _remembered(facts)
    if facts.verdict.word == "nothing":
        parts = [(_nothing(facts),), (_live(facts) or _how_many_trusted(facts),), (remembered,), (errors,)]
    else:
        about_modes = (_memories(facts), _reaching(facts))
        parts = [
            (_partly(facts), _live(facts)),
            about_modes,
            (_gates(facts), remembered),
            (errors,),
            (_caveats(facts),),
        ]
    return tuple(filter(None, (" ".join(filter(None, part)) for part in parts)))


def _nothing(facts: Facts) -> str:
    """Say that nothing can be concluded, and why."""
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


def _partly(facts: Facts) -> str | None:
    """Say what decides that only a part is explained."""
    if facts.verdict.word != "partly":
        return None
    best, limit = percent(facts.verdict.figure), confidence(facts.verdict.limit)
    why = {
        "residual": _best_residual(facts),
        "learned": "modes of untrained copies last as long as the trusted ones",
        "untested": "the trusted modes were not compared with those of untrained copies",
        "coordinates": "modes can be trusted, and no few coordinates keep enough of its outputs (the best bring back "
        f"{best}, limit {limit})",
        "unmeasured": "how far modes can be trusted was not measured",
    }[facts.verdict.decided_by]
    return f"Only a part can be concluded: {why}."


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
            f"on held-out sequences its outputs match the labels with an R² of {found.score:.2f} (95 % interval "
            f"{found.low:.2f} to {found.high:.2f}), and the mean of the labels does with 0"
        )
    right = "the network is right in" if found.outputs == "class" else "the network's answers are right in"
    return (
        f"on held-out sequences {right} {percent(found.score)} (95 % interval {percent(found.low)} to "
        f"{percent(found.high)}), and always giving the most frequent label in {percent(found.baseline)}"
    )


def _how_right(facts: Facts) -> str:
    """Write how well the network does."""
    found = facts.accuracy
    if found is None:
        return ""
    if found.outputs == "values":
        return f"The network's outputs match the labels of held-out sequences with an R² of {fixed(found.score)}. "
    if found.outputs == "labels":
        return f"The network's answers are right in {percent(found.score)} on the held-out sequences. "
    return (
        f"The network is right on {percent(found.score)} of the held-out {'steps' if found.of_steps else 'sequences'}. "
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
            f"{_how_right(facts)}In the running network no few coordinates of {network.units} do better than random "
            f"directions or its mean state alone ({_score(live, live.none)})."
        )
    others = [f"{NAMES[name]} {_score(live, kept.others[name])}" for name in ("pca", "random") if name in kept.others]
    others.append(f"its mean state alone {_score(live, live.none)}")
    words = {"class": "decisions", "labels": "answers", "values": "outputs"}[live.outputs]
    result = f"{_score(live, kept.score)} of its {words}"
    if live.outputs == "values":
        result = f"its outputs with an R² of {_score(live, kept.score)}"
    after = f"every step{_part(network)}" if network.is_fed_back else "every step of what it gives"
    after = "its middle block" if network.axis == "depth" else after
    keeps = "keeps" if kept.count == 1 else "keep"
    interval = f"{confidence(live.level)} interval {_score(live, kept.low)} to {_score(live, kept.high)}"
    groups = "" if live.groups is None else f" in {plural('group', str(live.groups))}"
    sentence = (
        f"{_how_right(facts)}In the running network {_coordinates(kept)} of {network.units}, kept after {after}, "
        f"{keeps} {result} ({interval}, {live.sequences} held-out sequences{groups}); {', '.join(others)}."
    )
    more = live.nearly_all
    if more is not None and more.count > kept.count:
        sentence += f" With {more.count}, {NAMES[more.method].split(',')[0]} keep {_score(live, more.score)}."
    unused = [each.layer for each in facts.scan if each.score >= UNUSED and not each.is_explained]
    if unused:
        sentence += f" It does not use {' and '.join(repr(name) for name in unused)}."
    if facts.verdict.word == "nothing":
        sentence += f" That says how few are enough for its {words}, not that training made them."
    return sentence


def _coordinates(kept: Kept) -> str:
    one, several = {
        "balanced": ("one balanced coordinate", "balanced coordinates"),
        "modes": ("one mode", "modes"),
        "readout": ("the direction of the readout", "directions of the readout"),
        "pca": ("one principal component", "principal components"),
    }[kept.method]
    return one if kept.count == 1 else f"{kept.count} {several}"


def _part(network: Network) -> str:
    """Name the layer and direction that is held, and what is untouched; nothing if there are no others."""
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
        words = f"“{' '.join(phrase.words)}” pushes it by {phrase.push:+.2f}"
        telling = f" ({words}, its words alone by {phrase.expected:+.2f})"
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
    if not memory.eigenvalue.imag or abs(memory.eigenvalue) < HOLDS:
        return ""
    steps = 2 * np.pi / abs(np.angle(memory.eigenvalue))
    return "" if steps > network.longest else f", it turns once in {_duration(steps, f'{steps:.3g}', network)}"


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
    """Write how long one input is felt, next to an untrained copy, and in which channels longer than in others."""
    found, network = facts.remembered, replace(facts.network, axis="time")  # steps are those of what it reads
    if found is None:
        return None
    if math.isnan(found.half_life):
        return f"One input that is exchanged never changes its {found.of}."

    def after(steps: float) -> str:
        known = min(steps, float(found.longest))
        text = _duration(known, number_of_steps(known), network)
        return text if known == steps else f"more than {text}"

    low, high = found.interval
    text = f"Half of what one input changes in its {found.of} is left after {after(found.half_life)}"
    text += f" ({from_to(low, high, number_of_steps)})" if low < high < math.inf else ""
    if found.untrained is not None and not math.isnan(found.untrained):
        text += f", in an untrained copy after {after(found.untrained)}"
    known = {name: steps for name, steps in found.channels.items() if not math.isnan(steps)}
    if len(known) > 1 and max(known.values()) >= MUCH_LONGER * min(known.values()):
        longest, shortest = (pick(known, key=lambda name: known[name]) for pick in (max, min))
        text += f"; of “{longest}” after {after(known[longest])}, of “{shortest}” after {after(known[shortest])}"
    return f"{text}."


def _gates(facts: Facts) -> str | None:
    """Write what each input does where inputs gate, or how long the network remembers while it reads some."""
    gates, network = facts.gates, facts.network
    if gates is None:
        return None
    if gates.inputs:
        does = {"halves": "lets it fade", "forgets": "clears it"}
        each = ", ".join(
            f"{fact.name} {does.get(fact.does, f'{fact.does} it')} (λ = {format_eigenvalue(fact.eigenvalue)})"
            for fact in gates.inputs
        )
        return f"Inputs gate this network: {each} (an operator that misses {percent(gates.error)})."
    if facts.kind == "quiet" or gates.at_zero is None:
        return None
    times = [
        "does not fade" if abs(each) >= 1 else f"is halved in {_time(abs(each), network)}"
        for each in (gates.at_zero, gates.at_mean)
    ]
    if times[0] == times[1]:
        return None
    zero, mean = format_eigenvalue(gates.at_zero), format_eigenvalue(gates.at_mean)
    return (
        f"What it reads changes how long it remembers: while it reads zeros the slowest mode (λ = {zero}) {times[0]}, "
        f"at the mean input the slowest mode (λ = {mean}) {times[1]} (.bilinear.at(u); no intervals are known)."
    )


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
        f"On held-out sequences a linear map of its own is surely better than copying the state for {which} of the "
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
        parts.append("half-lives are those of this operator on average over what was read")
    parts.append("figures hold for data like these")
    return f"Caveats: {'; '.join(parts)}."


# The page


def page_of(results: Results, facts: Facts) -> dict[str, Any]:
    """Return the arguments of `kann.report` that belong to the sequences which are shown."""
    setup, recorded = results.setup, results.recorded
    options, shown, numbers, reading = setup.options, recorded.shown, setup.shown_numbers, recorded.reading
    page: dict[str, Any] = {"step_seconds": options.step_seconds, "step_name": setup.place.step_name}
    page["title"] = f"What {type(setup.model).__name__} learned"
    if options.classes is not None:
        page["classes"] = list(options.classes)
    labels = None if options.labels is None else [options.labels[i] for i in numbers]
    if setup.place.axis == "depth":
        page["step_names"] = list(facts.step_names) or None
        positions = positions_of(setup.sequences, numbers, len(shown))
        if labels is not None:
            labels = [labels[i] for i in np.repeat(np.arange(len(labels)), positions)]
    else:
        page["tokens"] = tokens_of(options.tokens, setup.sequences, numbers, shown)
        if page["tokens"] is None:
            page["signals"] = signals_of(setup.sequences, numbers, shown)
            if page["signals"] is not None:
                page["channels"] = setup.channels
    page["labels"] = _label_names(labels, options.classes)
    page["others"] = dict(results.operators.others)
    page["readout"] = reading.readout
    if recorded.outputs is not None:
        page["outputs"] = recorded.outputs.kind
        page["threshold"] = 0.0 if reading.before_sigmoid else recorded.outputs.threshold
        page["network_outputs"] = _own_outputs(results)
    return page


def _own_outputs(results: Results) -> Shaped[Array, "s ..."] | None:
    """Return what the network gave for the sequences that are shown, if it decides once, at the end.

    The readout may read more than the states that are explained, such as another direction, and decide otherwise.
    """
    reading, shown = results.recorded.reading, results.recorded.shown
    if reading.readout is None:
        return None
    own = results.setup.sequences.outputs(results.setup.shown_numbers)
    ends = as_numpy(shown.values[shown.starts + shown.lengths - 1])
    if own.shape != read_out(reading.readout, ends).shape or not np.isfinite(own).all():
        return None
    return outputs_before_sigmoid(reading.readout, ends, own) if reading.before_sigmoid else own


def _label_names(labels: list[Any] | None, classes: Sequence[str] | None) -> list[Any] | None:
    """Return labels as text, by the names of their classes if there are some; several labels as they are."""
    if labels is None or any(getattr(label, "ndim", 0) or isinstance(label, list | tuple) for label in labels):
        return labels
    plain = [getattr(label, "item", lambda label=label: label)() for label in labels]
    names = dict(enumerate(classes or ()))
    return [str(names.get(label, label)) for label in plain]

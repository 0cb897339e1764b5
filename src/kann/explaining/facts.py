"""Facts about a network: typed figures that sentences and the page are made from."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from kann.analysis._movers import Movers, Phrase
from kann.analysis._trust import ModeTrust, Trust
from kann.analysis.mode_evidence import COPYING_SLACK, LARGEST_RESIDUAL, NULL_FRACTION, WIDEST_INTERVAL
from kann.analysis.modes import first_modes, mode_variances
from kann.data.moments import mean_and_covariance
from kann.data.serialization import Stored
from kann.depth._trust import StepTrust
from kann.depth.results import METHODS, BypassEffects
from kann.explaining.input_effects import InputCases
from kann.explaining.layer_search import LayerWorth
from kann.explaining.operators import reads_nothing
from kann.explaining.outputs import Accuracy
from kann.explaining.stages import Results
from kann.fitting.koopman import Koopman
from kann.live.results import ADDS, Effects, Memory, modes_that_matter
from kann.typing import Array, Float

ENOUGH, NEARLY_ALL = 0.75, 0.9
"""Fractions of the score. The headline has the fewest coordinates that bring back the first: they do most of the work;
those that bring back the second follow."""

CLEAR_GAP = 0.02
"""Scores that are closer than this are equal, however many sequences tell them apart."""

ACCIDENT = 0.1
"""Coordinates count only if no larger number of the same basis brings back less by this."""

NEAR = 2.0
"""A mode is nearly trusted if its residual exceeds the limit by no larger factor, and it meets all other conditions."""

NEAR_FROM = 0.9
"""|λ| from which a mode may be nearly trusted: modes that are not trusted are not compared with untrained copies, which
have faster ones."""

MODES_NAMED = 3
"""Number of modes that sentences speak of one by one."""

NEGLIGIBLE = 0.05
"""A push below this fraction of the strongest is not named, however sure it is."""

TELLING = 0.5
"""Two words in a row are named if their push differs from their sum by so much, in standard deviations of the mode."""

MOST_REACHING = 4
"""Largest number of modes that are named as reaching the outputs."""

REACHES = 0.99
"""Modes reach the outputs if together they make this fraction of all contributions to them."""

HOLDS = 0.95
"""|λ| from which a mode holds what was read."""

DIFFER = 0.5
"""Channels move the output otherwise while another input is read, if their effects differ by this fraction of the
largest."""

MOST_MISSED = 0.35
"""Nothing is concluded from maps of single inputs that miss more of the variance on held-out sequences."""

LATE_FROM = 0.25
"""The late effect of an input is the mean over lags from this fraction of the longest one on."""

LEVEL = 0.5
"""A memory curve levels off if over these lags no more than this fraction of it is lost, although half of its peak was
gone before them."""

GROWS_FROM = 1.0005
"""From this |λ| on a mode grows: less would be written as 0.0 % in a step."""

HEADLINE = ("balanced", "modes", "readout", "pca")
"""Methods of the headline: of those with equally many coordinates the first whose score is within the interval of the
highest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Stored):
    """How much can be said, and the figure that decides it."""

    word: str
    """"found", "partly" or "nothing"."""
    decided_by: str
    """The name of the figure: "score" against the labels, "held" (agreement with the state held at its mean),
    "residual" of the best mode, "learned" modes, "untested" ones, not compared with untrained copies,
    "coordinates" that keep the decisions, "untested live", or "unmeasured" trust."""
    figure: float
    limit: float
    """The value that the figure is compared with."""
    count: int | None = None
    """The number of coordinates that the figure belongs to; None for other figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Stored):
    """The layer that is explained."""

    layer: str
    units: int
    axis: str
    """"time" or "depth"."""
    is_fed_back: bool
    """True if the network goes on from a replaced state."""
    has_other_direction: bool
    has_other_layers: bool
    opposite: str | None
    """The name of the direction that reads from the end, where the other one is explained."""
    step_seconds: float | None
    depth: float
    """Number of layers along depth, else infinite."""
    reads: str
    """"token", or "input" where what it reads has no names."""
    longest: float
    """Number of steps, or layers, of the longest sequence: longer periods are unknown."""

    @property
    def step_name(self) -> str:
        """Name of a step."""
        return {"time": "step", "depth": "layer"}[self.axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Stored):
    """A number of coordinates kept after every step."""

    count: int
    method: str
    """As in `Effects.methods`."""
    score: float
    low: float
    high: float
    recovered: float
    """(score − none) / (full − none)."""
    others: dict[str, float]
    """The scores of other methods with the same number of coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live(Stored):
    """The test in the running network."""

    outputs: str
    full: float
    none: float
    """The score with the state held at its mean."""
    sequences: int
    level: float
    fewest: Kept | None
    """The fewest coordinates of any basis that keep most decisions; None if random ones always do as well."""
    nearly_all: Kept | None
    """The fewest that keep nearly all."""
    best: Kept | None
    """The highest score of any basis with fewer coordinates than units."""
    groups: int | None = None
    """The number of groups of these sequences, of copies too, which intervals count; None if all differ."""
    are_copies: bool = False
    """True if these groups are only copies: the user passed none."""
    like_random: int | None = None
    """The largest smaller number of coordinates that keep most decisions too, but no more than random directions."""

    @property
    def matters(self) -> bool:
        """True if holding the state at its mean changes the outputs."""
        return self.full != self.none


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Stored):
    """A token or input that surely pushes a mode."""

    name: str
    push: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFact(Stored):
    """A mode of the operator."""

    mode: int
    eigenvalue: complex
    dimension: int
    """2 for a pair of eigenvalues."""
    interval: tuple[float, float] | None = None
    """Of |λ|; None if trust was not measured."""
    residual: float | None = None
    trusted: bool | None = None
    learned: bool | None = None
    near: bool = False
    """True if it is not trusted, and only since its residual is up to twice the limit."""
    kept: float | None = None
    """Fraction of the score that it brings back if it alone is kept; None if not measured."""
    is_named: bool = False
    """True if sentences speak of it."""
    pushed_by: str | None = None
    """"tokens" or "inputs"; None if the cause is not known."""
    up: tuple[Push, ...] = ()
    down: tuple[Push, ...] = ()
    phrase: Phrase | None = None
    raises: str | None = None
    """The output that grows if the mode goes up."""

    @property
    def grows(self) -> bool:
        """True if |λ| is surely above 1, so that the mode amplifies what was read and does not hold it."""
        return self.interval is not None and self.interval[0] > 1 and abs(self.eigenvalue) >= GROWS_FROM


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFact(Stored):
    """Fraction of the decisions that stay with one block replaced."""

    name: str
    mapped: float
    """With the block's own linear map in its place."""
    skipped: float
    """With the block skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates(Stored):
    """Inputs that change the matrix of the operator."""

    error: float
    """Held-out error of the gated operator."""
    driven_error: float
    """Held-out error of the operator to which inputs only add."""
    at_zero: complex | None
    """The slowest eigenvalue while zeros are read; None if they never are."""
    at_mean: complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(Stored):
    """How long the change that one input makes is felt."""

    of: str
    """"outputs", or "states" if outputs could not be compared."""
    half_life: float
    """Infinite if more than half is left after ``longest`` steps, NaN if no exchanged input changed anything."""
    interval: tuple[float, float]
    longest: int
    untrained: float | None
    """The half-life in an untrained copy; None if there is none."""
    channels: dict[str, float]
    """The half-life of each channel, where several are changed by themselves."""
    late: tuple[int, int] | None = None
    """The lags, the least and the longest, that ``late_left`` is the mean of; None if there never was a difference."""
    late_left: float = math.nan
    """Fraction of the largest difference that is left at these lags."""
    late_untrained: float | None = None
    """The same of an untrained copy; None if there is none."""
    levels_off: bool = False
    """True if the curve no longer falls there: its half-life alone would mislead."""

    @staticmethod
    def of_memory(memory: Memory) -> "Remembered":
        """Return the half-lives that a sentence speaks of."""
        copy = memory.untrained
        left = left_of_peak(memory)
        is_late = np.array(memory.lags) >= max(1.0, LATE_FROM * memory.lags[-1])
        late, before = left[is_late], left[~is_late]
        is_known = bool(np.isfinite(left).any() and is_late.any())
        return Remembered(
            of=memory.compared[0],
            half_life=memory.half_life(),
            interval=memory.half_life_interval(),
            longest=memory.lags[-1],
            untrained=None if copy is None else copy.half_life(),
            channels={name: memory.half_life(name) for name in memory.names[1:]},
            late=(int(np.array(memory.lags)[is_late][0]), memory.lags[-1]) if is_known else None,
            late_left=float(np.nanmean(late)) if is_known else math.nan,
            late_untrained=None if copy is None or not is_known else float(np.nanmean(left_of_peak(copy)[is_late])),
            levels_off=bool(is_known and len(before) and before[-1] < 0.5 and late[-1] >= (1 - LEVEL) * late[0]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Stored):
    """All that the sentences are made from."""

    verdict: Verdict
    network: Network
    scan: tuple[LayerWorth, ...]
    """Candidate layers, the one that matters most first."""
    accuracy: Accuracy | None
    live: Live | None
    memories: tuple[ModeFact, ...]
    """All modes, as in ``koopman.modes``."""
    gates: Gates | None
    inputs: InputCases | None
    """Effect of each input, if few different ones occur and their effects differ."""
    blocks: tuple[BlockFact, ...]
    """Along depth, what is left with single blocks replaced, the first block first."""
    remembered: Remembered | None
    trust: Trust | None
    """None if it was not measured."""
    steps: StepTrust | None
    """Errors of the maps of single layers along depth."""
    step_names: tuple[str, ...]
    """The names of these layers; none if they have no names, as those in a model's output."""
    reaching: tuple[int, ...]
    """The modes that reach the outputs, if they are few; the largest contribution first."""
    reached: float
    """The fraction of all contributions that these make."""
    kind: str
    """The kind of operator: "autonomous", "driven" or "quiet"."""
    balanced: bool
    """False if the operator is one of principal components."""
    not_compared: str
    """Why modes were not compared with those of untrained copies; empty if they were."""

    @property
    def trusted(self) -> list[ModeFact]:
        """The modes that can be trusted."""
        return [memory for memory in self.memories if memory.trusted]

    @property
    def learned(self) -> list[ModeFact]:
        """The trusted modes that untrained copies do not have."""
        return [memory for memory in self.trusted if memory.learned is not False]


# Gather


def facts_of(results: Results) -> Facts:
    """Gather all that the sentences are made from."""
    found, trust, effects = results.operators, results.trust, results.effects
    live = None if effects is None else live_facts(effects, trust)
    if live is not None and live.groups is not None:
        live = replace(live, are_copies=results.setup.options.groups is None)
    memories, steps, inputs = tuple(memories_of(results)), results.steps, inputs_that_differ(results.inputs)
    reaching, reached = _reaching(results)
    return Facts(
        verdict=verdict_of(live, results.accuracy, memories if trust is not None else None, inputs),
        network=_network(results),
        scan=results.setup.scan,
        accuracy=results.accuracy,
        live=live,
        memories=memories,
        gates=_gates(results),
        inputs=inputs,
        blocks=blocks_of(results.bypassed),
        remembered=None if results.memory is None else Remembered.of_memory(results.memory),
        trust=trust,
        steps=steps,
        step_names=() if steps is None else tuple(layer_names(len(steps), results.setup.place.layer)),
        reaching=reaching,
        reached=reached,
        kind=found.kind,
        balanced=found.koopman.in_coordinates,
        not_compared=results.not_compared,
    )


def verdict_of(
    live: Live | None,
    accuracy: Accuracy | None,
    memories: tuple[ModeFact, ...] | None,
    inputs: InputCases | None = None,
) -> Verdict:
    """Judge how much can be said; ``memories`` are None if trust was not measured."""
    if accuracy is not None and not accuracy.is_clear:
        return Verdict(word="nothing", decided_by="score", figure=accuracy.low, limit=accuracy.baseline)
    if live is not None and not live.matters:
        return Verdict(word="nothing", decided_by="held", figure=live.none, limit=live.full)
    if memories is None:
        return Verdict(word="partly", decided_by="unmeasured", figure=math.nan, limit=LARGEST_RESIDUAL)
    trusted = [memory for memory in memories if memory.trusted]
    # A network that is right has learned something, also where untrained copies of it cannot be made.
    learned = [memory for memory in trusted if memory.learned or (memory.learned is None and accuracy is not None)]
    is_right = accuracy is not None and bool((live and live.fewest) or inputs)
    if learned:
        if live is None:
            return Verdict(word="partly", decided_by="untested live", figure=math.nan, limit=ENOUGH)
        decisive = live.fewest if live.fewest is not None and live.fewest.recovered >= ENOUGH else live.best
        recovered, count = (decisive.recovered, decisive.count) if decisive else (0.0, None)
        word = "found" if live.fewest is not None and recovered >= ENOUGH else "partly"
        return Verdict(word=word, decided_by="coordinates", figure=recovered, limit=ENOUGH, count=count)
    if trusted:
        decided_by = "untested" if any(memory.learned is None for memory in trusted) else "learned"
        return Verdict(word="partly" if is_right else "nothing", decided_by=decided_by, figure=0.0, limit=1.0)
    near = [memory for memory in memories if memory.near]
    best = min((m.residual for m in near or memories if m.residual is not None), default=math.inf)
    word = "partly" if near or is_right else "nothing"
    return Verdict(word=word, decided_by="residual", figure=best, limit=LARGEST_RESIDUAL)


# The network and its layers


def _network(results: Results) -> Network:
    place, setup = results.setup.place, results.setup
    module: Any = place.target.module if place.target is not None else None
    is_recurrent, longest = isinstance(module, nn.RNNBase), float(results.recorded.states.lengths.max())
    both = bool(is_recurrent and module.bidirectional)
    depth = longest - int(place.embedding) if place.axis == "depth" else math.inf
    layer = place.layer if place.target is None else place.target.name
    return Network(
        layer=f"{layer[0]} to {layer[-1]}" if isinstance(layer, list | tuple) else str(layer),
        units=results.recorded.states.dim,
        axis=place.axis,
        is_fed_back=place.is_fed_back,
        has_other_direction=both,
        has_other_layers=bool(is_recurrent and module.num_layers > 1),
        opposite=f"{layer}_reverse" if both and not place.target.reverse else None,  # type: ignore[union-attr]
        step_seconds=setup.options.step_seconds,
        depth=depth,
        reads="input" if setup.options.tokens is None else "token",
        longest=min(depth, longest),
    )


def layer_names(count: int, layers: Any) -> list[str]:
    """Return the names of the last layers; none if they have no names, as those in a model's output."""
    if not isinstance(layers, list | tuple) or len(layers) < count:
        return []
    return [str(name) for name in layers[-count:]]  # the first step is none where its input was not recorded


# The live test


def live_facts(effects: Effects, trust: Trust | None) -> Live:
    """Find the fewest coordinates of any basis that keep the decisions."""
    candidates = [] if effects.full == effects.none else _candidates(effects, trust)

    def fewest(fraction: float) -> Kept | None:
        limit = min(fraction, max((each.recovered for each in candidates), default=0.0) - CLEAR_GAP)
        enough = [each for each in candidates if each.recovered >= limit]
        best = min(enough, key=lambda each: (each.count, -each.recovered), default=None)
        if best is None:
            return None
        # Which of two bases is ahead by a sequence or two is chance: the first of those within the interval is named.
        equal = [each for each in enough if each.count == best.count and each.score >= best.low]
        return min(equal, key=lambda each: HEADLINE.index(each.method))

    best = max(candidates, key=lambda each: (each.recovered, -each.count), default=None)
    headline = fewest(ENOUGH)
    return Live(
        outputs=effects.outputs,
        full=float(effects.full),
        none=float(effects.none),
        sequences=len(effects.judged),
        groups=None if effects.groups is None else len(np.unique(effects.groups)),
        level=effects.level,
        fewest=headline,
        like_random=None if headline is None else _like_random(effects, headline),
        nearly_all=fewest(NEARLY_ALL),
        best=best,
    )


def _candidates(effects: Effects, trust: Trust | None) -> list[Kept]:
    """Return each number of coordinates of each basis that beats the mean state and random directions."""
    kept, recovered, found = effects.kept, effects.recovered, []
    random = kept.get("random", np.full(len(effects.counts), np.nan))
    for at, count in enumerate(effects.counts):
        for method in (name for name in HEADLINE if name in kept):
            score, part = float(kept[method][at]), float(recovered[method][at])
            if not np.isfinite(score) or part <= CLEAR_GAP or is_as_good(float(random[at]), score, float(effects.full)):
                continue
            if method == "modes" and _are_doubtful(effects, trust, count):
                continue
            # With a curve as fill, one direction may by accident tell clusters of states apart; more then do worse.
            later = recovered[method][at:]
            is_accident = later[np.isfinite(later)].min() < part - ACCIDENT
            is_same = at > 0 and np.array_equal(effects.kept_scores[method][at], effects.kept_scores[method][at - 1])
            if is_accident or is_same:
                continue
            low, high = effects.interval(method)[at]
            others = {name: float(own[at]) for name, own in kept.items() if name != method and np.isfinite(own[at])}
            found.append(
                Kept(
                    count=count,
                    method=method,
                    score=score,
                    low=float(low),
                    high=float(min(1.0, high)),
                    recovered=part,
                    others=others,
                )
            )
    return found


def _like_random(effects: Effects, headline: Kept) -> int | None:
    """Return the largest smaller count that does as well in the basis of the headline, and with random directions."""
    random = effects.kept.get("random")
    if random is None:
        return None
    known = zip(effects.counts, effects.kept[headline.method], effects.recovered[headline.method], random, strict=True)
    return max(
        (
            count
            for count, score, part, other in known
            if count < headline.count and part >= ENOUGH and is_as_good(float(other), float(score), float(effects.full))
        ),
        default=None,
    )


def is_as_good(other: float, score: float, full: float) -> bool:
    """Return True if a score is nearly as high as another, and no more than twice as far from full.

    >>> is_as_good(0.92, 0.93, 1.0), is_as_good(0.983, 0.996, 1.0)
    (True, False)
    """
    return other >= score - CLEAR_GAP * abs(full) and full - other <= 2 * (full - score)


def _are_doubtful(effects: Effects, trust: Trust | None, count: int) -> bool:
    """Return True if not all of the first modes are trusted and learned."""
    if effects.koopman is None or trust is None:
        return True
    modes = [trust.modes[number] for number in first_modes(effects.koopman, effects.order, count)]
    return not all(mode.trusted and mode.learned is not False for mode in modes)


# Modes


def memories_of(results: Results) -> list[ModeFact]:
    """Gather the facts of each mode. Named are those that matter live and can be trusted, as far as that is known."""
    koopman, trust, movers = results.operators.koopman, results.trust, results.movers
    effects, alone, kept = results.effects, results.alone, dict[int, float]()
    if effects is not None and effects.full != effects.none:
        gained = effects.full - effects.none
        kept = {mode: float((scores[0] - effects.none) / gained) for mode, scores in alone.items()}
    named = modes_that_matter(koopman, trust=trust, effects=effects, movers=movers, alone=alone)
    if trust is not None:
        learned = [number for number in trust.trusted if trust.modes[number].learned is not False]
        own = learned or list(trust.trusted)
        named = [number for number in named if number in own] or own
    named = ([number for number in named if kept.get(number, 1.0) > ADDS] or named)[:MODES_NAMED]
    classes = results.setup.options.classes
    return [
        memory_of(koopman, number, trust, movers, kept.get(number), number in named, classes)
        for number in range(len(koopman.modes))
    ]


def memory_of(
    koopman: Koopman,
    number: int,
    trust: Trust | None,
    movers: Movers | None,
    kept: float | None,
    is_named: bool,
    classes: Any,
) -> ModeFact:
    """Gather the facts of one mode."""
    mode, known = koopman.modes[number], dict[str, Any]()
    if trust is not None:
        judged = trust.modes[number]
        known = {name: getattr(judged, name) for name in ("interval", "residual", "trusted", "learned")}
        known["near"] = is_near(judged)
    if movers is not None and number in movers.modes:
        known |= _moved(movers, number, classes)
    return ModeFact(
        mode=number,
        eigenvalue=complex(mode.eigenvalue),
        dimension=len(mode.indices),
        kept=kept,
        is_named=is_named,
        **known,
    )


def is_near(judged: ModeTrust) -> bool:
    """Return True for a mode that is not trusted only since its residual exceeds the limit by little."""
    return (
        not judged.trusted
        and LARGEST_RESIDUAL < judged.residual <= NEAR * LARGEST_RESIDUAL
        and judged.residual <= COPYING_SLACK * judged.copying
        and judged.residual < NULL_FRACTION * judged.null
        and judged.interval[1] - judged.interval[0] <= WIDEST_INTERVAL
        and abs(judged.eigenvalue) >= NEAR_FROM
        and not judged.constant
    )


def _moved(movers: Movers, number: int, classes: Any) -> dict[str, Any]:
    """Return what surely pushes a mode, the strongest first, and which output grows if the mode goes up."""
    place = movers.modes.index(number)
    telling = [each for each in movers.phrases[place] if each.sure and abs(each.push - each.expected) >= TELLING]
    phrase = max(telling, key=lambda each: abs(each.push - each.expected), default=None)
    if movers.by == "steps":
        return {"phrase": phrase}
    sides = movers.up(number), movers.down(number)
    least = NEGLIGIBLE * max((abs(each.push) for side in sides for each in side if each.sure), default=0.0)
    sure = ([each for each in side if each.sure and abs(each.push) >= least] for side in sides)
    up, down = (tuple(Push(name=each.name, push=float(each.push)) for each in side) for side in sure)
    raises = _raised(movers.outputs[place], classes) if movers.outputs is not None and (up or down) else None
    return {"phrase": phrase, "pushed_by": movers.by, "up": up, "down": down, "raises": raises}


def _raised(moved: Array, classes: Any) -> str:
    """Return the name of the output that grows most if the mode goes up; a single one is the second of two classes."""
    names, place = list(classes or ()), int(np.abs(moved).argmax())
    names = names[1:] if len(moved) == 1 and len(names) == 2 else names
    if len(names) == len(moved):
        return f"“{names[place]}”"
    return "the output" if len(moved) == 1 else f"output {place}"


def _reaching(results: Results) -> tuple[tuple[int, ...], float]:
    """Return the modes that reach the outputs, if these are few, and the fraction of all contributions they make."""
    reading, koopman = results.recorded.reading, results.operators.koopman
    if not reading.is_output or reading.weight is None or len(koopman.modes) == 1:
        return (), 0.0
    variances = mode_variances(koopman, mean_and_covariance(results.operators.states), reading.weight)
    if not variances.sum() > 0:  # the readout reads nothing
        return (), 0.0
    order = np.argsort(-variances, kind="stable")
    fractions = np.cumsum(variances[order]) / variances.sum()
    count = int(np.searchsorted(fractions, REACHES)) + 1
    first = tuple(int(number) for number in order[:count])
    is_doubtful = results.trust is not None and not set(first) <= set(results.trust.trusted)
    if count > min(MOST_REACHING, max(1, len(order) // 2)) or is_doubtful:
        return (), 0.0
    return first, float(fractions[count - 1])


# Gates and errors


def _gates(results: Results) -> Gates | None:
    found, states = results.operators, results.recorded.states
    if found.bilinear is None or found.gated_errors is None or states.inputs is None:
        return None
    reads_zeros = bool(reads_nothing(states.inputs).any())
    return Gates(
        error=float(found.gated_errors[0]),
        driven_error=float(found.gated_errors[1]),
        at_zero=complex(found.bilinear.at().modes[0].eigenvalue) if reads_zeros else None,
        at_mean=complex(found.bilinear.at("mean").modes[0].eigenvalue),
    )


def inputs_that_differ(found: InputCases | None) -> InputCases | None:
    """Return what inputs do if it is not the same for all, or if they count; None if their maps predict badly."""
    if found is None or found.missed > MOST_MISSED:
        return None
    moves = np.array([list((fact.moves or {}).values()) for fact in found.inputs if fact.moves])
    differ = len({fact.does for fact in found.inputs}) > 1
    if len(moves) == len(found.inputs) and moves.size:
        differ |= bool((np.ptp(moves, axis=0) > DIFFER * np.abs(moves).max()).any())
    return found if differ or found.is_counter else None


def blocks_of(found: BypassEffects | None) -> tuple[BlockFact, ...]:
    """Return what is left of the decisions with each block skipped and with its own map in its place."""
    if found is None:
        return ()
    agreement, methods = found.means["agreement"], list(METHODS)
    skipped, mapped = agreement[:, methods.index("identity")], agreement[:, methods.index("each")]
    return tuple(
        BlockFact(name=name, mapped=float(own), skipped=float(none))
        for name, own, none in zip(found.names, mapped, skipped, strict=True)
    )


def left_of_peak(memory: Memory) -> Float[Array, " l"]:
    """Return what is left of one input after each lag, as a fraction of the largest difference."""
    left = memory.left()
    return left / np.nanmax(left) if np.isfinite(left).any() and np.nanmax(left) > 0 else np.full(len(left), np.nan)

"""Facts of modes and of the live test, the verdict, and how they read."""

import math
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import kann
from kann.analysis._movers import Movers, Phrase
from kann.analysis._trust import ModeTrust, Trust
from kann.explaining import facts as gathering
from kann.explaining import sentences as wording
from kann.explaining import untrained_copies
from kann.explaining.facts import BlockFact, Facts, Gates, Kept, Live, ModeFact, Network, Push, Remembered, Verdict
from kann.explaining.input_effects import InputCases, InputFact, what_it_does
from kann.explaining.outputs import Accuracy
from kann.live.results import Effects, Memory

NETWORK = Network(
    layer="rnn",
    units=8,
    axis="time",
    is_fed_back=True,
    has_other_direction=False,
    has_other_layers=False,
    opposite=None,
    step_seconds=None,
    depth=math.inf,
    reads="input",
    longest=30.0,
)
MEMORY = ModeFact(
    mode=0,
    eigenvalue=0.9 + 0j,
    dimension=1,
    interval=(0.88, 0.92),
    residual=0.05,
    trusted=True,
    learned=True,
    near=False,
    kept=0.8,
    is_named=True,
    pushed_by="inputs",
    up=(Push(name="force", push=0.5),),
    down=(),
    phrase=None,
    raises=None,
)
KEPT = Kept(count=1, method="balanced", score=0.93, low=0.9, high=0.96, recovered=0.86, others={"pca": 0.7})
LIVE = Live(outputs="class", full=1.0, none=0.5, sequences=40, level=0.95, fewest=KEPT, nearly_all=KEPT, best=KEPT)
TRUST = Trust(
    modes=(),
    horizons=np.array([1, 8]),
    error=np.array([0.01, 0.1]),
    copying_error=np.array([0.2, 0.4]),
    folds=3,
    level=0.95,
    pairs=100,
    unknowns=3,
)
REMEMBERED = Remembered(
    of="outputs", half_life=6.0, interval=(5.0, 8.0), longest=29, untrained=1.5, channels={"force": 6.0, "gate": 1.0}
)


def facts(**changed):
    known = {
        "verdict": Verdict(word="found", decided_by="coordinates", figure=0.86, limit=0.75, count=1),
        "network": NETWORK,
        "scan": (),
        "accuracy": None,
        "live": LIVE,
        "memories": (MEMORY,),
        "gates": None,
        "inputs": None,
        "blocks": (),
        "remembered": REMEMBERED,
        "trust": TRUST,
        "steps": None,
        "step_names": (),
        "reaching": (),
        "reached": 0.0,
        "kind": "driven",
        "balanced": True,
        "not_compared": "",
    }
    return Facts(**known | changed)


def test_the_finding_comes_first_and_the_caveats_last():
    """A snapshot of the wording."""
    assert wording.sentences_of(facts()) == (
        "One balanced coordinate of 8, kept after every step, keeps 93.0 % of the network's decisions (95 % interval "
        "90.0 % to 96.0 %, 40 held-out sequences); principal components 70.0 %, its mean state alone 50.0 %.",
        "Mode 0 (λ = 0.9000, half of it is left after 6.6 steps) is pushed up by “force”.",
        "Half of the effect of one input on its outputs is gone after 6 steps (5 to 8; untrained copy: half is gone "
        "after 1.5 steps), that of “force” after 6 steps, of “gate” after 1 step.",
        "Found: one coordinate brings back 86.0 % of what the network loses without this state (enough: 75 %). "
        "Caveats: the half-life of a mode is that of one coordinate on average over what was read, and later inputs "
        "may outweigh a single one in the outputs sooner; figures hold for data like these.",
    )
    assert wording.details_of(facts()) == (
        "On held-out sequences one step of the operator misses 1.0 % of the variance of its balanced coordinates, and "
        "copying the previous state 20.0 %; over 8 steps 10.0 % and 40.0 %.",
    )


def test_the_line_under_the_title():
    assert wording.line_of(facts()) == "layer 'rnn', 8 units · gives a class"


def random_facts(rng):
    """Facts drawn at random, with the verdict that they have."""
    methods = ("balanced", "modes", "readout", "pca")
    outputs = str(rng.choice(["class", "labels", "values"]))

    def kept():
        return Kept(
            count=int(rng.integers(1, 9)),
            method=str(rng.choice(methods)),
            score=float(rng.random()),
            low=float(rng.random()),
            high=1.0,
            recovered=float(rng.random()),
            others={"pca": 0.3, "random": 0.2},
        )

    memories = []
    for mode in range(int(rng.integers(1, 6))):
        trusted = bool(rng.random() < 0.5)
        modulus = float(rng.uniform(0, 1.1))
        memories.append(
            replace(
                MEMORY,
                mode=mode,
                eigenvalue=complex(modulus * np.exp(1j * rng.choice([0.0, 0.7]))),
                dimension=int(rng.integers(1, 3)),
                interval=(max(0.0, modulus - 0.03), modulus + 0.03),
                residual=float(rng.uniform(0, 0.3)),
                trusted=trusted,
                learned=bool(rng.random() < 0.5) if trusted else None,
                near=bool(rng.random() < 0.3) and not trusted,
                is_named=bool(rng.random() < 0.5) and trusted,
            )
        )
    fewest = kept() if rng.random() < 0.8 else None
    live = replace(
        LIVE, outputs=outputs, none=float(rng.choice([0.5, 1.0])), fewest=fewest, nearly_all=None, best=fewest
    )
    accuracy = Accuracy(outputs=outputs, score=0.8, low=float(rng.random()), high=0.9, baseline=0.5)
    chosen = {
        "live": live if rng.random() < 0.8 else None,
        "accuracy": accuracy if rng.random() < 0.5 else None,
        "trust": TRUST if rng.random() < 0.8 else None,
        "inputs": random_inputs(rng) if rng.random() < 0.5 else None,
        "remembered": random_memory(rng) if rng.random() < 0.8 else None,
        "blocks": tuple(
            BlockFact(name=f"blocks.{i}", mapped=float(rng.random()), skipped=float(rng.random()))
            for i in range(rng.integers(1, 5) if rng.random() < 0.3 else 0)
        ),
    }
    known = tuple(memories) if chosen["trust"] else None
    verdict = gathering.verdict_of(chosen["live"], chosen["accuracy"], known, chosen["inputs"])
    return facts(**chosen, memories=tuple(memories), verdict=verdict)


def random_inputs(rng):
    has_channels, found = bool(rng.random() < 0.5), []
    for number in range(int(rng.integers(2, 7))):
        eigenvalue = complex(rng.uniform(0, 1.2) * np.exp(1j * rng.choice([0.0, 1.0, np.pi])))
        moves = {"a": float(rng.normal()), "b": float(rng.normal())} if has_channels else None
        adds = float(rng.normal()) if rng.random() < 0.5 else None
        does = what_it_does(eigenvalue)
        found.append(InputFact(name=str(number), eigenvalue=eigenvalue, does=does, adds=adds, moves=moves))
    is_counter = all(fact.does == "keeps" and fact.adds is not None for fact in found)
    return InputCases(inputs=tuple(found), missed=float(rng.random()), is_counter=is_counter)


def random_memory(rng):
    half_life = float(rng.choice([math.nan, math.inf, 0.5, 3.0, 12.0]))
    low, high = sorted(rng.choice([1.0, 2.0, 20.0, math.inf], size=2).tolist())
    return replace(
        REMEMBERED,
        half_life=half_life,
        interval=(low, high),
        untrained=rng.choice([None, 0.4, math.inf, math.nan]),
        channels={"force": 3.0, "gate": math.inf} if rng.random() < 0.5 else {},
        late=(8, 29) if rng.random() < 0.7 else None,
        late_left=float(rng.choice([0.0, 0.04, 0.8])),
        late_untrained=rng.choice([None, 1e-7]),
        levels_off=bool(rng.random() < 0.5),
    )


def test_a_thousand_facts_are_rendered_without_contradiction(rng):
    for _ in range(1000):
        found = random_facts(rng)
        sentences = wording.sentences_of(found)
        text = " ".join(sentences)
        assert (1 if found.remembered is None else 2) <= len(sentences) <= 4
        assert all(sentence.endswith(".") for sentence in sentences)
        assert "nan" not in text
        assert "None" not in text
        assert "inf " not in text
        assert ("is still there" in text) <= ("is gone after" in text)  # half is gone, and less than half is there
        assert sentences[0].startswith("Nothing can be concluded") == (found.verdict.word == "nothing")
        assert ("Only a part can be concluded" in text) == (found.verdict.word == "partly")
        if found.verdict.word == "nothing":
            assert "memories can be trusted" not in text
        if found.verdict.word == "found":
            assert found.learned
            assert found.live is None or found.live.fewest is not None


# What is left of one input


def memory_with(left, untrained=None):
    """A memory whose curve of the outputs is ``left`` at lags 0, 1, 2, 4 and so on."""
    lags = (0, *(2**i for i in range(len(left) - 1)))
    squares = np.repeat(np.square(left)[None, None], 12, axis=1)
    return Memory(
        lags=lags,
        names=("all inputs",),
        state_squares=None,
        output_squares=squares,
        state_scale=math.nan,
        output_scale=1.0,
        untrained=None if untrained is None else memory_with(untrained),
    )


def test_a_curve_that_levels_off_is_not_told_by_its_half_life_alone():
    lags = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128])
    fading = np.exp(-lags / 4.0)
    found = Remembered.of_memory(memory_with(0.8 * (0.04 + 0.96 * fading), 0.5 * np.exp(-lags / 0.7)))
    assert found.late == (32, 128)
    assert found.late_left == pytest.approx(0.04, abs=1e-3)  # of the peak
    assert found.late_untrained < 1e-12
    assert found.levels_off
    assert found.half_life == pytest.approx(4 * math.log(0.96 / 0.46), rel=0.1)
    text = wording.sentences_of(facts(remembered=found))[2]
    assert "but on average 4.0 % is still there after 32 to 128 steps (untrained: below 0.001 %)" in text
    assert text.endswith("where it no longer falls.")


def test_a_curve_that_fades_does_not_level_off():
    lags = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128])
    found = Remembered.of_memory(memory_with(np.exp(-lags / 20.0)))
    assert not found.levels_off
    assert found.late_untrained is None
    lasting = Remembered.of_memory(memory_with(np.full(9, 0.7)))  # nothing was lost before either
    assert not lasting.levels_off
    assert "is still there" not in wording.sentences_of(facts(remembered=lasting))[2]
    nothing = Remembered.of_memory(memory_with(np.zeros(9)))
    assert (nothing.late, nothing.levels_off) == (None, False)


# The verdict


def test_a_residual_just_above_the_limit_is_partly():
    near = replace(MEMORY, trusted=False, learned=None, residual=0.114, near=True)
    verdict = gathering.verdict_of(LIVE, None, (near,))
    assert (verdict.word, verdict.decided_by, verdict.figure, verdict.limit) == ("partly", "residual", 0.114, 0.1)
    text = wording.sentences_of(facts(verdict=verdict, memories=(near,)))[-1]
    assert "misses 11.4 % of the best one" in text
    assert "limit 10 %" in text
    far = replace(near, residual=0.4, near=False)
    assert gathering.verdict_of(LIVE, None, (far,)).word == "nothing"
    right = Accuracy(outputs="class", score=0.9, low=0.8, high=0.95, baseline=0.5)
    assert gathering.verdict_of(LIVE, right, (far,)).word == "partly"  # it does learn, by few coordinates


def test_the_verdict_of_what_was_not_learned_and_of_what_does_not_matter():
    own = replace(MEMORY, learned=False)
    assert gathering.verdict_of(LIVE, None, (own,)).decided_by == "learned"
    assert gathering.verdict_of(replace(LIVE, none=1.0), None, (MEMORY,)).decided_by == "held"
    wrong = Accuracy(outputs="class", score=0.55, low=0.45, high=0.65, baseline=0.5)
    assert gathering.verdict_of(LIVE, wrong, (MEMORY,)).decided_by == "score"
    assert gathering.verdict_of(replace(LIVE, fewest=None, best=None), None, (MEMORY,)).word == "partly"
    assert gathering.verdict_of(LIVE, None, None).decided_by == "unmeasured"


@pytest.mark.parametrize(
    ("outputs", "score", "low", "baseline", "text"),
    [
        ("class", 0.6, 0.45, 0.5, "the network is right in 60.0 % (95 % interval 45.0 % to 70.0 %), and always "),
        ("labels", 0.6, 0.45, 0.5, "the network's answers are right in 60.0 % (95 % interval 45.0 % to 70.0 %)"),
        ("values", 0.1, -0.1, 0.0, "its outputs match the labels with an R² of 0.100 (95 % interval −0.100 to 0.700)"),
    ],
)
def test_a_network_is_not_right_if_chance_can_have_made_it_so(outputs, score, low, baseline, text):
    accuracy = Accuracy(outputs=outputs, score=score, low=low, high=0.7, baseline=baseline)
    verdict = gathering.verdict_of(LIVE, accuracy, (MEMORY,))
    said = wording.sentences_of(facts(verdict=verdict, accuracy=accuracy))[0]
    assert said.startswith(f"Nothing can be concluded about the task: on held-out sequences {text}")


# The live test


def effects_of(means, none=0.5):
    koopman = kann.fit(np.random.default_rng(0).normal(size=(20, 10, 3)))
    kept = {name: np.repeat(np.array(own)[:, None], 40, axis=1) for name, own in means.items()}
    return Effects(
        counts=(1, 2),
        metric="agreement",
        fill="curve",
        order=tuple(range(len(koopman.modes))),
        koopman=koopman,
        kept_scores=kept,
        removed_scores=kept,
        full_scores=np.ones(40),
        none_scores=np.full(40, none),
        random_kept=np.empty((0, 2)),
        random_removed=np.empty((0, 2)),
        judged=np.arange(40),
    )


def test_the_headline_has_the_fewest_coordinates_of_any_basis():
    live = gathering.live_facts(effects_of({"balanced": [0.7, 0.97], "readout": [0.93, 0.96], "pca": [0.6, 0.7]}), None)
    assert (live.fewest.method, live.fewest.count, live.fewest.others["pca"]) == ("readout", 1, 0.6)
    assert (live.nearly_all.method, live.nearly_all.count) == ("balanced", 2)


def test_what_random_directions_keep_too_is_no_finding():
    live = gathering.live_facts(effects_of({"balanced": [0.93, 0.98], "random": [0.92, 0.6]}), None)
    assert live.fewest.count == 2
    assert gathering.live_facts(effects_of({"balanced": [0.93, 0.98], "random": [0.93, 0.97]}), None).fewest is None


def test_modes_that_are_not_trusted_are_no_headline():
    effects = effects_of({"modes": [0.99, 1.0], "pca": [0.9, 0.95]})
    assert gathering.live_facts(effects, None).fewest.method == "pca"
    judged = ModeTrust(
        eigenvalue=0.9 + 0j,
        interval=(0.8, 1.0),
        angle=(0.0, 0.0),
        residual=0.1,
        copying=0.2,
        null=0.5,
        constant=False,
        subspace=(0,),
        turn=1.0,
        untrained=None,
        trusted=True,
        why="",
        learned=True,
    )
    trust = replace(TRUST, modes=(judged,) * len(effects.koopman.modes))
    assert gathering.live_facts(effects, trust).fewest.method == "modes"
    unlearned = replace(trust, modes=(replace(judged, learned=False),) * len(trust.modes))
    assert gathering.live_facts(effects, unlearned).fewest.method == "pca"


def test_a_direction_that_tells_clusters_apart_by_accident_is_no_headline():
    live = gathering.live_facts(effects_of({"balanced": [0.6, 0.99], "readout": [0.99, 0.7]}), None)
    assert (live.fewest.method, live.fewest.count) == ("balanced", 2)


def test_an_interrupted_test_has_only_what_was_finished():
    live = gathering.live_facts(effects_of({"balanced": [0.9, np.nan], "pca": [np.nan, np.nan]}), None)
    text = wording.sentences_of(facts(live=live))[0]
    assert live.fewest.count == 1
    assert "nan" not in text


def test_one_direction_of_one_layer_is_not_called_the_state():
    network = replace(
        NETWORK, layer="gru.l1", has_other_direction=True, has_other_layers=True, opposite="gru.l1_reverse"
    )
    text = wording.sentences_of(facts(network=network))[0]
    assert "every step of 'gru.l1' (the other direction and the other layers untouched)" in text
    held = Verdict(word="nothing", decided_by="held", figure=1.0, limit=1.0)
    live = replace(LIVE, none=1.0)
    text = wording.sentences_of(facts(network=network, verdict=held, live=live))[0]
    assert text.endswith("Pass layer='gru.l1_reverse' for the other direction.")


# Modes


@pytest.mark.parametrize(
    ("modulus", "interval", "text"),
    [
        (0.9, (0.85, 0.95), "half of it is left after 6.6 steps"),
        (0.9, None, "half of it is left after 6.6 steps"),
        (0.48, (0.45, 0.52), "less than half of it is left after one step"),
        (0.0, (0.0, 0.1), "less than half of it is left after one step"),
        (0.999, (0.98, 1.002), "half of it is left after 34 steps or more"),
        (1.001, (0.98, 1.02), "half of it is left after 34 steps or more"),
        (1.02, (1.01, 1.03), "it grows by 2.0 % in a step"),
        (1.0, (1.0, 1.0), "no fading was measured"),
        (1.001, (0.9995, 1.002), "it hardly fades in the 30 steps of a sequence"),
        (1.02, None, "no fading was measured"),
    ],
)
def test_half_lives_are_claimed_as_far_as_they_are_known(modulus, interval, text):
    memory = replace(MEMORY, eigenvalue=complex(modulus), interval=interval)
    assert wording.staying(memory, NETWORK) == text


def test_half_lives_in_seconds():
    assert wording.staying(MEMORY, replace(NETWORK, step_seconds=0.5)).endswith("6.6 steps = 3.29 s")


def test_along_depth_nothing_lasts_longer_than_the_layers():
    memory = replace(MEMORY, eigenvalue=0.99 + 0j, interval=(0.985, 0.995))
    network = replace(NETWORK, axis="depth", depth=4.0)
    assert wording.staying(memory, network) == "more than half of it is left after all 4 layers"


def test_channels_that_outlast_the_measurement_are_not_compared():
    both = replace(REMEMBERED, channels={"left": np.inf, "right": np.inf})
    assert "left" not in wording.sentences_of(facts(remembered=both))[-2]
    one = replace(REMEMBERED, channels={"left": np.inf, "right": 1.0})
    assert "that of “left” after more than" in wording.sentences_of(facts(remembered=one))[-2]


def test_turns_longer_than_the_sequences_are_not_claimed():
    memory = replace(MEMORY, eigenvalue=0.99 * complex(np.exp(2j * np.pi / 12)), dimension=2)
    assert wording.turning(memory, NETWORK) == ", it turns once in 12 steps"
    slow = replace(MEMORY, eigenvalue=0.99 * complex(np.exp(2j * np.pi / 165)), dimension=2)
    assert wording.turning(slow, NETWORK) == ""


def movers_of(push, **changed):
    column = np.array(push)[:, None]
    count = np.full(len(push), 9)
    movers = Movers(
        by="inputs",
        modes=(0,),
        names=tuple(f"input {i}" for i in range(len(push))),
        push=column,
        low=column - 1e-4,
        high=column + 1e-4,
        sure=np.abs(column) - 1e-4,
        count=count,
        sequences=count,
        level=0.95,
        outputs=None,
        phrases=((),),
    )
    return replace(movers, **changed)


def memory_of(movers, classes=None):
    koopman = kann.fit(np.random.default_rng(0).normal(size=(20, 10, 3)))
    return gathering.memory_of(koopman, 0, None, movers, None, True, classes)


def test_pushes_that_are_sure_but_negligible_are_not_named():
    for push, up in (([0.5, 0.004], ["input 0"]), ([0.5, 0.1], ["input 0", "input 1"]), ([0.5, -0.004], ["input 0"])):
        memory = memory_of(movers_of(push))
        assert [each.name for each in memory.up] == up
        assert memory.down == ()
    assert wording.pushed(memory) == " is pushed up by “input 0”"


@pytest.mark.parametrize(
    ("classes", "moved", "text"),
    [
        (["bad", "good"], [0.3], "“good”"),
        (None, [0.3], "the output"),
        (["a", "b", "c"], [0.1, -0.5, 0.2], "“b”"),
        (None, [0.1, 0.2], "output 1"),
    ],
)
def test_what_up_does_to_the_outputs_is_said(classes, moved, text):
    assert memory_of(movers_of([0.5], outputs=np.array([moved])), classes).raises == text
    assert memory_of(movers_of([0.5]), classes).raises is None


def test_two_words_that_push_otherwise_than_their_sum_are_named():
    def phrase(push, expected, *, sure=True):
        return Phrase(
            words=("not", "rude"), push=push, expected=expected, low=1.0, high=3.0, count=9, sequences=9, sure=sure
        )

    weak, telling, unsure = phrase(0.3, 0.1), phrase(2.2, -0.04), phrase(9.0, 0.0, sure=False)
    memory = memory_of(movers_of([0.5], phrases=((weak, telling, unsure),)))
    assert memory.phrase.push == 2.2
    text = wording.sentences_of(facts(memories=(replace(memory, trusted=True),)))[1]
    assert "“not rude” pushes it by +2.20, its words alone by −0.04" in text
    assert memory_of(movers_of([0.5], phrases=((weak, unsure),))).phrase is None


def test_groups_of_the_user_and_copies_have_other_words():
    texts = [
        " ".join(wording.sentences_of(facts(live=replace(LIVE, groups=groups, are_copies=are_copies))))
        for groups, are_copies in ((None, False), (9, False), (9, True))
    ]
    assert "40 held-out sequences);" in texts[0]
    assert "40 held-out sequences in 9 groups);" in texts[1]
    assert "40 held-out sequences, 9 of them different);" in texts[2]


def test_several_memories_are_counted_with_how_many_were_learned():
    first, second = (replace(MEMORY, mode=mode, eigenvalue=complex(own)) for mode, own in ((0, 0.99), (1, 0.97)))
    text = wording.sentences_of(facts(memories=(first, second)))[1]
    assert text.startswith("Two memories can be trusted, coordinates that hold what was read (|λ| from 0.970 to 0.990)")
    text = wording.sentences_of(facts(memories=(first, replace(second, learned=False))))[1]
    assert "Two memories can be trusted (one of them learned)" in text


def test_a_mode_that_grows_is_no_memory_that_holds():
    grown = replace(MEMORY, mode=1, eigenvalue=1.02 + 0.1j, dimension=2, interval=(1.01, 1.04), trusted=True)
    text = wording.sentences_of(facts(memories=(replace(MEMORY, trusted=True), grown)))[1]
    assert "Two trusted coordinates grow with every step (|λ| = 1.025" in text
    assert "hold what was read" not in text
    text = wording.sentences_of(facts(memories=(replace(grown, interval=(0.99, 1.04)),)))[1]  # it may be 1
    assert "Two memories can be trusted, coordinates that hold what was read" in text


# Untrained copies


def own_mode(eigenvalue, **changed):
    mode = ModeTrust(
        eigenvalue=complex(eigenvalue),
        interval=(0.9, 1.0),
        angle=(0.0, 0.0),
        residual=0.1,
        copying=0.2,
        null=0.5,
        constant=False,
        subspace=(0,),
        turn=1.0,
        untrained=None,
        trusted=True,
        why="it holds",
        learned=None,
    )
    return replace(mode, **changed)


@pytest.mark.parametrize(
    ("eigenvalue", "theirs", "is_learned"),
    [
        (0.96, (0.98, 0.93), False),  # one of theirs is slower
        (0.99, (0.97,), True),  # three times as slow as any of theirs
        (0.9999, (0.995,), False),  # sequences are too short to tell
        (1.1, (0.9,), True),
        (1.1, (1.02, 0.9), False),  # one of theirs grows too
        (0.96, (0.9,), True),
        (0.96, (0.97,), False),  # nearly the same
        (-0.96, (0.97,), True),  # theirs does not flip
        (0.5, (), False),  # half of it is left after one step: no memory
        (0.6 + 0.3j, (0.5 - 0.5j,), False),  # copies fill a disc
        (0.9 + 0.3j, (0.5 - 0.5j,), True),
    ],
)
def test_a_mode_is_learned_if_those_of_untrained_copies_decay_clearly_faster(eigenvalue, theirs, is_learned):
    judged = untrained_copies.judged(own_mode(eigenvalue), [own_mode(each) for each in theirs], longest=100.0)
    assert judged.learned is is_learned
    assert ("own, not learned" in judged.why) != is_learned
    assert untrained_copies.judged(own_mode(eigenvalue, trusted=False), [], longest=100.0).learned is None


@pytest.mark.parametrize("seed", range(3))
def test_an_untrained_rnn_has_learned_nothing(seed):
    import torch

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.RNN(3, 32, batch_first=True), nn.Linear(32, 2)

        def forward(self, x):
            """The last state decides."""
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(seed)
    found = kann.explain(Reader(), torch.randn(300, 15, 3), progress=False)
    assert found.verdict == "nothing"


# Gates


def test_memory_of_a_network_that_inputs_gate():
    gates = Gates(error=0.01, driven_error=0.1, at_zero=0.9 + 0j, at_mean=0.7 + 0j)
    text = " ".join(wording.sentences_of(facts(gates=gates)))
    assert "while it reads zeros the slowest mode (λ = 0.9000) is halved in 6.6 steps" in text
    assert "at the mean input the slowest mode (λ = 0.7000)" in text
    never = replace(gates, at_zero=None)  # it never reads zeros
    assert "zeros" not in " ".join(wording.sentences_of(facts(gates=never)))


def test_what_each_input_does_is_said():
    inputs = (
        InputFact(name="0", eigenvalue=1 + 0j, does=what_it_does(1 + 0j)),
        InputFact(name="1", eigenvalue=-1.058 + 0j, does=what_it_does(-1.058 + 0j)),
    )
    cases = InputCases(inputs=inputs, missed=0.01)
    text = " ".join(wording.sentences_of(facts(inputs=cases)))
    assert "0 keeps it (λ = 1.0000), 1 flips it (λ = −1.0580)" in text

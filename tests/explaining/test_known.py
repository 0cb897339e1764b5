"""Networks whose answer is known are explained with one call: the sentences name it, or conclude nothing.

The others of this kind are in test_networks.py (flip-flop, tagger, parity) and test_nothing.py (untrained networks).
"""

import re

import numpy as np
import pytest
import torch

import kann
from tests import flipflop
from tests.explaining import known, networks

SEQUENCES = 200


def explained(network, name, data, **options):
    found = kann.explain(networks.trained(network, name), data, progress=False, **options)
    assert 2 <= len(found.sentences) <= 4  # at most three and the verdict
    assert found.memory is not None
    assert found.facts.remembered is not None
    return found, " ".join(found.sentences)


def test_a_counter_turns_its_state_by_a_third_of_a_circle(generator):
    x, counts = known.pulses(SEQUENCES, 25, generator)
    found, text = explained(known.Counter(), "counter", x, labels=counts)
    rest, pulse = found.facts.inputs.inputs
    assert (rest.does, pulse.does) == ("keeps", "turns")
    assert 105 < abs(np.degrees(np.angle(pulse.eigenvalue))) < 135
    turned = re.search(r"0 keeps it \(λ = .*\), 1 turns it by (\d+)°", text)
    assert 105 < float(turned[1]) < 135
    assert found.verdict != "nothing"


def test_the_cue_selects_what_is_integrated(generator):
    x, signs = known.evidence(300, 25, generator)
    found, text = explained(known.ContextIntegrator(), "context", x, labels=signs, channels=known.CHANNELS)
    colour, motion = found.facts.inputs.inputs
    assert (colour.name, motion.name) == ("“colour cue”", "“motion cue”")
    for case, cued, other in ((colour, "colour", "motion"), (motion, "motion", "colour")):
        assert case.moves[cued] > 0.2
        assert abs(case.moves[other]) < 0.3 * case.moves[cued]
        assert f"ith {case.name} it keeps its state" in text
    assert found.verdict != "nothing"


def test_a_flag_opens_a_gate(generator):
    x, values = known.flagged(SEQUENCES, 30, generator)
    found, text = explained(known.Latch(), "latch", x, labels=values, channels=["value", "flag"])
    shut, opened = found.facts.inputs.inputs
    assert (shut.does, opened.does) == ("keeps", "clears")
    assert abs(shut.moves["value"]) < 0.05 < 0.8 < opened.moves["value"]
    assert "With “flag” = 0 it keeps its state" in text
    assert "with “flag” = 1 it clears its state" in text
    assert found.facts.live.fewest.count == 1


def test_a_forecaster_turns_once_in_twelve_steps(generator):
    x, ahead = known.oscillations(SEQUENCES, generator)
    found, text = explained(known.Forecaster(), "forecaster", x, labels=ahead)
    assert found.facts.network.layer == "decoder"
    assert float(re.search(r"it turns once in ([\d.]+) steps", text)[1]) == pytest.approx(12, abs=0.3)
    assert abs(np.abs(found.koopman.eigenvalues)).max() == pytest.approx(known.Forecaster.MODULUS, abs=0.01)
    assert found.verdict == "found"


def test_the_block_that_a_map_can_replace_is_named():
    x, sums = known.additions()
    found, text = explained(known.Adder(), "adder", x, labels=sums)
    by_name = {block.name: block for block in found.facts.blocks}
    assert list(by_name) == [f"blocks.{i}" for i in range(4)]
    best = max(found.facts.blocks, key=lambda block: block.mapped)
    worst = min(found.facts.blocks, key=lambda block: block.mapped)
    assert (best.name, best.mapped > 0.9, worst.mapped < 0.5) == ("blocks.3", True, True)
    assert "A linear map can replace “blocks.3”" in text
    assert f"in place of “{worst.name}”" in text


def test_cells_that_are_called_in_a_loop_are_found(generator):
    x, signs = known.place_pulses(SEQUENCES, 25, generator)
    found, _ = explained(known.PlaceMemory(), "places", x, labels=signs)
    assert found.facts.network.layer == "cell"
    assert found.facts.network.is_fed_back
    assert found.facts.live.fewest.count <= 4
    flat, text = explained(known.FlatPlaceMemory(), "flat_places", x, labels=signs)
    assert flat.facts.network.layer == "cell"
    assert flat.balance.count == 4  # four places
    assert "kept after every step," in text  # and the loop goes on from there


def test_a_network_of_many_dimensions_is_not_explained_by_a_few(generator):
    x, following = known.characters(SEQUENCES, 40, generator)
    found, _ = explained(known.CharacterModel(), "characters", x, labels=following)
    assert found.verdict != "found"


@pytest.mark.parametrize("name", ["majority", "periods"])
def test_nothing_is_concluded_where_no_mode_and_no_few_coordinates_hold(name, generator):
    network, (x, labels) = {
        "majority": (known.Majority(), known.letters(SEQUENCES, generator)),
        "periods": (known.PeriodDetector(), known.periodic(SEQUENCES, 64, generator)),
    }[name]
    found, text = explained(network, name, x, labels=labels)
    assert found.verdict == "nothing"
    assert text.startswith("Nothing can be concluded")


def test_every_network_remembers_something_and_the_facts_say_how_long(trained_flip_flop):
    x, _ = flipflop.trials(3, 50, 40, generator=torch.Generator().manual_seed(5), rate=0.08)
    found = kann.explain(trained_flip_flop, x, progress=False)
    remembered = found.facts.remembered
    assert remembered.half_life > 5 > remembered.untrained
    assert remembered.late_left > 10 * remembered.late_untrained

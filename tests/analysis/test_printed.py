"""Results as ``print`` shows them."""

from dataclasses import replace

import numpy as np
import pytest

import kann
from kann._format import signed
from tests.reporting.html_pages import made_effects


@pytest.fixture
def states(rng):
    """Two memories: force drives the slow one up, and gate the fast one down."""
    inputs = rng.normal(size=(30, 40, 2))
    held = np.zeros((30, 40, 2))
    for t in range(1, 40):
        held[:, t] = held[:, t - 1] * [0.95, 0.5] + inputs[:, t] * [1.0, -1.0]
    return kann.States.from_padded(held, inputs=inputs)


def test_movers_are_a_table_of_inputs_and_modes(states):
    found = kann.movers(kann.fit(states, driven=True), states, names=["force", "gate"], modes=[0, 1])
    head, modes, force, gate, note = str(found).splitlines()
    assert head == "Movers(2 inputs, 2 modes): pushes in standard deviations of the mode [95 % interval]"
    assert modes.split() == ["mode", "0", "mode", "1"]
    assert force.startswith("force ")
    cells = [[each.strip() for each in line.split("[")] for line in (force, gate)]
    slow, fast = found.of("force", 0), found.of("gate", 1)
    assert cells[0][1] == f"{signed(slow.low)}, {signed(slow.high)}]*" + cells[0][1].split("*")[1]
    assert f"{signed(fast.push)} [{signed(fast.low)}, {signed(fast.high)}]*" in gate
    assert force.count("*") == gate.count("*") == 1  # force does nothing to the fast memory
    assert note.startswith("  * the interval excludes zero")


def test_of_many_names_and_modes_the_surest_are_printed(states, rng):
    wide = kann.States(
        values=rng.normal(size=(1200, 12)),
        lengths=np.full(30, 40),
        inputs=np.hstack([states.inputs, rng.normal(size=(1200, 18))]),
    )
    text = str(kann.movers(kann.fit(wide), wide))
    assert text.count("input ") == 12
    assert "not shown: 8 more inputs and " in text


def test_columns_of_effects_never_run_together(states):
    koopman = kann.fit(states)
    effects = made_effects(koopman, (0, 1), (70, 98, 98))
    far = replace(effects, removed_scores={name: 1e6 - 1e7 * each for name, each in effects.removed_scores.items()})
    lines = str(far).split("\n\n")[1].splitlines()
    assert lines[0].split()[-3:] == ["1", "2", "4"]
    for line in lines[1:-1]:
        assert len([float(each.replace("−", "-")) for each in line.split()[-3:]]) == 3
    assert len({len(line) for line in lines[:-1]}) == 1


def many_movers(push, sure):
    names = tuple(f"word {number}" for number in range(len(push)))
    table, counts = np.array(push, dtype=float)[:, None], np.ones(len(push), dtype=int)
    return kann.Movers(
        by="tokens",
        names=names,
        modes=(0,),
        push=table,
        low=table - 1,
        high=table + 1,
        sure=np.array(sure, dtype=float)[:, None],
        count=counts,
        sequences=counts,
        level=0.95,
        outputs=None,
        phrases=((),),
    )


def names_printed(found):
    return [int(line.split()[1]) for line in str(found).splitlines() if line.startswith("word ")]


def test_of_many_names_of_which_none_is_sure_the_strongest_are_printed():
    assert names_printed(many_movers(np.arange(20), [-1] * 20)) == list(range(19, 7, -1))
    one_is_sure = np.where(np.arange(20) == 3, 1, -1)
    assert names_printed(many_movers(np.arange(20), one_is_sure)) == [3, *range(19, 8, -1)]


def test_a_name_with_a_line_break_stays_in_its_line():
    found = replace(many_movers([1, 2], [1, 1]), names=("a\nb\tc\u2028", "größer"))
    lines = str(found).split("\n")
    assert len(lines) == 5
    assert lines[2].startswith("a\\nb\\tc\\u2028  ")
    assert lines[3].startswith("größer ")


def test_a_layer_of_which_nothing_is_left_to_tell_has_no_linear_part(rng):
    first = rng.normal(size=(60, 3))
    states = np.stack([first, first + 1, 2 * first], axis=1)
    found = kann.depth.trust(kann.depth.fit(states), states)
    assert [line.split()[-2:] for line in str(found).splitlines()[1:]] == [["0.000", "–"], ["100.0", "%"]]
    assert "nan" not in found._repr_html_()

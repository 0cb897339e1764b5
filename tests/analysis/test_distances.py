"""Distances between networks: what theorems say of them, and what is refused."""

import dataclasses
import functools
import inspect
import math
import pydoc

import numpy as np
import pytest

import kann
from kann.analysis.comparison import Compared, DistanceConfig
from kann.analysis.distances import carried_by_modes, transport
from kann.errors import KannError

SEQUENCES, STEPS, INPUTS = 24, 40, 2


def driven_states(matrix, drive, *, seed=0, turn=None, noise=0.0):
    """States of a driven linear system that reads random numbers, maybe in other coordinates."""
    rng = np.random.default_rng(seed)
    read = rng.normal(size=(SEQUENCES, STEPS, len(drive)))
    z, path = np.zeros((SEQUENCES, len(matrix))), []
    for t in range(STEPS):
        z = z @ matrix + read[:, t] @ drive + noise * rng.normal(size=z.shape)
        path.append(z)
    values = np.stack(path, axis=1)
    if turn is not None:
        values = values @ turn
    return kann.States.from_sequences(list(values), inputs=list(read))


def system(units=4, *, seed=0, radius=0.9):
    """A stable random system."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(units, units))
    return matrix * radius / np.abs(np.linalg.eigvals(matrix)).max(), rng.normal(size=(INPUTS, units))


def rotation(units, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(units, units)))[0]


def full(states, **options):
    return kann.fit(states, driven=True, **options)


ROTATED = pytest.mark.parametrize("turn", [rotation(4), np.eye(4)[[2, 0, 3, 1]]], ids=["rotated", "permuted"])


@ROTATED
@pytest.mark.parametrize("kind", ["response", "spectrum"])
def test_the_same_system_in_other_coordinates_is_at_distance_zero(kind, turn):
    matrix, drive = system()
    a, b = driven_states(matrix, drive), driven_states(matrix, drive, turn=turn)
    assert kann.distance(full(a), full(b), kind=kind) < 1e-6
    other = driven_states(*system(seed=1))
    assert kann.distance(full(a), full(other), kind=kind) > 0.05


def test_outputs_are_compared_whatever_the_coordinates_are():
    matrix, drive = system()
    skew = rotation(4) @ np.diag([1.0, 3.0, 0.5, 2.0])
    readout = np.random.default_rng(3).normal(size=(3, 4))
    a, b = full(driven_states(matrix, drive)), full(driven_states(matrix, drive, turn=skew))
    moved = readout @ np.linalg.inv(skew).T
    assert kann.distance(a, b, readouts=(readout, moved)) < 1e-6
    assert kann.distance(a, b) > 0.05  # the states themselves are no rotation of each other


def test_with_equal_weights_responses_do_not_depend_on_coordinates():
    matrix, drive = system()
    skew = rotation(4) @ np.diag([1.0, 3.0, 0.5, 2.0]) @ rotation(4, seed=1)
    a, b = full(driven_states(matrix, drive)), full(driven_states(matrix, drive, turn=skew))
    assert kann.distance(a, b, weights="equal") < 1e-6
    assert kann.distance(a, b) > 0.05
    assert kann.distance(a, full(driven_states(*system(seed=1))), weights="equal") > 0.05


def test_with_equal_weights_all_directions_must_be_fitted():
    """The default rank drops directions along which states vary little; coordinates decide which these are."""
    matrix, drive = system()
    skew = rotation(4) @ np.diag([1.0, 30.0, 0.05, 2.0]) @ rotation(4, seed=1)
    a, b = driven_states(matrix, drive), driven_states(matrix, drive, turn=skew)
    assert kann.distance(a, b, weights="equal", rank=None) < 1e-6
    assert kann.distance(a, b, weights="equal") > 0.5
    assert "rank=None" in kann.distance.__doc__


@pytest.mark.parametrize("kind", ["response", "spectrum", "subspace"])
def test_an_operator_and_its_copy_are_zero_apart(kind):
    states = driven_states(*system())
    copy = kann.States(values=states.values.copy(), lengths=states.lengths, inputs=states.inputs.copy())
    assert kann.distance(full(states), full(copy), kind=kind, modes=2) == 0


@pytest.mark.parametrize("kind", ["response", "spectrum", "subspace"])
def test_distances_are_symmetric(kind):
    a, b = (full(driven_states(*system(seed=seed))) for seed in (0, 1))
    there, back = (kann.distance(*pair, kind=kind, modes=2) for pair in ((a, b), (b, a)))
    assert there == pytest.approx(float(back), abs=1e-9)
    assert there > 0.05


@pytest.mark.parametrize(("with_readouts", "weights"), [(False, "carried"), (False, "equal"), (True, "carried")])
def test_responses_obey_the_triangle_inequality(with_readouts, weights):
    operators = [full(driven_states(*system(seed=seed, radius=0.5 + 0.06 * seed))) for seed in range(8)]
    readouts = [None] * 8
    if with_readouts:
        readouts = [np.random.default_rng(seed).normal(size=(2, 4)) for seed in range(8)]
    names = [str(i) for i in range(8)]
    heads = dict(zip(names, readouts, strict=True)) if with_readouts else None
    matrix = kann.compare(dict(zip(names, operators, strict=True)), readouts=heads, weights=weights).matrix
    slack = matrix[:, :, None] + matrix[None] - matrix[:, None, :]
    assert slack.min() > -1e-9
    assert np.ptp(matrix[np.triu_indices(8, 1)]) > 0.01


def diagonal(*moduli, drive=None):
    return full(driven_states(np.diag(moduli), np.array(drive or [[1.0] * len(moduli)])))


def test_the_response_of_one_unit_has_a_closed_form():
    """Σ (aᵏ/|a| − bᵏ/|b|)² with |a|² = 1/(1 − a²), cut off after enough steps."""
    a, b = 0.8, 0.3
    cosine = math.sqrt((1 - a**2) * (1 - b**2)) / (1 - a * b)
    expected = math.sqrt(2 - 2 * cosine)
    found = kann.distance(diagonal(a), diagonal(b), steps=400)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 64])
def test_responses_are_summed_over_exactly_so_many_steps(steps):
    a, b = full(driven_states(*system(seed=0))), full(driven_states(*system(seed=1)))
    readouts = [np.random.default_rng(seed).normal(size=(2, 4)) for seed in (5, 6)]
    responses = [
        np.array([k.drive @ np.linalg.matrix_power(k.matrix, n) @ k.basis.T @ readout.T for n in range(steps)])
        for k, readout in zip((a, b), readouts, strict=True)
    ]
    unit = [each / np.linalg.norm(each) for each in responses]
    found = kann.distance(a, b, steps=steps, readouts=tuple(readouts))
    assert found == pytest.approx(float(np.linalg.norm(unit[0] - unit[1])), abs=1e-9)


def test_a_mode_that_grows_counts_as_one_that_stays():
    grows, stays = (full(driven_states(np.diag([modulus, 0.5]), np.ones((1, 2)))) for modulus in (1.02, 1.0))
    assert kann.distance(grows, stays, steps=1000) < 1e-3
    assert np.isfinite(kann.distance(grows, diagonal(0.9, 0.5), steps=10**6))


def test_spectra_of_one_eigenvalue_are_as_far_apart_as_they_are():
    assert kann.distance(diagonal(0.9), diagonal(0.5), kind="spectrum") == pytest.approx(0.4, abs=1e-9)


def test_transport_takes_the_cheapest_way():
    a, b = np.array([0.0, 1.0 + 0j]), np.array([1.0, 2.0 + 0j])
    half = np.array([0.5, 0.5])
    assert transport(a, half, b, half) == pytest.approx(1.0)  # each by one; 0 → 2 would cost √2
    assert transport(a, half, a, np.array([0.2, 0.8])) == pytest.approx(math.sqrt(0.3))


def test_eigenvalues_that_count_the_same_are_assigned_to_each_other():
    a, b = diagonal(0.9, 0.5), diagonal(0.8, 0.1, drive=[[1.0, 1.0]])
    expected = math.sqrt((0.1**2 + 0.4**2) / 2)
    assert kann.distance(a, b, kind="spectrum", weights="equal") == pytest.approx(expected, abs=1e-9)
    wide = kann.distance(diagonal(0.9), diagonal(0.9, 0.5), kind="spectrum", weights="equal")
    assert wide == pytest.approx(math.sqrt(0.4**2 / 2), abs=1e-9)


def test_spans_are_turned_by_their_angles():
    angle = 0.3
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    states = [driven_states(np.diag([0.9, 0.2]), np.array([[1.0, 0.3]]), turn=each) for each in (np.eye(2), turn)]
    found = kann.distance(*map(full, states), kind="subspace", modes=1)
    assert found == pytest.approx(math.sin(angle), abs=1e-6)


def test_a_span_has_no_more_dimensions_than_were_asked_for():
    pair = 0.8 * np.array([[math.cos(0.5), math.sin(0.5)], [-math.sin(0.5), math.cos(0.5)]])
    matrix = np.zeros((4, 4))
    matrix[0, 0], matrix[1:3, 1:3], matrix[3, 3] = 0.95, pair, 0.2
    koopman = full(driven_states(matrix, np.ones((1, 4))))
    sizes = [len(koopman.modes[number].indices) for number in np.argsort(-carried_by_modes(koopman))]
    assert sizes == [1, 2, 1]  # two dimensions are the first mode and the last one: half a pair is no mode
    for most in (1, 2, 3, 4):
        config = DistanceConfig(kind="subspace", steps=64, modes=most, rank=None, weights="carried", level=0.95)
        assert Compared.of(koopman, config).whole.shape == (4, most)


@pytest.mark.parametrize(("kind", "noise"), [("response", 0.3), ("spectrum", 0.3), ("subspace", 0.02)])
def test_intervals_and_floors_tell_networks_apart_from_themselves(kind, noise):
    a = driven_states(*system(seed=0), noise=noise)
    same = driven_states(*system(seed=0), noise=noise, seed=1)
    other = driven_states(*system(seed=4), noise=noise)
    near, far = (kann.distance(a, each, kind=kind, rank=4, modes=2) for each in (same, other))
    assert near.interval[0] <= near <= near.interval[1]
    assert far.floor > 0
    assert near < 2 * near.floor
    assert far > 2 * far.floor
    assert far.interval[0] > near
    assert repr(far).startswith(f"Distance({float(far):.4g}, ")


def test_moments_of_groups_give_what_their_sequences_give():
    states = [driven_states(*system(seed=seed), noise=0.1) for seed in (0, 1)]
    groups = [[kann.Moments.of(each[i : i + 4]) for i in range(0, SEQUENCES, 4)] for each in states]
    found = kann.distance(*groups, rank=4)
    assert found == pytest.approx(float(kann.distance(*states, rank=4)), abs=1e-8)
    alone = kann.distance(*map(kann.Moments.of, states), rank=4)
    assert alone == pytest.approx(float(found), abs=1e-8)
    assert math.isnan(alone.floor)
    assert repr(alone).endswith("; response)")


# All pairs


@pytest.fixture(scope="module")
def family():
    """Two kinds of network, two of each."""
    found = {}
    for seed in range(2):
        found[f"slow {seed}"] = driven_states(np.diag([0.95, 0.9]), np.ones((1, 2)), seed=seed, noise=0.1)
        found[f"fast {seed}"] = driven_states(np.diag([0.3, 0.2]), np.ones((1, 2)), seed=seed, noise=0.1)
    return found


@pytest.fixture(scope="module")
def compared(family):
    """All distances of the family, once for each kind."""
    return functools.cache(lambda kind: kann.compare(family, kind=kind, rank=2))


@pytest.mark.parametrize("kind", ["response", "spectrum"])
def test_a_comparison_finds_the_families(compared, kind, tmp_path):
    found = compared(kind)
    tasks = [name.split()[0] for name in found.names]
    assert [name.split()[0] for name in found.nearest().values()] == tasks
    assert found.clusters(2).tolist() == [0, 1, 0, 1]
    ordered = [tasks[i] for i in found.order]
    assert ordered in (["slow"] * 2 + ["fast"] * 2, ["fast"] * 2 + ["slow"] * 2)
    points = found.embedding()
    assert np.sign(points[:, 0]).tolist() in ([1, -1] * 2, [-1, 1] * 2)
    assert found.low[0, 1] < found.matrix[0, 1] < found.high[0, 1] < 2 * found.matrix[0, 1]
    assert (found.floor < found.matrix[0, 1]).all()
    assert found.nearest() == {"slow 0": "slow 1", "slow 1": "slow 0", "fast 0": "fast 1", "fast 1": "fast 0"}
    lines = found.csv(tmp_path / "pairs.csv").splitlines()
    assert lines == (tmp_path / "pairs.csv").read_text().splitlines()
    assert len(lines) == 1 + 6
    assert lines[1].startswith("slow 0,fast 0,")
    assert "slow 0" in found._repr_html_()
    assert repr(found).startswith("Comparison(4 networks by ")


def test_without_intervals_the_distances_are_the_same(family, compared):
    quick, whole = kann.compare(family, rank=2, intervals=False), compared("response")
    np.testing.assert_array_equal(quick.matrix, whole.matrix)
    assert np.isnan(quick.high).all()
    np.testing.assert_array_equal(quick.floor, whole.floor)


def test_an_embedding_of_a_line_is_the_line():
    found = kann.compare({str(m): diagonal(m) for m in (0.9, 0.5, 0.3)}, kind="spectrum")
    points = found.embedding(1)[:, 0]
    np.testing.assert_allclose(np.abs(points[:, None] - points), found.matrix, atol=1e-9)


# Options


@pytest.mark.parametrize("function", [kann.distance, kann.compare])
def test_help_shows_every_option(function):
    shown = inspect.signature(function).parameters
    defaults = {"kind": "response", "steps": 64, "modes": 8, "rank": 0.99, "weights": "carried", "level": 0.95}
    assert {name: shown[name].default for name in defaults} == defaults
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in shown.values())
    assert "steps: int = 64" in pydoc.render_doc(function)


# What is refused


def autonomous(units=3):
    return kann.fit(np.random.default_rng(0).normal(size=(5, 30, units)))


REFUSED = {
    "autonomous": (lambda: kann.distance(autonomous(), autonomous()), "responses are of operators that read inputs"),
    "other inputs": (
        lambda: kann.distance(diagonal(0.9), full(driven_states(*system()))),
        "one operator reads 1 inputs and the other 2",
    ),
    "other units": (
        lambda: kann.distance(autonomous(3), autonomous(4), kind="subspace"),
        "one network has 3 units and the other 4",
    ),
    "other outputs": (
        lambda: kann.distance(diagonal(0.9), diagonal(0.8), readouts=(np.ones((1, 1)), np.ones((2, 1)))),
        "one readout has 1 outputs and the other 2",
    ),
    "one readout": (lambda: kann.distance(diagonal(0.9), diagonal(0.8), readouts=3), "readouts are those of both"),
    "readout width": (
        lambda: kann.distance(diagonal(0.9), diagonal(0.8), readouts=(np.ones((1, 2)), np.ones((1, 1)))),
        r"the readout of the first network has a weight of shape \(1, 2\)",
    ),
    "kind": (lambda: kann.distance(diagonal(0.9), diagonal(0.8), kind="cka"), "kind='cka'"),
    "weights": (
        lambda: kann.distance(diagonal(0.9), diagonal(0.8), kind="spectrum", weights="some"),
        "weights='some' is unknown",
    ),
    "flat direction": (
        lambda: kann.distance(
            *[dataclasses.replace(diagonal(0.9, 0.5), explained=np.array([1.0, 0.0]))] * 2, weights="equal"
        ),
        'a direction along which its states do not vary; pass weights="carried"',
    ),
    "level": (lambda: kann.distance(diagonal(0.9), diagonal(0.8), level=2.0), "level=2.0 is no confidence level"),
    "noise": (
        lambda: kann.distance(*(np.random.default_rng(i).normal(size=(20, 30, 3)) for i in (0, 1)), kind="subspace"),
        "no mode of the first network can be trusted",
    ),
    "no pairs": (lambda: kann.distance(np.ones((3, 1, 2)), np.ones((3, 1, 2))), "has no pair of states"),
    "silent": (
        lambda: kann.distance(diagonal(0.9, drive=[[1e-300]]), diagonal(0.8)),
        "carry nothing|does not respond|constant|no direction",
    ),
    "one network": (lambda: kann.compare({"a": autonomous()}), "networks holds 1 of them; pass two or more"),
    "names": (lambda: kann.compare([autonomous()]), "has no entries by name"),
    "readout names": (
        lambda: kann.compare({"a": diagonal(0.9), "b": diagonal(0.8)}, readouts={"a": np.ones((1, 1))}),
        "readouts and networks have different names: b",
    ),
    "dimensions": (
        lambda: kann.compare({"a": autonomous(), "b": autonomous()}, kind="spectrum").embedding(3),
        "dimensions=3 exceeds the 2 networks",
    ),
    "clusters": (
        lambda: kann.compare({"a": autonomous(), "b": autonomous()}, kind="spectrum").clusters(3),
        "count=3 exceeds the 2 networks",
    ),
}


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="step"):
        kann.distance(diagonal(0.9), diagonal(0.8), step=3)


@pytest.mark.filterwarnings("ignore::kann.errors.KannWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case):
    call, text = REFUSED[case]
    with pytest.raises(KannError, match=text):
        call()

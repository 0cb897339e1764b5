import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kann
from kann.backends import arrays
from kann.errors import KannError
from tests.systems import noisy_states

NAMES = ("sum_h", "sum_x", "sum_y", "hh", "xx", "xy", "yy", "sum_u", "uu", "xu", "uy")


def plain(states):
    """The moments by their definition, in float64."""
    h = np.asarray(states.values, dtype=np.float64)
    x, y = (part.astype(np.float64) for part in states.pairs())
    sums = {"sum_h": h.sum(0), "sum_x": x.sum(0), "sum_y": y.sum(0)}
    grams = {"hh": h.T @ h, "xx": x.T @ x, "xy": x.T @ y, "yy": y.T @ y}
    if states.inputs is None:
        return sums | grams
    u = np.delete(np.asarray(states.inputs, dtype=np.float64), states.starts, axis=0)
    return sums | grams | {"sum_u": u.sum(0), "uu": u.T @ u, "xu": x.T @ u, "uy": u.T @ y}


def assert_same(moments, expected):
    for name in NAMES:
        ours, theirs = getattr(moments, name), expected.get(name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            # Sums of a few hundred numbers of order one, in another order.
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-12, atol=1e-11, err_msg=name)


@st.composite
def ragged_states(draw):
    lengths = np.array(draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    inputs = rng.normal(size=(lengths.sum(), 2)) if draw(st.booleans()) else None
    return kann.States(values=rng.normal(size=(lengths.sum(), 3)), lengths=lengths, inputs=inputs)


@given(states=ragged_states(), rows=st.integers(1, 12))
def test_moments_are_what_they_are_defined_to_be_whatever_the_block_size(states, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "HOST_MIN_ROWS", 1)
        patch.setattr(arrays, "HOST_BLOCK_BYTES", rows * 8 * (3 + (0 if states.inputs is None else 2)))
        moments = kann.Moments.of(states)
    assert_same(moments, plain(states))
    assert (moments.sequences, moments.states, moments.pairs) == (
        len(states),
        len(states.values),
        len(states.values) - len(states),
    )


@given(states=ragged_states(), parts=st.integers(1, 4), seed=st.integers(0, 9))
def test_moments_add_up_in_any_order_over_any_split(states, parts, seed):
    order = np.random.default_rng(seed).permutation(len(states))
    pieces = [
        kann.Moments.of(
            kann.States.from_sequences(
                [states[i] for i in piece],
                inputs=None if states.inputs is None else [states.inputs[states.span(i)] for i in piece],
            )
        )
        for piece in np.array_split(order, parts)
        if len(piece)
    ]
    assert_same(sum(pieces), plain(states))


def test_update_takes_padded_batches_rows_and_single_sequences(rng):
    padded, lengths = rng.normal(size=(4, 6, 3)), np.array([6, 1, 3, 2])
    states = kann.States.from_padded(padded, lengths)
    batched = kann.Moments().update(padded[:2], lengths[:2]).update(padded[2:], lengths[2:])
    rows = kann.Moments().update(states.values, lengths)
    singles = kann.Moments()
    for sequence in states:
        assert singles.update(sequence) is singles
    for moments in (batched, rows, singles):
        assert_same(moments, plain(states))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_tensors_give_the_moments_of_their_float64_values(dtype):
    values, inputs = torch.randn(5, 7, 3).to(dtype), torch.randn(5, 7, 2).to(dtype)
    lengths = torch.tensor([7, 2, 1, 5, 4])
    moments = kann.Moments().update(values, lengths, inputs=inputs)
    assert moments.hh.dtype == torch.float64
    assert moments.rounding == torch.finfo(dtype).eps
    exact = kann.States.from_padded(values.double().numpy(), lengths.numpy(), inputs=inputs.double().numpy())
    assert_same(moments.numpy(), plain(exact))


def test_torch_and_numpy_moments_can_be_added(rng):
    padded = rng.normal(size=(4, 6, 3))
    ours = kann.Moments().update(torch.tensor(padded[:2])) + kann.Moments().update(padded[2:])
    theirs = kann.Moments().update(padded[2:]) + kann.Moments().update(torch.tensor(padded[:2]))
    assert isinstance(ours.hh, torch.Tensor)
    assert isinstance(theirs.hh, np.ndarray)
    assert_same(ours.numpy(), plain(kann.States.from_padded(padded)))
    assert_same(theirs, plain(kann.States.from_padded(padded)))


def test_adding_does_not_change_the_summands(rng):
    one, other = (kann.Moments().update(rng.normal(size=(2, 5, 3))) for _ in range(2))
    before = one.hh.copy(), other.hh.copy()
    total = one + other
    total.update(rng.normal(size=(2, 5, 3)))
    np.testing.assert_array_equal(one.hh, before[0])
    np.testing.assert_array_equal(other.hh, before[1])
    assert repr(kann.Moments() + one) == repr(one)


def test_moments_survive_a_file(tmp_path, rng):
    states = kann.States.from_padded(rng.normal(size=(3, 4, 2)), inputs=rng.normal(size=(3, 4, 1)))
    kann.Moments.of(states).save(tmp_path / "moments.npz")
    loaded = kann.Moments.load(tmp_path / "moments.npz")
    assert_same(loaded, plain(states))
    assert repr(loaded) == "Moments(12 states of 3 sequences, 2 units, 1 inputs)"
    with pytest.raises(KannError, match=r"holds kann.Moments, not kann.Koopman"):
        kann.Koopman.load(tmp_path / "moments.npz")


def test_float32_states_are_summed_in_float64(rng):
    """A million float32 ones sum to a million and its square root, not to what float32 makes of it."""
    values = np.full((1, 2**17, 1), 1.1, dtype=np.float32)
    moments = kann.Moments().update(values)
    np.testing.assert_allclose(moments.hh[0, 0], 2**17 * float(np.float32(1.1)) ** 2, rtol=1e-13)


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_bad_number_is_found_and_costs_only_its_batch(rng, bad, word):
    good, values = rng.normal(size=(2, 5, 3)), rng.normal(size=(4, 6, 3))
    moments = kann.Moments().update(good)
    values[2, 3, 1] = bad
    with pytest.raises(KannError, match=rf"states hold {word} at sequence 2, step 3, unit 1; look for NaN"):
        moments.update(values, np.array([6, 2, 5, 6]))
    assert_same(moments, plain(kann.States.from_padded(good)))
    assert_same(
        kann.Moments().update(values, np.array([6, 2, 3, 6])),
        plain(kann.States.from_padded(values, np.array([6, 2, 3, 6]))),
    )  # behind the end of the sequence it does not matter


def test_a_bad_input_is_found(rng):
    inputs = rng.normal(size=(2, 5, 3))
    inputs[1, 4, 0] = np.nan
    with pytest.raises(KannError, match="inputs hold NaN at sequence 1, step 4, unit 0"):
        kann.Moments().update(rng.normal(size=(2, 5, 2)), inputs=inputs)


def test_finite_numbers_whose_sum_overflows_are_no_bad_numbers():
    moments = kann.Moments().update(np.full((1, 4, 1), 1e150))
    np.testing.assert_allclose(moments.hh, 4e300)
    with pytest.raises(KannError, match="exceed float64; divide the states"):
        kann.Moments().update(np.full((1, 4, 1), 1e200))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda m: m.update(np.ones((2, 3, 4))), "moments of 4 units and 0 inputs cannot be added"),
        (lambda m: m.update(np.ones((2, 3, 2)), inputs=np.ones((2, 3, 1))), "2 units and 1 inputs cannot be added"),
        (lambda m: m.update(np.ones((0, 3, 2))), "empty"),
        (lambda m: m.update(np.ones((2, 3, 2)), inputs=np.ones((2, 2, 1))), "do not line up"),
        (lambda m: m.update(np.ones((2, 3, 2)), inputs=np.ones((3, 2, 1))), "do not line up"),
        (lambda m: m.update(np.ones(3)), "axes"),
        (lambda m: m.update(np.ones((6, 2)), [3, 4]), "lengths sum to 7"),
    ],
)
def test_batches_that_do_not_fit_are_refused(update, message):
    moments = kann.Moments().update(np.ones((2, 3, 2)))
    with pytest.raises(KannError, match=message):
        update(moments)
    assert moments.states == 6


def test_the_operator_does_not_depend_on_padding_order_blocks_or_split(rng, monkeypatch):
    values, lengths = noisy_states(rng), rng.integers(2, 40, 12)
    reference = kann.fit(values, lengths=lengths).matrix
    garbage = values.copy()
    garbage[np.arange(40) >= lengths[:, None]] = np.nan
    order = rng.permutation(12)
    parts = [kann.Moments().update(values[i : i + 1], lengths[i : i + 1]) for i in order]
    monkeypatch.setattr(arrays, "HOST_MIN_ROWS", 1)
    monkeypatch.setattr(arrays, "HOST_BLOCK_BYTES", 7 * 8 * 10)
    for data in (
        kann.States.from_padded(garbage, lengths),
        kann.States.from_padded(values[order], lengths[order]),
        sum(parts),
    ):
        np.testing.assert_allclose(kann.fit(data).matrix, reference, atol=1e-10)


def test_only_moments_can_be_added_to_moments():
    with pytest.raises(TypeError):
        kann.Moments() + 3


def test_what_was_kept_apart_can_be_left_out_again(rng):
    padded, inputs, lengths = rng.normal(size=(4, 6, 3)), rng.normal(size=(4, 6, 2)), np.array([6, 1, 3, 2])
    kept = [
        kann.Moments().update(padded[[i]], lengths[[i]], inputs=torch.tensor(inputs[[i]]).numpy()) for i in range(4)
    ]
    left = sum(kept) - kept[2]
    assert_same(left, plain(kann.States.from_padded(padded[[0, 1, 3]], lengths[[0, 1, 3]], inputs=inputs[[0, 1, 3]])))
    assert (left.sequences, left.states, left.pairs) == (3, 9, 6)
    assert repr(sum(kept) - sum(kept)) == repr(kann.Moments())
    assert repr(left - kann.Moments()) == repr(left)
    on_torch = kann.Moments().update(torch.tensor(padded[[2]]), lengths[[2]], inputs=torch.tensor(inputs[[2]]))
    assert_same(sum(kept) - on_torch, {name: getattr(left, name) for name in NAMES})


def test_moments_that_are_no_part_cannot_be_subtracted(rng):
    one = kann.Moments().update(rng.normal(size=(2, 5, 3)))
    with pytest.raises(KannError, match="subtract only what was added"):
        one - (one + one)
    with pytest.raises(KannError, match="pass states of the same layer"):
        one - kann.Moments().update(rng.normal(size=(2, 5, 4)))
    with pytest.raises(KannError, match="subtract only what was added"):
        kann.Moments() - one
    with pytest.raises(TypeError):
        one - 1


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_what_would_leave_negative_squares_was_no_part(rng, scale):
    values = scale * rng.normal(size=(8, 20, 3))
    whole, tilted = kann.Moments.of(values), values[:4].copy()
    tilted[..., 1] = 1.3 * tilted[..., 0]  # no unit is too large; a direction between two of them is
    for other in (2 * values[:4], tilted, 1.1 * values, values[:, :10], 0.9 * values):
        with pytest.raises(KannError, match=r"cannot be part of .*; subtract only what was added"):
            whole - kann.Moments.of(other)
    np.testing.assert_allclose((whole - kann.Moments.of(values[:4])).hh, kann.Moments.of(values[4:]).hh, rtol=1e-9)
    assert (whole - kann.Moments.of(values)).states == 0


def test_moments_take_no_other_things(rng):
    one = kann.Moments().update(rng.normal(size=(2, 5, 3)))
    with pytest.raises(TypeError):
        one - "one"
    with pytest.raises(TypeError):
        one += 1


def test_adding_in_place_keeps_the_object_and_leaves_the_other_alone(rng):
    one, other = (kann.Moments().update(rng.normal(size=(2, 5, 3))) for _ in range(2))
    same, before, theirs = one, one.hh, other.hh.copy()
    expected, was = one + other, one.hh.copy()
    one += other
    assert one is same
    np.testing.assert_array_equal(one.hh, expected.hh)
    np.testing.assert_array_equal(before, was)
    np.testing.assert_array_equal(other.hh, theirs)


@pytest.mark.parametrize(("name", "value"), [("sum_h", 1e9), ("xy", 1e9), ("hh", 1e9)])
def test_saved_sums_that_squares_rule_out_are_refused(tmp_path, rng, name, value):
    moments = kann.Moments.of(kann.States.from_padded(rng.normal(size=(5, 9, 4))))
    array = getattr(moments, name)
    array[(0, 1)[: array.ndim]] = array[(1, 0)[: array.ndim]] = value
    moments.save(tmp_path / "moments.npz")
    with pytest.raises(kann.KannError, match="rule out"):
        kann.Moments.load(tmp_path / "moments.npz")

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kann
from kann.errors import KannError
from tests.systems import nested


@st.composite
def ragged(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    d = draw(st.integers(1, 3))
    return [draw(arrays(np.float64, (n, d), elements=st.floats(-9, 9))) for n in lengths]


@given(ragged())
def test_padding_and_unpadding_are_inverse(sequences):
    states = kann.States.from_sequences(sequences)
    again = kann.States.from_padded(states.padded(fill=np.nan), states.lengths)
    np.testing.assert_array_equal(again.values, states.values)
    assert len(states) == len(sequences)
    for i, sequence in enumerate(sequences):
        np.testing.assert_array_equal(states[i], sequence)


@given(ragged())
def test_pairs_never_cross_the_end_of_a_sequence(sequences):
    x, y = kann.States.from_sequences(sequences).pairs()
    expected = [(a, b) for s in sequences for a, b in itertools.pairwise(s)]
    assert len(x) == len(y) == len(expected)
    for (a, b), one, next_one in zip(expected, x, y, strict=True):
        np.testing.assert_array_equal(a, one)
        np.testing.assert_array_equal(b, next_one)


@given(ragged(), st.integers(1, 9))
def test_ranges_cover_every_row_once_and_cut_only_long_sequences(sequences, max_rows):
    states = kann.States.from_sequences(sequences)
    ranges = list(states.ranges(max_rows))
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(states.values)))
    assert all(stop - start <= max_rows for start, stop in ranges)
    boundaries = {0, *np.cumsum(states.lengths)}
    for start, stop in ranges:
        if stop not in boundaries:
            inside = np.searchsorted(states.starts, start, side="right") - 1
            assert states.lengths[inside] > max_rows


def test_torch_and_numpy_give_the_same_states():
    values, lengths = torch.randn(3, 5, 2), torch.tensor([5, 2, 3])
    ours, theirs = kann.States.from_padded(values, lengths), kann.States.from_padded(values.numpy(), lengths.numpy())
    np.testing.assert_array_equal(ours.values.numpy(), theirs.values)
    np.testing.assert_array_equal(ours.padded(), theirs.padded())
    sequences = kann.States.from_sequences([value[:n] for value, n in zip(values, lengths.tolist(), strict=True)])
    np.testing.assert_array_equal(sequences.values.numpy(), theirs.values)


def test_a_tensor_with_gradients_is_recorded_without_its_graph():
    assert not kann.States.from_padded(torch.randn(2, 3, 4, requires_grad=True)).values.requires_grad


def test_slicing_keeps_sequences_and_inputs():
    sequences = [np.full((n, 2), float(n)) for n in (1, 2, 3)]
    states = kann.States.from_sequences(sequences, inputs=[s[:, :1] for s in sequences])[1:]
    assert states.lengths.tolist() == [2, 3]
    np.testing.assert_array_equal(states.inputs[:, 0], [2, 2, 3, 3, 3])
    np.testing.assert_array_equal(states[-1], sequences[-1])
    assert [len(h) for h in states] == [2, 3]
    with pytest.raises(IndexError):
        states[2]


def test_repr_says_what_is_inside():
    states = kann.States.from_sequences([np.ones((2, 3)), np.ones((5, 3))], inputs=[np.ones((2, 4)), np.ones((5, 4))])
    assert repr(states) == "States(2 sequences of 2 to 5 steps, 3 units, 4 inputs, float64)"


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kann.States.from_padded(np.ones((4, 3))), r"axes \(sequence, time, unit\); got shape \(4, 3\)"),
        (lambda: kann.States.from_padded(np.ones((0, 3, 2))), "empty"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2), dtype=int)), "states are int64; pass floating-point"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2), dtype=complex)), "states are complex128; pass real"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), [3, 4]), "lengths up to 4 do not fit"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), [3]), "pass 2 lengths of at most 3"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), [3, 0]), r"lengths\[1\] is 0"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), [3.0, 1.0]), "one whole number per sequence"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), inputs=np.ones((2, 4, 2))), "do not line up"),
        (lambda: kann.States.from_padded(np.ones((4, 6, 2)), inputs=np.ones((6, 4, 2))), "do not line up"),
        (lambda: kann.States.from_padded(torch.ones(2, 3, 2), inputs=np.ones((2, 3, 2))), "one is a torch tensor"),
        (lambda: kann.States.from_sequences([]), "empty; pass at least one"),
        (lambda: kann.States.from_sequences([np.ones(3)]), r"states\[0\] has shape \(3,\)"),
        (lambda: kann.States.from_sequences([np.ones((2, 3)), np.ones((2, 4))]), r"states\[1\] has 4 columns"),
        (lambda: kann.States.from_sequences([np.ones((2, 3))], inputs=[np.ones((3, 1))]), "inputs have lengths"),
        (lambda: kann.States.from_padded(np.ma.masked_array(np.ones((2, 3, 2)), True)), "leave the masked rows out"),
        (lambda: kann.States.from_padded(np.ones((2, 3, 2)), np.ma.masked_array([3, 3], [0, 1])), "masked array"),
        (lambda: kann.States.from_sequences([np.ma.masked_array(np.ones((2, 3)), True)]), "masked array"),
        (lambda: kann.States.from_sequences([scipy.sparse.eye(3)]), "a sparse .* was passed; pass a dense array"),
        (lambda: kann.States.from_sequences([torch.eye(3).to_sparse()]), "pass a dense one, tensor.to_dense()"),
        (lambda: kann.States.from_sequences([torch.ones(2, 3, device="meta")]), "meta device"),
        (lambda: kann.States.from_sequences([np.ones((2, 3)), torch.ones(2, 3)]), r"states\[1\] is Tensor on cpu"),
        (lambda: kann.States.from_sequences(None), "states are None; pass a list of"),
        (lambda: kann.States.from_sequences([np.ones((2, 3))], inputs=scipy.sparse.eye(4)), "a sparse .* was passed"),
        (lambda: kann.States.from_sequences(nested()), r"a nested tensor was passed; pass the list of its parts"),
        (lambda: kann.States.from_padded(torch.ones(2, 3, 2), inputs=nested()), "a nested tensor was passed"),
        (lambda: kann.States(values=torch.ones(5, 2), lengths=[2, 3], inputs=nested()), "a nested tensor was passed"),
        (lambda: kann.States.from_sequences([[[1.0], [1.0, 2.0]]]), "cannot be read as an array"),
        (lambda: kann.States(values=[[1.0]], lengths=[1]), r"rows of states are \[\[1.0\]\]; pass a numpy array"),
        (lambda: kann.States(values=np.ones((4, 3)), lengths=[2**63 - 1] * 2 + [6]), "lengths sum to"),
        (lambda: kann.States(values=np.ones((4, 3)), lengths=np.array([2**64 - 1], "u8")), "no sequence is as long"),
        (lambda: kann.States(values=np.ones((2, 3, 1)), lengths=np.array([2])), r"shape \(N, d\)"),
        (lambda: kann.States(values=np.ones((2, 3)), lengths=np.array([], dtype=int)), "no sequences"),
        (lambda: kann.States(values=np.ones((2, 0)), lengths=np.array([2])), "empty"),
        (lambda: kann.States(values=np.ones((2, 3)), lengths=np.array([3])), "lengths sum to 3"),
        (lambda: kann.States(values=np.ones((2, 3)), lengths=np.array([2]), inputs=np.ones((3, 1))), "do not line up"),
    ],
)
def test_bad_states_are_refused_with_a_remedy(make, message):
    with pytest.raises(KannError, match=message):
        make()


def test_the_order_of_bytes_does_not_matter(rng):
    values = rng.normal(size=(3, 9, 2))
    koopman, swapped = kann.fit(values), values.astype(">f8")
    np.testing.assert_array_equal(kann.fit(swapped).matrix, koopman.matrix)
    np.testing.assert_array_equal(koopman.predict(swapped), koopman.predict(values))
    assert kann.relative_error(koopman, swapped) == kann.relative_error(koopman, values)


def test_numpy_files_open_as_states(tmp_path, rng):
    padded, lengths = rng.normal(size=(3, 5, 2)), np.array([5, 1, 4])
    np.save(tmp_path / "padded.npy", padded)
    np.savez(tmp_path / "ragged.npz", values=padded, lengths=lengths, inputs=padded[..., :1])
    np.savez(tmp_path / "rows.npz", values=padded.reshape(-1, 2), lengths=np.full(3, 5))
    np.save(tmp_path / "single.npy", padded[0])
    np.testing.assert_array_equal(kann.States.open(tmp_path / "padded.npy").padded(), padded)
    states = kann.States.open(tmp_path / "ragged.npz")
    assert states.lengths.tolist() == [5, 1, 4]
    np.testing.assert_array_equal(states.inputs[:], states.values[:][:, :1])
    np.testing.assert_array_equal(kann.States.open(tmp_path / "rows.npz").padded(), padded)
    assert len(kann.States.open(tmp_path / "single.npy")) == 1


def test_an_array_whose_name_is_damaged_is_not_left_out_in_silence(tmp_path, rng):
    np.savez(tmp_path / "s.npz", values=rng.normal(size=(3, 5, 2)), lengths=[5, 1, 4])
    whole = (tmp_path / "s.npz").read_bytes()
    before, _, after = whole.rpartition(b"lengths.npy")  # in the directory, at the end
    (tmp_path / "s.npz").write_bytes(before + b"lengthz.npy" + after)
    with pytest.raises(KannError, match=r"directory calls an array 'lengthz.npy', which has another name"):
        kann.States.open(tmp_path / "s.npz")


def test_names_of_any_alphabet_in_a_numpy_file_do_no_harm(tmp_path, rng):
    np.savez(tmp_path / "s.npz", values=rng.normal(size=(3, 5, 2)), größe=np.ones(3), 长=np.ones(3))
    assert len(kann.States.open(tmp_path / "s.npz")) == 3


def test_files_that_hold_no_states_are_refused(tmp_path):
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(KannError, match="cannot be read as plain arrays"):
        kann.States.open(tmp_path / "object.npy")
    with pytest.raises(KannError, match="no array 'values'; it has \\['weights'\\]"):
        kann.States.open(tmp_path / "other.npz")
    with pytest.raises(KannError, match="cannot be read as plain arrays"):
        kann.States.open(tmp_path / "broken.npz")
    with pytest.raises(FileNotFoundError, match="no states at"):
        kann.States.open(tmp_path / "absent.zarr")


def test_what_holds_no_states_is_named(rng):
    koopman = kann.fit(rng.normal(size=(3, 9, 2)))
    for nothing in (None, 3, kann.Moments()):
        with pytest.raises(KannError, match=f"{type(nothing).__name__} holds no states"):
            kann.relative_error(koopman, nothing)


def test_states_of_several_layers_are_not_states_of_one():
    layers = {name: kann.States.from_padded(np.ones((2, 3, 4))) for name in ("gru.l0", "gru.l1")}
    with pytest.raises(KannError, match=r"2 layers or directions; pass one of them: states\['gru.l0'\], states"):
        kann.fit(layers)

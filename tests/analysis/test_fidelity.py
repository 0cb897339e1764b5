from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.backends import arrays
from kann.errors import KannError
from tests.systems import AS_IN_PAPER, noisy_states, rotation, run, stable_matrix


@pytest.fixture
def states(rng):
    lengths = rng.integers(1, 40, 12)
    return kann.States.from_padded(noisy_states(rng), lengths, inputs=rng.normal(size=(12, 40, 2)))


@pytest.fixture(params=[False, True])
def koopman(request, states):
    return kann.fit(states, rank=5, driven=request.param)


def one_step(koopman, states):
    """For each sequence, the predicted states from the second on."""
    for i, h in enumerate(states):
        inputs = None if koopman.drive is None else states.inputs[states.span(i)][1:]
        yield h, koopman.predict(h[:-1], inputs=inputs) if len(h) > 1 else h[:0]


def test_the_relative_error_is_the_papers(koopman, states):
    errors = [((p - h[1:]) ** 2).sum(1) / (h[1:] ** 2).sum(1) for h, p in one_step(koopman, states)]
    np.testing.assert_allclose(kann.relative_error(koopman, states), np.concatenate(errors).mean())
    single = kann.relative_error(koopman, states, reduce="none")
    assert np.isnan(single[states.starts]).all()
    np.testing.assert_allclose(single[~np.isnan(single)], np.concatenate(errors))


def test_padded_arrays_are_taken_for_states(rng):
    values = noisy_states(rng)
    koopman, states = kann.fit(values), kann.States.from_padded(values)
    assert kann.relative_error(koopman, values) == kann.relative_error(koopman, states)
    np.testing.assert_array_equal(kann.importance(koopman, list(values)), kann.importance(koopman, states))
    np.testing.assert_array_equal(kann.hybrid(koopman, values, 3).values, kann.hybrid(koopman, states, 3).values)


def test_long_sequences_are_measured_in_pieces(koopman, states, monkeypatch):
    whole = kann.relative_error(koopman, states, reduce="none")
    monkeypatch.setattr(arrays, "HOST_MIN_ROWS", 1)
    monkeypatch.setattr(arrays, "HOST_BLOCK_BYTES", 8 * 10 * 7)  # seven states at a time
    np.testing.assert_allclose(kann.relative_error(koopman, states, reduce="none"), whole)


def test_states_that_are_zero_have_no_relative_error(rng):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    values[0, 5] = 0
    states = kann.States.from_padded(values)
    assert np.isnan(kann.relative_error(koopman, states, reduce="none")[5])
    assert np.isfinite(kann.relative_error(koopman, states))


def test_an_exact_operator_has_no_error_and_full_agreement(rng):
    states = kann.States.from_padded(run(stable_matrix(rng, 6), rng.normal(size=(20, 6)), 10))
    koopman = kann.fit(states)
    assert kann.relative_error(koopman, states) < 1e-15
    weight = rng.normal(size=(6, 3))
    assert kann.agreement(koopman, states, lambda h: h @ weight) == 1.0


def test_agreement_counts_sequences_whose_class_is_unchanged(rng, koopman, states):
    weight = rng.normal(size=(10, 4))
    pairs = [(h[-1], p[-1]) for h, p in one_step(koopman, states) if len(h) > 1]
    expected = np.mean([(a @ weight).argmax() == (b @ weight).argmax() for a, b in pairs])
    assert kann.agreement(koopman, states, lambda h: h @ weight) == pytest.approx(expected)
    expected = np.mean([(a @ weight[:, 0] > 0.5) == (b @ weight[:, 0] > 0.5) for a, b in pairs])
    assert kann.agreement(koopman, states, lambda h: h @ weight[:, 0], threshold=0.5) == pytest.approx(expected)


def test_agreement_at_every_step_counts_all_predicted_states(rng, koopman, states, monkeypatch):
    weight = rng.normal(size=(10, 4))
    true, ours = (
        np.concatenate(parts) for parts in zip(*((h[1:], p) for h, p in one_step(koopman, states)), strict=True)
    )
    true, ours = true @ weight, ours @ weight
    expected = {
        "class": np.mean(true.argmax(1) == ours.argmax(1)),
        "labels": np.mean((true > 0.5) == (ours > 0.5)),
        "values": 1 - ((ours - true) ** 2).sum() / ((true - true.mean(0)) ** 2).sum(),
    }
    for block in (None, 8 * 10 * 7):  # all at once, then seven states at a time
        if block is not None:
            monkeypatch.setattr(arrays, "HOST_MIN_ROWS", 1)
            monkeypatch.setattr(arrays, "HOST_BLOCK_BYTES", block)
        for outputs, value in expected.items():
            settings = {"at": "every", "outputs": outputs, "threshold": 0.5}
            assert kann.agreement(koopman, states, lambda h: h @ weight, **settings) == pytest.approx(value, rel=1e-10)


def test_labels_and_values_at_the_last_step(rng, koopman, states):
    weight = rng.normal(size=(10, 3))
    pairs = [(h[-1] @ weight, p[-1] @ weight) for h, p in one_step(koopman, states) if len(h) > 1]
    true, ours = map(np.array, zip(*pairs, strict=True))
    assert kann.agreement(koopman, states, lambda h: h @ weight, outputs="labels") == np.mean((true > 0) == (ours > 0))
    expected = 1 - ((ours - true) ** 2).sum() / ((true - true.mean(0)) ** 2).sum()
    found = kann.agreement(koopman, states, lambda h: h @ weight, outputs="values")
    assert found == pytest.approx(expected, rel=1e-10)


def test_r_squared_of_outputs_with_a_large_mean_keeps_its_digits(rng, koopman, states, monkeypatch):
    monkeypatch.setattr(arrays, "HOST_MIN_ROWS", 1)
    monkeypatch.setattr(arrays, "HOST_BLOCK_BYTES", 8 * 10 * 7)
    weight = rng.normal(size=10)
    settings = {"at": "every", "outputs": "values"}
    near = kann.agreement(koopman, states, lambda h: h @ weight, **settings)
    far = kann.agreement(koopman, states, lambda h: h @ weight + 1e8, **settings)
    assert far == pytest.approx(near, abs=1e-6)  # 1e8 leaves eight digits of outputs of size 1


def test_copying_by_hand():
    states = kann.States.from_sequences([np.array([[1.0, 0], [2, 0], [2, 1]]), np.array([[0.0, -1], [0, 1]])])
    np.testing.assert_allclose(
        kann.relative_error(kann.copying, states, reduce="none"), [np.nan, 1 / 4, 1 / 5, np.nan, 4]
    )
    assert kann.relative_error(kann.copying, states) == pytest.approx((1 / 4 + 1 / 5 + 4) / 3)

    def second(h):
        return h[:, 1]

    assert kann.agreement(kann.copying, states, second) == 0.0
    assert kann.agreement(kann.copying, states, second, at="every") == pytest.approx(1 / 3)
    assert kann.agreement(kann.copying, states, lambda h: h, at="every", outputs="labels") == pytest.approx(4 / 6)
    # second outputs: true 0, 1, 1 (mean 2/3, spread 2/3), copied 0, 0, -1
    found = kann.agreement(kann.copying, states, second, at="every", outputs="values")
    assert found == pytest.approx(1 - 5 / (2 / 3))
    np.testing.assert_array_equal(kann.hybrid(kann.copying, states, 1)[0], [[1, 0]] * 3)
    assert repr(kann.copying) == "kann.copying"


@pytest.mark.parametrize("at", ["last", "every"])
@pytest.mark.parametrize("outputs", ["class", "labels", "values"])
def test_copying_is_the_identity_operator(rng, states, at, outputs):
    koopman = kann.fit(states, **AS_IN_PAPER)
    identity = replace(koopman, basis=np.eye(10), matrix=np.eye(10), mean=np.zeros(10))
    weight = rng.normal(size=(10, 3))
    ours, theirs = (
        kann.agreement(each, states, lambda h: h @ weight, at=at, outputs=outputs) for each in (kann.copying, identity)
    )
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert kann.relative_error(kann.copying, states) == pytest.approx(kann.relative_error(identity, states), rel=1e-12)
    np.testing.assert_allclose(
        kann.hybrid(kann.copying, states, 2).values, kann.hybrid(identity, states, 2).values, rtol=1e-12
    )


def test_copying_needs_no_inputs_and_takes_float32(rng):
    values = noisy_states(rng).astype(np.float32)
    exact = kann.relative_error(kann.copying, values.astype(np.float64))
    assert kann.relative_error(kann.copying, values) == pytest.approx(exact, rel=1e-12)


def test_agreement_takes_a_torch_module(koopman, states):
    module = torch.nn.Linear(10, 3)
    expected = kann.agreement(koopman, states, lambda h: module(torch.tensor(h, dtype=torch.float32)).detach().numpy())
    assert kann.agreement(koopman, states, module) == expected
    assert module.weight.grad is None


def test_a_readout_is_evaluated_without_dropout_and_left_as_it_was(koopman, states):
    module = torch.nn.Sequential(torch.nn.Linear(10, 3), torch.nn.Dropout(0.5))
    module[0].eval()
    answers = {kann.agreement(koopman, states, module) for _ in range(5)}
    assert len(answers) == 1
    assert [part.training for part in module.modules()] == [True, False, True]


def test_a_hybrid_path_of_tensors_is_that_of_arrays(koopman, states):
    tensors = kann.States(
        values=torch.tensor(states.values), lengths=states.lengths, inputs=torch.tensor(states.inputs)
    )
    ours, theirs = kann.hybrid(koopman, tensors, known=3), kann.hybrid(koopman, states, known=3)
    np.testing.assert_allclose(ours.values, theirs.values)
    np.testing.assert_array_equal(ours.inputs, theirs.inputs)


def test_a_hybrid_path_is_true_then_rolled_out(koopman, states):
    mixed = kann.hybrid(koopman, states, known=3)
    assert mixed.lengths.tolist() == states.lengths.tolist()
    for i, (ours, true) in enumerate(zip(mixed, states, strict=True)):
        np.testing.assert_array_equal(ours[:3], true[:3])
        if len(true) > 3:
            inputs = None if koopman.drive is None else states.inputs[states.span(i)][3:]
            np.testing.assert_allclose(ours[3:], koopman.rollout(true[2], len(true) - 3, inputs=inputs))


def test_orthogonality_is_zero_for_a_rotation_and_one_formula_otherwise(rng):
    rigid = kann.fit(run(rotation(rng, 6), rng.normal(size=(20, 6)), 20))
    assert kann.orthogonality(rigid) < 1e-20
    koopman = kann.fit(noisy_states(rng))
    C = koopman.matrix
    expected = ((C.T @ C - np.eye(10)) ** 2).sum() / (C**2).sum()
    assert kann.orthogonality(koopman) == pytest.approx(expected)


@pytest.mark.usefixtures("untyped")
def test_wrong_questions_are_refused(rng, states):
    driven = kann.fit(states, driven=True)
    bare = kann.States(values=states.values, lengths=states.lengths)
    singles = kann.States.from_padded(rng.normal(size=(3, 1, 10)), inputs=rng.normal(size=(3, 1, 2)))
    for call, message in [
        (lambda: kann.relative_error(driven, bare), "have no inputs; record them with inputs=True"),
        (lambda: kann.agreement(driven, bare, lambda h: h), "have no inputs"),
        (lambda: kann.hybrid(driven, bare, 2), "have no inputs"),
        (lambda: kann.hybrid(driven, states, 0), "known=0 leaves no state"),
        (lambda: kann.hybrid(driven, states, 1.5), "known=1.5 is not a whole number; pass known>=1"),
        (lambda: kann.relative_error(driven, states.values[None, :, :4]), "states have 4 columns; the operator has 10"),
        (lambda: kann.relative_error(driven, states, reduce="max"), "reduce='max' is unknown"),
        (lambda: kann.relative_error(driven, singles), "no state can be compared"),
        (lambda: kann.agreement(driven, singles, lambda h: h), "every sequence has one step only"),
        (lambda: kann.agreement(driven, singles, lambda h: h, at="every"), "every sequence has one step only"),
        (lambda: kann.agreement(driven, bare, lambda h: h, at="every"), "have no inputs"),
        (lambda: kann.agreement(driven, states, lambda h: h, at="first"), "at='first' is unknown; pass 'last' or"),
        (lambda: kann.agreement(driven, states, lambda h: h, outputs="logits"), "outputs='logits' is unknown; pass"),
        (
            lambda: kann.agreement(driven, states, lambda h: h[:, 0] * 0 + 3, outputs="values"),
            "outputs of the true states are all the same, so R² is not defined",
        ),
        (lambda: kann.relative_error("copying", states), "koopman='copying' is no Koopman"),
    ]:
        with pytest.raises(KannError, match=message):
            call()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("reduce", ["mean", "none"])
@pytest.mark.parametrize("lazy", [False, True])
def test_states_that_are_not_finite_have_no_relative_error(rng, bad, reduce, lazy):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    values[3, 10:] = bad
    message = "states hold (NaN|inf) at sequence 3, step 10, unit 0; look for NaN"
    if bad == 1e200:
        message = "the squares of the states exceed float64"
    if lazy:
        values = da.from_array(values, chunks=(5, 15, 10))
    with pytest.raises(KannError, match=message):
        kann.relative_error(koopman, values, reduce)


def test_a_state_that_is_not_finite_counts_also_before_one_that_is_zero(rng):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    values[0, 0], values[0, 1] = np.nan, 0.0
    with pytest.raises(KannError, match="states hold NaN at sequence 0, step 0"):
        kann.relative_error(koopman, values)
    with pytest.raises(KannError, match="states hold NaN at sequence 0, step 0"):
        kann.importance(koopman, values)


def test_inputs_that_are_not_finite_are_found(states):
    driven = kann.fit(states, driven=True)
    states.inputs[states.starts[states.lengths > 1][0] + 1] = np.nan
    for call in (lambda: kann.relative_error(driven, states), lambda: kann.fit(states, driven=True)):
        with pytest.raises(KannError, match="inputs hold NaN at sequence"):
            call()


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("readout", "message"),
    [
        (lambda h: np.full((len(h), 2), np.nan), r"the readout's outputs hold NaN at \(0, 0\)"),
        (lambda h: np.full(len(h), np.inf), r"the readout's outputs hold inf at \(0,\)"),
        (lambda h: h[:1], r"returned shape \(1, 10\) for 12 states; return \(12,\) or \(12, outputs\)"),
        (lambda h: h.sum(), r"returned shape \(\) for 12 states"),
        (lambda h: h[:, :0], r"returned shape \(12, 0\)"),
        (lambda h: (h, h), "the readout returned a tuple; return one array"),
        (lambda h: {"logits": h}, "the readout returned a dict; return one array"),
        (lambda h: h + 1j, "the readout's outputs are complex128; pass real numbers"),
        (lambda h: np.array(["a"] * len(h)), "the readout's outputs are str32; pass real numbers"),
        (lambda h: None, "the readout's outputs are object"),
        (lambda h: np.ma.masked_array(h, h > 0), "masked array"),
        (lambda h: h @ np.ones((3, 2)), r"failed on states of shape \(12, 10\) \(ValueError: .*; pass one that takes"),
        (torch.nn.Linear(7, 2), r"failed on states of shape \(12, 10\) \(RuntimeError: "),
        (3, "readout=3 cannot be called"),
    ],
)
def test_outputs_that_are_no_outputs_are_refused(rng, readout, message):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    with pytest.raises(KannError, match=message):
        kann.agreement(koopman, values, readout)


def test_classes_may_be_whole_numbers_or_truth_values(rng):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    expected = kann.agreement(koopman, values, lambda h: h[:, 0])
    assert kann.agreement(koopman, values, lambda h: h[:, 0] > 0) == expected
    assert kann.agreement(koopman, values, lambda h: [int(row[0] > 0) for row in h]) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_last_states_that_are_not_finite_agree_with_nothing(rng, bad):
    values = noisy_states(rng)
    koopman = kann.fit(values)
    values[2, -2] = bad
    with pytest.raises(KannError, match=r"states hold (NaN|inf) at sequence 2, step 38, unit 0"):
        kann.agreement(koopman, values, lambda h: np.ones(len(h)))
    with pytest.raises(KannError, match=r"states hold (NaN|inf) at sequence 2, step 38, unit 0"):
        kann.agreement(koopman, values, lambda h: np.ones(len(h)), at="every")
    with pytest.raises(KannError, match="threshold=nan is not a finite number"):
        kann.agreement(koopman, noisy_states(rng), lambda h: h, threshold=np.nan)


def test_relative_error_by_step_is_the_ratio_of_frobenius_norms():
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(length, 4)) for length in (6, 3, 6)]
    koopman = kann.fit(sequences, rank=3, offset=False)
    errors = kann.relative_error(koopman, sequences, reduce="time")
    assert np.isnan(errors[0])
    for t in range(1, 6):
        before, after = (np.array([h[s] for h in sequences if len(h) > t]) for s in (t - 1, t))
        expected = np.linalg.norm(koopman.predict(before) - after) ** 2 / np.linalg.norm(after) ** 2
        assert errors[t] == pytest.approx(expected)

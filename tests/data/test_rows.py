import numpy as np

from kann.data.reduction import PaddedRows, Projection


def test_lazy_rows_index_like_an_array(rng):
    values, lengths = rng.normal(size=(3, 5, 2)), np.array([4, 1, 5])
    rows = PaddedRows(values, lengths)
    whole = np.concatenate([value[:n] for value, n in zip(values, lengths, strict=True)])
    for key in (
        3,
        -1,
        slice(None),
        slice(2, 7),
        slice(8, 1, -3),
        slice(4, 4),
        [1, 9, 0],
        np.array([2]),
        slice(0, 0, 2),
    ):
        np.testing.assert_array_equal(rows[key], whole[key])
    np.testing.assert_array_equal(np.asarray(rows), whole)


def test_a_projection_takes_the_mean_off_and_multiplies(rng):
    rows, matrix, mean = rng.normal(size=(7, 2)), rng.normal(size=(2, 3)), rng.normal(size=2)
    expected = [[sum((row[j] - mean[j]) * matrix[j, k] for j in range(2)) for k in range(3)] for row in rows]
    np.testing.assert_allclose(Projection(matrix=matrix, mean=mean).of(rows.copy()), expected)

import numpy as np
import pytest
import torch

from kann.backends.arrays import gram


@pytest.mark.parametrize("width", [1, 31, 128, 130, 300])
def test_gram_is_the_product_with_itself_in_strips_too(rng, width):
    rows = rng.normal(size=(50, width))
    product = gram(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(product, rows.T @ rows, atol=1e-12)
    np.testing.assert_array_equal(gram(rows), rows.T @ rows)

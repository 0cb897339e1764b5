import numpy as np
import pytest
import torch

from kann.backends.arrays import cross_gram, gram


@pytest.mark.parametrize("width", [1, 31, 128, 130, 300])
def test_gram_is_the_product_with_itself_in_strips_too(rng, width):
    rows = rng.normal(size=(50, width))
    product = gram(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(product, rows.T @ rows, atol=1e-12)
    by_hand = np.einsum("ni,nj->ij", rows, rows)
    np.testing.assert_allclose(gram(rows), by_hand, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 3), (2000, 7), (700, 40), (300, 600), (5, 1)])
def test_products_in_pieces_are_the_whole_product(rng, shape):
    n, d = shape
    left, right = rng.normal(size=(n, d)), rng.normal(size=(n, 3))
    np.testing.assert_allclose(cross_gram(left, right), np.einsum("ni,nj->ij", left, right), atol=1e-10)

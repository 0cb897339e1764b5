import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from kann.backends.arrays import gram, threads_for


@pytest.mark.parametrize("width", [1, 31, 128, 130, 300])
def test_gram_is_the_product_with_itself_in_strips_too(rng, width):
    rows = rng.normal(size=(50, width))
    product = gram(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(product, rows.T @ rows, atol=1e-12)
    by_hand = np.einsum("ni,nj->ij", rows, rows)
    np.testing.assert_allclose(gram(rows), by_hand, atol=1e-12)


def test_small_products_use_one_thread_and_large_ones_all():
    def threads():
        blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        return {*blas, torch.get_num_threads()}

    with threadpool_limits(3):
        before = threads()
        with threads_for(100):
            assert threads() == {1}
            with threads_for(100):
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before
        with threads_for(2**40):
            assert threads() == before
        with pytest.raises(ZeroDivisionError), threads_for(100):
            raise ZeroDivisionError
        assert threads() == before

import numpy as np

import kann
from kann.explaining.live_test import whole_test


def test_the_number_before_the_gap_is_tested():
    spread = np.diag([1.0] * 5 + [1e-6] * 15)
    balance = kann.Balance.of_covariances(spread, spread)
    assert balance.count == 5
    assert whole_test(balance) == (1, 2, 4, 5, 8, 16)


def test_without_a_gap_three_coordinates_are_tested():
    spread = np.diag(0.9 ** np.arange(20))
    balance = kann.Balance.of_covariances(spread, spread)
    assert balance.count is None
    assert whole_test(balance) == whole_test(None) == (1, 2, 3, 4, 8, 16)

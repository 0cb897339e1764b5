"""What a notebook draws of eigenvalues."""

import re

import numpy as np

from kann._display import LARGE_COLOUR, MIDDLE_COLOUR, SMALL_COLOUR, spectrum


def test_eigenvalues_are_coloured_by_their_residual_on_the_fitted_data():
    drawn = spectrum(np.array([1.0, 0.5j, -2.0]), np.array([0.1, 0.3, 0.5]), small=0.1, large=0.5)
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="3" fill="(#\w+)"', drawn)
    assert [colour for *_, colour in dots] == [SMALL_COLOUR, MIDDLE_COLOUR, LARGE_COLOUR]
    (right, level, _), (middle, above, _), (left, _, _) = dots
    assert float(left) < float(middle) < float(right)
    assert float(above) < float(level)  # in a drawing, y points down

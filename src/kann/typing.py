"""Array annotations that carry shapes.

Shapes are written with jaxtyping, as ``Float[Array, "n d"]``, and the tests enforce them. jaxtyping is a development
dependency: where it is not installed the same annotations mean the bare array type, so that using kann needs numpy and
scipy alone.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

Array = np.ndarray
"""A numpy array: what the core computes with."""

AnyArray = Any
"""A numpy array or a torch tensor, on any device."""

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Inexact, Int, Shaped
else:
    try:
        from jaxtyping import Complex, Float, Inexact, Int, Shaped
    except ImportError:

        class _Unchecked:
            """``Float[Array, "n d"]`` is ``Array``."""

            def __class_getitem__(cls, item):
                return item[0]

        Complex = Float = Inexact = Int = Shaped = _Unchecked

__all__ = ["AnyArray", "Array", "Complex", "Float", "Inexact", "Int", "Shaped"]

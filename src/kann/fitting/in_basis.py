"""Coordinates of states in a basis, which all fitted operators share."""

from collections.abc import Callable

from kann.backends.arrays import as_numpy, as_operand, to_device_of
from kann.checks import require_dense, require_float, require_width
from kann.typing import AnyArray, Array, Float


class InBasis:
    """An operator on coordinates z = (h − mean) B of states h, for a basis B with orthonormal columns."""

    __slots__ = ()
    basis: Float[Array, "d r"]
    mean: Float[Array, " d"]

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """The number of basis directions r."""
        return self.basis.shape[1]

    def encode(self, h: AnyArray) -> Float[AnyArray, "... r"]:
        """Coordinates z = (h − mean) B of states (..., d).

        Here and below, the result is a numpy array, or a tensor on the GPU where the states are.
        """
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the operator")
        return (h - to_device_of(h, self.mean)) @ to_device_of(h, self.basis)

    def decode(self, z: AnyArray) -> Float[AnyArray, "... d"]:
        """States z Bᵀ + mean of coordinates (..., r)."""
        z = operand(z, require_float, what="coordinates")
        require_width(z, self.rank, what="coordinates", of="the operator's basis")
        return z @ to_device_of(z, self.basis.T) + to_device_of(z, self.mean)


def operand(values: AnyArray, require: Callable[..., None], *, what: str) -> AnyArray:
    """What to compute with, checked first: on a GPU the conversion to float64 would drop imaginary parts."""
    if not hasattr(values, "dtype"):
        values = as_numpy(values)
    require_dense(values)
    require(values, what=what)
    return as_operand(values)

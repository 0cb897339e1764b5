"""Complex states as real ones: real and imaginary parts side by side, so that everything else works on them.

A state of n complex units becomes one of 2n real units, (Re h, Im h). What is linear in h is linear in it too, and an
eigenvalue λ of a complex layer is found together with its conjugate, as a pair.
"""

import torch
from torch import Tensor


def is_state(tensor: Tensor) -> bool:
    """Whether a tensor holds real or complex numbers, and not whole ones or truth values."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """(Re, Im) along the last axis for complex numbers; any other tensor as it is."""
    if tensor.is_complex():
        return torch.cat([tensor.real, tensor.imag], dim=-1)
    return tensor


def as_complex(real: Tensor, like: Tensor) -> Tensor:
    """What `as_real` was given: complex numbers if ``like`` is complex, else the tensor as it is."""
    if not like.is_complex():
        return real
    first, second = real.chunk(2, dim=-1)
    return torch.complex(first.contiguous(), second.contiguous())

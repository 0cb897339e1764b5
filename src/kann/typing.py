"""Array annotations that carry shapes.

Shapes are written with jaxtyping, as ``Float[Array, "n d"]``, and the tests enforce them. jaxtyping is a development
dependency: where it is not installed the same annotations mean the bare array type, so that using kann needs numpy and
scipy alone.
"""

from typing import TYPE_CHECKING, Annotated, Any, get_origin

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

        def _annotation(name: str) -> type:
            """Return a stand-in for an annotation of jaxtyping, which keeps the shape for readers of files."""

            def annotate(cls, item):
                return Annotated[item[0], name, item[1]]

            return type(name, (), {"__class_getitem__": classmethod(annotate)})

        Complex, Float, Inexact, Int, Shaped = map(_annotation, ("Complex", "Float", "Inexact", "Int", "Shaped"))

DTYPE_KINDS = {"Complex": "c", "Float": "f", "Inexact": "fc", "Int": "iu", "Shaped": "biufcU"}
"""The kinds of numpy types that each annotation allows."""


def array_annotation(annotation: Any) -> tuple[str, list[str]] | None:
    """Return the numpy kinds and the names of the axes of an annotated array, or None for any other annotation."""
    if hasattr(annotation, "dim_str"):
        name, axes = annotation.dtype.__name__, annotation.dim_str
    elif get_origin(annotation) is Annotated:
        name, axes = annotation.__metadata__
    else:
        return None
    return DTYPE_KINDS[name], axes.split()


__all__ = ["AnyArray", "Array", "Complex", "Float", "Inexact", "Int", "Shaped", "array_annotation"]

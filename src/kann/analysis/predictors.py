"""What predicts a state from the one before: a fitted operator, or the baseline that copies it."""

from typing import Any

import numpy as np

from kann.backends.arrays import as_operand
from kann.checks import require_instance, require_width
from kann.data.blocks import Block, Cut
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Shaped


class Copying:
    """The naive baseline: the next state is the one before, unchanged.

    Where states move slowly it is right nearly always, so an error or an agreement says something about an operator
    only beside that of copying. Pass `kann.copying` in place of the operator:

    >>> import kann
    >>> float(kann.relative_error(kann.copying, np.array([[[1.0], [2.0], [4.0]]])))
    0.25
    """

    def predict(self, h: AnyArray, *, inputs: AnyArray | None = None) -> AnyArray:
        """The states themselves; inputs change nothing."""
        return h

    def rollout(self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None) -> AnyArray:
        """The state ``steps`` times: (steps, d) of a state (d,)."""
        return np.repeat(np.asarray(h)[..., None, :], steps, axis=-2)

    def __repr__(self) -> str:
        return "kann.copying"


copying = Copying()
"""The one baseline that copies the previous state."""

Predictor = Koopman | Bilinear | Copying
"""What `kann.relative_error`, `kann.agreement` and `kann.hybrid` measure."""


def driving_inputs(koopman: Predictor, states: States) -> Any:
    """The states' inputs if the operator is driven, else None. States of another number of units are refused."""
    if isinstance(koopman, Copying):
        return None
    if not isinstance(koopman, Bilinear):
        require_instance(koopman, Koopman, "koopman")
    require_width(states.values, koopman.dim, what="states", of="the operator")
    if koopman.drive is None:
        return None
    if states.inputs is None:
        raise KannError("the operator is driven and these states have no inputs; record them with inputs=True")
    return states.inputs


def predict_block(koopman: Predictor, block: Block) -> tuple[AnyArray, AnyArray, Shaped[Array, " m"]]:
    """The states of a block from its second row on, each as predicted from the row before, and which are pairs.

    Rows that begin a sequence, or a piece of one, are no pair with the row before them.
    """
    h, inputs = as_operand(block.values), None
    if block.inputs is not None:
        inputs = block.inputs[1:]
    is_pair = np.ones(len(h), dtype=bool)
    is_pair[block.offsets] = False
    return h[1:], koopman.predict(h[:-1], inputs=inputs), is_pair[1:]


def predict_cut(koopman: Predictor, cut: Cut) -> tuple[AnyArray, AnyArray]:
    """The states behind a cut, and as they are predicted from those before it."""
    return as_operand(cut.after), koopman.predict(as_operand(cut.before), inputs=cut.inputs)

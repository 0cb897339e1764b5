"""What a network read at each step of its sequences: one entry for each state, in the order of the states."""

from collections.abc import Sequence
from typing import Any

from kann.checks import require_sequence
from kann.data.states import States
from kann.errors import KannError


def checked_tokens(tokens: Any, states: States) -> list[list[str]]:
    """The tokens of each sequence as text, in the order of the states.

    Users pass them in the order of the text; for states of a direction that reads from the end they are turned round.
    """
    require_sequence(tokens, "tokens")
    require_one_per_state(tokens, states, "tokens")
    words = [[str(token) for token in own] for own in tokens]
    if states.reverse:
        return [own[::-1] for own in words]
    return words


def require_one_per_state(values: Sequence[Any], states: States, what: str) -> None:
    """Refuse what does not have one entry for each state of each sequence."""
    for i, own in enumerate(values):
        # A string has a length too, but its entries are letters.
        if isinstance(own, str) or not hasattr(own, "__len__"):
            raise KannError(
                f"the {what} of sequence {i} are {type(own).__name__}; pass a list with one entry for each state"
            )
    if len(values) != len(states):
        raise KannError(
            f"there are {what} for {len(values)} sequences and states for {len(states)}; pass one list for each"
        )
    for i, (own, length) in enumerate(zip(values, states.lengths.tolist(), strict=True)):
        if len(own) != length:
            raise KannError(f"sequence {i} has {length} states and {len(own)} {what}; pass one for each state")

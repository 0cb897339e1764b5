"""How networks are compared: the options that `kann.distance` and `kann.compare` have in common."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from kann.checks import require_choice, require_number, require_whole_number
from kann.errors import KannError

KINDS = ("response", "spectrum", "subspace")
"""What is compared: what inputs do, eigenvalues, or the directions of the modes."""


class Options(TypedDict, total=False):
    """What may be passed; `How` has the meanings and the defaults."""

    kind: str
    steps: int
    modes: int
    rank: Any
    weights: str
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How networks are compared."""

    kind: str = "response"
    """One of `KINDS`."""
    steps: int = 64
    """Over how many steps responses are compared."""
    modes: int = 8
    """How many dimensions the subspaces have at most."""
    rank: Any = 0.99
    """The rank of operators that are fitted here, as in `kann.fit`."""
    weights: str = "carried"
    """How much each eigenvalue or direction counts: as much as it carries, or all the same."""
    level: float = 0.95
    """Confidence level of intervals."""

    @staticmethod
    def of(options: Mapping[str, Any]) -> "How":
        """The options by name, those that are not given by default; refused if they make no sense."""
        known = [field.name for field in fields(How)]
        for name in options:
            if name not in known:
                raise KannError(f"{name} is no option of a comparison; pass some of {', '.join(known)}")
        given = How(**options)
        require_choice(given.kind, "kind", KINDS)
        require_choice(given.weights, "weights", ("carried", "equal"))
        return How(
            kind=given.kind,
            steps=require_whole_number(given.steps, "steps", too_small="compares nothing"),
            modes=require_whole_number(given.modes, "modes", too_small="leaves no subspace"),
            rank=given.rank,
            weights=given.weights,
            level=_level(given.level),
        )


def _level(level: Any) -> float:
    level = require_number(level, "level", remedy="pass 0 < level < 1")
    if not 0 < level < 1:
        raise KannError(f"level={level} is no confidence level; pass 0 < level < 1")
    return level


Function = TypeVar("Function", bound=Callable[..., Any])


def shows_options(function: Function) -> Function:
    """Let ``help`` and notebooks show each option of a comparison in the place of ``**options``."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    shown = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(How)
    ]
    function.__signature__ = signature.replace(parameters=own + shown)  # pyright: ignore[reportFunctionMemberAccess]
    return function

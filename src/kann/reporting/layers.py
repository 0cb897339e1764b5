"""Which layers are linear, in numbers for the page: errors of each layer by identity, one operator and its own map."""

from collections.abc import Sequence
from typing import Any

from kann.analysis.step_trust import PREDICTIONS, StepTrust
from kann.checks import require_instance, require_sequence
from kann.data.states import States
from kann.errors import KannError
from kann.reporting.packing import finite_or_none


def checked_steps(steps: Any, states: States) -> StepTrust | None:
    """The trust of the maps of single steps, if it is of as many steps as the states shown have."""
    if steps is None:
        return None
    require_instance(steps, StepTrust, "steps")
    shown = int(states.lengths.max()) - 1
    if len(steps) != shown:
        raise KannError(
            f"steps= is of {len(steps)} steps and the states shown have {shown}; pass what kann.trust returned for "
            "maps of these steps"
        )
    return steps


def checked_step_names(names: Any, steps: StepTrust | None) -> list[str] | None:
    """The names of the steps, such as of layers."""
    if names is None:
        return None
    require_sequence(names, "step_names")
    if steps is None or len(names) != len(steps):
        count = 0
        if steps is not None:
            count = len(steps)
        raise KannError(f"step_names= has {len(names)} names and steps= {count} steps; pass one name for each")
    return [str(name) for name in names]


def layer_numbers(steps: StepTrust | None, names: Sequence[str] | None) -> dict[str, Any] | None:
    """Errors with their intervals, layer by layer; None if no maps were fitted to single layers.

    Layers are counted from 1, as states are on the page: layer 1 leads from state 0 to state 1.
    """
    if steps is None:
        return None
    better, parts = steps.better_than_identity, steps.linear_part.tolist()
    rows = []
    for place in range(len(steps)):
        row: dict[str, Any] = {"number": place + 1, "name": None, "better": place in better}
        if names is not None:
            row["name"] = names[place]
        for prediction in PREDICTIONS:
            error, interval = steps.errors[prediction][place], steps.intervals[prediction][place]
            row[prediction] = [finite_or_none(float(value)) for value in (error, *interval)]
        rows.append(row | {"linear_part": finite_or_none(parts[place])})
    return {"folds": steps.folds, "level": steps.level, "layers": rows, "one_is_worse": len(steps.one_is_worse)}


def most_are_worse(worse: int, total: int) -> bool:
    """Whether copying is better at more than half of the layers: a mean over layers must then not be praised."""
    return 2 * worse > total


def where_copying_is_better(
    quality: dict[str, Any], copying: dict[str, Any], *, steps: StepTrust | None, step_name: str
) -> str:
    """At how many layers copying is better than the operator, in words; empty if it is not at most of them.

    Along time a mean is over many steps of one kind, and nothing is said.
    """
    if step_name == "step":
        return ""
    pairs = zip(quality["times"]["error"], copying["times"]["error"], strict=True)
    is_worse = [own > copied for own, copied in pairs if own is not None and copied is not None]
    worse, total = sum(is_worse), len(is_worse)
    if steps is not None:
        worse, total = len(steps.one_is_worse), len(steps)
    if not most_are_worse(worse, total):
        return ""
    return f"copying is better at {worse} of the {total} {step_name}s"

"""Which networks are alike inside: two tasks, three architectures, several seeds, and several distances.

Train, record, measure all pairs by every method, and count how often the nearest network has the same task and the same
architecture. `reproduce` does it all.
"""

import os
from collections import defaultdict
from collections.abc import Sequence

from kann.paper.comparing.methods import Measured, angular, dsa_is_installed, measured_by_all
from kann.paper.comparing.networks import CONFIGS, Trained, train_all
from kann.paper.configs import as_json
from kann.paper.results import Format, Quantity, Reproduction, tabulate, write_json
from kann.paper.training import repeatable, require_folder


def reproduce(
    *,
    out: str | os.PathLike[str] = "runs/compare",
    seeds: Sequence[int] = range(5),
    angular_seeds: int = 0,
    iterations: int | None = None,
) -> Reproduction:
    """Compare all networks; those that are in ``out`` already are used again.

    DSA's angular distance takes seconds a pair, so that it is measured between the networks of the first
    ``angular_seeds`` seeds alone.
    """
    folder = require_folder(out)
    with repeatable():
        networks = list(train_all(folder, seeds=seeds, iterations=iterations))
        found = list(measured_by_all(networks))
        some = [network for network in networks if network.seed in seeds[:angular_seeds]]
        slow = None
        if some and dsa_is_installed():
            slow = angular(some)
    numbers, quantities = _numbers(found, networks)
    if slow is not None:
        numbers |= _of_some(slow, some)
    quantities += [
        Quantity(key=key, what=key, format=_format(key)) for key in numbers if key.startswith("DSA, angular")
    ]
    rows = tabulate(quantities, [numbers], {})
    path = folder / "results.json"
    write_json(path, _as_json(found, networks, numbers))
    title = f"{len(networks)} networks, {len(networks) * (len(networks) - 1) // 2} pairs"
    return Reproduction(title=title, seeds=tuple(seeds), rows=rows, notes=(), studies=(), files=(path,))


def best_settings(found: Sequence[Measured], networks: Sequence[Trained]) -> dict[str, Measured]:
    """Of each method the setting with which most nearest networks have the same task and architecture."""
    kinds = [f"{network.task} {network.arch}" for network in networks]
    by_method: dict[str, list[Measured]] = defaultdict(list)
    for each in found:
        by_method[each.method].append(each)
    return {method: max(tried, key=lambda each: each.right(kinds)) for method, tried in by_method.items()}


def _numbers(found: Sequence[Measured], networks: Sequence[Trained]) -> tuple[dict[str, float], list[Quantity]]:
    """For the best setting of each method how often it is right, and its time."""
    numbers = {"accuracy": min(network.accuracy for network in networks)}
    quantities = [Quantity(key="accuracy", what="lowest accuracy of a network", format="percent")]
    for method, best in best_settings(found, networks).items():
        for label, fraction in _fractions(best, networks).items():
            key = f"{method}: {label}"
            numbers[key] = fraction
            quantities.append(Quantity(key=key, what=f"{method} ({best.setting}): {label}", format="percent"))
        key = f"{method}: CPU seconds for all pairs"
        numbers[key] = best.seconds
        quantities.append(Quantity(key=key, what=key))
    return numbers, quantities


def _fractions(measured: Measured, networks: Sequence[Trained]) -> dict[str, float]:
    """How often the nearest network has the same task, and the same architecture."""
    return {
        "same task": measured.right([network.task for network in networks]),
        "same architecture": measured.right([network.arch for network in networks]),
    }


def _of_some(slow: Measured, some: Sequence[Trained]) -> dict[str, float]:
    """The same for the angular distance between some of the networks."""
    pairs = len(some) * (len(some) - 1) // 2
    named = {f"{slow.method}, {len(some)} networks: {label}": value for label, value in _fractions(slow, some).items()}
    return named | {f"{slow.method}: CPU seconds a pair": slow.seconds / pairs}


def _format(key: str) -> Format:
    if "same" in key:
        return "percent"
    return "number"


def _as_json(found: Sequence[Measured], networks: Sequence[Trained], numbers: dict[str, float]) -> dict[str, object]:
    """Everything that was measured, each setting by itself."""
    return {
        "experiment": "compare",
        "networks": {network.name: network.accuracy for network in networks},
        "configs": {" ".join(key): as_json(config) for key, config in CONFIGS.items()},
        "numbers": numbers,
        "tried": [
            {
                "method": each.method,
                "setting": each.setting,
                "seconds": each.seconds,
                **_fractions(each, networks),
                "matrix": each.matrix.tolist(),
            }
            for each in found
        ],
    }

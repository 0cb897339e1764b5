"""Which networks are alike inside: two tasks, three architectures, several seeds, and several distances.

Train, record, measure all pairs by every method, and count how often the nearest network has the same task and the same
architecture. Of each method the best setting is chosen there, and may be judged on fresh networks of other seeds.
`reproduce` does it all.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from kann_experiments.comparing.methods import (
    Measured,
    angular,
    angular_times,
    dsa_is_installed,
    measured_by_all,
    pairs_of_each_kind,
)
from kann_experiments.comparing.networks import CONFIGS, Trained, train_all
from kann_experiments.configs import as_json
from kann_experiments.results import Format, Quantity, Reproduction, tabulate, write_json
from kann_experiments.training import repeatable, require_folder


def reproduce(
    *,
    out: str | os.PathLike[str] = "runs/compare",
    seeds: Sequence[int] = range(5),
    fresh: Sequence[int] = (),
    angular_pairs: int = 0,
    angular_seeds: int = 0,
    iterations: int | None = None,
) -> Reproduction:
    """Compare all networks; those that are in ``out`` already are used again.

    The settings that are best for the networks of ``seeds`` are judged on those of the ``fresh`` seeds. DSA's angular
    distance takes seconds a pair: it is timed on ``angular_pairs`` pairs of each kind, and measured between all
    networks of the first ``angular_seeds`` seeds.
    """
    folder = require_folder(out)
    with repeatable():
        networks = list(train_all(folder, seeds=seeds, iterations=iterations))
        found = list(measured_by_all(networks))
        chosen = best_settings(found, networks)
        numbers = {"lowest accuracy of a network": min(network.accuracy for network in networks)}
        numbers |= _numbers(chosen, networks)
        others = list(train_all(folder, seeds=fresh, iterations=iterations))
        judged = list(measured_by_all(others))
        if others:
            numbers |= _judged(chosen, judged, others)
        if dsa_is_installed():
            numbers |= _angular(networks, pairs=angular_pairs, seeds=seeds[:angular_seeds])
    rows = tabulate([Quantity(key=key, what=key, format=_format(key)) for key in numbers], [numbers], {})
    path = folder / "results.json"
    write_json(path, _as_json({"tried": (found, networks), "judged": (judged, others)}, numbers))
    title = f"{len(networks)} networks, {len(networks) * (len(networks) - 1) // 2} pairs"
    return Reproduction(title=title, seeds=tuple(seeds), rows=rows, notes=(), studies=(), files=(path,))


def best_settings(found: Sequence[Measured], networks: Sequence[Trained]) -> dict[str, Measured]:
    """Of each method the setting with which most nearest networks have the same task and architecture."""
    kinds = [f"{network.task} {network.arch}" for network in networks]
    by_method: dict[str, list[Measured]] = defaultdict(list)
    for each in found:
        by_method[each.method].append(each)
    return {method: max(tried, key=lambda each: each.right(kinds)) for method, tried in by_method.items()}


def _numbers(chosen: dict[str, Measured], networks: Sequence[Trained]) -> dict[str, float]:
    """For the best setting of each method how often it is right, and its time."""
    numbers = {}
    for method, best in chosen.items():
        for label, fraction in _fractions(best, networks).items():
            numbers[f"{method} ({best.setting}): {label}"] = fraction
        numbers[f"{method}: CPU seconds for all pairs"] = best.seconds
    return numbers


def _judged(chosen: dict[str, Measured], judged: Sequence[Measured], fresh: Sequence[Trained]) -> dict[str, float]:
    """How often the settings that were chosen are right for fresh networks, and how often the best one there is."""
    numbers = {"fresh networks, lowest accuracy": min(network.accuracy for network in fresh)}
    for method, best in chosen.items():
        scores = {each.setting: _fractions(each, fresh) for each in judged if each.method == method}
        for label, fraction in scores[best.setting].items():
            numbers[f"fresh networks, {method} ({best.setting}): {label}"] = fraction
        most = max(score["same architecture"] for score in scores.values())
        numbers[f"fresh networks, {method}, best of {len(scores)} settings: same architecture"] = most
    return numbers


def _angular(networks: Sequence[Trained], *, pairs: int, seeds: Sequence[int]) -> dict[str, float]:
    """The time that DSA's angular distance takes a pair, and how often it is right among the networks of some seeds."""
    numbers = {}
    if pairs:
        times = angular_times(networks, each=pairs)
        every = pairs_of_each_kind(networks, each=len(networks) ** 2)
        total = sum(len(every[kind]) * float(np.mean(seconds)) for kind, seconds in times.items())
        numbers["DSA, angular: CPU seconds for all pairs, from the means of each kind"] = total
        for kind, seconds in times.items():
            for name, value in (("mean", np.mean(seconds)), ("least", np.min(seconds)), ("most", np.max(seconds))):
                numbers[f"DSA, angular, {kind}: CPU seconds a pair, {name} of {len(seconds)}"] = float(value)
    some = [network for network in networks if network.seed in seeds]
    if some:
        slow = angular(some)
        for label, fraction in _fractions(slow, some).items():
            numbers[f"{slow.method}, {len(some)} networks: {label}"] = fraction
        numbers[f"{slow.method}, {len(some)} networks: CPU seconds for all pairs"] = slow.seconds
    return numbers


def _fractions(measured: Measured, networks: Sequence[Trained]) -> dict[str, float]:
    """How often the nearest network has the same task, and the same architecture."""
    return {
        "same task": measured.right([network.task for network in networks]),
        "same architecture": measured.right([network.arch for network in networks]),
    }


def _format(key: str) -> Format:
    if "seconds" in key:
        return "number"
    return "percent"


def _as_json(
    parts: dict[str, tuple[Sequence[Measured], Sequence[Trained]]], numbers: dict[str, float]
) -> dict[str, object]:
    """Everything that was measured, each setting by itself, on the networks of each part."""
    return {
        "experiment": "compare",
        "networks": {network.name: network.accuracy for _, networks in parts.values() for network in networks},
        "configs": {" ".join(key): as_json(config) for key, config in CONFIGS.items()},
        "numbers": numbers,
        **{part: [_setting(each, networks) for each in found] for part, (found, networks) in parts.items()},
    }


def _setting(measured: Measured, networks: Sequence[Trained]) -> dict[str, Any]:
    return {
        "method": measured.method,
        "setting": measured.setting,
        "seconds": measured.seconds,
        **_fractions(measured, networks),
        "matrix": measured.matrix.tolist(),
    }

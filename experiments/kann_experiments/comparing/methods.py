"""All distances between the networks, by kann's ways, DSA, InputDSA and CKA, and the time that each takes."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kann
from kann.progress import progress
from kann.typing import Array, Float
from kann_experiments.comparing.networks import Trained

RANKS, DELAYS = (5, 10, 20, None), (1, 3, 5)
"""Settings of DSA that are tried: the rank of its operators, None for all directions, and the delays."""


WEIGHTS = ("carried", "equal")
"""How much eigenvalues, and directions of states, count in kann's distances."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """All distances by one method with one setting."""

    method: str
    """Such as "DSA"."""
    setting: str
    """Such as "rank 10, 3 delays"."""
    matrix: Float[Array, "n n"]
    seconds: float
    """CPU time for all pairs, fits included."""

    def right(self, labels: Sequence[str]) -> float:
        """The fraction of networks whose nearest other one has the same label."""
        others = np.where(np.eye(len(labels), dtype=bool), np.inf, self.matrix)
        return float(np.mean([labels[i] == labels[j] for i, j in enumerate(others.argmin(axis=1).tolist())]))


def measured_by_all(networks: Sequence[Trained]) -> Iterator[Measured]:
    """Every method with every setting; those of dsa-metric only if it is installed. Nothing of no networks."""
    if not networks:
        return
    tried = [*_own(networks), *_cka(networks)]
    if dsa_is_installed():
        tried += [*_dsa(networks), *_input_dsa(networks)]
    for method, setting, measure in tried:
        yield timed(method, setting, measure)


def dsa_is_installed() -> bool:
    """Whether dsa-metric is there, which the extra ``bench`` installs."""
    try:
        import DSA  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def timed(method: str, setting: str, measure: Callable[[], Any]) -> Measured:
    """The matrix that a function makes, with the CPU time that it takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few pairs, and those of other packages
        begin = time.process_time()
        matrix = np.asarray(measure(), dtype=np.float64)
        return Measured(method=method, setting=setting, matrix=matrix, seconds=time.process_time() - begin)


Tried = tuple[str, str, Callable[[], Any]]


def _own(networks: Sequence[Trained]) -> Iterator[Tried]:
    """The distances that kann has. Units of different networks are not the same, so that subspaces are not compared."""
    states = {network.name: network.states for network in networks}

    def compared(fitting: dict[str, Any], **options: Any) -> Any:
        operators = {name: kann.fit(each, **fitting) for name, each in states.items()}
        return kann.compare(operators, progress=False, **options).matrix

    for weights, rank, steps in itertools.product(WEIGHTS, (0.99, None), (8, 64)):
        yield (
            f"response, {weights} weights",
            f"{_rank(rank)}, {steps} steps",
            lambda weights=weights, rank=rank, steps=steps: compared(
                {"driven": True, "rank": rank}, weights=weights, steps=steps
            ),
        )
    kinds = {
        "driven": {"driven": True},
        "autonomous": {},
        "autonomous, not centred": {"basis": "svd", "offset": False},
    }
    for (name, fitting), weights in itertools.product(kinds.items(), WEIGHTS):
        yield (
            f"spectrum, {weights} weights",
            f"{name}, all directions",
            lambda fitting=fitting, weights=weights: compared(fitting, kind="spectrum", weights=weights),
        )


def _rank(rank: float | None) -> str:
    if rank is None:
        return "all directions"
    return f"rank {rank}"


def _cka(networks: Sequence[Trained]) -> Iterator[Tried]:
    def distances() -> Any:
        centred = [network.common - network.common.mean(axis=0) for network in networks]
        similar = np.array([[np.linalg.norm(a.T @ b) ** 2 for b in centred] for a in centred])
        own = np.sqrt(np.diag(similar))
        return 1 - similar / own / own[:, None]

    yield "CKA", "linear, states on the probes of both tasks", distances


def padded(networks: Sequence[Trained]) -> tuple[list[Array], list[Array]]:
    """States (s, t, d) and inputs (s, t, p) of each network, as DSA takes them."""
    states, inputs = [], []
    for network in networks:
        shape = (len(network.states), -1)
        states.append(np.asarray(network.states.values, dtype=np.float64).reshape(*shape, network.states.dim))
        read: Any = network.states.inputs
        inputs.append(np.asarray(read, dtype=np.float64).reshape(*shape, read.shape[1]))
    return states, inputs


def _dsa(networks: Sequence[Trained]) -> Iterator[Tried]:
    from DSA import DSA  # pyright: ignore[reportMissingImports]

    states, _ = padded(networks)
    for rank, delays in itertools.product(RANKS, DELAYS):
        yield (
            "DSA",
            f"{_rank(rank)}, {delays} delays",
            lambda rank=rank, delays=delays: DSA(states, rank=rank, n_delays=delays).fit_score(),
        )


def _input_dsa(networks: Sequence[Trained]) -> Iterator[Tried]:
    from DSA import DMDc, InputDSA, SubspaceDMDc  # pyright: ignore[reportMissingImports]

    states, inputs = padded(networks)
    for rank, delays in itertools.product(RANKS[:-1], DELAYS[:-1]):
        subspace = {"n_delays": delays, "rank": rank, "backend": "n4sid"}
        plain = {"n_delays": delays, "rank_input": None, "rank_output": rank}
        for name, kind, config in (("subspace", SubspaceDMDc, subspace), ("DMDc", DMDc, plain)):
            yield (
                "InputDSA",
                f"{name}, rank {rank}, {delays} delays",
                lambda kind=kind, config=config: InputDSA(
                    states, inputs, dmd_class=kind, dmd_config=config
                ).fit_score(),
            )


def angular(networks: Sequence[Trained]) -> Measured:
    """DSA's angular distance, which learns a rotation for each pair."""
    from DSA import DSA  # pyright: ignore[reportMissingImports]

    states, _ = padded(networks)
    return timed("DSA, angular", "rank 10, 1 delay", lambda: DSA(states, rank=10, score_method="angular").fit_score())


def angular_times(networks: Sequence[Trained], *, each: int) -> dict[str, list[float]]:
    """CPU seconds that DSA's angular distance takes for some pairs of each kind, drawn at random from all of them."""
    drawn = pairs_of_each_kind(networks, each=each)
    wanted = [(kind, pair) for kind, pairs in drawn.items() for pair in pairs]
    found: dict[str, list[float]] = {kind: [] for kind in drawn}
    for kind, pair in progress(wanted, what="angular distance", total=len(wanted), unit="pair"):
        found[kind].append(angular(pair).seconds)
    return found


def pairs_of_each_kind(networks: Sequence[Trained], *, each: int) -> dict[str, list[tuple[Trained, Trained]]]:
    """Pairs by whether task and architecture are the same: so many of each kind, drawn at random, or all there are."""
    kinds: dict[str, list[tuple[Trained, Trained]]] = {}
    for a, b in itertools.combinations(networks, 2):
        same = [word for word, is_same in (("task", a.task == b.task), ("architecture", a.arch == b.arch)) if is_same]
        kinds.setdefault("same " + (" and ".join(same) or "nothing"), []).append((a, b))
    rng = np.random.default_rng(0)
    return {
        kind: [pairs[place] for place in sorted(rng.permutation(len(pairs))[:each].tolist())]
        for kind, pairs in kinds.items()
    }

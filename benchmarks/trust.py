"""Whether `kann.trust` can be trusted: coverage of its intervals, what it says of noise, and what it costs.

    python benchmarks/trust.py                    # everything, about half an hour on one core
    python benchmarks/trust.py --systems 100 --only coverage

Coverage: random linear systems with process noise and known eigenvalues, and how many of the 95 % intervals of |λ| and
of the angle hold the truth; BOPDMD's bagging intervals (PyDMD) on the same data. Noise: how many modes of 50 arrays of
pure noise are trusted. Shuffled: the fraction of modes trusted if the states of the networks that ship with kann are
put into random order. Time: `kann.trust` beside `kann.fit`, the smallest of runs that alternate.
"""

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from importlib import resources

import numpy as np
from scipy.optimize import linear_sum_assignment

import kann

LEVEL = 0.95
STANDARD_ERRORS = 1.96
"""BOPDMD gives standard deviations over its bags, so that 95 % of a normal distribution are this many to each side."""

BAGS = 30
"""How many bags BOPDMD fits. Its tutorial has 100, which takes longer and moves the standard deviation little."""

SETTLE = 200
"""Steps until a system has forgotten where it started."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class System:
    """A random linear system, and states of it."""

    matrix: np.ndarray
    states: np.ndarray
    condition: float

    @property
    def eigenvalues(self):
        """The true ones."""
        return np.linalg.eigvals(self.matrix)


def random_system(rng):
    """2 to 8 units, 10 to 100 sequences of 20 to 200 steps, eigenvectors of condition 1 to 100."""
    d, steps, sequences = rng.integers(2, 9), rng.integers(20, 201), rng.integers(10, 101)
    condition = 10 ** rng.uniform(0, 2)
    matrix = random_matrix(rng, d, condition)
    spread = np.eye(d) + rng.normal(size=(d, d)) / np.sqrt(d)
    h, path = np.zeros((sequences, d)), []
    for _ in range(SETTLE + steps):
        h = h @ matrix + rng.normal(size=(sequences, d)) @ spread
        path.append(h)
    return System(matrix=matrix, states=np.stack(path[SETTLE:], axis=1), condition=condition)


def random_matrix(rng, d, condition):
    """Real eigenvalues and pairs of modulus 0.3 to 0.98, about as many of each."""
    blocks, i = np.zeros((d, d)), 0
    while i < d:
        modulus = rng.uniform(0.3, 0.98)
        if i + 1 < d and rng.random() < 0.5:
            cosine, sine = np.cos(angle := rng.uniform(0.2, 2.9)), np.sin(angle)
            blocks[i : i + 2, i : i + 2] = modulus * np.array([[cosine, sine], [-sine, cosine]])
            i += 2
        else:
            blocks[i, i] = modulus * rng.choice([1, 1, 1, -1])
            i += 1
    left, right = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    change = left * np.logspace(0, np.log10(condition), d) @ right
    return np.linalg.inv(change) @ blocks @ change


def matched(true, found):
    """For each true eigenvalue in the upper half plane, its number among those found."""
    true_numbers, numbers = linear_sum_assignment(np.abs(true[:, None] - found))
    return [(true[i], j) for i, j in zip(true_numbers, numbers, strict=True) if true[i].imag >= 0]


def kann_intervals(system):
    """(true λ, interval of |λ|, interval of the angle, modes that cannot be told apart) for each eigenvalue."""
    koopman = kann.fit(system.states)
    found = kann.trust(koopman, system.states, level=LEVEL)
    of_index = {i: number for number, mode in enumerate(koopman.modes) for i in mode.indices}
    rows = []
    for true, j in matched(system.eigenvalues, koopman.eigenvalues):
        mode = found.modes[of_index[j]]
        rows.append((true, mode.interval, mode.angle, len(mode.subspace)))
    return rows


def bopdmd_intervals(system, *, stacked):
    """The same of BOPDMD, which fits one trajectory: the first sequence, or all of them as units of one trajectory."""
    from pydmd import BOPDMD

    sequences, steps, d = system.states.shape
    data = system.states[0].T
    if stacked:
        data = np.moveaxis(system.states, 1, 2).reshape(sequences * d, steps)
    np.random.seed(0)  # noqa: NPY002  # BOPDMD draws its bags from the global random numbers
    # All true eigenvalues are stable; without the constraint many fits end in exponentials that overflow.
    dmd = BOPDMD(svd_rank=d, num_trials=BAGS, eig_constraints={"stable"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dmd.fit(data, t=np.arange(steps, dtype=float))
    rates, spread = dmd.eigs, dmd.eigenvalues_std
    rows = []
    for true, j in matched(system.eigenvalues, np.exp(rates)):
        half = STANDARD_ERRORS * spread[j]
        modulus = tuple(np.exp([rates[j].real - half, rates[j].real + half]))
        angle = abs(rates[j].imag)
        rows.append((true, modulus, (angle - half, angle + half), 1))
    return rows


def covered(true, interval, angle):
    """Whether the intervals hold modulus and angle; the angle counts on the circle."""
    centre, half = sum(angle) / 2, (angle[1] - angle[0]) / 2
    apart = abs(np.angle(true * np.exp(-1j * centre)))
    return interval[0] <= abs(true) <= interval[1], apart <= half


def coverage(rows):
    """One line of a table from (true λ, interval, angle, apart)."""
    found = []
    for name, is_pair in (("real", False), ("pairs", True)):
        chosen = [row for row in rows if (row[0].imag > 0) == is_pair]
        if not chosen:
            continue
        hits = np.array([covered(*row[:3]) for row in chosen])
        text = f"{name} {hits[:, 0].mean():.1%} of {len(chosen)}"
        if is_pair:
            text += f" (angle {hits[:, 1].mean():.1%})"
        found.append(text)
    return ", ".join(found)


def measure_coverage(systems, peers):
    """Print the coverage over random systems, and that of BOPDMD on the first ``peers`` of them."""
    rng = np.random.default_rng(0)
    ours, first, stacked, by_condition, failed = [], [], [], {}, [0, 0]
    for number in range(systems):
        system = random_system(rng)
        rows = kann_intervals(system)
        ours += rows
        by_condition.setdefault(int(np.log10(system.condition) / 0.5), []).extend(rows)
        if number < peers:
            for place, (found, is_stacked) in enumerate(((first, False), (stacked, True))):
                try:
                    found += bopdmd_intervals(system, stacked=is_stacked)
                except (np.linalg.LinAlgError, ValueError, RuntimeError) as error:  # counted and told
                    failed[place] += 1
                    print(f"  BOPDMD failed on system {number}: {str(error).splitlines()[0]}")
    print(f"coverage of {LEVEL:.0%} intervals of |λ|, {systems} systems")
    print(f"  kann: {coverage(ours)}")
    print(f"  kann, eigenvalues that can be told apart: {coverage([row for row in ours if row[3] == 1])}")
    for key in sorted(by_condition):
        print(f"  kann, condition {10 ** (key / 2):.0f} to {10 ** ((key + 1) / 2):.0f}: {coverage(by_condition[key])}")
    if peers:
        print(f"  BOPDMD, first sequence, {peers} systems, {failed[0]} failed: {coverage(first)}")
        print(f"  BOPDMD, sequences stacked, {peers} systems, {failed[1]} failed: {coverage(stacked)}")


def measure_noise(count=50):
    """Print in how many arrays of noise a mode is trusted, and whether few pairs are warned of where they are few."""
    rng = np.random.default_rng(1)
    trusted = warned = few = modes = 0
    for _ in range(count):
        sequences, steps, d = rng.integers(10, 60), rng.integers(3, 120), rng.integers(1, 129)
        noise = rng.normal(size=(sequences, steps, d)) * 10 ** rng.uniform(-2, 2) + rng.normal(size=d)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            koopman = kann.fit(noise)
            found = kann.trust(koopman, noise)
        trusted += len(found.trusted)
        modes += len(found.modes)
        is_few = found.pairs < 5 * found.unknowns
        few += is_few
        warned += is_few == any(issubclass(each.category, kann.errors.FewPairsWarning) for each in caught)
    print(f"noise: {trusted} of {modes} modes of {count} arrays are trusted")
    print(f"  {few} have too few pairs; the warning is right in {warned} of {count}")


def shipped_states():
    """States of the networks that ship with kann, by name."""
    import torch

    from kann import zoo
    from kann.zoo.autoencoder import draw_beats

    sentiment, ecg = zoo.load("sentiment"), zoo.load("ecg")
    reviews = json.loads(resources.files("kann.zoo").joinpath("sentiment/reviews.json").read_text(encoding="utf-8"))
    words = [torch.from_numpy(np.asarray(sentiment.vocabulary.locate(review["text"])[0])) for review in reviews]
    beats = draw_beats(np.random.default_rng(0), normal=40, anomalous=20)
    signals = torch.tensor(beats.values, dtype=torch.float32)
    return {
        "sentiment": kann.record(sentiment.network, words, layer="recurrent", progress=False),
        "ecg encoder": kann.record(ecg.network, signals, layer="encoder", progress=False),
    }


def measure_shuffled(draws):
    """Print which fraction of the modes is trusted if the states of each sequence are in random order."""
    rng = np.random.default_rng(2)
    for name, states in shipped_states().items():
        for rank in (8, None):
            trusted = modes = 0
            for _ in range(draws // 4):
                order = np.concatenate([span.start + rng.permutation(span.stop - span.start) for span in spans(states)])
                shuffled = kann.States(values=states.values[order], lengths=states.lengths)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", kann.errors.KannWarning)
                    found = kann.trust(kann.fit(shuffled, rank=rank), shuffled)
                trusted, modes = trusted + len(found.trusted), modes + len(found.modes)
            whole = kann.fit(states, rank=rank)
            own = kann.trust(whole, states)
            print(
                f"shuffled {name}, rank {whole.rank}: {trusted} of {modes} modes trusted in {draws // 4} draws", end=""
            )
            print(f"; in their own order {len(own.trusted)} of {len(own.modes)}")


def spans(states):
    """The rows of each sequence."""
    return [states.span(i) for i in range(len(states))]


def measure_time(runs=7):
    """Print the time of `kann.trust` beside that of `kann.fit` at 64 × 1,000 × 256, rank 64."""
    rng = np.random.default_rng(3)
    weights = 0.9 * rng.normal(size=(256, 256)) / 16
    h, path = np.zeros((64, 256)), []
    for _ in range(1000):
        h = 0.7 * h + 0.3 * np.tanh(h @ weights + rng.normal(size=h.shape)) + 0.02 * rng.normal(size=h.shape)
        path.append(h.astype(np.float32))
    states = kann.States.from_padded(np.stack(path, axis=1))
    koopman = kann.fit(states, rank=64)
    groups = [kann.Moments.of(states[i::10]) for i in range(10)]
    from_moments = kann.fit(sum(groups, start=kann.Moments()), rank=64)
    calls = {
        "fit": lambda: kann.fit(states, rank=64),
        "trust, states": lambda: kann.trust(koopman, states),
        "trust, moments": lambda: kann.trust(from_moments, groups),
    }
    taken = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    best = {name: min(times) for name, times in taken.items()}
    for name, seconds in best.items():
        print(f"time, 64 × 1,000 × 256, rank 64: {name} {1e3 * seconds:.0f} ms, {seconds / best['fit']:.2f} of a fit")


def main():
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=1000, help="random linear systems")
    parser.add_argument("--peers", type=int, default=100, help="on how many of them BOPDMD is fitted")
    parser.add_argument("--draws", type=int, default=200, help="shuffled orders of real states")
    parser.add_argument("--only", choices=("coverage", "noise", "shuffled", "time"))
    asked = parser.parse_args()
    measures = {
        "coverage": lambda: measure_coverage(asked.systems, asked.peers),
        "noise": measure_noise,
        "shuffled": lambda: measure_shuffled(asked.draws),
        "time": measure_time,
    }
    for name, run in measures.items():
        if asked.only in (None, name):
            run()


if __name__ == "__main__":
    main()

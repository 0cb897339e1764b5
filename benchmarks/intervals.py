"""Coverage of the intervals of `kann.trust`: how many of the 95 % intervals of |λ| hold the truth, by kind of data.

    python benchmarks/intervals.py                     # 1,000 draws of each cell, about half an hour on one core
    python benchmarks/intervals.py --kinds copies --draws 100 --print

Results are written to ``benchmarks/intervals.json``, from which ``--page docs/trust.md`` fills the table of the manual.
All intervals count, also those that the result objects to (``mode.agrees`` is False); how often it does is written too.
"""

import argparse
import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import kann

LEVEL = 0.95
COUNTS = (3, 5, 10, 30, 100)
"""Numbers of sequences; of groups, where there are groups."""

STEPS = 60
EACH = 5
"""Sequences of a group, and copies of a sequence."""

EIGENVALUE, OTHER = 0.9, 0.5
"""The eigenvalue whose interval is looked at, and that of a second unit."""

TURN = 0.6
"""Angle of the pair of eigenvalues, in radians for a step."""

DIFFERS_BY = 0.04
"""Standard deviation of the eigenvalue between sequences or groups, where they differ. None is above `LARGEST`."""

LARGEST = 0.98

RESULTS = Path(__file__).with_suffix(".json")
TABLE = re.compile(r"(<!-- coverage -->\n\n?)(?:\|.*\n)*")


def simulated(rng, eigenvalues, *, degrees=np.inf, steps=STEPS):
    """States (s, t, 2) of an AR(1) process for each eigenvalue, and of one that is the same in all, mixed."""
    rates = np.stack([eigenvalues, np.full(len(eigenvalues), OTHER)], axis=1)

    def noise():
        drawn = rng.normal(size=rates.shape)
        if np.isfinite(degrees):  # of unit variance
            drawn *= np.sqrt((degrees - 2) / rng.chisquare(degrees, size=rates.shape))
        return drawn

    h, path = noise() / np.sqrt(1 - rates**2), []
    for _ in range(steps):
        path.append(h)
        h = rates * h + noise()
    return np.stack(path, axis=1) @ np.array([[1.0, 0.4], [-0.3, 1.0]])


def drawn_eigenvalues(rng, count):
    """Eigenvalues of sequences that differ."""
    return np.minimum(rng.normal(EIGENVALUE, DIFFERS_BY, size=count), LARGEST)


def regression_limit():
    """What the regression of infinitely many such sequences gives: the mean weighed by the energy of each."""
    values = drawn_eigenvalues(np.random.default_rng(0), 10**6)
    energy = 1 / (1 - values**2)
    return float(values @ energy / energy.sum())


def same(rng, count):
    """Sequences of one eigenvalue."""
    return simulated(rng, np.full(count, EIGENVALUE)), None


def heavy_tails(rng, count):
    """The same with noise of Student's distribution with three degrees of freedom."""
    return simulated(rng, np.full(count, EIGENVALUE), degrees=3), None


def differing(rng, count):
    """Sequences with an eigenvalue each."""
    return simulated(rng, drawn_eigenvalues(rng, count)), None


def grouped(rng, count):
    """Groups of five sequences with an eigenvalue each."""
    return simulated(rng, np.repeat(drawn_eigenvalues(rng, count), EACH)), np.repeat(np.arange(count), EACH)


def copies(rng, count, *, noise):
    """Five copies of each sequence of one eigenvalue, with noise of this fraction of the states."""
    states = np.repeat(simulated(rng, np.full(count, EIGENVALUE)), EACH, axis=0)
    return states + noise * states.std() * rng.normal(size=states.shape), None


def measured(rng, count, *, noise):
    """Sequences of one eigenvalue, recorded with noise of this fraction of the states."""
    states = simulated(rng, np.full(count, EIGENVALUE))
    return states + noise * states.std() * rng.normal(size=states.shape), None


def turning(rng, count):
    """Sequences of a pair of eigenvalues with modulus `EIGENVALUE`, as of an AR(2) process."""
    turn = EIGENVALUE * np.array([[np.cos(TURN), np.sin(TURN)], [-np.sin(TURN), np.cos(TURN)]])
    h, path = rng.normal(size=(count, 2)) / np.sqrt(1 - EIGENVALUE**2), []
    for _ in range(STEPS):
        path.append(h)
        h = h @ turn + rng.normal(size=h.shape)
    return np.stack(path, axis=1), None


def single(rng, count):
    """One sequence with as many steps as ``count`` of the others have together."""
    return simulated(rng, np.full(1, EIGENVALUE), steps=count * STEPS), None


KINDS: dict[str, tuple[str, Callable]] = {
    "same": ("one eigenvalue", same),
    "heavy": ("heavy tails (Student, 3 degrees of freedom)", heavy_tails),
    "differing": ("sequences that differ in λ", differing),
    "groups": ("groups that differ in λ, `groups=`", grouped),
    "copies": ("5 exact copies of each", partial(copies, noise=0.0)),
    "near": ("5 near copies of each (1 %)", partial(copies, noise=0.01)),
    "measured": ("measurement noise of 10 %", partial(measured, noise=0.1)),
    "turning": ("a pair of eigenvalues", turning),
    "single": ("one sequence of 60 S steps, held out in blocks", single),
}


def measure(kind, count, draws):
    """Coverage, its standard error, the width of the intervals, and how often the result objects."""
    make = KINDS[kind][1]
    truth = regression_limit() if kind in ("differing", "groups") else EIGENVALUE
    held, objected, widths = [], [], []
    for draw in range(draws):
        rng = np.random.default_rng((draw, count, list(KINDS).index(kind)))
        states, groups = make(rng, count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kann.errors.KannWarning)
            mode = kann.trust(kann.fit(states), states, groups=groups, level=LEVEL).modes[0]
        low, high = mode.interval
        held.append(low <= truth <= high)
        objected.append(not mode.agrees)
        widths.append(high - low)
    coverage = float(np.mean(held))
    return {
        "coverage": coverage,
        "error": float(np.sqrt(coverage * (1 - coverage) / draws)),
        "objected": float(np.mean(objected)),
        "width": float(np.median(widths)),
        "draws": draws,
    }


def table(results):
    """Lines of Markdown; cells outside of 93 to 97 % are marked."""

    def cell(entry):
        percent = f"{100 * entry['coverage']:.1f} %"
        mark = "" if 0.93 <= entry["coverage"] <= 0.97 else " ✗"
        return percent + mark + (f" (objects in {100 * entry['objected']:.0f} %)" if entry["objected"] > 0.05 else "")

    yield "| | " + " | ".join(f"S = {count}" for count in COUNTS) + " |\n"
    yield "|---" * (1 + len(COUNTS)) + "|\n"
    for kind, cells in results.items():
        yield f"| {KINDS[kind][0]} | " + " | ".join(cell(cells[str(count)]) for count in COUNTS) + " |\n"


def main():
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--counts", nargs="*", type=int, default=list(COUNTS))
    parser.add_argument("--print", action="store_true", help="write no file")
    parser.add_argument("--page", type=Path, help="fill the table of this page from the results, and measure nothing")
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.page:
        text, lines = asked.page.read_text(), "".join(table({kind: results[kind] for kind in KINDS if kind in results}))
        asked.page.write_text(TABLE.sub(lambda found: found[1] + lines, text))
        return
    for kind in asked.kinds:
        for count in asked.counts:
            found = measure(kind, count, asked.draws)
            print(kind, count, {name: round(value, 4) for name, value in found.items()}, flush=True)
            results.setdefault(kind, {})[str(count)] = found
            if not asked.print:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

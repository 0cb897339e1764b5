"""Fixed points of trained flip-flop networks: kann against the published recipes, from the same states.

    python benchmarks/fixed_points.py           # n = 2 and 3 bits; RNN, GRU and LSTM; three seeds: a few minutes
    python benchmarks/fixed_points.py --quick   # one seed
    python benchmarks/fixed_points.py --silero  # instead, 200 recorded states of Silero's LSTM; needs kann[gallery]

A network that solves the n-bit flip-flop needs 2ⁿ stable fixed points, one for each memory, and its other fixed points
are saddles between them. Each network is trained here first, and run for 2,000 steps without any pulse to see that it
does hold all its memories. Then each recipe starts from the same states that the network visits, with the same
tolerance on the speed, by default FixedPointFinder's own; speeds are measured in float64 for all. `fpf` and `renn` are
the published recipes of `kann_experiments.fixed_point_recipes`, not the original programs, so that the cell, the
derivatives and the machine are the same, and only the search differs.

Times are the smallest of several runs and include Jacobians and eigenvalues of all that is returned. They are on one
thread: networks this small gain nothing from a second one.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from kann_experiments import fixed_point_recipes

import kann
from kann.fixed_points import FixedPoints

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import flipflop

PRESETS = ("kann", "fpf", "renn")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one recipe found on one network."""

    kind: str
    bits: int
    seed: int
    preset: str
    seconds: float
    memories: int
    points: FixedPoints


def search(preset, step, initial, **options):
    """The points that kann's search or a published recipe finds."""
    if preset == "kann":
        return kann.find_fixed_points(step, initial, **options)
    return fixed_point_recipes.find_fixed_points(step, initial, recipe=fixed_point_recipes.RECIPES[preset], **options)


def measure(network, initial, preset, *, tolerance, repeats):
    """The seconds that a recipe takes, and the points that it finds."""
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        points = search(preset, network.layer, initial, tolerance=tolerance)
        runs.append((time.perf_counter() - start, points))
    return min(runs, key=lambda run: run[0])


def compare(kind, bits, seed, options):
    """Train one network and search it with every recipe."""
    network = flipflop.train(kind, bits, seed=seed)
    initial = flipflop.visited(network, options.states, seed=seed)
    held = len(flipflop.held(network, initial))
    if held < 2**bits:
        print(f"  the {bits}-bit {kind} of seed {seed} holds only {held} of its {2**bits} memories by itself")
    noise = torch.randn(initial.shape, generator=torch.Generator().manual_seed(seed))
    initial = initial + options.noise * noise
    for preset in PRESETS:
        seconds, points = measure(network, initial, preset, tolerance=options.tolerance, repeats=options.repeats)
        stable = points.points[points.stable & (points.kinds == "fixed")]
        memories = len(flipflop.memories(network, torch.from_numpy(stable)))
        yield Row(kind=kind, bits=bits, seed=seed, preset=preset, seconds=seconds, memories=memories, points=points)


def exponent(speed):
    """A speed as a power of ten."""
    return f"{math.log10(max(speed, 1e-40)):.0f}" if math.isfinite(speed) else "inf"


def line(row):
    """One row of the table."""
    points = row.points
    fixed = points.kinds == "fixed"
    speeds = np.quantile(points.candidate_speeds, (0, 0.5, 0.9, 1), method="nearest")
    steps = f"{points.adam_steps}+{points.newton_steps}"
    return (
        f"{row.bits:4} {row.kind:5} {row.seed:4}  {row.preset:6} {1000 * row.seconds:8.0f} {steps:>9} "
        f"{row.memories:4} of {2**row.bits} {(fixed & points.stable).sum():7} {fixed.sum():6} {len(points):9} "
        f"{points.outlier.sum():9}   {' '.join(f'{exponent(speed):>4}' for speed in speeds)}"
    )


def table(options):
    """Print a row for each network and recipe as it comes; give back all of them."""
    print("                                 Adam+Newton           stable  fixed    points          speeds, log10:")
    print(
        "bits kind  seed  recipe       ms     steps  memories  points points  returned  outliers    min  50%  90%  max"
    )
    rows = []
    for bits in (2, 3):
        for kind in flipflop.LAYERS:
            for seed in range(options.seeds):
                for row in compare(kind, bits, seed, options):
                    print(line(row), flush=True)
                    rows.append(row)
    return rows


def summarise(rows):
    """Print how many memories each recipe found, and how much longer the published ones took than kann."""
    print()
    print("        memories found, of  ", "  ".join(f"{preset:>5}" for preset in PRESETS), " times kann's: fpf  renn")
    for kind in (*flipflop.LAYERS, "all"):
        chosen = {preset: [r for r in rows if r.preset == preset and kind in (r.kind, "all")] for preset in PRESETS}
        found = "  ".join(f"{sum(row.memories for row in chosen[preset]):5}" for preset in PRESETS)
        needed = sum(2**row.bits for row in chosen["kann"])
        print(f"{kind:5} {needed:20}   {found}   {ratio(chosen, 'fpf'):16.1f} {ratio(chosen, 'renn'):5.1f}")
    total = {preset: sum(row.seconds for row in rows if row.preset == preset) for preset in PRESETS}
    print("The ratio of times is the geometric mean over networks.", end=" ")
    print("Seconds in all:", ", ".join(f"{preset} {seconds:.2f}" for preset, seconds in total.items()))


def ratio(chosen, preset):
    """Geometric mean over networks of a recipe's time divided by kann's."""
    logs = [math.log(row.seconds / ours.seconds) for row, ours in zip(chosen[preset], chosen["kann"], strict=True)]
    return math.exp(sum(logs) / len(logs))


def compare_on_silero(count=200):
    """Print how long kann and FixedPointFinder's recipe take for a wide LSTM that is in use, under two inputs."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    import silero

    model = silero.detector(silero.package_model())
    states = kann.record(model, silero.pieces(silero.speech()[1]), layer="cell", state="hc", progress=False)
    rows = np.random.default_rng(0).choice(len(states.values), count, replace=False)
    with torch.no_grad():
        silence = model.read(torch.zeros(1, 1, silero.FRAME + silero.CONTEXT))[0, 0].numpy()
    for name, inputs in (("zeros", np.zeros(128)), ("silence", silence)):
        for preset in ("kann", "fpf"):
            start = time.process_time()
            points = search(preset, model.cell, states.values[rows], inputs=inputs)
            print(f"{name:8} {preset:5} {time.process_time() - start:6.1f} s of one core  {points}", flush=True)


def main():
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, and each time measured once")
    parser.add_argument("--tolerance", type=float, default=1e-12, help="speed of a fixed point (default: %(default)s)")
    parser.add_argument("--states", type=int, default=512, help="initial states (default: %(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of noise added to them (default: none)")
    parser.add_argument("--silero", action="store_true", help="measure on a wide LSTM that is in use instead")
    options = parser.parse_args()
    options.seeds, options.repeats = (1, 1) if options.quick else (3, 3)
    torch.set_num_threads(1)
    if options.silero:
        compare_on_silero()
    else:
        summarise(table(options))


if __name__ == "__main__":
    main()

"""The same states through kann, through the published way, and through DSA's DMD: time and memory, side by side.

    python benchmarks/core.py             # the table, and a store of 2 GB for the growth over rows
    python benchmarks/core.py --store 10  # the same with a store of 10 GB

Every figure comes from a process of its own. Times are the smallest of several runs. The floor is what any method must
pay that forms XᵀX and XᵀY: the two bare float64 products of the same rows. Memory is what a method needs at its peak on
top of the states. Compare ratios: absolute times depend on the machine and on what else it does.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHAPES = {
    "64 x 1000 x 256": (64, 1000, 256),
    "64 x 140 x 64": (64, 140, 64),
    "32 x 36 x 48": (32, 36, 48),
    "ragged 256 x <=400 x 128": (256, 400, 128),
}
METHODS = ("floor", "eig", "kann", "published", "dsa")
GIGABYTE = 10**9


def network_states(shape, rng):
    """States of a leaky tanh network that reads noise, as float32."""
    sequences, steps, d = shape
    weights, reads = 0.9 * rng.normal(size=(d, d)) / np.sqrt(d), rng.normal(size=(32, d)) / 6
    states = np.empty(shape, dtype=np.float32)
    h = np.zeros((sequences, d))
    for t in range(steps):
        h = 0.7 * h + 0.3 * np.tanh(h @ weights + rng.normal(size=(sequences, 32)) @ reads + 0.1 * rng.normal(size=d))
        h += 0.02 * rng.normal(size=h.shape)
        states[:, t] = h
    return states


def floor(states, lengths):
    """The two bare products, on rows that are float64 already."""
    rows = states.reshape(-1, states.shape[-1]).astype(np.float64)
    return lambda: (rows.T @ rows, rows[:-1].T @ rows[1:])


def eigenproblem(states, lengths):
    """All eigenpairs of an operator of this size."""
    d = states.shape[-1]
    matrix = np.random.default_rng(0).normal(size=(d, d)) / np.sqrt(d)
    return lambda: np.linalg.eig(matrix)


def ours(states, lengths):
    """`kann.fit`, which includes all eigenpairs and their residuals."""
    import kann

    return lambda: kann.fit(states, basis="svd", offset=False, lengths=lengths)


def published(states, lengths):
    """TruncatedSVD with d − 1 components on all states, least squares on all pairs, eigenvalues."""
    from sklearn.decomposition import TruncatedSVD

    def run():
        d = states.shape[-1]
        rows = states.reshape(-1, d) if lengths is None else _real(states, lengths)
        svd = TruncatedSVD(n_components=d - 1).fit(rows)
        x, y = (states[:, :-1], states[:, 1:]) if lengths is None else _real_pairs(states, lengths)
        x, y = (svd.transform(part.reshape(-1, d)) for part in (x, y))
        return np.linalg.eig(np.linalg.lstsq(x, y, rcond=None)[0])

    return run


def _real(states, lengths):
    return states[np.arange(states.shape[1]) < lengths[:, None]]


def _real_pairs(states, lengths):
    real = np.arange(1, states.shape[1]) < lengths[:, None]
    return states[:, :-1][real], states[:, 1:][real]


def dsa(states, lengths):
    """DSA's DMD with one delay and full rank; it takes no ragged sequences."""
    from DSA.dmd import DMD

    def run():
        model = DMD(states, n_delays=1, rank=states.shape[-1], lamb=0)
        model.fit()
        return np.linalg.eig(model.A_v.numpy())

    return run


PREPARE = {"floor": floor, "eig": eigenproblem, "kann": ours, "published": published, "dsa": dsa}


def peak_resident(reset=False):
    """(current, peak) resident bytes of this process; ``reset`` starts the peak anew."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(1024 * int(status[key].split()[0]) for key in ("VmRSS", "VmHWM"))


def measure_time(run):
    """Seconds, the smallest of at least three runs and at least one second of them."""
    run()
    times = []
    while len(times) < 3 or (sum(times) < 1 and len(times) < 50):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_memory(run, warm_up):
    """Bytes at the peak on top of what was resident before."""
    warm_up()
    before, _ = peak_resident(reset=True)
    run()
    return peak_resident()[1] - before


def child(method, what, folder):
    """One figure, measured in this process."""
    states = np.load(folder / "states.npy")
    lengths = np.load(folder / "lengths.npy") if (folder / "lengths.npy").exists() else None
    prepare = PREPARE[method]
    if what == "time":
        return measure_time(prepare(states, lengths))
    # Imports and thread pools are nobody's working memory: a tiny run pays for them first.
    few = slice(0, 2)
    tiny = prepare(states[few, :300].copy(), None if lengths is None else np.minimum(lengths[few], 300))
    return measure_memory(prepare(states, lengths), tiny)


def ask(method, what, folder):
    """Run `child` in a process of its own."""
    command = [sys.executable, __file__, "--child", method, what, str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(rng):
    """Print one row per shape and method."""
    print(f"{'states':26} {'method':10} {'time':>10} {'x kann':>8} {'x floor':>8} {'peak memory':>12}")
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            np.save(folder / "states.npy", network_states(shape, rng))
            ragged = name.startswith("ragged")
            if ragged:
                np.save(folder / "lengths.npy", rng.integers(10, shape[1] + 1, shape[0]))
            methods = [m for m in METHODS if m != "dsa" or (importlib.util.find_spec("DSA") and not ragged)]
            times = {method: ask(method, "time", folder) for method in methods}
            for method in methods:
                memory = "" if method in ("floor", "eig") else f"{ask(method, 'memory', folder) / 1e6:9.1f} MB"
                print(
                    f"{name:26} {method:10} {1e3 * times[method]:7.1f} ms {times[method] / times['kann']:8.2f} "
                    f"{times[method] / times['floor']:8.2f} {memory:>12}",
                    flush=True,
                )
            budget = 2.5 * times["floor"] + times["eig"]
            print(f"{'':26} kann takes {times['kann'] / budget:.2f} of 2.5 x floor + eigenproblem\n", flush=True)


def write_store(path, gigabytes, rng):
    """A store of ragged sequences of 256 units, written as a recorder would, batch by batch."""
    from kann.data.store import Writer

    with Writer(path) as writer:
        for _ in range(max(1, round(gigabytes * GIGABYTE / (2**14 * 256 * 4)))):
            cuts = np.sort(rng.choice(np.arange(1, 2**14), 60, replace=False))
            lengths = np.diff(np.concatenate([[0], cuts, [2**14]]))
            writer.append(rng.standard_normal((2**14, 256), dtype=np.float32), lengths)


def child_store(path):
    """Seconds and peak resident bytes, in all, of fitting a store."""
    import kann

    states = kann.States.open(path)
    peak_resident(reset=True)
    start = time.perf_counter()
    kann.fit(states, basis="svd", offset=False)
    return {"seconds": time.perf_counter() - start, "resident": peak_resident()[1], "rows": len(states.values)}


def growth(gigabytes, rng):
    """Fit stores of two sizes: memory must not grow, time must grow with the rows."""
    print(f"{'store on disk':14} {'rows':>10} {'time':>9} {'rows/s':>12} {'resident memory':>16}")
    found = []
    for size in (gigabytes / 4, gigabytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "states.zarr"
            write_store(path, size, rng)
            answer = subprocess.run(
                [sys.executable, __file__, "--child-store", str(path)], check=True, capture_output=True, text=True
            )
        row = json.loads(answer.stdout)
        found.append(row)
        print(
            f"{size:11.2f} GB {row['rows']:10} {row['seconds']:7.2f} s {row['rows'] / row['seconds']:12.0f} "
            f"{row['resident'] / 1e6:13.1f} MB",
            flush=True,
        )
    small, large = found
    exponent = np.log(large["seconds"] / small["seconds"]) / np.log(large["rows"] / small["rows"])
    print(f"time grows as rows^{exponent:.2f}")


def main():
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=float, default=2.0, help="gigabytes of the larger store on disk; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--child-store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        method, what, folder = arguments.child
        print(json.dumps(child(method, what, Path(folder))))
    elif arguments.child_store:
        print(json.dumps(child_store(arguments.child_store)))
    else:
        rng = np.random.default_rng(arguments.seed)
        table(rng)
        if arguments.store:
            growth(arguments.store, rng)


if __name__ == "__main__":
    main()

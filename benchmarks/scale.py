"""How fast states become moments on every path, how much memory that takes, and how it grows.

    python benchmarks/scale.py                                  # table, workers and growth: some minutes on two cores
    python benchmarks/scale.py growth                           # one of them alone
    python benchmarks/scale.py --store 20                       # fit a store of 20 GB, in one process and on Dask
    python benchmarks/scale.py --cuda --imdb reviews.npz        # what a GPU does; without --imdb, of random reviews
    python benchmarks/scale.py --cuda --device cpu --quick      # tiny sizes, to see that it runs

Every figure of the first three lines comes from processes of its own. A rate counts 4·d² operations a row: the products
XᵀX and XᵀY in float64. It is set against a plain float64 product that the same run measures, of which it may be more
than all: XᵀX is symmetric, and a path may make use of that. Memory is the sum over all processes of a path of the most
that each had resident; what is there before the data are imports, thread pools and an idle cluster. Libraries that
processes share count in each. Compare ratios: absolute times depend on the machine and on what else it does.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from core import GIGABYTE, network_states, write_store

DIMS = (64, 256, 1024, 4096)
QUICK_DIMS = (64, 1024)
WORK = 10**11
"""Operations of one figure of the table, about a second on two cores; at 4,096 units the rows alone ask for more."""

LARGEST = 2**28
"""Bytes of states in memory for one figure of the table."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
TASKS = 8
"""Of the workers' figures: so many equal tasks, so that none of the workers waits for the last one."""

GROWTH = 0.8
"""Gigabytes of the largest store of the growth over rows."""

STATES = 3 * GIGABYTE
"""Bytes of states on the GPU."""


# Data, written once by the main process and read by those that measure.


def ragged(rows, rng):
    """Lengths of sequences of 10 to 400 steps, ``rows`` in all."""
    stops = np.cumsum(rng.integers(10, 401, rows // 10 + 1))
    return np.diff(np.concatenate([[0], stops[stops < rows], [rows]]))


def write_data(folder, rows, d, rng, *, copies=1):
    """The same states as an array and as a store, which has them ``copies`` times."""
    from kann.data.store import Writer

    folder.mkdir()
    values, lengths = rng.standard_normal((rows, d), dtype=np.float32), ragged(rows, rng)
    np.save(folder / "states.npy", values)
    np.save(folder / "lengths.npy", lengths)
    with Writer(folder / "states.zarr") as writer:
        for _ in range(copies):
            writer.append(values, lengths)
    return folder


def read_data(folder):
    """States and lengths, in memory."""
    return np.load(folder / "states.npy"), np.load(folder / "lengths.npy")


# The paths. Each loads its data from a folder and returns what is to be measured.


def floor(folder):
    """A plain float64 product of two arrays of 64 MB or less."""
    states, _ = read_data(folder)
    rows = states[: 2**23 // states.shape[1]].astype(np.float64)
    other = rows[::-1].copy()
    return lambda: rows.T @ other


def in_numpy(folder):
    """Rows in memory."""
    import kann

    values, lengths = read_data(folder)
    return lambda: kann.Moments.of(kann.States(values=values, lengths=lengths))


def in_torch(folder):
    """The same as tensors."""
    import torch

    import kann

    values, lengths = read_data(folder)
    rows = torch.from_numpy(values)
    return lambda: kann.Moments.of(kann.States(values=rows, lengths=lengths))


def in_store(folder):
    """Rows on disk, read block by block, or by the workers of a client."""
    import kann

    return lambda: kann.Moments.of(folder / "states.zarr")


def in_chunks(folder):
    """A dask array whose chunks cut sequences, on Dask's threads in this process."""
    import dask.array

    import kann

    values, lengths = read_data(folder)
    rows, d = values.shape
    size = max(rows // 16, min(4 * d, rows // 2)) + 1
    array = dask.array.from_array(values, chunks=(size, d), name=False)
    return lambda: kann.Moments.of(kann.States(values=array, lengths=lengths))


def on_ranks(folder):
    """Half of the sequences on each rank of torch.distributed, then the sum."""
    import torch
    import torch.distributed as dist

    import kann

    values, lengths = np.load(folder / "states.npy", mmap_mode="r"), np.load(folder / "lengths.npy")
    half = len(lengths) // 2
    cut = int(lengths[:half].sum())
    rows, counts = (values[cut:], lengths[half:]) if dist.get_rank() else (values[:cut], lengths[:half])
    rows = torch.from_numpy(np.array(rows))
    return lambda: kann.Moments.of(kann.States(values=rows, lengths=counts)).all_reduce()


def in_two_readings(folder):
    """A fit of a store at low rank: the basis from one reading, pairs in it from another, and the eigenproblem."""
    import kann

    rank = np.load(folder / "states.npy", mmap_mode="r").shape[1] // 16
    return lambda: kann.fit(folder / "states.zarr", basis="svd", offset=False, rank=max(rank, 1))


def fit_store(folder):
    """A whole fit of a store."""
    import kann

    return lambda: kann.fit(folder / "states.zarr", basis="svd", offset=False)


@contextlib.contextmanager
def cluster(workers):
    """A client and workers of one thread each, which have imported what they need."""
    from distributed import Client, LocalCluster

    def imports():
        import zarr  # noqa: F401

        import kann  # noqa: F401

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0) as local,
        Client(local) as client,
    ):
        client.run(imports)
        yield


@contextlib.contextmanager
def rank_of_two(rank, place):
    """One of two ranks, which meet at a file, so that no port can be taken; gives what waits for the other one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    yield dist.barrier
    dist.destroy_process_group()


PATHS = {
    "floor": floor,
    "numpy": in_numpy,
    "torch": in_torch,
    "store": in_store,
    "dask local": in_chunks,
    "dask 2 workers": in_store,
    "gloo 2 ranks": on_ranks,
    "two readings": in_two_readings,
    "fit": fit_store,
}
IN_TABLE = ("numpy", "torch", "store", "dask local", "dask 2 workers", "gloo 2 ranks", "two readings")


# A process that measures, and what asks it.


def resident(which):
    """Bytes of this process and of all that it started: VmRSS now, or VmHWM, the most since `forget_peaks`."""
    total = 0
    for process in _processes():
        # A process may end while we look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            total += 1024 * int(dict(line.split(":", 1) for line in status.splitlines())[which].split()[0])
    return total


def forget_peaks():
    """Let VmHWM start anew in this process and all that it started."""
    for process in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _processes(pid=None):
    import psutil

    own = psutil.Process(pid)
    return [own, *own.children(recursive=True)]


def child(path, folder, tiny, repeats, workers=0, rank=None):
    """Seconds of each run, and bytes before the data and at the peak of the first run, all measured here."""
    place = Path(folder) / "meeting"
    surroundings = (
        cluster(workers) if workers else contextlib.nullcontext() if rank is None else rank_of_two(rank, place)
    )
    with surroundings as wait:
        load, seconds = PATHS[path], []
        load(Path(tiny))()
        before = resident("VmRSS")
        forget_peaks()
        run = load(Path(folder))
        for number in range(repeats):
            if wait:
                wait()
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
            if number == 0:
                peak = resident("VmHWM")
        return {"seconds": seconds, "before": before, "peak": peak}


def start(one_thread=False, **job):
    """Begin `child` in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(job, default=str)]
    env = os.environ | (ONE_THREAD if one_thread else {})
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process):
    """What a child found."""
    out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"a measurement failed:\n{errors}")
    return json.loads(out.splitlines()[-1])


def ask(path, **job):
    """The figures of one path; those of two ranks together."""
    if path != "gloo 2 ranks":
        return answer(start(path=path, **job))
    ranks = [start(one_thread=True, path=path, rank=rank, **job) for rank in (0, 1)]
    try:
        found = [answer(process) for process in ranks]
    finally:
        for process in ranks:  # where one fails, the other would wait for it
            process.kill()
    both = {key: sum(each[key] for each in found) for key in ("before", "peak")}
    return both | {"seconds": [max(times) for times in zip(*(each["seconds"] for each in found), strict=True)]}


@contextlib.contextmanager
def folders(rng):
    """A folder for data, and one with very little, to warm up with."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place), write_data(Path(place) / "tiny", 1000, 16, rng)


# What is printed. Each part returns its lines about what must hold.


def verdict(what, figure, aim, holds):
    """One line about what must hold."""
    return f"{what}: {figure} (aim {aim}){'' if holds else '  MISSED'}"


def table(rng, quick):
    """One line for each number of units and path."""
    print("moments of ragged float32 states, path by path")
    print(
        f"{'d':>5} {'path':15} {'rows':>9} {'rows/s':>11} {'GFLOP/s':>8} {'of plain':>9} {'before data':>12} "
        f"{'peak memory':>12}"
    )
    for d in QUICK_DIMS if quick else DIMS:
        work = WORK // 64 if quick else WORK
        rows = max(2 * d, min(work // (4 * d * d), LARGEST // (4 * d)))
        with folders(rng) as (folder, tiny):
            _table_of(d, rows, folder, tiny, rng)
        print()
    return []


def _table_of(d, rows, folder, tiny, rng):
    from kann.data.reduction import RUN_ROWS

    # A worker's task has at least so many rows: of fewer than twice as many, one of two workers would have none.
    copies = -(-2 * RUN_ROWS * d // rows)
    one, several = (write_data(folder / name, rows, d, rng, copies=n) for name, n in (("one", 1), ("several", copies)))
    repeats = 1 if rows * 4 * d * d > 2 * WORK else 3
    plain = 2 * min(rows, 2**23 // d) * d * d / min(ask("floor", folder=one, tiny=tiny, repeats=5)["seconds"])
    print(f"{d:5} {'plain product':15} {'':9} {'':11} {plain / 1e9:8.1f}")
    for path in IN_TABLE:
        if path == "two readings" and d < 1024:
            continue
        workers = 2 if path == "dask 2 workers" else 0
        found = ask(path, folder=several if workers else one, tiny=tiny, repeats=repeats, workers=workers)
        count = rows * copies if workers else rows
        rate = count / min(found["seconds"])
        print(
            f"{d:5} {path:15} {count:9} {rate:11.0f} {4e-9 * d * d * rate:8.1f} {4 * d * d * rate / plain:9.0%} "
            f"{found['before'] / 1e6:9.1f} MB {found['peak'] / 1e6:9.1f} MB",
            flush=True,
        )


def workers(rng, quick):
    """The same store on one worker and on two."""
    from kann.data.reduction import RUN_BYTES, RUN_ROWS

    print("a store on Dask workers of one thread, started before: best of three")
    print(f"{'d':>5} {'rows':>9} {'one worker':>11} {'two workers':>12} {'efficiency':>11}")
    lines = []
    for d in (64,) if quick else (256, 1024):
        rows = max(RUN_BYTES // (4 * d), RUN_ROWS * d)
        with folders(rng) as (folder, tiny):
            data = write_data(folder / "data", rows, d, rng, copies=TASKS // 4 if quick else TASKS)
            job = {"path": "dask 2 workers", "folder": data, "tiny": tiny, "repeats": 3}
            one, two = (min(ask(workers=count, **job)["seconds"]) for count in (1, 2))
        count = rows * (TASKS // 4 if quick else TASKS)
        print(f"{d:5} {count:9} {one:9.2f} s {two:10.2f} s {one / (2 * two):11.2f}", flush=True)
        lines.append(f"efficiency from 1 to 2 workers at d = {d}: {one / (2 * two):.2f}")
    print()
    return lines


def growth(rng, quick):
    """Stores of an eighth, a quarter, a half and all of the rows: the best of three processes each, taken in turns.

    Each process fits twice, since the first time it also pays for memory and threads that it has from then on.
    """
    print("moments of stores of 256 units")
    print(f"{'rows':>9} {'time':>9} {'rows/s':>9}")
    with folders(rng) as (folder, tiny):
        places = [folder / f"{part}" for part in (8, 4, 2, 1)]
        for place in places:
            write_store(place / "states.zarr", (0.14 if quick else GROWTH) / int(place.name), rng)
        job = {"path": "store", "tiny": tiny, "repeats": 2}
        rounds = [[min(ask(folder=place, **job)["seconds"]) for place in places] for _ in range(3)]
        rows = np.array([_rows_of(place) for place in places])
    seconds = np.min(rounds, axis=0)
    for count, spent in zip(rows, seconds, strict=True):
        print(f"{count:9} {spent:7.3f} s {count / spent:9.0f}")
    exponent = np.polyfit(np.log(rows), np.log(seconds), 1)[0]
    print()
    return [verdict("time grows as rows to the power of", f"{exponent:.3f}", "0.95 to 1.05", abs(exponent - 1) <= 0.05)]


def _rows_of(folder):
    import kann

    return len(kann.States.open(folder / "states.zarr").values)


def big_store(gigabytes, rng):
    """Fit one large store in one process and on two Dask workers."""
    lines = []
    with folders(rng) as (folder, tiny):
        write_store(folder / "states.zarr", gigabytes, rng)
        size = sum(file.stat().st_size for file in (folder / "states.zarr").rglob("*") if file.is_file())
        rows = _rows_of(folder)
        print(
            f"fitting a store of {size / GIGABYTE:.2f} GB on disk, {rows} rows of 256 units; memory of all processes:"
        )
        print(
            f"{'path':15} {'time':>9} {'rows/s':>9} {'GB/s':>6} {'sum of peaks':>13} {'peak of sum':>12} "
            f"{'of it unshared':>15} {'before data':>12}"
        )
        for path, count in (("one process", 0), ("2 Dask workers", 2)):
            process = start(path="fit", folder=folder, tiny=tiny, repeats=1, workers=count)
            together, unshared = sample(process)
            found = answer(process)
            (seconds,) = found["seconds"]
            print(
                f"{path:15} {seconds:7.1f} s {rows / seconds:9.0f} {size / GIGABYTE / seconds:6.2f} "
                f"{found['peak'] / 1e6:10.1f} MB {together / 1e6:9.1f} MB {unshared / 1e6:12.1f} MB "
                f"{found['before'] / 1e6:9.1f} MB",
                flush=True,
            )
            what = f"memory in all to fit {size / GIGABYTE:.1f} GB, {path}"
            lines.append(verdict(what, f"{found['peak'] / 1e6:.0f} MB", "under 1000 MB", found["peak"] < GIGABYTE))
    print()
    return lines


def sample(process):
    """The most bytes that a process and all it started have at one time, resident and unshared, seen 20 times a second.

    Unlike the sum of peaks this misses what is short, and counts what is needed at the same time alone.
    """
    import psutil

    most = [0, 0]
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [each.memory_full_info() for each in _processes(process.pid)]
            most[0] = max(most[0], sum(each.rss for each in found))
            most[1] = max(most[1], sum(each.uss for each in found))
        time.sleep(0.05)
    return most


# On a GPU. That machine needs torch, numpy, scipy and array-api-compat, and nothing else.


def on_device(device, quick, imdb, full, rng):
    """All figures of a GPU; ``device`` may be a CPU, to see that it runs."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, host with {os.cpu_count()} cores\n")
    lines = rates(device, quick)
    lines += after_the_pass(device, quick, full)
    eigenproblems(device, quick)
    lines += reviews(device, quick, imdb, rng)
    agreement(device, quick, rng)
    return lines


def plain_rate(d, device):
    """Operations per second of a plain float64 product, of as many rows as moments take at a time."""
    import torch
    from record import best_of_each

    from kann.backends.arrays import block_rows

    n, times = block_rows(torch.empty(0, device=device), d), 8
    x, y = (torch.randn(n, d, device=device, dtype=torch.float64) for _ in range(2))

    def products():
        for _ in range(times):
            torch.matmul(x.T, y)

    best_of_each([products], device, 1)
    return times * 2 * n * d * d / best_of_each([products], device, 5)[0]


def device_states(d, dtype, device, quick):
    """Padded states (S, T, d) of at most `STATES` bytes, and the lengths of the sequences, half of T or more."""
    import torch

    steps = 64 if quick else 512
    torch.manual_seed(0)
    sequences = max(2 * d // steps + 1, (STATES // 1000 if quick else STATES) // (steps * d * dtype.itemsize))
    lengths = torch.randint(steps // 2, steps + 1, (sequences,)).numpy()
    return torch.randn(sequences, steps, d, device=device, dtype=dtype), lengths


def rates(device, quick):
    """Moments of states on the device against a plain product."""
    import torch

    print("moments of states on the device, and the float64 product alone; memory on top of the states")
    print(
        f"{'d':>5} {'dtype':9} {'layout':7} {'rows':>9} {'rows/s':>11} {'plain':>13} {'moments':>13} {'ratio':>6} "
        f"{'peak memory':>12}"
    )
    lines = []
    for d in (64, 256) if quick else (256, 1024, 4096):
        plain = plain_rate(d, device)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            lines += _rates_of(d, dtype, device, plain, quick)
    print()
    return lines


def _rates_of(d, dtype, device, plain, quick):
    from record import best_of_each

    import kann
    from kann.data.states import as_states

    padded, lengths = device_states(d, dtype, device, quick)
    rows, kind, lines = int(lengths.sum()), str(dtype).removeprefix("torch."), []
    flat = kann.States(values=padded.reshape(-1, d)[:rows], lengths=lengths)
    for layout, states in (("padded", as_states(padded, lengths)), ("rows", flat)):
        run = functools.partial(kann.Moments.of, states)
        peak = peak_on(device, run)
        (seconds,) = best_of_each([run], device, 5)
        rate = 4 * d * d * rows / seconds
        print(
            f"{d:5} {kind:9} {layout:7} {rows:9} {rows / seconds:11.0f} {plain / 1e12:7.3f} TF/s "
            f"{rate / 1e12:7.3f} TF/s {rate / plain:6.0%} {peak:>12}",
            flush=True,
        )
        if d >= 1024:
            what = f"moments at d = {d}, {kind}, {layout}, of the plain product"
            lines.append(verdict(what, f"{rate / plain:.0%}", "60 % or more", rate >= 0.6 * plain))
    return lines


def peak_on(device, run):
    """The most memory of a GPU that a run takes on top of what is there; nothing of a CPU."""
    import torch

    if device != "cuda":
        run()
        return ""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return f"{(torch.cuda.max_memory_allocated() - before) / 1e6:.0f} MB"


def after_the_pass(device, quick, full):
    """The fit from moments that are on the device, in all and piece by piece."""
    import torch
    from record import best_of_each

    import kann
    from kann.fitting.basis import svd_from_gram
    from kann.fitting.spectrum import decompose

    d, rank = (256, 32) if quick else (4096, 512)
    moments = kann.Moments().update(*device_states(d, torch.float32, device, quick))
    lines = []
    print(f"a fit from moments of {d} units")
    print(f"{'rank':>6} {'in all':>9} {'basis':>9} {'pairs in it':>12} {'eigenproblem':>13}")
    for chosen in (rank, None) if full else (rank,):
        largest = d if chosen is None else chosen
        norm = float(moments.hh.trace()) ** 0.5
        koopman = kann.fit(moments, basis="svd", offset=False, rank=chosen)
        pieces = [
            lambda: kann.fit(moments, basis="svd", offset=False, rank=chosen),  # noqa: B023
            lambda: svd_from_gram(moments.hh, norm=norm, rounding=moments.rounding, largest=largest),  # noqa: B023
            lambda: moments.in_basis(koopman.basis),  # noqa: B023
            lambda: decompose(koopman.matrix),  # noqa: B023
        ]
        whole, *parts = best_of_each(pieces, device, 1 if chosen is None else 3)
        print(
            f"{chosen or 'all':>6} {whole:7.2f} s {parts[0]:7.2f} s {parts[1]:10.3f} s {parts[2]:11.2f} s", flush=True
        )
        if chosen:
            lines.append(
                verdict(f"fit after the pass, d = {d}, rank {rank}", f"{whole:.2f} s", "under 20 s", whole < 20)
            )
    print()
    return lines


def eigenproblems(device, quick):
    """Which of host and device is faster, by size."""
    import torch
    from record import best_of_each

    print("eigenproblems in float64: numpy on the host and torch on the device, which includes the copy there and back")
    print(f"{'kind':14} {'size':>5} {'host':>10} {'device':>10}  faster")
    for kind, sizes in (
        ("not symmetric", (16, 64) if quick else (64, 256, 512, 1024, 2048)),
        ("symmetric", (64, 256) if quick else (1024, 4096)),
    ):
        host, there = (
            (np.linalg.eig, torch.linalg.eig) if kind == "not symmetric" else (np.linalg.eigh, torch.linalg.eigh)
        )
        for size in sizes:
            matrix = np.random.default_rng(0).normal(size=(size, size)) / size**0.5
            matrix = matrix + matrix.T if kind == "symmetric" else matrix
            actions = [
                lambda: host(matrix),  # noqa: B023
                lambda: [part.cpu() for part in there(torch.as_tensor(matrix, device=device))],  # noqa: B023
            ]
            if size <= 1024:
                best_of_each(actions, device, 1)
            ours, theirs = best_of_each(actions, device, 3 if size <= 1024 else 1)
            faster = "host" if ours < theirs else "device"
            print(f"{kind:14} {size:5} {1e3 * ours:7.1f} ms {1e3 * theirs:7.1f} ms  {faster}", flush=True)
    print()


def reviews(device, quick, imdb, rng):
    """Recording the network that comes with kann over film reviews, against its bare forward pass."""
    from record import best_of_each

    import kann

    network = shipped_network(device)
    which = "IMDB" if imdb else "random"
    tokens, lengths = review_words(imdb, rng)
    order = np.argsort(lengths, kind="stable")[:: 100 if quick else 1]
    print(f"record into moments, GRU of 256 units, {len(order)} {which} reviews of {lengths[order].sum()} words")
    print(f"{'batch':>5} {'forward':>10} {'record':>10} {'ratio':>7}")
    verdicts = []
    for size in (32, 256) if quick else (32, 64, 128, 256):
        bare, recorded, moments = _reviews_of(network, review_batches(tokens, lengths, order, size, device), device)
        print(f"{size:5} {bare:8.3f} s {recorded:8.3f} s {recorded / bare:7.3f}", flush=True)
        name = f"recording over the forward pass, {which} reviews in batches of {size}"
        verdicts.append(verdict(name, f"{recorded / bare:.3f}", "at most 1.15", recorded <= 1.15 * bare))
    (fitted,) = best_of_each([lambda: kann.fit(moments, basis="svd", offset=False)], device, 3)
    value = kann.fit(moments, basis="svd", offset=False).eigenvalues[0]
    print(f"fit of all of them: {fitted:.3f} s, leading eigenvalue {value:.6f}\n", flush=True)
    return verdicts


def _reviews_of(network, batches, device):
    """Seconds of the forward pass and of recording, the smallest of several, side by side; and the moments."""
    import torch
    from record import best_of_each

    import kann

    def forward():
        with torch.inference_mode():
            for ids, _ in batches:
                network(ids)

    def record():
        return kann.recording.record_moments(network, batches, layer="recurrent", lengths=1, progress=False)

    best_of_each([forward, record], device, 1)
    bare, recorded = best_of_each([forward, record], device, 5)
    return bare, recorded, record()


def review_words(imdb, rng):
    """The words of all reviews in one array, and how many each has."""
    if imdb:
        with np.load(imdb) as file:
            return file["tokens"].astype(np.int64), file["lengths"]
    # As long as those of IMDB, roughly, which are cut at 1,000 words.
    lengths = np.clip(rng.lognormal(5.3, 0.65, 25_000), 10, 1000).astype(int)
    return rng.integers(2, 10_000, lengths.sum()), lengths


def review_batches(tokens, lengths, order, size, device):
    """Batches of reviews in this order: words on the device, and lengths on the host."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    starts = np.cumsum(lengths) - lengths
    batches = []
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        ids = [torch.from_numpy(tokens[starts[i] : starts[i] + lengths[i]]) for i in chosen]
        batches.append((pad_sequence(ids, batch_first=True).to(device), torch.as_tensor(lengths[chosen])))
    return batches


def shipped_network(device):
    """The film reviewer that comes with kann, put together here: `kann.zoo.load` needs more packages."""
    import torch
    from torch import nn

    from kann import zoo

    content = (zoo.folder("sentiment") / "weights.safetensors").read_bytes()
    body = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:body])
    weights = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            low, high = entry["data_offsets"]
            half = np.frombuffer(content[body + low : body + high], dtype=np.float16)  # as the provenance says
            weights[name] = torch.from_numpy(half.astype(np.float32).reshape(entry["shape"]))

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(*weights["embedding.weight"].shape, padding_idx=0)
            size, units = weights["embedding.weight"].shape[1], weights["readout.weight"].shape[1]
            self.recurrent, self.readout = nn.GRU(size, units, batch_first=True), nn.Linear(units, 1)

        def forward(self, ids):
            return self.readout(self.recurrent(self.embedding(ids))[0][:, -1])

    network = Reader()
    network.load_state_dict(weights)
    return network.to(device).eval()


def agreement(device, quick, rng):
    """The operator that is fitted on the device against the one that numpy fits, to the same float32 states."""
    import torch

    import kann

    print("operators fitted on the device and by numpy")
    print(f"{'d':>5} {'rank':>5} {'largest difference of B C Bᵀ over its largest entry':>52}")
    for d, rank in ((64, None),) if quick else ((256, None), (1024, 64)):
        states = network_states((64, 200, d), rng)
        lengths = rng.integers(10, 201, 64)
        found = [
            kann.fit(data, basis="svd", offset=False, lengths=lengths, rank=rank)
            for data in (states, torch.as_tensor(states, device=device))
        ]
        ours, theirs = (each.basis @ each.matrix @ each.basis.T for each in found)
        print(f"{d:5} {rank or 'all':>5} {np.abs(ours - theirs).max() / np.abs(ours).max():52.1e}", flush=True)
    print()


PARTS = {"table": table, "workers": workers, "growth": growth}


def main():
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all, if there is no --store or --cuda")
    parser.add_argument("--store", type=float, metavar="GB", help="fit a store of so many gigabytes")
    parser.add_argument("--cuda", action="store_true", help="measure a GPU")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of --cuda: cpu to try it")
    parser.add_argument("--imdb", metavar="FILE", help="of --cuda: an .npz of tokens, all reviews' in one, and lengths")
    parser.add_argument(
        "--full", action="store_true", help="of --cuda: also fit all 4,096 directions, which takes long"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**arguments.child)))
        return
    if set(arguments.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    rng, lines = np.random.default_rng(arguments.seed), []
    for name in arguments.parts or ([] if arguments.store or arguments.cuda else PARTS):
        lines += PARTS[name](rng, arguments.quick)
    if arguments.store:
        lines += big_store(arguments.store, rng)
    if arguments.cuda:
        lines += on_device(arguments.device, arguments.quick, arguments.imdb, arguments.full, rng)
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""How long inputs that gate take: fitting thousands of columns, and running the stand-in beside the network.

    python benchmarks/gates.py --steps 130000             # two cores: times, and what 1.3 million steps would take
    python benchmarks/gates.py --steps 1300000 --device cuda

On a machine that is busy with other things set OMP_NUM_THREADS=1: threads that wait for each other count as CPU time.

Fits 24 coordinates of 256 units with 128 features and squares, then runs a stand-in of 16 coordinates beside a GRU of
256 units on reviews of made-up words.
"""

import argparse
import resource
import time

import numpy as np
import torch
from torch import nn

import kann

STEPS_OF_THE_REVIEWS = 1_300_000
"""Steps of 5,000 reviews: what a fit is to be judged by."""


def made_up_states(steps: int, *, device: str, units: int = 256, inputs: int = 160) -> kann.States:
    """Random states and inputs of sequences of 250 steps, in float32."""
    generator = torch.Generator(device=device).manual_seed(0)
    count = steps // 250
    values = torch.randn(count * 250, units, generator=generator, device=device).cumsum(0) * 0.01
    read = torch.randn(count * 250, inputs, generator=generator, device=device)
    values = torch.tanh(values + read @ torch.randn(inputs, units, generator=generator, device=device) * 0.1)
    if device == "cpu":
        return kann.States(values=values.numpy(), lengths=np.full(count, 250), inputs=read.numpy())
    return kann.States(values=values, lengths=np.full(count, 250), inputs=read)


def time_fit(steps: int, *, device: str) -> float:
    """Print how long a fit takes and what memory it needs; return its CPU time."""
    states = made_up_states(steps, device=device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    options = {"rank": 24, "features": kann.features.Components(128), "lift": "squares"}
    if device != "cpu":  # the first call starts the GPU's libraries
        kann.fit(made_up_states(100_000, device=device), driven="bilinear", **options)
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    koopman = kann.fit(states, driven="bilinear", **options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{koopman!r}, ridge {koopman.ridge}")
    print(f"fit of {steps} steps: {wall:.1f} s, {cpu:.1f} s of CPU time; peak {peak:.2f} GB, {before:.2f} before")
    return cpu


def extrapolate(*, small: int = 20_000, large: int = 60_000, device: str) -> None:
    """Print what a fit of 1.3 million steps takes: two sizes tell what grows with the steps from what does not."""
    first, second = time_fit(small, device=device), time_fit(large, device=device)
    per_step = (second - first) / (large - small)
    fixed = first - per_step * small
    total = fixed + per_step * STEPS_OF_THE_REVIEWS
    print(f"{per_step * 1e6:.0f} µs a step and {fixed:.1f} s: 1.3 million steps {total:.0f} s of CPU time")
    print(f"on two cores {total / 2:.0f} s")


def time_stand_in(*, words: int = 5000, batch: int = 64, steps: int = 250) -> None:
    """Print how long a stand-in of 16 coordinates and the GRU that it replaces take for a batch."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(words, 100), nn.GRU(100, 256, batch_first=True))
    ids = (torch.randn(8, batch, steps).abs() * words / 5).long().clamp(max=words - 1)
    with torch.no_grad():
        states = kann.record(network, ids[0], inputs=True, progress=False)
        koopman = kann.fit(states, driven="bilinear", rank=16, features=kann.features.Components(64))
        stand_in = kann.stand_in(koopman, vocabulary=network[0].weight)
        for name, run in (("GRU", network), ("stand-in", stand_in)):
            run(ids[0])
            times = []
            for part in ids[1:]:
                start = time.perf_counter()
                run(part)
                times.append(time.perf_counter() - start)
            print(f"{name}: {np.median(times) * 1e3:.1f} ms for {batch} sequences of {steps} words")


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=130_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    time_fit(options.steps, device=options.device)
    if options.device == "cpu":
        extrapolate(device=options.device)
        time_stand_in()


if __name__ == "__main__":
    main()

"""What recording costs on top of running the model, and what it holds in memory.

    python benchmarks/record.py           # the table, and a stream of 5 million steps
    python benchmarks/record.py --quick   # fewer repeats, and a stream of a million steps

The table sets the time of `kann.recording.record_moments` against the time of the model's bare forward pass over the
same batches, measured in turns in one process; each is the smallest of several runs. The model is the recurrent module
and nothing else, with inputs as wide as its states unless the table says otherwise: whatever else a model does makes
the ratio smaller. Moments cost 2·d² multiplications a step in float64, and a layer 3·d·(d + p) (GRU) or 4·d·(d + p)
(LSTM) in float32, so that narrow inputs and "hc", which is 2·d wide, make it larger. The column "products" is the time
of those float64 multiplications alone, with torch's plain product: what recording adds cannot fall far below it.
"""

import argparse
import time

import torch
from torch import nn

import kann

UNITS = 256
CASES = (
    # kind, layers, inputs, layer, state, limit on the CPU, limit on a GPU
    ("GRU", 1, 256, None, "h", 1.5, 1.3),
    ("GRU", 2, 256, None, "h", 1.5, 1.3),
    ("GRU", 2, 256, "*", "h", None, None),
    ("LSTM", 1, 256, None, "h", 1.5, 1.3),
    ("LSTM", 2, 256, None, "h", 1.5, 1.3),
    ("LSTM", 2, 256, "*", "c", 3.0, None),
    ("LSTM", 2, 256, "*", "hc", None, None),
    ("GRU", 1, 64, None, "h", None, None),
    ("LSTM", 1, 64, None, "h", None, None),
)
STREAM = {"units": 64, "inputs": 8, "batch": 32, "steps": 200}


def finish(device):
    """Wait until the device has done what it was asked to."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_of_each(actions, device, repeats):
    """The smallest time of each action; they take turns, so that all see the same machine."""
    times = [[] for _ in actions]
    for _ in range(repeats):
        for action, spent in zip(actions, times, strict=True):
            finish(device)
            start = time.perf_counter()
            action()
            finish(device)
            spent.append(time.perf_counter() - start)
    return [min(spent) for spent in times]


def measure(case, device, repeats):
    """Seconds of the bare forward pass, of the two products that moments consist of, and of recording."""
    kind, layers, inputs, layer, state, *_ = case
    batch, steps, batches = (256, 500, 8) if device == "cuda" else (32, 200, 8)
    torch.manual_seed(0)
    module = getattr(nn, kind)(inputs, UNITS, num_layers=layers, batch_first=True).to(device).eval()
    data = torch.randn(batch * batches, steps, inputs, device=device)

    def forward():
        with torch.inference_mode():
            for part in data.split(batch):
                module(part)

    rows = torch.randn(batch * steps, UNITS * len(state), device=device, dtype=torch.float64)

    def products():
        for _ in range(batches * (layers if layer else 1)):
            rows.T @ rows
            rows[:-1].T @ rows[1:]

    def record():
        if layer is None:
            kann.recording.record_moments(module, data, state=state, batch_size=batch, progress=False)
        else:
            kann.recording.record_layer_moments(
                module, data, layer=layer, state=state, batch_size=batch, progress=False
            )

    return best_of_each([forward, products, record], device, repeats)


def table(device, repeats):
    """One row for each case."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    shape = "batch 256, length 500" if device == "cuda" else "batch 32, length 200"
    print(f"\nrecord into moments, {UNITS} units, {name}, {shape}")
    print(
        f"{'model':<8}{'layers':>7}{'inputs':>8}  {'recorded':<18}{'forward':>10}{'products':>10}{'record':>10}"
        f"{'ratio':>8}{'aim':>8}"
    )
    for case in CASES:
        kind, layers, inputs, layer, state, *limits = case
        bare, multiplied, recorded = measure(case, device, repeats)
        what = f"{'all layers' if layer else 'last layer'}, {state}"
        limit = limits[1] if device == "cuda" else limits[0]
        aim = f"<= {limit}" if limit else ""
        print(
            f"{kind:<8}{layers:>7}{inputs:>8}  {what:<18}{bare * 1e3:>8.1f}ms{multiplied * 1e3:>8.1f}ms"
            f"{recorded * 1e3:>8.1f}ms{recorded / bare:>8.2f}{aim:>8}",
            flush=True,
        )


def peak_megabytes():
    """The most memory that this process ever held."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def memory(total):
    """Peak memory after a tenth of a synthetic stream and at its end."""
    per_batch = STREAM["batch"] * STREAM["steps"]
    count = -(-total // per_batch)
    peaks = []

    def stream():
        for number in range(count):
            if number == count // 10:
                peaks.append(peak_megabytes())
            yield torch.randn(STREAM["batch"], STREAM["steps"], STREAM["inputs"])

    module = nn.GRU(STREAM["inputs"], STREAM["units"], batch_first=True)
    start = time.perf_counter()
    moments = kann.recording.record_moments(module, stream(), progress=False)
    spent = time.perf_counter() - start
    whole = moments.states * STREAM["units"] * 4 / 2**20
    print(f"\nmemory over a stream of {moments.states:,} steps, {STREAM['units']} units, {spent:.0f} s")
    print(f"peak after 1/10: {peaks[0]:.1f} MB   at the end: {peak_megabytes():.1f} MB   all states: {whole:,.0f} MB")


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and a shorter stream")
    quick = parser.parse_args().quick
    torch.set_flush_denormal(True)  # states that decay to nothing would else slow down the processor, not us
    memory(1_000_000 if quick else 5_000_000)  # first: the peak is that of the whole process
    table("cpu", 3 if quick else 15)
    if torch.cuda.is_available():
        table("cuda", 3 if quick else 10)


if __name__ == "__main__":
    main()

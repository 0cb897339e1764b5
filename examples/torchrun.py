"""One operator from data that several processes share.

    torchrun --nproc-per-node 2 examples/torchrun.py --out operator.npz

Every process runs the same network over its own share of the sequences and keeps d × d moments, never the states. One
sum over the processes later each of them holds the moments of all the data. However many processes there are, the
operator is the same. Rank 0 prints, of the default data, whose sines have periods of 10 to 30 steps:

    together: Moments(38536 states of 301 sequences, 16 units)
    |λ| 1.0000  period    inf  residual 0.022
    |λ| 0.9438  period   19.6  residual 0.322
"""

import argparse
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import kann


def network(units):
    """The network to explain; the seed gives every process the same weights. Load your own checkpoint here."""
    torch.manual_seed(0)
    return nn.GRU(input_size=1, hidden_size=units, batch_first=True)


def signal(i):
    """Sequence number i, (T, 1): a sine of its own length and frequency, in noise."""
    draw = torch.Generator().manual_seed(i)
    steps = int(torch.randint(50, 200, (), generator=draw))
    period = 10 + 20 * torch.rand((), generator=draw)
    wave = torch.sin(2 * math.pi * torch.arange(steps) / period)
    return (wave + 0.5 * torch.randn(steps, generator=draw))[:, None]


def start():
    """Join the other processes; the device of this one, a GPU if there is one for each of them."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start this with: torchrun --nproc-per-node 2 examples/torchrun.py")
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    return torch.device("cuda", local)


def main():
    """Record a share, sum, fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="operator.npz", help="where to save the operator")
    parser.add_argument("--sequences", type=int, default=301, help="how many, over all processes")
    parser.add_argument("--units", type=int, default=16, help="hidden units of the network")
    args = parser.parse_args()

    device = start()
    rank, world = dist.get_rank(), dist.get_world_size()
    share = [signal(i) for i in range(rank, args.sequences, world)]  # uneven, and empty if there are fewer than ranks

    moments = kann.recording.record_moments(network(args.units).to(device), share)
    print(f"rank {rank}: {moments}", flush=True)
    moments.all_reduce()

    if rank == 0:
        print(f"together: {moments}")
        koopman = kann.fit(moments, basis="svd", offset=False)
        for mode in koopman.modes[:5]:
            print(f"|λ| {mode.modulus:.4f}  period {mode.period:6.1f}  residual {mode.residual:.3f}")
        koopman.save(args.out)
        print(f"saved to {args.out}")
    dist.barrier()
    leave()


def leave():
    """End this process, which has nothing left to do.

    A thread of gloo may still be letting go of a tensor. If Python shuts down at that moment, the process is aborted
    (https://github.com/pytorch/pytorch/pull/179291), so it ends without Python's own shutdown.
    """
    if dist.get_backend() == "nccl":
        dist.destroy_process_group()
        return
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

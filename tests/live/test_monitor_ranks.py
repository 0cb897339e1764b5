"""The monitor beside DistributedDataParallel: two ranks train with the same bits as without it, and nobody waits.

Starting processes takes seconds, so one world of two ranks trains every case, and tests look at what it left behind.
"""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import kann
from kann.live.history import FIGURES
from tests.backends.test_distributed import joined
from tests.live.test_monitor import network, probe
from tests.recording.test_restoring import equal

CASES = {"alone": (), "first": (0,), "both": (0, 1)}
"""Which ranks watch."""

STEPS, EVERY = 6, 2


def run_rank(rank, folder):
    """Every case on one rank; what it ends with goes to a file."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    joined(folder, rank=rank, world=2)
    for case, watching in CASES.items():
        torch.save(trained(rank, watches=rank in watching), folder / f"{case}-{rank}.pt")
    torch.save(lone_update(rank), folder / f"lone-{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo may abort a process in which Python shuts down, see tests/backends/test_distributed.py


def trained(rank, *, watches):
    """A short training on this rank's own data, with an update between forward, backward and step by turns."""
    torch.manual_seed(rank)  # dropout and data differ between ranks
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    monitor = kann.Monitor(model, probe(), every=1)

    def maybe_update(step, place):
        if watches and step % EVERY == 0 and step // EVERY == place:
            monitor.update(step, loss=loss)

    for step in range(STEPS):
        loss = model(torch.randn(8, 5, 3)).square().mean()
        maybe_update(step, 0)  # before backward, which sums gradients over the ranks
        optimizer.zero_grad()
        loss.backward()
        maybe_update(step, 1)  # before the gradients are used
        optimizer.step()
        maybe_update(step, 2)
    ended = {"weights": model.state_dict(), "optimizer": optimizer.state_dict()["state"], "rng": torch.get_rng_state()}
    return ended | {"steps": monitor.history.steps.tolist(), "figures": monitor.latest}


def lone_update(rank):
    """An update of rank 0 while rank 1 is not there to answer: it does not wait, since nothing is exchanged."""
    model = DistributedDataParallel(network())
    found = {}
    if rank == 0:
        found = kann.Monitor(model, probe(), every=1).update()
    dist.barrier()
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What each rank ended with, by case."""
    folder = tmp_path_factory.mktemp("world")
    mp.spawn(run_rank, args=(folder,), nprocs=2)
    return lambda case, rank: torch.load(folder / f"{case}-{rank}.pt", weights_only=True)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", ["first", "both"])
def test_watched_ranks_end_with_the_same_bits(ended, case, rank):
    alone, watched = ended("alone", rank), ended(case, rank)
    for part in ("weights", "optimizer", "rng"):
        assert equal(alone[part], watched[part]), part
    expected = []
    if rank in CASES[case]:
        expected = [0, 2, 4]
    assert watched["steps"] == expected
    assert not alone["steps"]


def test_all_ranks_hold_the_same_weights_and_see_the_same(ended):
    zero, one = ended("both", 0), ended("both", 1)
    weights = [{name: value for name, value in each["weights"].items() if "norm" not in name} for each in (zero, one)]
    assert equal(*weights)  # batch norm counts the data of its own rank
    assert not equal(zero["rng"], one["rng"])
    assert set(zero["figures"]) == {f"koopman/{name}" for name in FIGURES}
    for name in ("koopman/error", "koopman/radius"):
        assert 0 < zero["figures"][name] == one["figures"][name]


def test_a_wrapped_model_gives_the_figures_of_its_own_network(ended):
    expected = kann.Monitor(network(), probe(), every=1).update()
    assert ended("lone", 0) == pytest.approx(expected, nan_ok=True)
    assert ended("lone", 1) == {}

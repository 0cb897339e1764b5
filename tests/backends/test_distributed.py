"""Moments over the ranks of torch.distributed.

Starting processes takes seconds, so one world of two ranks runs every case, and the tests look at what it left behind.
"""

import contextlib
import json
import os
import runpy
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import kann
from kann.backends._distributed import _sentence
from kann.errors import KannError
from tests.data.test_moments import NAMES
from tests.systems import AS_IN_PAPER, full_operator, noisy_states

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun.py"
LENGTHS = np.array([40, 3, 17, 1, 25, 33, 9, 40, 2, 21, 30, 12])
SHARES = {0: slice(0, 9), 1: slice(9, 12)}
"""Which of the sequences each rank has."""

needs_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs a GPU and nccl"
)


def data():
    """Ragged states and inputs, the same in every process."""
    rng = np.random.default_rng(0)
    return noisy_states(rng), rng.normal(size=(12, 40, 3))


def measured(part, *, driven=True, convert=np.asarray):
    """Moments of some of the sequences."""
    states, inputs = data()
    drive = convert(inputs[part]) if driven else None
    return kann.Moments().update(convert(states[part]), LENGTHS[part], inputs=drive)


def whole(*, driven=True):
    """Moments of everything, in one process."""
    return measured(slice(None), driven=driven)


def joined(folder, *, rank=0, world=1, backend="gloo"):
    """Become one of the ranks; a file is where they meet, so that no port can be taken."""
    place, wait = f"file://{folder}/meeting", timedelta(seconds=60)
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=world, timeout=wait)


def refusal(call):
    """What a call says that is refused."""
    with pytest.raises(KannError) as caught:
        call()
    return str(caught.value)


# One rank of the world


def run_rank(rank, folder):
    """Every case on one rank; what it holds afterwards goes to files, what it saw to a JSON file."""
    warnings.simplefilter("error")
    joined(folder, rank=rank, world=2)
    seen = {}
    for name, moments in {**sums(rank), **empty_sums(rank)}.items():
        assert moments.all_reduce() is moments
        moments.save(folder / f"{name}-{rank}.npz")
        seen[name] = type(moments.hh).__name__
    seen["refused"] = refusals(rank)
    seen["fitted"] = fitted_over_ranks(rank, folder)
    seen["recorded"] = empty_shares(rank)
    seen["group"] = in_a_group(rank)
    seen["copies"] = copies(rank, folder)
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    os._exit(
        0
    )  # gloo may abort a process in which Python shuts down while a thread lets go of a tensor (PyTorch #179291)


def sums(rank):
    """Both ranks have data."""
    part = SHARES[rank]
    return {
        "autonomous": measured(part, driven=False),
        "numpy": measured(part),
        "torch": measured(part, convert=torch.tensor),
        "mixed": measured(part, convert=(np.asarray, torch.tensor)[rank]),
        "columns": strided(measured(part)),
    }


GATED = {"driven": "bilinear", "rank": 3, "features": kann.features.Components(2), "lift": "squares"}


def fitted_over_ranks(rank, folder):
    """Operators of the sequences of both ranks, fitted on each; what is refused on one is refused on both."""
    states, inputs = data()
    part = kann.States.from_padded(states, LENGTHS, inputs=inputs)[SHARES[rank]]
    kann.fit(part, driven=True, over_ranks=True).save(folder / f"driven-{rank}.npz")
    kann.fit(part, **GATED, ridge=1e-6, over_ranks=True).save(folder / f"gated-{rank}.npz")
    kann.fit(part, **GATED, over_ranks=True).save(folder / f"chosen-{rank}.npz")
    spoilt = part.values.copy()
    if rank:
        spoilt[3] = np.nan
    bad = kann.States(values=spoilt, lengths=part.lengths, inputs=part.inputs)
    return refusal(lambda: kann.fit(bad, driven=True, over_ranks=True))


def strided(moments):
    """The same moments in arrays that neither lie in the order of rows nor can be written to, as a file may give."""
    for name in NAMES:
        array = np.asfortranarray(getattr(moments, name))
        array.flags.writeable = False
        setattr(moments, name, array)
    return moments


def empty_sums(rank):
    """Some rank has none."""
    return {
        "first": measured(slice(None)) if rank == 0 else kann.Moments(),
        "second": measured(slice(None), driven=False) if rank == 1 else kann.Moments(),
        "none": kann.Moments(),
    }


def refusals(rank):
    """Ranks that do not fit together, and whether their moments are then as before."""
    states, inputs = data()
    cases = {
        "units": kann.Moments().update(states[:, :, : 4 + rank]),
        "inputs": kann.Moments().update(states, inputs=inputs[:, :, : 1 + rank]),
        "presence": kann.Moments().update(states, inputs=inputs if rank else None),
    }
    before = {name: (moments.hh, moments.states) for name, moments in cases.items()}
    messages = {name: refusal(moments.all_reduce) for name, moments in cases.items()}
    assert all((cases[name].hh, cases[name].states) == (hh, n) for name, (hh, n) in before.items())
    return messages


def empty_shares(rank):
    """Record where rank 1 has no data: the moments of one layer and of several, and what cannot be done without."""
    torch.manual_seed(0)
    model, words = stack(), [torch.randn(n, 3) for n in (5, 2, 4)]
    share = [words, []][rank]
    given = kann.Moments()
    assert kann.recording.record_moments(model, share, into=given) is given
    several = kann.recording.record_layer_moments(model, share, layer=["head", "rnn.*", "embed"])
    one = kann.recording.record_moments(model, share)
    total = {name: moments.all_reduce() for name, moments in {**several, "one": one, "given": given}.items()}
    if rank:
        assert "hold no batches" in refusal(lambda: kann.record(model, []))
        assert "not known which layers 'hidden_states.*'" in refusal(
            lambda: kann.recording.record_layer_moments(model, [], layer="hidden_states.*")
        )
        for nothing in (torch.zeros(0, 5, 3), {"x": torch.zeros(0, 5, 3)}, iter([])):
            assert kann.recording.record_moments(model, nothing).states == 0
        assert kann.recording.record_moments(model, [], lengths=[]).states == 0
        along = kann.recording.record_moments(model, [], layer=["embed", "head"], axis="depth")
        assert along.states == 0
    return {name: [moments.states, moments.dim, float(moments.hh.sum())] for name, moments in total.items()}


def stack():
    """A model with layers of each kind that tracers are for."""
    model = nn.Sequential()
    model.add_module("embed", nn.Linear(3, 3))
    model.add_module("rnn", nn.GRU(3, 6, num_layers=2, batch_first=True))
    model.add_module("first", First())
    model.add_module("head", nn.Linear(6, 3))
    return model


class First(nn.Module):
    """The first of what it is given."""

    def forward(self, parts):
        """Take it."""
        return parts[0]


def in_a_group(rank):
    """Sum over rank 1 alone; the other is told that it does not belong."""
    group = dist.new_group([1])
    moments = measured(SHARES[rank])
    if rank == 0:
        return refusal(lambda: moments.all_reduce(group=group))
    assert moments.all_reduce(group=group).states == LENGTHS[SHARES[1]].sum()
    return ""


def copies(rank, folder):
    """Two ranks run one copy of a model on the same data; what each way to count its states twice says."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    model, words = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3), nn.GRU(3, 6, batch_first=True)), torch.randn(5, 7, 3)
    alone = kann.recording.record_moments(model, words)
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    shared = kann.recording.record_moments(model, words)
    np.testing.assert_allclose(shared.xy, alone.xy, rtol=1e-5, atol=1e-5)  # float32 states
    states, inputs = data()
    summed = measured(SHARES[rank]).all_reduce()
    messages = {
        "over all ranks": refusal(shared.all_reduce),
        "over ranks": refusal(lambda: kann.fit(states, driven=False, over_ranks=True)),
        "gated over ranks": refusal(
            lambda: kann.fit(kann.States.from_padded(states, LENGTHS, inputs=inputs), **GATED, over_ranks=True)
        ),
        "a second time": refusal(summed.all_reduce),
    }
    assert shared.states == alone.states  # as before, after an error
    shared.all_reduce(group=mesh["data"].get_group()).save(folder / f"copy-{rank}.npz")
    summed.save(folder / f"summed-{rank}.npz")
    return messages


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """The folder that two ranks wrote their files to."""
    folder = tmp_path_factory.mktemp("world")
    mp.spawn(run_rank, args=(folder,), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def world(left_behind):
    """What two ranks left behind: the moments by case and rank, and what each rank saw."""
    folder = left_behind
    seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]
    return (lambda case, rank: kann.Moments.load(folder / f"{case}-{rank}.npz")), seen


# What must be true of it


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", ["autonomous", "numpy", "torch", "mixed", "columns", "first", "second"])
def test_every_rank_holds_the_moments_of_all_the_data(world, case, rank):
    moments, driven = world[0](case, rank), case not in ("autonomous", "second")
    expected = whole(driven=driven)
    for name in ("sequences", "states", "pairs", "rounding", "input_rounding"):
        assert getattr(moments, name) == getattr(expected, name), name
    for name in NAMES:
        if (theirs := getattr(expected, name)) is None:
            assert getattr(moments, name) is None
        else:  # sums of a few hundred numbers of order one, in another order
            np.testing.assert_allclose(getattr(moments, name), theirs, rtol=1e-12, atol=1e-11, err_msg=name)
    for drive in {False, driven}:
        ours, theirs = kann.fit(moments, driven=drive), kann.fit(expected, driven=drive)
        np.testing.assert_allclose(full_operator(ours), full_operator(theirs), atol=1e-9)
        if drive:
            np.testing.assert_allclose(ours.drive @ ours.basis.T, theirs.drive @ theirs.basis.T, atol=1e-9)


def test_the_sum_is_where_each_rank_had_its_own(world):
    zero, one = world[1]
    assert (zero["numpy"], one["numpy"]) == ("ndarray", "ndarray")
    assert (zero["torch"], one["torch"]) == ("Tensor", "Tensor")
    assert (zero["mixed"], one["mixed"]) == ("ndarray", "Tensor")
    assert (zero["first"], one["first"]) == ("ndarray", "Tensor")  # who had none is given tensors
    assert (zero["second"], one["second"]) == ("Tensor", "ndarray")


def test_ranks_without_any_data_stay_empty(world):
    for rank in range(2):
        moments = world[0]("none", rank)
        assert repr(moments) == "Moments(0 states of 0 sequences, 0 units)"
        assert moments.hh is None
        assert moments.rounding == 0


@pytest.mark.parametrize("case", ["over all ranks", "over ranks", "gated over ranks", "a second time"])
def test_ranks_that_hold_the_same_data_raise_instead_of_counting_it_twice(world, case):
    zero, one = (seen["copies"][case] for seen in world[1])
    assert zero == one
    assert "ranks 0, 1 hold" in zero
    assert "each state would count 2 times" in zero
    assert "group=" in zero


def test_a_model_that_two_ranks_run_together_counts_once_over_the_groups_of_its_copies(world):
    for rank in range(2):
        moments = world[0]("copy", rank)
        assert (moments.sequences, moments.states, moments.pairs) == (5, 35, 30)
        assert world[0]("summed", rank).states == LENGTHS.sum()  # as before the second sum was refused


def test_ranks_that_do_not_fit_together_all_say_so(world):
    zero, one = (seen["refused"] for seen in world[1])
    assert zero == one
    remedy = "; pass states of the same layer on every rank, with inputs on all of them or on none"
    what = "what the ranks hold cannot be added: rank 0 holds {} and {} inputs; rank 1 holds {} and {} inputs" + remedy
    assert zero["units"] == what.format("4 units", 0, "5 units", 0)
    assert zero["inputs"] == what.format("10 units", 1, "10 units", 2)
    assert zero["presence"] == what.format("10 units", 0, "10 units", 3)


def test_of_many_ranks_a_few_are_named():
    assert _sentence([3, 4], {"units": 5}) == "ranks 3, 4 hold 5 units"
    assert _sentence(range(100), {"units": 5}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, … (100 of them) hold 5 units"


def test_an_empty_share_is_recorded_as_empty_moments_of_the_same_layers(world):
    zero, one = (seen["recorded"] for seen in world[1])
    assert zero == one
    assert list(zero) == list(one) == ["head", "rnn.l0", "rnn.l1", "embed", "one", "given"]
    assert {name: tuple(sizes[:2]) for name, sizes in zero.items()} == {
        "head": (11, 3),
        "rnn.l0": (11, 6),
        "rnn.l1": (11, 6),
        "embed": (11, 3),
        "one": (11, 6),
        "given": (11, 6),
    }


def test_a_group_of_some_ranks(world):
    message = "rank 0 is not in the group to sum over; call it on the ranks of the group alone"
    assert [seen["group"] for seen in world[1]] == [message, ""]


# In this process


@contextlib.contextmanager
def alone(folder, backend="gloo"):
    """A world of this process alone."""
    joined(folder, backend=backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_without_ranks_there_is_nothing_to_sum_over():
    with pytest.raises(KannError, match=r"not initialised; call torch.distributed.init_process_group\('gloo'\) first"):
        whole().all_reduce()


def test_torch_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"sums over ranks need torch .*: pip install 'kann\[torch\]'"):
        kann.Moments().all_reduce()


def test_torch_without_ranks_is_named(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(KannError, match=r"has no torch.distributed; add saved moments instead"):
        kann.Moments().all_reduce()


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_the_sum_over_one_rank_is_its_own(tmp_path, backend):
    with alone(tmp_path, backend):
        for ours in (whole().all_reduce(), measured(slice(None), convert=torch.tensor).all_reduce().numpy()):
            np.testing.assert_allclose(ours.xy, whole().xy, rtol=1e-12, atol=1e-11)
            assert (ours.states, ours.rounding) == (LENGTHS.sum(), 2**-52)
        with pytest.raises(KannError, match="the data hold no batches"):  # no other rank waits for this one
            kann.recording.record_moments(stack(), [])


@pytest.mark.parametrize("fails_at", range(11))
def test_moments_are_as_before_if_a_rank_is_lost_on_the_way(tmp_path, monkeypatch, fails_at):
    """Eleven sums of arrays: whichever fails, nothing was changed by those before it."""
    moments = whole()
    before, left, all_reduce = dict(moments._items()), [fails_at], dist.all_reduce

    def unreliable(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("connection closed by peer")
        args[0].mul_(2)
        return all_reduce(*args, **kwargs)

    monkeypatch.setattr(dist, "all_reduce", unreliable)
    with alone(tmp_path), pytest.raises(RuntimeError, match="closed by peer"):
        moments.all_reduce()
    assert left == [-1]
    for name, value in whole()._items():
        assert getattr(moments, name) is before[name]
        np.testing.assert_array_equal(before[name], value)


def test_the_example_gives_the_operator_of_one_process(tmp_path):
    out = tmp_path / "operator.npz"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    options = ["--out", str(out), "--sequences", "5", "--units", "6"]
    host = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # where this process runs the network too: a GPU rounds otherwise
    done = subprocess.run([*command, *options], env=host, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    example = runpy.run_path(str(EXAMPLE))
    states = kann.record(example["network"](6), [example["signal"](i) for i in range(5)])
    expected = kann.fit(states, **AS_IN_PAPER)
    # Other batches round float32 states differently, which the smallest singular values enlarge: 5e-7 was measured,
    # and 0.6 for one rank's share alone.
    np.testing.assert_allclose(full_operator(kann.Koopman.load(out)), full_operator(expected), atol=1e-5)
    assert f"together: Moments({len(states.values)} states of 5 sequences, 6 units)" in done.stdout
    assert f"|λ| {expected.modes[0].modulus:.4f}" in done.stdout


# On a GPU


@needs_gpu
@pytest.mark.parametrize("backend", ["nccl", "gloo", "cpu:gloo,cuda:nccl"])
def test_sums_on_a_gpu(tmp_path, backend, monkeypatch):
    used, all_reduce = [], dist.all_reduce

    def watched(tensor, **options):
        used.append(tensor.device.type)
        return all_reduce(tensor, **options)

    monkeypatch.setattr(dist, "all_reduce", watched)
    with alone(tmp_path, backend):
        on_gpu = measured(slice(None), convert=lambda values: torch.tensor(values, device="cuda")).all_reduce()
        gpu_used, on_host = {*used}, whole().all_reduce()
    assert on_gpu.hh.device.type == "cuda"
    assert isinstance(on_host.hh, np.ndarray)
    assert gpu_used == {"cpu" if backend == "gloo" else "cuda"}
    assert used[-1] == ("cuda" if backend == "nccl" else "cpu")
    for ours in (on_gpu.numpy(), on_host):
        np.testing.assert_allclose(ours.xy, whole().xy, rtol=1e-12, atol=1e-11)
        assert (ours.states, ours.rounding) == (LENGTHS.sum(), 2**-52)


@pytest.mark.parametrize("rank", [0, 1])
def test_operators_over_ranks_are_those_of_one_process(left_behind, rank):
    states, inputs = data()
    together = kann.States.from_padded(states, LENGTHS, inputs=inputs)
    driven = kann.fit(together, driven=True)
    np.testing.assert_allclose(kann.Koopman.load(left_behind / f"driven-{rank}.npz").matrix, driven.matrix, atol=1e-10)
    gated, found = kann.fit(together, **GATED, ridge=1e-6), kann.Bilinear.load(left_behind / f"gated-{rank}.npz")
    np.testing.assert_allclose(found.gates, gated.gates, atol=1e-8)
    np.testing.assert_allclose(found.bounds, gated.bounds, atol=1e-10)
    assert (left_behind / "chosen-0.npz").read_bytes() == (left_behind / "chosen-1.npz").read_bytes()


def test_what_one_rank_refuses_every_rank_refuses(world):
    first, second = (seen["fitted"] for seen in world[1])
    assert "states hold NaN at sequence 0, step 3" in first
    assert first == second


def test_over_ranks_what_cannot_be_summed():
    states, _ = data()
    with pytest.raises(KannError, match=r"call moments.all_reduce"):
        kann.fit(whole(), over_ranks=True)
    with pytest.raises(KannError, match="pass a number with over_ranks=True"):
        kann.fit(states, rank="auto", over_ranks=True)
    with pytest.raises(KannError, match="there are no ranks to sum over"):
        kann.fit(states, over_ranks=True)

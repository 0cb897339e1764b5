import contextlib
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from kann_experiments.copy import trained
from kann_experiments.training import Training, generator, repeatable, require_device, require_folder, seeded, train
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from kann.errors import KannError
from tests.experiments.tiny import tiny

PLAN = Training(iterations=30, schedule="linear", clip=0.5, every=7)


class StoppedError(Exception):
    """Stands for a run that ends in the middle."""


def untrained(width=4):
    with seeded(3):
        return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def run(path, *, plan=PLAN, stop=math.inf, rate=1e-2, made_by=None, width=4, validate=None):
    """Fit a small network to noise; the batch depends on the iteration alone."""
    network = untrained(width)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=rate)

    def loss(iteration):
        if iteration == stop:
            raise StoppedError
        x = torch.as_tensor(generator(0, iteration).normal(size=(16, width)), dtype=torch.float32)
        return (network(x) - x.sum(dim=1, keepdim=True)).square().mean()

    made_by = made_by or {"seed": 3}
    judge = None if validate is None else lambda: validate(network)
    return network, train(network, optimizer, loss, plan=plan, path=path, made_by=made_by, validate=judge)


def same(network, other):
    return all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_training_lowers_the_loss(tmp_path):
    _, losses = run(tmp_path / "a", plan=Training(iterations=300))
    assert losses.shape == (300,)
    assert losses[-10:].mean() < 0.1 * losses[:10].mean()


@pytest.mark.parametrize("stop", [1, 7, 20, 29])
def test_a_run_that_stopped_ends_as_if_it_had_not(tmp_path, stop):
    whole, losses = run(tmp_path / "whole")
    with pytest.raises(StoppedError):
        run(tmp_path / "part", stop=stop)
    resumed, resumed_losses = run(tmp_path / "part")
    assert same(whole, resumed)
    np.testing.assert_array_equal(losses, resumed_losses)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "part").read_bytes()


def test_a_finished_run_is_read_and_not_repeated(tmp_path):
    network, losses = run(tmp_path / "a")
    again, read = run(tmp_path / "a", stop=0)
    assert same(network, again)
    np.testing.assert_array_equal(losses, read)


def way(network):
    """How far the weights have come: lowest at the first checkpoint."""
    assert not network.training
    return float((network[2].weight - untrained()[2].weight).norm())


@pytest.mark.parametrize("stop", [7, 20, 27])
def test_the_best_weights_are_kept_over_a_stop(tmp_path, stop):
    plan = Training(iterations=28, every=7)
    first, _ = run(tmp_path / "first", plan=replace(plan, iterations=7))
    last, _ = run(tmp_path / "last", plan=plan)
    early, _ = run(tmp_path / "early", plan=plan, validate=way)
    late, _ = run(tmp_path / "late", plan=plan, validate=lambda network: -way(network))
    assert same(early, first)
    assert same(late, last)
    with pytest.raises(StoppedError):
        run(tmp_path / "part", plan=plan, stop=stop, validate=way)
    run(tmp_path / "part", plan=plan, validate=way)
    assert (tmp_path / "early").read_bytes() == (tmp_path / "part").read_bytes()


def test_a_finished_run_holds_no_more_than_its_network(tmp_path):
    run(tmp_path / "a", validate=way)
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert {name.split(".")[0] for name in file.keys()} == {"losses", "network"}  # noqa: SIM118 - no dict


def learn(folder):
    with repeatable():
        trained(tiny(iterations=200, every=20), seed=5, folder=folder)


def start(folder):
    """The same in a process of its own."""
    code = "import sys; from tests.experiments.test_training import learn; learn(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", code, str(folder)])


def test_a_run_that_was_killed_goes_on_and_ends_the_same(tmp_path):
    checkpoint = tmp_path / "killed" / "network.safetensors"
    process = start(tmp_path / "killed")
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    partial = checkpoint.read_bytes()
    assert start(tmp_path / "killed").wait() == 0
    learn(tmp_path / "whole")
    assert checkpoint.read_bytes() != partial
    assert checkpoint.read_bytes() == (tmp_path / "whole" / "network.safetensors").read_bytes()


def test_what_a_killed_write_left_behind_is_removed(tmp_path):
    (tmp_path / ".a.0123abcd.tmp").write_bytes(b"half")
    run(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused(tmp_path, share):
    run(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[: int(share * len(content))])
    with pytest.raises(KannError, match=r"is no whole checkpoint .* remove it to train anew"):
        run(tmp_path / "a")


def rewritten(path, change, **metadata):
    """Write a checkpoint again with other tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    change(tensors)
    save_file(tensors, path, metadata={"made_by": '{"seed": 3}'} | metadata)  # without a checksum, as of old


@pytest.mark.parametrize(
    ("change", "metadata"),
    [
        (lambda tensors: None, {"made_by": "[1]"}),
        (lambda tensors: None, {"made_by": "[" * 100_000}),
        (lambda tensors: tensors.pop("losses"), {}),
        (lambda tensors: tensors.update(losses=torch.zeros(())), {}),
        (lambda tensors: tensors.update({"network.0.weight": torch.full((8, 4), math.nan)}), {}),
        (lambda tensors: tensors.update({"optimizer.zero.step": torch.zeros(())}), {}),
        (lambda tensors: tensors.update({"optimizer.0": torch.zeros(())}), {}),
        (lambda tensors: tensors.update(lowest=torch.zeros(3)), {}),
        (lambda tensors: tensors.update({"best.0.weight": torch.zeros(1)}), {}),
    ],
)
def test_an_edited_checkpoint_is_refused(tmp_path, change, metadata):
    with pytest.raises(StoppedError):
        run(tmp_path / "a", stop=20)
    rewritten(tmp_path / "a", change, **metadata)
    with pytest.raises(KannError, match=r"a (is no whole checkpoint|does not fit this network) .*; remove it to train"):
        run(tmp_path / "a")


def test_a_flipped_bit_in_the_weights_is_found_and_old_checkpoints_are_read(tmp_path):
    network, _ = run(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with pytest.raises(KannError, match="its checksum does not match"):
        run(tmp_path / "a")
    (tmp_path / "a").write_bytes(whole)
    rewritten(tmp_path / "a", lambda tensors: None)
    again, _ = run(tmp_path / "a", stop=0)
    assert same(network, again)


def test_a_checkpoint_with_random_damage_gives_one_line(tmp_path, rng):
    with pytest.raises(StoppedError):
        run(tmp_path / "whole", stop=20)
    whole = (tmp_path / "whole").read_bytes()
    for place in rng.integers(1200, size=80).tolist():
        (tmp_path / "a").write_bytes(whole[:place] + bytes([rng.integers(256)]) + whole[place + 1 :])
        with contextlib.suppress(KannError):
            run(tmp_path / "a", plan=replace(PLAN, iterations=21))
        (tmp_path / "a").unlink()


def test_a_foreign_checkpoint_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"something else entirely")
    with pytest.raises(KannError, match="is no whole checkpoint"):
        run(tmp_path / "a")


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run(tmp_path / "a", made_by={"seed": 3, "config": {"units": 8}})
    with pytest.raises(KannError, match=r"trained with other settings \(config\); remove it, or pass another folder"):
        run(tmp_path / "a", made_by={"seed": 3, "config": {"units": 9}})


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    run(tmp_path / "a")
    with pytest.raises(KannError, match="does not fit this network"):
        run(tmp_path / "a", width=5)


def test_training_that_diverges_says_so(tmp_path):
    with pytest.raises(KannError, match=r"training diverged: the loss is (nan|inf) at iteration \d+; lower the rate"):
        run(tmp_path / "a", rate=1e20)
    assert not (tmp_path / "a").exists()


def test_schedules():
    linear = Training(iterations=100, schedule="linear")
    assert [linear.factor(i) for i in (0, 50, 75, 99)] == pytest.approx([1, 1, 0.5, 0.02])
    assert Training(iterations=100).factor(99) == 1
    falling = Training(iterations=100, schedule="exponential", gamma=0.5)
    assert [falling.factor(i) for i in (0, 9, 10, 99)] == pytest.approx([1, 1, 0.5, 0.5**9])
    by_epoch = Training(iterations=100, schedule="exponential", gamma=0.5, falls=4)
    assert [by_epoch.factor(i) for i in (24, 25, 74, 99)] == pytest.approx([1, 0.5, 0.25, 0.125])


def test_the_rate_falls_at_plateaus_as_torchs_does():
    values = np.random.default_rng(0).uniform(1, 2, size=60).tolist()
    plan = Training(iterations=60, schedule="plateau", gamma=0.5, patience=2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, eps=0)
    for i, value in enumerate(values):
        assert plan.factor(0, values[:i]) == optimizer.param_groups[0]["lr"]
        scheduler.step(value)


def test_plateaus_are_remembered_by_a_run_that_goes_on(tmp_path):
    plan = Training(iterations=60, schedule="plateau", gamma=0.1, patience=0, every=5)
    whole, _ = run(tmp_path / "whole", plan=plan, validate=lambda network: 1.0)
    with pytest.raises(StoppedError):
        run(tmp_path / "part", plan=plan, stop=22, validate=lambda network: 1.0)
    resumed, _ = run(tmp_path / "part", plan=plan, validate=lambda network: 1.0)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], weight)


def test_a_seed_leaves_torchs_own_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seeded(7):
        first = torch.rand(3)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    with seeded(7):
        torch.testing.assert_close(torch.rand(3), first, rtol=0, atol=0)


def test_threads_are_as_before_afterwards():
    torch.set_num_threads(2)
    with repeatable():
        assert torch.get_num_threads() == 1
    try:
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["cuda:77", "nonsense", "meta"])
def test_a_device_that_is_not_there(name):
    with pytest.raises(KannError, match=f"device '{name}' cannot be used .* pass cpu"):
        require_device(name)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(KannError, match=r"results cannot be written to .* pass another folder"):
        require_folder(tmp_path / "file" / "below")
    assert require_folder(tmp_path / "new" / "folder").is_dir()
    assert not list((tmp_path / "new" / "folder").iterdir())

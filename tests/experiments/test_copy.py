import doctest
import itertools
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from kann_experiments import configs, trusting
from kann_experiments import copy as copy_module
from kann_experiments.configs import as_json, differences
from kann_experiments.copy import analysis as analysis_module
from kann_experiments.copy import figures as figures_module
from kann_experiments.copy import live as live_module
from kann_experiments.copy import renn as renn_module
from kann_experiments.copy import reproduce, trained
from kann_experiments.copy import task as task_module
from kann_experiments.copy.analysis import (
    DRIVEN,
    KANN,
    QUANTITIES,
    RENN,
    RENN_IDENTITY,
    characters_by_mode,
    digit_recall,
    study_network,
    true_states_needed,
)
from kann_experiments.copy.held_out import hold_out
from kann_experiments.copy.live import live_numbers, recalled
from kann_experiments.copy.renn import cell_of, full_states, identity_states, renn_states
from kann_experiments.copy.task import CONFIGS, PRINTED, Task, build, build_optimizer, rebase
from kann_experiments.ecg import modes
from kann_experiments.stand_in_kinds import operators_of
from kann_experiments.training import Training, generator

import kann
from kann.errors import KannError
from kann.zoo import copy_task
from tests.experiments.tiny import TASK, tiny

ARCHS = ["dtriv", "rnn", "gru", "lstm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("copy")


@pytest.fixture
def small(monkeypatch):
    for arch in ARCHS:
        monkeypatch.setitem(task_module.CONFIGS, arch, tiny(arch))
    monkeypatch.setattr(live_module, "COUNTS", (2,))
    monkeypatch.setattr(figures_module, "GRID", 41)
    monkeypatch.setattr(figures_module, "MAPS", 2)
    monkeypatch.setitem(figures_module.STYLE, "figure.dpi", 60)


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(copy_module, "draw_figures", lambda studies, *, folder: ())


def written(x):
    """Input sequences as the paper writes them."""
    assert (x.sum(dim=-1) == 1).all()
    return ["".join("-123456789:"[code] for code in row) for row in x.argmax(dim=-1).tolist()]


def test_the_papers_example():
    x, y = Task(digits=3, blanks=3).sequences(np.array([[9, 2, 8]]))
    assert written(x) == ["928---:--"]
    assert y.tolist() == [[0, 0, 0, 0, 0, 0, 9, 2, 8]]


@pytest.mark.parametrize("module", [copy_task, configs, modes], ids=lambda module: module.__name__)
def test_the_examples_in_the_documentation_run(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_the_papers_size():
    task = Task()
    x, y = task.sequences(task.every())
    assert x.shape == (729, 36, 11)
    assert len(set(written(x))) == 729
    assert (y != 0).sum(dim=1).tolist() == [3] * 729
    drawn = task.draw(generator(0, 1), 5000)
    assert drawn.min() == 1
    assert drawn.max() == 9


def test_the_papers_hyperparameters():
    rows = {arch: (c.units, c.rate, c.training.iterations, c.training.clip) for arch, c in PRINTED.items()}
    assert rows == {
        "dtriv": (48, 1e-3, 500, np.inf),
        "dtriv100": (48, 1e-3, 500, np.inf),
        "rnn": (64, 5e-3, 10_000, 5.0),
        "gru": (48, 1e-2, 285, np.inf),
        "lstm": (48, 5e-3, 6500, 10.0),
    }
    for arch in ARCHS:
        assert CONFIGS[arch].units == PRINTED[arch].units


def test_differences_are_named():
    changed = replace(PRINTED["gru"], rate=2e-2, training=Training(iterations=285, clip=3.0))
    assert differences(changed, PRINTED["gru"]) == ("rate 0.02 (not 0.01)", "clip 3 (not inf)")
    assert differences(PRINTED["gru"], PRINTED["gru"]) == ()


def test_an_unknown_architecture():
    with pytest.raises(
        KannError, match="architecture 'transformer' is unknown; pass one of dtriv, dtriv100, rnn, gru, lstm"
    ):
        reproduce("transformer")


def test_no_seeds(tmp_path):
    with pytest.raises(KannError, match="there are no seeds"):
        reproduce("dtriv", seeds=[], out=tmp_path)


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(KannError, match="results cannot be written to"):
        reproduce("dtriv", out=tmp_path / "file" / "runs")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_seed_fixes_the_network(arch):
    first, second, other = (build(CONFIGS[arch], seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_starting_weights_are_as_configured():
    hidden = build(CONFIGS["rnn"], seed=0).recurrent.weight_hh_l0.detach()
    torch.testing.assert_close(hidden @ hidden.T, torch.eye(64), atol=1e-5, rtol=0)
    plain, open_gates = (build(c["lstm"], seed=0).recurrent.bias_hh_l0.detach() for c in (PRINTED, CONFIGS))
    expected = torch.zeros(4 * 48)
    expected[48:96] = CONFIGS["lstm"].forget_bias
    torch.testing.assert_close(open_gates - plain, expected)


def test_the_orthogonal_matrix_learns_at_its_own_rate():
    network = build(CONFIGS["dtriv"], seed=0)
    groups = build_optimizer(network, CONFIGS["dtriv"]).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 1e-4])
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))
    assert [parameter.shape for parameter in groups[1]["params"]] == [(48, 48)]


def test_blanks_can_be_zeros():
    x, y = Task(blanks=3, zero_blanks=True).sequences(np.array([[9, 2, 8]]))
    plain, answer = Task(blanks=3).sequences(np.array([[9, 2, 8]]))
    torch.testing.assert_close(x[..., 1:], plain[..., 1:])
    assert not x[..., 0].any()
    assert y.tolist() == answer.tolist()


def test_checkpoints_of_earlier_versions_are_recognised():
    written = as_json(CONFIGS["dtriv"])
    assert not {"rebase", "turns_start"} & written.keys()
    assert "zero_blanks" not in written["task"]
    changed = as_json(replace(CONFIGS["dtriv100"], task=Task(zero_blanks=True)))
    assert (changed["rebase"], changed["turns_start"], changed["task"]["zero_blanks"]) == (100, True, True)


def test_moving_the_base_leaves_the_matrix_as_it_is():
    network = build(CONFIGS["dtriv100"], seed=0)
    turn = network.recurrent.cell.turn
    torch.testing.assert_close(turn.weight @ turn.weight.T, torch.eye(48), atol=1e-5, rtol=0)
    with torch.no_grad():
        turn.parametrizations.weight.original.add_(0.1 * torch.randn(48, 48))
    before = turn.weight.detach().clone()
    parameters = list(turn.parameters())
    rebase(network)
    torch.testing.assert_close(turn.weight.detach(), before, atol=1e-5, rtol=0)
    assert all(new is old for new, old in zip(turn.parameters(), parameters, strict=True))  # those of the optimizer
    matrix = turn.parametrizations.weight.original.detach().tril(-1)
    assert not matrix.any()  # S = 0


def test_a_network_with_moved_bases_learns(tmp_path):
    config = replace(tiny(), rebase=20, turns_start=True, hidden_rate=0.1)
    network = trained(config, seed=0, folder=tmp_path)
    x, answer = TASK.sequences(TASK.every())
    assert (network(x).argmax(-1) == answer).double().mean() > 0.9
    again = trained(config, seed=0, folder=tmp_path)
    torch.testing.assert_close(again(x), network(x))


@pytest.mark.parametrize("arch", ARCHS)
def test_states_are_all_that_the_network_carries(arch):
    network = build(tiny(arch), seed=0).eval()
    x, _ = TASK.sequences(TASK.every())
    states = full_states(network, x)
    assert states.shape[-1] == (24 if arch == "lstm" else 12)
    read = network.readout(torch.as_tensor(states[..., :12], dtype=torch.float32))
    torch.testing.assert_close(read, network(x), atol=1e-5, rtol=0)


def linear_network():
    """Without thresholds dtriv is linear."""
    network = build(tiny(), seed=0).eval()
    torch.nn.init.zeros_(network.recurrent.cell.threshold)
    return network


@pytest.mark.filterwarnings("ignore:the inputs almost determine")  # what comes next tells where in the task it is
def test_of_a_linear_network_both_linearisations_are_exact():
    network = linear_network()
    x, _ = TASK.sequences(TASK.every().repeat(8, axis=0))
    states = kann.record(network, x, layer="recurrent", inputs=True, progress=False)
    true = full_states(network, x)
    # modReLU with b = 0 is closed at z = 0 itself, so linearise beside it.
    points = kann.find_fixed_points(
        cell_of(network), np.full((1, 12), 1e-9), inputs=np.zeros(TASK.width), tolerance=1e-6
    )
    for known in (1, 3, TASK.length):
        path = renn_states(points, true, x.numpy(), known, at=0)
        np.testing.assert_allclose(path, true, atol=1e-5)
    assert kann.relative_error(kann.fit(states, driven=True), states) < 1e-10  # float32 states


def test_the_identity_only_adds_the_inputs():
    network = linear_network()
    x, _ = TASK.sequences(TASK.every())
    true = full_states(network, x)
    points = kann.find_fixed_points(
        cell_of(network), np.full((1, 12), 1e-9), inputs=np.zeros(TASK.width), tolerance=1e-6
    )
    path = identity_states(points, true, x.numpy(), 3)
    np.testing.assert_array_equal(path[:, :3], true[:, :3])
    steps = np.diff(path[:, 2:], axis=1)
    pushes = x[:, 3:] @ network.recurrent.cell.drive.weight.detach().T
    np.testing.assert_allclose(steps, pushes.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("curve", "expected"), [([1, 1, 1], 1), ([0, 0.8, 1], 2), ([0.9, 0.1, 0.9], 3), ([1, 1, 0.5], np.inf)]
)
def test_states_needed(curve, expected):
    assert true_states_needed(np.array(curve, dtype=float)) == expected


@pytest.fixture(scope="module")
def learnt(folder):
    """The tiny task, learnt by dtriv."""
    config = tiny()
    return study_network(trained(config, seed=0, folder=folder / "learnt"), config, seed=0)


def test_the_tiny_task_is_learnt(learnt):
    assert learnt.numbers["accuracy"] == 1
    assert learnt.numbers["sequences"] == 1


def test_numbers_are_those_of_their_formulas(learnt):
    analysis, numbers = learnt.analysis, learnt.numbers
    assert numbers.keys() <= {quantity.key for quantity in QUANTITIES}
    basis, matrix = analysis.koopman.basis, analysis.koopman.matrix
    h = analysis.states.padded().astype(float)
    missed = np.linalg.norm(h[:, :-1] @ basis @ matrix @ basis.T - h[:, 1:], axis=-1)
    errors = missed**2 / np.linalg.norm(h[:, 1:], axis=-1) ** 2
    assert numbers["relative_error"] == pytest.approx(errors.mean(), rel=1e-6)  # float32 states
    gap = np.linalg.norm(matrix.T @ matrix - np.eye(11)) ** 2 / np.linalg.norm(matrix) ** 2
    assert numbers["orthogonality"] == pytest.approx(gap)
    moduli = np.abs(analysis.koopman.eigenvalues)
    assert numbers["unit_eigenvalues"] == ((moduli > 0.95) & (moduli < 1.05)).sum()
    assert analysis.koopman.rank == 11
    matrix = analysis.points.jacobians[0]
    assert numbers["renn_identity"] == pytest.approx(np.linalg.norm(matrix - np.eye(12)) / np.sqrt(12))


@pytest.fixture(scope="module")
def held_out(folder):
    """A task of nine sequences, of which few are fitted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis_module, "SEQUENCES", 3)
        config = replace(tiny(), task=Task(digits=2, blanks=4, letters=3))
        return study_network(trained(config, seed=0, folder=folder / "held-out"), config, seed=0)


def test_states_that_settle_in_two_have_no_figures_of_trust():
    config = tiny("rnn")
    network = build(config, seed=0)
    with torch.no_grad():  # the first digit saturates every unit, and the second turns none back
        for weight in network.recurrent.parameters():
            weight.zero_()
        network.recurrent.weight_hh_l0.copy_(6 * torch.eye(12))
        network.recurrent.weight_ih_l0[:, 1], network.recurrent.weight_ih_l0[:, 2] = 4.0, -4.0
    numbers = study_network(network, config, seed=0).numbers
    assert np.isnan([numbers["centred_trusted"], numbers["reading_error"]]).all()
    states = kann.record(network, TASK.sequences(TASK.every())[0], layer="recurrent", inputs=True, progress=False)
    assert not trusting.can_hold_out(states)
    assert {operator.rank for operator in operators_of(states, 1).values()} == {1}


def test_held_out_sequences_are_all_that_were_not_fitted(held_out):
    analysis = held_out.analysis
    fitted = {tuple(row) for row in analysis.targets[:, -2:].tolist()}
    others = [tuple(row) for row in analysis.held_out.digits.tolist()]
    assert len(set(others)) == len(others)
    assert not fitted & set(others)
    assert fitted | set(others) == set(itertools.product((1, 2, 3), repeat=2))


def test_held_out_numbers_by_hand(held_out):
    numbers, analysis = held_out.numbers, held_out.analysis
    network, others = analysis.network, analysis.held_out
    h = full_states(network, torch.as_tensor(others.inputs)).astype(float)
    errors = ((h[:, 1:] - h[:, :-1]) ** 2).sum(-1) / (h[:, 1:] ** 2).sum(-1)
    assert numbers["copying_error"] == pytest.approx(errors.mean(), rel=1e-6)
    answers = network(torch.as_tensor(others.inputs)).argmax(-1)
    assert numbers["copying_answers"] == pytest.approx((answers[:, 1:] == answers[:, :-1]).double().mean().item())
    assert numbers["copying_digits"] == pytest.approx((answers[:, -2:] == answers[:, -3:-1]).double().mean().item())
    third = answers[:, 1:2]  # two digits are read, and the state after them is copied to the end
    assert numbers["copying_recall"] == pytest.approx((third == others.digits).double().mean().item())
    predicted = analysis.koopman.predict(h[:, :-1])
    errors = ((h[:, 1:] - predicted) ** 2).sum(-1) / (h[:, 1:] ** 2).sum(-1)
    assert numbers["held_out_error"] == pytest.approx(errors.mean(), rel=1e-6)
    assert numbers.keys() <= {quantity.key for quantity in QUANTITIES}


def test_a_task_without_other_sequences_has_none_held_out(learnt):
    assert learnt.analysis.held_out is None  # 32 draws of four sequences
    assert "copying_error" not in learnt.numbers


def test_curves_end_with_the_network_itself(learnt):
    network, inputs, targets = learnt.analysis.network, learnt.analysis.inputs, learnt.analysis.targets
    answers = network(torch.as_tensor(inputs)).argmax(dim=-1)
    truth = (answers == targets)[:, -TASK.digits :].double().mean().item()
    assert {name: curve[-1] for name, curve in learnt.curves.items()} == dict.fromkeys(learnt.curves, truth)
    # A state of zeros scores as the bias does, which is a wrong answer to all digits but one.
    silent = digit_recall(learnt.analysis, np.zeros((len(inputs), TASK.length, 12)))
    biased = int(network.readout.bias.argmax())
    np.testing.assert_array_equal(silent, (targets[:, -TASK.digits :] == biased).double().mean(dim=0))
    assert all(len(curve) == TASK.length for curve in learnt.curves.values())
    assert {KANN, DRIVEN, RENN, RENN_IDENTITY} <= learnt.curves.keys()
    assert learnt.numbers["recall"] == learnt.curves[KANN][TASK.digits - 1]


def test_strong_modes_span_what_the_network_can_say(learnt):
    characters = characters_by_mode(learnt.analysis)
    koopman, states, readout = learnt.analysis.koopman, learnt.analysis.states.values, learnt.analysis.network.readout
    weight, bias = readout.weight.detach().numpy(), readout.bias.detach().numpy()
    turns = np.exp(1j * np.deg2rad(np.arange(0, 360, 5)))
    for mode, answers in zip(koopman.modes, characters, strict=True):
        # The mode's part of a state is Re(z u): the strongest one in the data, turned and shrunk.
        row = koopman.left[mode.indices[0]] @ koopman.basis.T
        coefficient = len(mode.indices) * states @ koopman.basis @ koopman.right[:, mode.indices[0]]
        z = np.abs(coefficient).max() * np.outer([0, 0.25, 0.5, 0.75, 1], turns)
        scores = np.real(z[..., None] * row) @ weight.T + bias
        assert set(answers) == set(scores.argmax(axis=-1).flat)
    assert learnt.characters == characters
    assert learnt.numbers["spanning"] == sum(answers != [0] for answers in characters) / len(characters)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_goes_through_the_whole(small, folder, arch, request):
    drawn = arch in ("dtriv", "lstm")  # the states of the others are as wide as those of dtriv
    if not drawn:
        request.getfixturevalue("undrawn")
    result = reproduce(arch, out=folder, seeds=[0])
    assert [row.quantity.key for row in result.rows][:2] == ["accuracy", "sequences"]
    assert all(len(row.values) == 1 for row in result.rows)
    assert any(row.printed is not None for row in result.rows) == (arch == "dtriv")
    figures = {f"{n}.{k}" for n in ("accuracy", "digits", "matrices", "spectrum") for k in ("png", "svg") if drawn}
    assert {path.name for path in result.files} == {"results.json"} | figures
    for path in result.files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314 - our own file


def test_results_say_what_they_depend_on(small, undrawn, folder, monkeypatch):
    monkeypatch.setattr(analysis_module, "live_numbers", lambda *_: {})
    result = reproduce("gru", out=folder, seeds=[0, 3])
    content = json.loads((folder / "gru" / "results.json").read_text())
    assert content["seeds"] == [0, 3]
    assert content["config"]["units"] == 12
    assert content["printed_config"]["training"]["iterations"] == 285
    assert content["versions"]["torch"] == torch.__version__
    assert "units 12 (not 48)" in content["differences"]
    assert content["rows"]["accuracy"]["values"] == [content["measured"][seed]["accuracy"] for seed in ("0", "3")]
    assert content["rows"]["accuracy"]["mean"] == pytest.approx(result.rows[0].mean)
    assert len(content["curves"]["3"]["KANN"]) == TASK.length


def test_the_same_seed_gives_the_same_files_and_a_second_run_trains_nothing(small, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis_module, "live_numbers", lambda *_: {})  # tested by themselves
    first = reproduce("dtriv", out=folder, seeds=[0])
    network = folder / "dtriv" / "seed-0" / "network.safetensors"
    before, files = network.stat().st_mtime_ns, [path.read_bytes() for path in first.files]
    elsewhere = reproduce("dtriv", out=tmp_path, seeds=[0])
    assert [path.read_bytes() for path in elsewhere.files] == files
    monkeypatch.setattr(copy_module, "draw_figures", lambda studies, *, folder: ())  # drawn twice already
    reproduce("dtriv", out=folder, seeds=[0])
    assert network.stat().st_mtime_ns == before


def test_the_papers_setting_is_kept_apart(small, undrawn, tmp_path, monkeypatch):
    monkeypatch.setitem(task_module.PRINTED, "dtriv", tiny(iterations=20))
    result = reproduce("dtriv", out=tmp_path, seeds=[0], printed=True)
    assert result.notes == ()
    assert result.files[0] == tmp_path / "dtriv-as-printed" / "results.json"


def test_the_paper_is_borne_out_at_full_size_after_a_fifth_of_the_training(tmp_path, monkeypatch):
    for others in ("live_numbers", "stand_in_numbers"):  # `make reproduce` has them at full size
        monkeypatch.setattr(analysis_module, others, lambda *_, **__: {})
    monkeypatch.setattr(renn_module, "STARTS_PER_SEQUENCE", 1)
    config = replace(CONFIGS["dtriv"], training=Training(iterations=400, schedule="linear"))
    numbers = study_network(trained(config, seed=0, folder=tmp_path), config, seed=0).numbers
    assert numbers["accuracy"] > 0.98
    assert numbers["relative_error"] < 0.03
    assert numbers["relative_error"] < numbers["held_out_error"] < numbers["copying_error"]
    assert numbers["orthogonality"] < 0.0625
    assert numbers["unit_eigenvalues"] >= 44
    assert numbers["spanning"] == 1
    assert numbers["driven_recall"] > 0.95
    assert numbers["renn_identity_recall"] < 0.05


def test_recall_counts_the_digits_alone():
    scores = np.zeros((2, 5, 4))
    scores[0, -2:, [1, 3]] = 1.0, 1.0
    scores[0, -2, 1], scores[0, -1, 3] = 2.0, 2.0
    scores[1, :, 2] = 1.0
    assert recalled(scores, np.array([[1, 3], [2, 0]])).tolist() == [1.0, 0.5]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_running_network_recalls_less_with_few_coordinates(arch, folder):
    config = replace(tiny(arch), task=replace(TASK, letters=4))
    network = trained(config, seed=0, folder=folder / f"live-{arch}")
    digits = config.task.draw(generator(0, 1), 6)
    x, _ = config.task.sequences(digits)
    found = live_numbers(network, hold_out(network, config.task, digits), x.numpy())
    assert found.keys() <= {quantity.key for quantity in QUANTITIES}
    assert found["live_full"] > 0.25
    assert found["live_none"] <= found["live_full"]
    assert found["live_random_2"] <= found["live_full"]
    assert live_numbers(network, None, x.numpy()) == {}


def test_all_coordinates_kept_step_by_step_are_the_network(folder):
    network = trained(tiny(), seed=0, folder=folder / "live-all")
    x, _ = TASK.sequences(TASK.every())
    states = kann.record(network, x, layer="recurrent", progress=False)
    koopman = kann.fit(states, basis="pca")
    with torch.no_grad():
        own = network(x)
        with kann.intervene(network, koopman, states, keep=koopman.modes, fill="linear", layer="recurrent.state"):
            torch.testing.assert_close(network(x), own, atol=1e-4, rtol=1e-4)
        with kann.intervene(network, koopman, states, keep=[], fill="linear", layer="recurrent.state"):
            held = network(x)
    assert (held - held[:, :1]).abs().max() < 1e-5  # at the mean state all answers are the same

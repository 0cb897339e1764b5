import doctest
import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from kann_experiments import data, ecg
from kann_experiments.configs import as_json
from kann_experiments.ecg import analysis, export, reproduce, trained
from kann_experiments.ecg import figures as figures_module
from kann_experiments.ecg import task as task_module
from kann_experiments.ecg.analysis import (
    NAMES,
    QUANTITIES,
    _classification,
    _closeness,
    _separation,
    decode,
    network_losses,
    study_network,
)
from kann_experiments.ecg.modes import (
    FEATURES,
    MedianBand,
    differences_at_features,
    distances_at_features,
    dominant_pairs,
    error_of_summed_modes,
    kernel_pca_parts,
    koopman_parts,
    median_band,
    modes_by_importance,
    pca_parts,
)
from kann_experiments.ecg.silhouettes import koopman_embedding, pca_embedding, silhouette_over_time, silhouettes
from kann_experiments.ecg.task import (
    CONFIGS,
    NOTEBOOK,
    PRINTED,
    THRESHOLD,
    build,
    losses,
    split,
    training_batch,
    training_plan,
)
from kann_experiments.results import expected
from kann_experiments.training import train

import kann
from kann.errors import KannError
from kann.zoo.autoencoder import Beats, pretrained
from tests.experiments.beat_files import some_beats, tiny
from tests.systems import AS_IN_PAPER

ARCHS = ["lstm", "gru"]


@pytest.fixture
def small(monkeypatch):
    for arch in ARCHS:
        monkeypatch.setitem(task_module.CONFIGS, arch, tiny(arch))
        monkeypatch.setitem(task_module.PRINTED, arch, tiny(arch, epochs=2))
    monkeypatch.setitem(figures_module.STYLE, "figure.dpi", 60)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A network that has seen some beats, and what is found about it."""
    parts = split(some_beats(), seed=0)
    config = tiny(epochs=6)
    return study_network(trained(config, parts, seed=0, folder=tmp_path_factory.mktemp("ecg")), config, parts)


def test_the_papers_hyperparameters():
    for arch in ARCHS:
        config = PRINTED[arch]
        assert (config.units, config.decoder_units, config.epochs, config.rate) == (64, 128, 150, 1e-3)
        assert (config.schedule, config.clip) == ("constant", np.inf)
        assert CONFIGS[arch].units == config.units
    assert expected("ecg")["threshold"].paper == THRESHOLD


def test_an_unknown_architecture(tmp_path):
    with pytest.raises(KannError, match="architecture 'rnn' is unknown; pass one of lstm, gru"):
        reproduce("rnn", out=tmp_path)


def test_no_seeds(tmp_path):
    with pytest.raises(KannError, match="there are no seeds"):
        reproduce("lstm", seeds=[], out=tmp_path)


def test_missing_data_say_what_to_fetch(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "nowhere"))
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("pooch.retrieve", offline)
    with pytest.raises(KannError, match=r"ECG5000.zip gave no usable .* \(no network\); run 'kann data fetch ecg5000'"):
        reproduce("lstm", out=tmp_path)


def numbered(normal, anomalous):
    """Beats that can be told by their first sample."""
    values = np.zeros((normal + anomalous, 4))
    values[:, 0] = np.arange(len(values))
    return Beats(values=values, labels=np.repeat([1, 2], [normal, anomalous]))


def test_the_split_of_the_paper():
    parts = split(numbered(2919, 2081), seed=0)
    sizes = [len(each) for each in (parts.train, parts.validation, parts.test, parts.anomalous)]
    assert sizes == [2481, 293, 145, 2081]
    normal = torch.cat([parts.train, parts.validation, parts.test])[:, 0]
    assert sorted(normal.tolist()) == list(range(2919))
    assert sorted(parts.anomalous[:, 0].tolist()) == list(range(2919, 5000))


def test_a_seed_fixes_the_split():
    first, second, other = (split(numbered(40, 9), seed=seed).test for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_too_few_beats():
    with pytest.raises(KannError, match="1 normal and 5 anomalous beats are too few to split"):
        split(numbered(1, 5), seed=0)


def test_an_epoch_sees_every_beat_once():
    config = replace(tiny(), batch=8)
    train = torch.arange(30.0)[:, None]
    plan = training_plan(config, len(train))
    assert (plan.iterations, plan.every) == (3 * 4, 4)
    epochs = [
        torch.cat([training_batch(train, config, seed=3, iteration=4 * epoch + i) for i in range(4)])
        for epoch in range(2)
    ]
    for epoch in epochs:
        assert torch.equal(epoch.sort(dim=0).values, train)
    assert not torch.equal(*epochs)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_seed_fixes_the_network(arch):
    first, second, other = (build(CONFIGS[arch], seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_forget_gates_start_open():
    plain, opened = (build(config["lstm"], seed=0) for config in (PRINTED, CONFIGS))
    for name, units in (("encoder", 64), ("decoder", 128)):
        wanted = torch.zeros(4 * units)
        wanted[units : 2 * units] = 1.0
        difference = getattr(opened, name).bias_hh_l0 - getattr(plain, name).bias_hh_l0
        torch.testing.assert_close(difference.detach(), wanted)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_decoder_sees_the_last_state_alone(arch):
    network = build(tiny(arch), seed=0)
    x = torch.as_tensor(some_beats(3, 2).values, dtype=torch.float32)
    states = kann.record(network, x, layer="encoder", progress=False).padded()
    assert states.shape == (5, 140, 10)
    torch.testing.assert_close(network.encode(x).detach(), torch.as_tensor(states[:, -1]))
    np.testing.assert_allclose(decode(network, states[:, -1], 140), network(x).detach(), atol=1e-6)
    whole = losses(network(x), x).detach().numpy()
    np.testing.assert_allclose(whole, np.abs((network(x).detach() - x).numpy()).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(network_losses(network, x), whole, rtol=1e-5)


def test_normal_beats_are_learnt_and_anomalous_ones_are_not(tmp_path):
    parts = split(some_beats(), seed=0)
    config = replace(tiny(epochs=60), batch=16, rate=1e-2)
    before = network_losses(build(config, seed=0), parts.test)
    network = trained(config, parts, seed=0, folder=tmp_path)
    normal, anomalous = (network_losses(network, x) for x in (parts.test, parts.anomalous))
    assert normal.max() < before.min() / 2
    # Training ends where the processor's rounding leads it: at a half of the anomalous losses, at 0.62 or 0.76 of them.
    assert normal.max() < 0.9 * anomalous.min()


def test_the_best_validation_weights_are_kept(tmp_path, monkeypatch):
    parts = split(some_beats(), seed=0)
    parts = replace(parts, validation=-parts.validation)  # upside down: they get worse the more is learnt

    def ends(name):
        """The validation loss after one, two, … epochs."""
        values = []
        for epochs in range(1, 6):
            config = replace(tiny(epochs=epochs), rate=1e-2, schedule="constant")
            network = trained(config, parts, seed=0, folder=tmp_path / name / str(epochs))
            values.append(network_losses(network, parts.validation).mean())
        return np.array(values)

    best = ends("best")
    monkeypatch.setattr(ecg, "train", lambda *arguments, validate, **rest: train(*arguments, **rest))
    last = ends("last")
    np.testing.assert_allclose(best, np.minimum.accumulate(last), rtol=1e-5)
    assert (best < last).any()


def rotations(rng, moduli=(0.99, 0.95), angles=(0.1, 0.5), d=4, count=6, steps=40):
    """States of two turning planes, in a mixed basis."""
    system = np.zeros((d, d))
    for i, (modulus, angle) in enumerate(zip(moduli, angles, strict=True)):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        system[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = modulus * turn
    mix = np.linalg.qr(rng.normal(size=(d, d)))[0] @ np.diag([3.0, 3.0, 1.0, 1.0])
    z = rng.normal(size=(count, d))
    path = []
    for _ in range(steps):
        path.append(z @ mix)
        z = z @ system
    return np.stack(path, axis=1)


def test_dominance_joins_conjugate_pairs(rng):
    states = kann.States.from_padded(rotations(rng))
    koopman = kann.fit(states, **AS_IN_PAPER)
    ordered = modes_by_importance(koopman, states)
    assert sorted(index for mode in ordered for index in mode.indices) == list(range(4))
    pairs = dominant_pairs(koopman, states)
    assert [mode.modulus for mode in pairs] == [mode.modulus for mode in ordered]
    assert {round(mode.modulus, 6) for mode in pairs} == {0.99, 0.95}


def test_a_pair_counts_with_both_of_its_eigenvectors():
    # A turning plane of radius 1, and a real mode. Along its eigenvectors of unit norm the pair has |z| = 1 / √2 twice.
    plane = np.exp(0.3j * np.arange(40))
    for strength, sizes in ((1.2, [2, 1]), (1.6, [1, 2])):  # between 1 / √2 and √2, and above √2
        path = 0.98 ** np.arange(40) * np.stack([plane.real, plane.imag, np.full(40, strength)])
        states = kann.States.from_sequences([path.T])
        ordered = modes_by_importance(kann.fit(states, **AS_IN_PAPER), states)
        assert [len(mode.indices) for mode in ordered] == sizes


def test_an_operator_without_pairs():
    states = kann.States.from_padded(0.9 ** np.arange(20)[None, :, None] * np.ones((2, 1, 1)))
    with pytest.raises(KannError, match="no conjugate pairs"):
        dominant_pairs(kann.fit(states, **AS_IN_PAPER), states)


def test_exact_parts_add_up_and_moduli_do_not(rng):
    states = rotations(rng)
    koopman = kann.fit(states, **AS_IN_PAPER)
    last = states[:, -1]
    assert error_of_summed_modes(koopman, last, part="real") < 1e-8
    assert error_of_summed_modes(koopman, last, part="modulus") > 0.1
    # A projection changes nothing the second time.
    once = koopman_parts(koopman, last, koopman.modes, part="real")
    for mode, part in zip(koopman.modes, once, strict=True):
        np.testing.assert_allclose(kann.reconstruct(koopman, part, mode), part, atol=1e-10)


def test_principal_parts_add_up(rng):
    states, last = rng.normal(size=(50, 4)) + 2, rng.normal(size=(3, 4))
    np.testing.assert_allclose(np.sum(pca_parts(states, last, mean=False), axis=0), last, atol=1e-12)
    about = np.sum(pca_parts(states, last, mean=True), axis=0) - 3 * states.mean(axis=0)
    np.testing.assert_allclose(about, last, atol=1e-12)


def test_principal_parts_are_those_of_scikit_learn(rng):
    from sklearn.decomposition import PCA

    states, last = rng.normal(size=(80, 6)) @ rng.normal(size=(6, 6)) + 1, rng.normal(size=(5, 6))
    model = PCA(4).fit(states)
    for i, part in enumerate(pca_parts(states, last, mean=True)):
        alone = np.zeros((5, 4))
        alone[:, i] = model.transform(last)[:, i]
        np.testing.assert_allclose(part, model.inverse_transform(alone), atol=1e-10)


def test_kernel_parts_stay_near_the_states(rng):
    states = rng.normal(size=(60, 3)) + 5
    parts = kernel_pca_parts(states, states[:7])
    assert len(parts) == 4
    assert all(part.shape == (7, 3) for part in parts)
    assert np.abs(np.array(parts) - 5).max() < 3  # standard deviations of the states about their mean


def test_a_band_is_median_and_deviation():
    signals = np.array([[0.0, 1.0], [1.0, 1.0], [10.0, 4.0]])
    found = median_band(signals)
    assert found.median.tolist() == [1.0, 1.0]
    assert found.deviation.tolist() == [1.0, 0.0]


def test_distances_at_the_features():
    def flat(level):
        return MedianBand(median=np.full(140, level), deviation=np.zeros(140))

    np.testing.assert_allclose(
        distances_at_features([flat(1.0), flat(3.0)], flat(0.0)), np.outer([1, 3], [1, 41**0.5, 1, 1])
    )
    spiked = flat(0.0)
    spiked.median[[3, 133]] = 2.0
    np.testing.assert_allclose(distances_at_features([spiked], flat(0.0)), [[2, 0, 0, 2]])
    assert differences_at_features(spiked, flat(0.0)) == pytest.approx(
        {"t = 3": 2.0, "35 ≤ t ≤ 75": 0.0, "t = 103": 0.0, "t = 133": 2.0, "all": 4 / 140}
    )


def test_silhouettes_average_over_samples_and_times(rng):
    from sklearn.metrics import silhouette_samples

    states, labels = rng.normal(size=(20, 6, 3)), np.repeat([0, 1], 10)
    scores = np.array([silhouette_samples(states[:, t], labels) for t in range(6)])
    wanted = [scores[: t + 1].mean() for t in range(6)]
    np.testing.assert_allclose(silhouette_over_time(states, labels), wanted)


def test_silhouettes_of_what_is_apart_and_of_what_is_not(rng):
    states, labels = rotations(rng, count=30), np.repeat([0, 1], 15)
    mixed = silhouettes(states, labels, kann.fit(states, **AS_IN_PAPER))
    assert all(abs(values[-1]) < 0.2 for values in mixed.values())
    # Along all directions, so that every embedding sees it; the offset is larger than the states.
    apart = silhouettes(states + 50.0 * labels[:, None, None], labels, kann.fit(states, **AS_IN_PAPER))
    assert all(apart[name][-1] > 0.9 for name in ("raw", "pca"))
    assert mixed.keys() == apart.keys()
    assert all(values.shape == (40,) for values in apart.values())


def test_an_embedding_of_five(rng):
    states = rng.normal(size=(6, 30, 12)).cumsum(axis=1)
    koopman = kann.fit(states, **AS_IN_PAPER)
    assert pca_embedding(states).shape == (6, 30, 5)
    assert koopman_embedding(koopman, states).shape == (6, 30, 10)
    assert koopman_embedding(koopman, states, magnitudes=True).shape == (6, 30, 5)
    chosen = [mode.indices[0] for mode in modes_by_importance(koopman, kann.States.from_padded(states))[:5]]
    whole = koopman_embedding(koopman, states, whole=True)
    np.testing.assert_allclose(whole[..., :5], kann.project(koopman, states)[..., chosen].real)


def test_everything_in_the_table_is_measured(studied):
    keys = {quantity.key for quantity in QUANTITIES}
    # h and c of ten units have twenty coordinates.
    too_large = {key for key in keys if key.startswith(("standin_", "driven_")) and ("_24" in key or "_32" in key)}
    assert keys - too_large <= studied.numbers.keys()
    assert all(np.isfinite(value) for value in studied.numbers.values())
    assert expected("ecg").keys() <= keys
    assert len(keys) == len(QUANTITIES)


def test_the_numbers_are_those_of_the_library(studied):
    analysis, numbers = studied.analysis, studied.numbers
    beats = analysis.split.test.numpy()

    def readout(h):
        return np.abs(decode(analysis.network, h, 140) - beats).sum(axis=1)

    agreement = kann.agreement(analysis.koopman, analysis.states, readout, threshold=THRESHOLD)
    assert numbers["agreement"] == pytest.approx(agreement)
    assert numbers["relative_error"] == pytest.approx(kann.relative_error(analysis.koopman, analysis.states))
    assert analysis.koopman.rank == analysis.states.dim - 1
    np.testing.assert_allclose(studied.losses["test"], network_losses(analysis.network, analysis.split.test))


@pytest.mark.parametrize("part", ["test", "validation", "anomalous"])
def test_copying_by_hand_on_every_part(studied, part):
    network, beats, numbers = studied.analysis.network, getattr(studied.analysis.split, part), studied.numbers
    key = "" if part == "test" else f"_{part}"
    with torch.no_grad():
        h = network.encoder(beats[..., None])[0].double().numpy()  # (n, t, d)
    errors = ((h[:, 1:] - h[:, :-1]) ** 2).sum(-1) / (h[:, 1:] ** 2).sum(-1)
    assert numbers[f"copying_error{key}"] == pytest.approx(errors.mean(), rel=1e-5)
    copied = np.abs(decode(network, h[:, -2], 140) - beats.numpy()).sum(axis=1)
    unchanged = (copied > THRESHOLD) == (network_losses(network, beats) > THRESHOLD)
    assert numbers[f"copying_agreement{key}"] == pytest.approx(unchanged.mean())
    if part == "test":
        assert numbers["loss_copying"] == pytest.approx(copied.mean())


def test_decisions_at_the_threshold():
    losses = {
        "train": [1.0, 26.0, 26.1, 30.0],
        "validation": [27.0, 5.0, 5.0],
        "test": [10.0, 20.0],
        "anomalous": [26.0, 40.0, 27.0, 27.0],
        "kann": [12.0, 24.0],
        "copying": [13.0, 27.0],
    }
    assert _classification({name: np.array(values) for name, values in losses.items()}) == {
        "accuracy_train": 0.5,
        "accuracy_validation": pytest.approx(2 / 3),
        "accuracy_test": 1.0,
        "accuracy_anomalous": 0.75,
        "threshold": 26.0,
        "loss_test": 15.0,
        "loss_anomalous": 30.0,
        "loss_kann": 18.0,
        "loss_copying": 20.0,
    }


def test_the_notebooks_recipe():
    for arch in ARCHS:
        config = NOTEBOOK[arch]
        assert (config.batch, config.weight_decay, config.rate, config.epochs) == (1, 5e-3, 1e-3, 150)
        assert training_plan(config, 10).factor(99, [3.0, 2.0, 2.0, 2.0, 2.0]) == 0.5
    assert as_json(NOTEBOOK["lstm"])["weight_decay"] == 5e-3
    assert "weight_decay" not in as_json(PRINTED["lstm"])  # checkpoints of earlier versions do not name it


def test_the_notebooks_recipe_trains_and_is_found_again(tmp_path):
    config = replace(tiny(epochs=2), batch=1, schedule="plateau", weight_decay=5e-3)
    parts = split(some_beats(), seed=0)
    network, again = (trained(config, parts, seed=0, folder=tmp_path) for _ in range(2))
    torch.testing.assert_close(again(parts.test), network(parts.test))
    with pytest.raises(KannError, match=r"other settings \(config\)"):
        trained(replace(config, weight_decay=0.0), parts, seed=0, folder=tmp_path)


def test_silhouettes_are_compared_at_all_times():
    koopman = np.array([0.0, 0.1, 0.5, 0.2])
    others = {"raw": np.array([0.1, 0.2, 0.1, 0.1]), "pca": np.array([0.2, 0.05, 0.2, 0.3])}
    numbers = _separation({"koopman": koopman, **others})
    assert (numbers["silhouette_lowest"], numbers["silhouette_highest"]) == (0.25, 0.25)


def test_every_beat_has_a_loss(studied):
    lost = studied.losses
    assert {name: len(values) for name, values in lost.items()} == {
        "train": 102, "validation": 12, "test": 6, "anomalous": 60, "kann": 6, "copying": 6,
    }  # fmt: skip


def test_the_best_mode_counts_at_each_feature():
    numbers = _closeness(
        {
            "kann": np.array([[1.0, 5.0, 2.0, 9.0], [3.0, 4.0, 1.0, 8.0]]),  # best: 1, 4, 1, 8
            "kann_real": np.array([[2.0, 2.0, 2.0, 2.0]]),
            "kann_64": np.array([[1.0, 1.0, 9.0, 9.0]]),
            "kann_20": np.array([[9.0, 9.0, 9.0, 9.0]]),
            "pca": np.array([[2.0, 2.0, 3.0, 9.0], [9.0, 9.0, 9.0, 9.0]]),
            "pca_mean": np.array([[9.0, 9.0, 9.0, 1.0]]),
            "kernel_pca": np.array([[9.0, 3.0, 2.0, 9.0]]),
        }
    )
    assert [numbers[f"feature_{i}_kann"] for i in (1, 2, 3, 4)] == [1.0, 4.0, 1.0, 8.0]
    assert numbers["closest"] == 3  # all but the second, where PCA has 2
    assert (numbers["closest_64"], numbers["closest_20"]) == (2, 0)
    assert numbers["closest_real"] == 1  # equal is not closer
    assert numbers["closest_mean"] == 2  # the first and the third
    assert numbers["own_modes"] == 2


def test_the_numbers_are_those_of_the_best_modes(studied):
    for i in range(len(FEATURES)):
        best = {name: studied.distances[name][:, i].min() for name in NAMES}
        for name, value in best.items():
            assert studied.numbers[f"feature_{i + 1}_{name}"] == value
    wins = [
        studied.distances["kann"][:, i].min()
        < min(studied.distances["pca"][:, i].min(), studied.distances["kernel_pca"][:, i].min())
        for i in range(len(FEATURES))
    ]
    assert studied.numbers["closest"] == sum(wins)


@pytest.mark.parametrize(("arch", "seeds"), [("lstm", [3]), ("gru", [3, 4])])
def test_the_whole_experiment(small, tmp_path, arch, seeds, monkeypatch):
    without_live_tests(monkeypatch)
    if len(seeds) == 1:  # figures of two seeds draw all that those of one do
        monkeypatch.setattr(ecg, "draw_figures", lambda studies, *, folder: ())
    result = reproduce(arch, out=tmp_path, seeds=seeds, beats=some_beats())
    assert result.title == f"ECG, {arch}"
    assert result.notes == ("epochs 3 (not 2)",)
    assert {row.printed is None for row in result.rows} == ({True, False} if arch == "lstm" else {True})
    content = json.loads(result.files[0].read_text())
    assert content["seeds"] == seeds
    assert content["beats"] == {"train": 102, "validation": 12, "test": 6, "anomalous": 60}
    assert content["rows"]["threshold"]["mean"] == 26
    assert set(content["by_seed"]) == set(map(str, seeds))
    assert len(content["by_seed"]["3"]["silhouettes"]["koopman"]) == 140
    names = {path.name for path in result.files[1:]}
    assert names == {
        f"{name}.{kind}"
        for name in ("modes", "methods", "distances", "losses", "separation", "spectrum")
        for kind in ("png", "svg")
        if len(seeds) > 1
    }
    for path in result.files:
        if path.suffix == ".svg":
            ElementTree.parse(path)  # noqa: S314 - our own file


def without_live_tests(monkeypatch):
    """Leave out what takes longest: `studied` has it, and rows are made of all numbers alike."""
    for slow in ("live_numbers", "stand_in_numbers"):
        monkeypatch.setattr(analysis, slow, lambda *_, **__: {})


def test_a_second_run_gives_the_same_files(small, tmp_path, monkeypatch):
    monkeypatch.setattr(ecg, "draw_figures", lambda studies, *, folder: ())
    without_live_tests(monkeypatch)
    first = reproduce("lstm", out=tmp_path, seeds=[0], beats=some_beats())
    network = tmp_path / "lstm" / "seed-0" / "network.safetensors"
    before = network.stat().st_mtime_ns, first.files[0].read_bytes()
    second = reproduce("lstm", out=tmp_path, seeds=[0], beats=some_beats())
    assert (network.stat().st_mtime_ns, second.files[0].read_bytes()) == before
    other = reproduce("lstm", out=tmp_path, seeds=[0], beats=some_beats(), printed=True)
    assert other.files[0].parent.name == "lstm-as-printed"
    assert other.notes == ()


def test_figures_show_what_was_measured(studied):
    histogram = figures_module.losses_figure(studied).axes[0]
    assert histogram.get_xlabel() == "loss of a normal test beat"
    drawn = sum(patch.get_height() for patch in histogram.containers[0])
    assert drawn == len(studied.losses["test"])
    panels = figures_module.modes_figure(studied).axes
    assert len(panels) == 2 * len(studied.analysis.pairs)
    lines = {line.get_label(): line.get_ydata() for line in panels[0].lines}
    np.testing.assert_allclose(lines["the pair alone"], studied.decoded["kann"][0].median)
    np.testing.assert_allclose(lines["normal beats"], studied.bands["normal"].median)
    right = figures_module.separation_figure([studied, studied]).axes[1]
    curves = {line.get_label(): line.get_ydata() for line in right.lines}
    np.testing.assert_allclose(curves["5 Koopman eigenvectors"], studied.silhouettes["koopman"])


def test_without_scikit_learn(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match="scikit-learn: pip install -e experiments"):
        reproduce("lstm", out=tmp_path, beats=some_beats())
    assert list(tmp_path.iterdir()) == []


def test_what_is_exported_is_what_is_loaded(studied, tmp_path):
    export(studied, tmp_path, seed=7, command="kann reproduce ecg --seed 7")
    model = pretrained(tmp_path)
    weights = model.network.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in studied.analysis.network.state_dict().items())
    assert model.provenance["config"] == as_json(studied.analysis.config)
    assert model.provenance["seed"] == 7
    assert model.provenance["data"]["beats"]["train"] == 102


def test_the_example_of_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "ecg.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert failed == 0

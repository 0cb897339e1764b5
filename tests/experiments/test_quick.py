"""The quick versions and the parallel training, on networks and data that are smaller still."""

import json

import numpy as np
import pytest
from kann_experiments import ecg, quick, train_all
from kann_experiments.configs import as_json
from kann_experiments.copy import analysis
from kann_experiments.copy import figures as figures_module
from kann_experiments.copy import task as task_module
from kann_experiments.ecg import analysis as ecg_analysis
from kann_experiments.training import run_name

from kann import zoo
from tests.experiments.tiny import tiny


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(task_module.PRINTED, "dtriv", tiny(iterations=30))
    monkeypatch.setattr(figures_module, "GRID", 21)
    for slow in ("live_numbers", "stand_in_numbers"):
        monkeypatch.setattr(analysis, slow, lambda *_, **__: {})


def test_the_quick_copy_task_has_a_table_and_figures(small, tmp_path):
    result = quick.QUICK["copy"](out=tmp_path)
    assert result.files[0].parent.name == "dtriv-as-printed-quick"
    assert any(path.suffix == ".png" for path in result.files)
    assert any(row.verdict for row in result.rows)


def test_the_quick_heartbeats_have_a_table_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(quick, "NORMAL", 200)
    monkeypatch.setattr(quick, "ANOMALOUS", 20)
    for slow in ("live_numbers", "stand_in_numbers"):
        monkeypatch.setattr(ecg_analysis, slow, lambda *_, **__: {})
    result = quick.QUICK["ecg"](out=tmp_path)
    assert result.files[0].parent.name == "lstm-quick"
    assert any(path.suffix == ".png" for path in result.files)
    assert any(row.verdict for row in result.rows)
    shipped = zoo.provenance("ecg")["config"]
    assert as_json(ecg.task.CONFIGS["lstm"]) == shipped


def test_samples_are_some_reviews(monkeypatch):
    reviews = quick.Reviews(words=np.arange(30), lengths=np.full(10, 3), positive=np.arange(10) % 2)
    monkeypatch.setattr(quick, "REVIEWS", 4)
    assert len(quick._sample(reviews)) == 4


def test_jobs_are_named_like_their_folders(tmp_path):
    found = {job.name: job for job in train_all.jobs(list(train_all.TASKS), out=tmp_path, device="cuda")}
    assert {"copy/dtriv", "copy/dtriv-as-printed-zero-blanks", "ecg/lstm-as-notebook", "sentiment/rnn-as-printed"} <= (
        found.keys()
    )
    assert found["copy/gru"].device == "cpu"
    assert found["ecg/gru"].device == "cuda"
    assert [job.name for job in train_all.jobs(["ecg"], out=tmp_path, device="cpu", only=["notebook"])] == [
        "ecg/lstm-as-notebook",
        "ecg/gru-as-notebook",
    ]
    assert run_name("gru", printed=True, suffix="-zero-blanks") == "gru-as-printed-zero-blanks"


def test_what_a_job_trains_is_used_by_its_analysis(small, tmp_path):
    (job,) = train_all.jobs(["copy"], out=tmp_path, device="cpu", only=["copy/dtriv-as-printed-zero"])
    train_all.train_one(job, 0)
    trained = (job.folder / "seed-0" / "network.safetensors").read_bytes()
    train_all.analyse(job, [0])
    assert (job.folder / "seed-0" / "network.safetensors").read_bytes() == trained
    content = json.loads((job.folder / "results.json").read_text())
    assert content["config"]["task"]["zero_blanks"]

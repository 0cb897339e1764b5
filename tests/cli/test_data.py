"""Where the data sets are, and how they are fetched."""

import sys


def test_data_are_listed_and_found(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KANN_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listed = run("data", "list")
    assert listed.exit_code == 0
    assert "kann data fetch imdb" in listed.stdout
    missing = run("data", "path", "imdb")
    assert missing.exit_code == 1
    assert "aclImdb_v1.tar.gz" in missing.stderr
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    assert run("data", "path", "imdb").stdout.strip() == str(tmp_path / "aclImdb_v1.tar.gz")


def test_data_are_listed_without_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("KANN_DATA_DIR", str(tmp_path))
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    listed = run("data", "list")
    assert listed.exit_code == 0, listed.output
    assert str(tmp_path / "aclImdb_v1.tar.gz") in listed.stdout
    assert "kann data fetch ecg5000" in listed.stdout
    assert "pip install -e experiments" in run("data", "fetch", "ecg5000").stderr


def test_data_are_fetched(run, monkeypatch):
    monkeypatch.setattr("kann_experiments.data.fetch", lambda name: f"folder/{name}")
    assert run("data", "fetch", "imdb").stdout.strip() == "folder/imdb"
    assert run("data", "fetch", "mnist").exit_code == 2

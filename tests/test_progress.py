import sys

from kann.progress import progress


def test_progress_yields_everything_with_and_without_tqdm(monkeypatch):
    assert list(progress(range(3), what="things")) == [0, 1, 2]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress(range(3), what="things")) == [0, 1, 2]

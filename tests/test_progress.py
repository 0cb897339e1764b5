import io
import sys

import pytest

from kann import progress as module
from kann.progress import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):  # noqa: D102
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("installed", [True, False])
def test_progress_yields_everything_and_shows_a_bar_on_a_terminal_alone(monkeypatch, stream, installed):
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(module, "SECONDS_BEFORE_BAR", 0)
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress(range(3), what="things")) == [0, 1, 2]
    assert ("things" in sys.stderr.getvalue()) == (installed and stream is Terminal)

# ruff: noqa: D102  # models in tests say what they are by their names
"""A type checker knows what the functions that record give back, and what it knows is true."""

import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch
from torch import nn

import kann
from tests.recording import typed_calls

SOURCE = Path(typed_calls.__file__).read_text()
LINES = len(re.findall(r"^    assert_type", SOURCE, flags=re.MULTILINE))


class TwoBlocks(nn.Module):
    """A recurrent module between two blocks of equal width."""

    def __init__(self):
        super().__init__()
        self.embed, self.a = nn.Embedding(10, 3), nn.Linear(3, 3)
        self.rnn, self.b = nn.GRU(3, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, words):
        return self.b(self.rnn(self.a(self.embed(words)))[0])


def test_every_call_gives_what_its_line_says(tmp_path, monkeypatch):
    seen = []

    def require_type(value, kind):
        whole = typing.get_origin(kind) or kind
        assert type(value) is whole
        for part in value.values() if whole is dict else ():
            inner = typing.get_args(kind)[1]
            assert type(part) is (typing.get_origin(inner) or inner)
        seen.append(kind)

    monkeypatch.chdir(tmp_path)  # one line writes to a relative path
    monkeypatch.setattr(typed_calls, "assert_type", require_type)
    typed_calls.calls(TwoBlocks(), [torch.tensor([1, 2, 3]), torch.tensor([4, 5])], tmp_path)
    assert len(seen) == LINES


@pytest.mark.slow
def test_pyright_infers_what_every_line_says_and_refuses_anything_else(tmp_path):
    pytest.importorskip("pyright")
    swapped = {"States": "Moments", "Moments": "States"}
    wrong = re.sub(r"\b(States|Moments)(\]*\)$)", lambda m: swapped[m[1]] + m[2], SOURCE, flags=re.MULTILINE)
    misspelt = "import kann\nfrom torch import nn\nkann.record(nn.GRU(1, 1), [], batchsize=3)\n"
    for name, text in {"right.py": SOURCE, "wrong.py": wrong, "misspelt.py": misspelt}.items():
        (tmp_path / name).write_text(text)
    source = str(Path(kann.__file__).parents[1])
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [source]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    errors = [(Path(e["file"]).name, e["rule"]) for e in json.loads(answer.stdout)["generalDiagnostics"]]
    assert errors.count(("wrong.py", "reportAssertTypeFailure")) == LINES
    assert [error for error in errors if error[0] != "wrong.py"] == [("misspelt.py", "reportCallIssue")]

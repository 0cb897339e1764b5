import os

import pytest

from kann.data.files import replacing


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    old, moves = tmp_path / "folder", []
    old.mkdir()
    (old / "kept").write_text("precious")
    move = os.replace

    def fail_on_the_second(source, target):
        moves.append((source, target))
        if len(moves) == 2:
            raise OSError(28, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", fail_on_the_second)
    with pytest.raises(OSError, match="could not save: No space left on device"), replacing(old) as temporary:
        temporary.mkdir()
    assert (old / "kept").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]

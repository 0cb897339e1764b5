"""What `kann.record` gives back, one call a line. test_types.py runs these lines and has pyright check them."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

from torch import Tensor, nn

from kann import Moments, States, record


def calls(model: nn.Module, words: Sequence[Tensor], folder: Path) -> None:
    """Record a model with the recurrent module ``rnn`` and two modules ``a`` and ``b`` of equal width."""
    assert_type(record(model, words), States)
    assert_type(record(model, words, layer="rnn", inputs=True, batch_size=2), States)
    assert_type(record(model, words, layer=lambda output: output), States)
    assert_type(record(model, words, into="states"), States)
    assert_type(record(model, words, into="one.zarr"), States)
    assert_type(record(model, words, into=folder / "two.zarr"), States)
    assert_type(record(model, words, into="moments"), Moments)
    assert_type(record(model, words, layer="rnn", into=Moments()), Moments)
    assert_type(record(model, words, layer=["a", "b"]), dict[str, States])
    assert_type(record(model, words, layer=("a", "b"), into=folder / "all"), dict[str, States])
    assert_type(record(model, words, layer=["a", "rnn.*"], into="moments"), dict[str, Moments])
    assert_type(record(model, words, layer=["a", "b"], axis="depth"), States)
    assert_type(record(model, words, layer="?", axis="depth", into="moments"), Moments)
    assert_type(record(model, words, layer=["a", "b"], axis="depth", into="moments"), Moments)
    assert_type(record(model, words, layer=["a", "b"], axis="depth", into=Moments()), Moments)
    assert_type(record(model, words, into="moments", groups=20), list[Moments])
    assert_type(record(model, words, into="moments", groups=["ann", "bob"]), list[Moments])
    assert_type(record(model, words, layer=["a", "b"], into="moments", groups=2), dict[str, list[Moments]])
    assert_type(record(model, words, layer=["a", "b"], axis="depth", into="moments", groups=2), list[Moments])

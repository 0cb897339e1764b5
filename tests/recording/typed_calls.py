"""Types of what the functions that record return, one call a line. test_types.py runs them and has pyright check."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

from torch import Tensor, nn

from kann import Moments, States, record
from kann.recording import record_grouped_moments, record_layer_moments, record_layers, record_moments


def calls(model: nn.Module, words: Sequence[Tensor], folder: Path) -> None:
    """Record a model with the recurrent module ``rnn`` and two modules ``a`` and ``b`` of equal width."""
    assert_type(record(model, words), States)
    assert_type(record(model, words, layer="rnn", inputs=True, batch_size=2), States)
    assert_type(record(model, words, layer=lambda output: output), States)
    assert_type(record(model, words, into="one.zarr"), States)
    assert_type(record(model, words, into=folder / "two.zarr"), States)
    assert_type(record(model, words, layer=["a", "b"], axis="depth"), States)
    assert_type(record_layers(model, words, layer=["a", "b"]), dict[str, States])
    assert_type(record_layers(model, words, layer=("a", "b"), into=folder / "all"), dict[str, States])
    assert_type(record_moments(model, words), Moments)
    assert_type(record_moments(model, words, layer="rnn", into=Moments()), Moments)
    assert_type(record_moments(model, words, layer="?", axis="depth"), Moments)
    assert_type(record_layer_moments(model, words, layer=["a", "rnn.*"]), dict[str, Moments])
    assert_type(record_grouped_moments(model, words, groups=20), list[Moments])
    assert_type(record_grouped_moments(model, words, groups=["ann", "bob"]), list[Moments])

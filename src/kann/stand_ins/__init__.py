"""Fitted operators as torch modules and ONNX files that run instead of the network."""

from importlib import import_module
from typing import Any

from kann.analysis.word_pairs import WordPairs as WordPairs
from kann.analysis.word_pairs import word_pairs as word_pairs
from kann.fitting.readout import Readout as Readout
from kann.fitting.readout import fit_readout as fit_readout


def __getattr__(name: str) -> Any:
    if name != "save_onnx":  # an ONNX file needs onnx, which is imported when it is first written
        raise AttributeError(f"module 'kann.stand_ins' has no attribute {name!r}")
    return import_module("kann.stand_ins._onnx").save_onnx

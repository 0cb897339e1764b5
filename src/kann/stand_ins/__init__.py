"""Fitted operators as torch modules and ONNX files that run instead of the network."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "save_onnx":  # an ONNX file needs onnx, which is imported when it is first written
        raise AttributeError(f"module 'kann.stand_ins' has no attribute {name!r}")
    return import_module("kann.stand_ins._onnx").save_onnx

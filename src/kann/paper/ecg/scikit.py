"""scikit-learn, which only this experiment needs."""

from importlib import import_module
from typing import Any


def require(part: str) -> Any:
    """A module of scikit-learn: ``decomposition`` or ``metrics``."""
    try:
        return import_module(f"sklearn.{part}")
    except ImportError as error:
        raise ImportError("the ECG experiment needs scikit-learn: pip install 'kann[paper]'") from error

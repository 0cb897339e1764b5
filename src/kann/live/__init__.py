"""Run a PyTorch model with its states replaced, and measure what its outputs depend on."""

from kann.live.history import History
from kann.live.results import Memory

__all__ = ["History", "Memory"]

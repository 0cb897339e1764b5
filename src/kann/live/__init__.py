"""Run a PyTorch model with its states replaced, and measure what its outputs depend on."""

from kann.live.history import History

__all__ = ["History"]

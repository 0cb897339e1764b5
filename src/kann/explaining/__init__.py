"""Explain a trained network in one call."""

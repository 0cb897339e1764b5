"""Weights of small trained networks."""

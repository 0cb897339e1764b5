"""Fits against the same fits in sixty digits."""

"""Tests of the paper's experiments."""

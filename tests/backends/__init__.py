"""Tests of kann.backends."""

"""Tests of kann.depth."""

"""Tests of kann.cli."""

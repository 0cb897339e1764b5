"""Tests of kann.fixed_points."""

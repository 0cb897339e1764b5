"""Tests of kann.zoo."""

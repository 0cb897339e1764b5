"""Tests of kann."""

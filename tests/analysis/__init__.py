"""Tests of kann.analysis."""

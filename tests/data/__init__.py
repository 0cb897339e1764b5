"""Tests of kann.data."""

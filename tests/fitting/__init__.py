"""Tests of kann.fitting."""

"""Tests of kann.reporting."""

"""Tests of kann.recording."""

"""Tests of networks that run with their states replaced."""

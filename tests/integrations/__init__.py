"""Callbacks of other trainers, in those trainers."""

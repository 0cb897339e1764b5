"""Callbacks that watch a network's operator in other trainers; each is imported only where it is used."""

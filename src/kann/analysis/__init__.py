"""Analyses of a fitted operator: modes, contributions, errors, trust, movers, distances."""

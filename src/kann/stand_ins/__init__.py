"""Fitted operators as torch modules that stand in for the network they were fitted to."""

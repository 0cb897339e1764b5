"""What the running network does with some coordinates of its state alone, and without them; and which words count.

Coordinates are chosen on validation reviews and judged on test reviews. What was measured about a network is kept in a
file beside it, and is taken from there if network and settings are the same.
"""

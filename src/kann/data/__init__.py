"""Where hidden states live, and the one reduction over all of them."""

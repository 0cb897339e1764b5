"""Run a PyTorch model with its states replaced, and measure what its outputs depend on."""

"""What needs a real browser."""

"""What is read off a fitted operator."""

"""What a network learned, in one call, and the page that shows it."""

"""Programs for whoever operates runs; they need no more than Python."""

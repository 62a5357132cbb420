"""What each source of a node said, as values."""

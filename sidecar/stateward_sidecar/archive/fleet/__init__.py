"""Work over the whole archive."""

"""What the archive takes from this disk and brings to it."""

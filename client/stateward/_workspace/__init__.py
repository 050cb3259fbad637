"""Trees of files: their objects, the walk through a directory, and its rules. Nothing here calls the daemon."""

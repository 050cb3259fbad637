"""Trees of files: objects, packs, and the trees that versions name."""

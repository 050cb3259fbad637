"""The journal: writing entries, and what every write has in common."""

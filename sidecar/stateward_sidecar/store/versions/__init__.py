"""Versions: making, saving and describing them; branches, snapshots, tags and settings."""

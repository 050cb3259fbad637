"""Copies of a thread: forks, backups, imports."""

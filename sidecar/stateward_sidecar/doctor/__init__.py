"""Examinations of the daemon's machine, each with advice. Loaded at the first Diagnose, and by --check."""

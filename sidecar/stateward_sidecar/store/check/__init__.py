"""Verify, and the recovery at the start."""

"""Bringing changes to the bucket, and letting go."""

"""Forgetting: pruning, deletion, expiry, retention, and the census."""

"""Requests to the bucket, their names, and who waits for them."""

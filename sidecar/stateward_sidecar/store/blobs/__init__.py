"""Blobs, from the upload to their end."""

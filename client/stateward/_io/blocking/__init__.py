"""Waiting in threads."""

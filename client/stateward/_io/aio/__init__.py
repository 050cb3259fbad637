"""Waiting with asyncio."""

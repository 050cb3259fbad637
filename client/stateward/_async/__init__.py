"""The asyncio client, written by hand. `_sync` is generated from it by `client/generate.py`."""

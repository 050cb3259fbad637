"""The blocking client: generated from `_async` by `client/generate.py`, never edited."""

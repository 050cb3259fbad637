"""Benchmarks: `python -m tests.bench`. They compare side by side in one run and never gate a test."""

"""Metrics for Prometheus. Loaded only if --metrics names an address."""

"""Traces with OpenTelemetry. Loaded only if --traces names a collector."""

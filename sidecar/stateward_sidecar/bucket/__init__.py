"""Object storage under the archive: one protocol, its implementations, and the wrapper that retries."""

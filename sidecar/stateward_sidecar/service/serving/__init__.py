"""The server: listeners, handlers, readiness, drain, the end."""

"""The local wire: calls as frames on a unix socket, for clients of the same host."""

"""The server's HTTP/2 options for gRPC's core, each with its reason.

The core ignores unknown options, so each option has a test of its effect (tests/service/test_impatient_clients.py,
test_limits.py).
"""

from __future__ import annotations

# How far above the limit a message may be for the daemon to receive it and refuse it with ErrorInfo. The core keeps
# three copies of such a message for a moment. It refuses larger messages without ErrorInfo, before it takes their
# bytes.
REFUSED_IN_WORDS_BYTES = 32 << 20
# The most open calls of one connection. Its client keeps further calls back. Watches and writers count, and stay open.
STREAMS_MAX = 1024
# Go clients ping every 10 s at the most, Node clients as often as configured. Three pings in a row at shorter intervals
# than this end the connection.
PING_INTERVAL_MS = 500
# How much of an unread message a client may send.
UNREAD_BYTES = 64 << 10
# How long a call may wait until the daemon takes it. The core cancels it after 30 s without a message, so that a burst
# on a busy machine lost calls that had no deadline.
UNTAKEN_S = 24 * 3600
_NO_LIMIT = (1 << 31) - 1


def options(message_bytes_max: int) -> list[tuple[str, int]]:
    """Returns the options of a server whose largest message has ``message_bytes_max`` bytes."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max + min(message_bytes_max, REFUSED_IN_WORDS_BYTES)),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # A client that hangs, perhaps with a lease, loses its connection within a minute.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ping idle connections, because a watch may be silent for days.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.server_max_unrequested_time_in_server", UNTAKEN_S),
        # A burst waits for its turn. The core's own limits (1,000 and 3,000 waiting calls) drop calls of every client,
        # and its overload protection drops calls that a client sent before it knew the limit of streams.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _NO_LIMIT),
        ("grpc.server.max_pending_requests_hard_limit", _NO_LIMIT),
    ]

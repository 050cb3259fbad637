"""How the server speaks HTTP/2: the options of gRPC's core, each with its reason.

The core ignores an option whose name it does not know, so each of them has a test that sees its effect
(tests/service/test_impatient_clients.py, test_limits.py).
"""

from __future__ import annotations

# The core refuses a larger message by itself, without ErrorInfo, before it takes its bytes. Up to so much above the
# limit the daemon takes a message and refuses it in words; the core keeps three copies of it for a moment.
REFUSED_IN_WORDS_BYTES = 32 << 20
# Calls of one connection; its client keeps further ones back. Watches and writers are calls too, and stay open.
STREAMS_MAX = 1024
# Go's clients ping every 10 s at the most, Node's as often as they are told. Three pings in a row that come sooner
# than this after one another end the connection.
PING_INTERVAL_MS = 500
# What a client may send of a message that nobody reads yet.
UNREAD_BYTES = 64 << 10
_NO_LIMIT = (1 << 31) - 1


def options(message_bytes_max: int) -> list[tuple[str, int]]:
    """For a server whose largest message has so many bytes."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max + min(message_bytes_max, REFUSED_IN_WORDS_BYTES)),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # A client that hangs, with a lease perhaps, loses its connection within a minute.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients ping idle connections too: a watch may be silent for days.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        # A burst waits for its turn. The core's own limits (1,000 and 3,000 calls that wait) drop calls of every
        # client, and its protection against bursts drops those that were sent before the client knew the limit.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _NO_LIMIT),
        ("grpc.server.max_pending_requests_hard_limit", _NO_LIMIT),
    ]

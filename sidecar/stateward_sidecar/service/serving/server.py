"""The gRPC server: options, listeners, admission of calls, and an orderly stop.

The server's HTTP/2 options for gRPC's core, each with its reason.

The core ignores unknown options, so each option has a test of its effect (tests/service/test_clients_impatient.py,
test_limits.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2

from stateward_sidecar.addresses import TLS_MARK, Port, parse_listen
from stateward_sidecar.errors import ShuttingDown, StartError
from stateward_sidecar.measures import CallMeasures, Wires
from stateward_sidecar.service.admission.accessfile import SOCKETS_MAX
from stateward_sidecar.service.admission.callers import Callers
from stateward_sidecar.service.admission.gate import Gate
from stateward_sidecar.service.admission.held import HeldGate
from stateward_sidecar.service.admission.memory import Room
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.calls.calls import Gather
from stateward_sidecar.service.local.listener import Listener
from stateward_sidecar.service.local.running import LocalMethod
from stateward_sidecar.service.methods import METHODS, Facts, verb_name
from stateward_sidecar.service.serving import sockets
from stateward_sidecar.service.serving.handlers import Made, make_handler
from stateward_sidecar.service.serving.open_door import OpenDoor
from stateward_sidecar.service.serving.own import OwnSockets
from stateward_sidecar.service.serving.tls import Tls

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
# How long a new connection may take until its client has said that it speaks HTTP/2.
GREETING_MS = 5_000
# How long a connection may be without calls. A client connects again with its next call, and does not notice.
IDLE_MS = 15 * 60_000
# The same, if somebody may connect who may call nothing: such a connection only keeps others out.
STRANGERS_IDLE_MS = 60_000
# The most connections of a listener, and the part of the files that the process may open which all of them share. The
# local wire has a half, all sockets of principals together an eighth, and the rest is for the daemon itself.
CONNECTIONS_MAX, CONNECTIONS_PART = 4096, 4
OWN_PART = 8
_NO_LIMIT = (1 << 31) - 1


def connections_max(listeners: int) -> int:
    """Returns how many connections of gRPC each listener accepts."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, soft // CONNECTIONS_PART // max(listeners, 1))


def own_connections_max() -> int:
    """Returns how many connections of gRPC each socket of a principal accepts."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(soft // OWN_PART // SOCKETS_MAX, 1)


def options(message_bytes_max: int, *, has_strangers: bool, connections: int) -> list[tuple[str, int]]:
    """Returns the options of a server whose largest message has ``message_bytes_max`` bytes.

    ``has_strangers``: whether somebody may connect who may call nothing, or not everything. ``connections``: the most
    that a listener accepts.
    """
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
        # A connection that sends nothing, or no greeting of HTTP/2.
        ("grpc.server_handshake_timeout_ms", GREETING_MS),
        ("grpc.max_connection_idle_ms", STRANGERS_IDLE_MS if has_strangers else IDLE_MS),
        ("grpc.max_allowed_incoming_connections", connections),
        # A burst waits for its turn. The core's own limits (1,000 and 3,000 waiting calls) drop calls of every client,
        # and its overload protection drops calls that a client sent before it knew the limit of streams. But a stranger
        # who begins calls and takes them back at once, 60,000 of them, took 2 GB without it.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", int(has_strangers)),
        ("grpc.server.max_pending_requests", _NO_LIMIT),
        ("grpc.server.max_pending_requests_hard_limit", _NO_LIMIT),
    ]


LAST_ANSWERS_S = 0.02
# A message may be this much larger than the largest state, for names, metadata and labels.
MESSAGE_SLACK_BYTES = 1 << 20
# Of the messages of methods that are not large.
SMALL_BYTES_MAX = 1 << 20
# Health names that clients ask before they send work.
READINESS = ("", "readiness")


class Server:
    """Listens, and serves the given services."""

    def __init__(
        self,
        services: dict[ServiceDescriptor, object],
        message_bytes_max: int,
        gate: Gate,
        room: Room,
        turns: Turns,
        measures: CallMeasures | None = None,
        callers: Callers | None = None,
        *,
        gather: Gather | None = None,
        listeners: int = 1,
        tls: Tls | None = None,
        held: HeldGate | None = None,
    ) -> None:
        """``gather``: of the local wire, which unix sockets then have beside them; None = they have not.

        ``listeners``: how many of gRPC there will be. ``tls``: of ports that have TLS.
        """
        message_bytes_max += MESSAGE_SLACK_BYTES
        self._gate = gate
        self._callers = callers
        self._tls = tls
        self._calls = _OpenCalls()
        self._made = dict[str, list[tuple[MethodDescriptor, Made]]]()
        framed = list[LocalMethod]()
        for descriptor, service in services.items():
            serving = self._made[descriptor.full_name] = []
            for method in descriptor.methods:
                if not hasattr(service, verb_name(method)):
                    continue
                made = make_handler(
                    method, getattr(service, verb_name(method)),
                    message_bytes_max if METHODS[method.name].is_large else min(message_bytes_max, SMALL_BYTES_MAX),
                    _Admission(METHODS[method.name], gate, self._calls), room, turns, measures, callers, held,
                )  # fmt: skip
                serving.append((method, made))
                framed.append(made.for_frames(method))
        self._door = OpenDoor(self._made)
        self._health = self._door.health
        told = partial(options, message_bytes_max, has_strangers=callers is not None)
        self._server = self._serving(told(connections=connections_max(listeners)))
        self._local = Listener(framed, room, gather) if gather is not None else None
        self._is_ready = True
        self._names = [*READINESS, "liveness", *self._made]
        self._own = OwnSockets(
            lambda path: self._serving(told(connections=own_connections_max()), path), self._local
        )
        if callers is not None:
            callers.on_sockets = self._own.want

    def _serving(self, told: list[tuple[str, int]], own: Path | None = None) -> grpc.aio.Server:
        """Returns a server of all services. ``own``: the socket of a principal."""
        server = grpc.aio.server(options=told)
        for name, methods in self._made.items():
            handlers = {method.name: made.for_grpc(method, own) for method, made in methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self._door.add_to(server)
        return server

    def listen(self, url: str) -> str:
        """Adds a listener: ``unix:///path``, ``host:port?tls`` or ``host:port``. Returns its address. Raises
        StartError."""
        place = parse_listen(url)
        if isinstance(place, Port):
            return self._listen_port(url, place)
        found = sockets.Place(place)
        sockets.prepare(found, has_frames=self._local is not None)
        sockets.listen(found, self._server, self._local, is_start=True)
        return f"unix://{place}"

    def listen_own(self) -> None:
        """Adds the sockets of principals. Raises StartError."""
        if self._callers is not None:
            self._own.open(self._callers.sockets)

    def _listen_port(self, url: str, port: Port) -> str:
        try:
            if not port.has_tls:
                return f"{port.host}:{self._server.add_insecure_port(port.target)}"
            assert self._tls is not None  # ``check_listeners`` looks before
            bound = self._server.add_secure_port(port.target, self._tls.credentials())
        except RuntimeError:
            raise StartError(f"--listen {url}: the address is in use or not available") from None
        return f"{port.host}:{bound}{TLS_MARK}"

    async def start(self) -> None:
        """Accepts calls."""
        if self._callers is not None:
            self._callers.watch()
        await self._server.start()
        if self._local is not None:
            await self._local.start()
        await self._own.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(self._is_ready)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls. Running calls may finish within the grace time."""
        self._gate.is_ended = True
        await self._health.enter_graceful_shutdown()
        # gRPC's own grace also waits for idle connections, for seconds if a client does not poll its channel. A short
        # grace is needed: without it, clients see an error, and print a line on their stderr.
        await self._calls.drain(grace_s)
        await asyncio.sleep(LAST_ANSWERS_S)  # the last answers are still on their way
        await asyncio.gather(self._server.stop(LAST_ANSWERS_S), self._own.stop(LAST_ANSWERS_S))
        if self._local is not None:  # last: a client that finds gRPC's socket alone takes gRPC
            self._local.stop()
            await asyncio.sleep(LAST_ANSWERS_S)

    async def set_ready(self, is_ready: bool) -> None:
        """Sets the readiness that probes see. Liveness does not change."""
        self._is_ready = is_ready
        status = health_pb2.HealthCheckResponse
        for name in READINESS:
            await self._health.set(name, status.SERVING if is_ready else status.NOT_SERVING)

    @property
    def open_calls(self) -> int:
        """How many calls are being served."""
        return self._calls.count

    @property
    def begun_calls(self) -> int:
        """How many calls have begun since the start."""
        return self._calls.begun

    @property
    def wires(self) -> Wires:
        """How calls have come since the start."""
        local = self._local
        framed, connections = (0, 0) if local is None else (local.begun_calls, local.connections)
        return Wires(max(self._calls.begun - framed, 0), framed, connections)

    @property
    def has_frames(self) -> bool:
        """Whether a client of this host can speak the local wire."""
        return self._local is not None and self._local.is_listening

    @property
    def unopened(self) -> Mapping[Path, str]:
        """Sockets of principals that could not be opened, and why."""
        return self._own.unopened

    async def _set_health(self, status: Any) -> None:
        for name in self._names:
            await self._health.set(name, status)


class _OpenCalls:
    """Counts the calls that are being served, and waits for their ends when the daemon stops."""

    def __init__(self) -> None:
        self.count = 0
        self.begun = 0  # since the start
        self.is_stopping = False
        self.ended = asyncio.Event()
        """Set when a call ends, once the daemon stops."""

    async def drain(self, grace_s: float) -> None:
        """Refuses new calls, and waits for the open ones, at most the grace time."""
        self.is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.count:
                    self.ended.clear()
                    await self.ended.wait()


class _Admission:
    """Entered by every call of a method, and left at its end. Raises ShuttingDown."""

    def __init__(self, facts: Facts, gate: Gate, calls: _OpenCalls) -> None:
        self._facts = facts
        self._gate = gate
        self._calls = calls

    def __enter__(self) -> None:
        if not self._gate.is_open:
            self._gate.admit(self._facts)
        calls = self._calls
        if calls.is_stopping:
            raise ShuttingDown("the daemon is stopping; nothing was written")
        calls.count += 1
        calls.begun += 1

    def __exit__(self, *error: object) -> None:
        self._calls.count -= 1
        if self._calls.is_stopping:
            self._calls.ended.set()

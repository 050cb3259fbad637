"""The gRPC server: options, listeners, admission of calls, and an orderly stop.

The server's HTTP/2 options for gRPC's core, each with its reason.

The core ignores unknown options, so each option has a test of its effect (tests/service/test_clients_impatient.py,
test_limits.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from stateward_sidecar.addresses import TLS_MARK, Port, parse_listen
from stateward_sidecar.errors import ShuttingDown, StartError
from stateward_sidecar.measures import CallMeasures, Wires
from stateward_sidecar.service.admission.callers import Callers
from stateward_sidecar.service.admission.gate import Gate
from stateward_sidecar.service.admission.memory import Room
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.calls.calls import Gather
from stateward_sidecar.service.local.listener import SUFFIX, Listener
from stateward_sidecar.service.local.running import LocalMethod
from stateward_sidecar.service.methods import METHODS, Facts, verb_name
from stateward_sidecar.service.serving.handlers import make_handler
from stateward_sidecar.service.serving.open_door import open_to_all
from stateward_sidecar.service.serving.tls import Tls
from stateward_sidecar.settings import private_directory
from stateward_sidecar.telemetry import log

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
# local wire has a half, and the rest is for the daemon itself.
CONNECTIONS_MAX, CONNECTIONS_PART = 4096, 4
_NO_LIMIT = (1 << 31) - 1


def connections_max(listeners: int) -> int:
    """Returns how many connections of gRPC each listener accepts."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, soft // CONNECTIONS_PART // max(listeners, 1))


def options(message_bytes_max: int, *, has_strangers: bool, listeners: int = 1) -> list[tuple[str, int]]:
    """Returns the options of a server whose largest message has ``message_bytes_max`` bytes.

    ``has_strangers``: whether somebody may connect who may call nothing.
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
        ("grpc.max_allowed_incoming_connections", connections_max(listeners)),
        # A burst waits for its turn. The core's own limits (1,000 and 3,000 waiting calls) drop calls of every client,
        # and its overload protection drops calls that a client sent before it knew the limit of streams. But a stranger
        # who begins calls and takes them back at once, 60,000 of them, took 2 GB without it.
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http.overload_protection", int(has_strangers)),
        ("grpc.server.max_pending_requests", _NO_LIMIT),
        ("grpc.server.max_pending_requests_hard_limit", _NO_LIMIT),
    ]


SOCKET_MODE = 0o660
# The kernel's limit for the path of a unix socket, less one for the final zero byte.
SOCKET_PATH_BYTES_MAX = 107
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
    ) -> None:
        """``gather``: of the local wire, which unix sockets then have beside them; None = they have not.

        ``listeners``: how many of gRPC there will be. ``tls``: of ports that have TLS.
        """
        message_bytes_max += MESSAGE_SLACK_BYTES
        self._server = grpc.aio.server(
            options=options(message_bytes_max, has_strangers=callers is not None, listeners=listeners)
        )
        self._gate = gate
        self._callers = callers
        self._tls = tls
        self._calls = _OpenCalls()
        framed = list[LocalMethod]()
        for descriptor, service in services.items():
            handlers = dict[str, grpc.RpcMethodHandler]()
            for method in descriptor.methods:
                if not hasattr(service, verb_name(method)):
                    continue
                made = make_handler(
                    method, getattr(service, verb_name(method)),
                    message_bytes_max if METHODS[method.name].is_large else min(message_bytes_max, SMALL_BYTES_MAX),
                    _Admission(METHODS[method.name], gate, self._calls), room, turns, measures, callers,
                )  # fmt: skip
                handlers[method.name] = made.for_grpc(method)
                framed.append(made.for_frames(method))
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(descriptor.full_name, handlers),)
            )
        self._local = Listener(framed, room, gather) if gather is not None else None
        self._is_ready = True
        self._names = [*READINESS, "liveness", *(descriptor.full_name for descriptor in services)]
        self._health = open_to_all(self._server, [descriptor.full_name for descriptor in services])

    def listen(self, url: str) -> str:
        """Adds a listener: ``unix:///path``, ``host:port?tls`` or ``host:port``. Returns its address. Raises
        StartError."""
        place = parse_listen(url)
        return self._listen_port(url, place) if isinstance(place, Port) else self._listen_unix(place)

    def _listen_port(self, url: str, port: Port) -> str:
        try:
            if not port.has_tls:
                return f"{port.host}:{self._server.add_insecure_port(port.target)}"
            assert self._tls is not None  # ``check_listeners`` looks before
            bound = self._server.add_secure_port(port.target, self._tls.credentials())
        except RuntimeError:
            raise StartError(f"--listen {url}: the address is in use or not available") from None
        return f"{port.host}:{bound}{TLS_MARK}"

    def _listen_unix(self, path: Path) -> str:
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise StartError(
                f"--listen unix://{path}: the path is longer than {SOCKET_PATH_BYTES_MAX} bytes; shorten it"
            )
        try:
            is_private = path.parent == private_directory()
            _make_directory(path.parent, 0o700 if is_private else 0o750)
            if is_private:
                _check_private(path.parent)
            _clear_stale_socket(path)
            self._listen_beside(path)  # first: a client that finds gRPC's socket alone takes gRPC
            before = os.umask(0o777 & ~SOCKET_MODE)
            try:
                self._server.add_insecure_port(f"unix:{path}")
            finally:
                os.umask(before)
        except OSError as error:
            raise StartError(f"--listen unix://{path}: {error.strerror}") from None
        except RuntimeError:
            raise StartError(
                f"--listen unix://{path}: the socket cannot be created; is the directory writable?"
            ) from None
        return f"unix://{path}"

    def _listen_beside(self, path: Path) -> None:
        """Makes the socket of the local wire beside one of gRPC, unless its path would be too long."""
        beside = path.with_name(path.name + SUFFIX)
        if self._local is None:
            with contextlib.suppress(StartError, OSError):
                _clear_stale_socket(beside)  # of a daemon that had one
            return
        if len(os.fsencode(beside)) > SOCKET_PATH_BYTES_MAX:
            log.info("there is no socket for frames, because its path would be too long", path=str(beside))
            return
        _clear_stale_socket(beside)
        try:
            self._local.bind(beside, SOCKET_MODE)
        except PermissionError:
            raise  # gRPC's socket could not be made, either
        except OSError as error:
            raise StartError(f"--listen unix://{path}: {beside}: {error.strerror}; or give --no-frames") from None

    async def start(self) -> None:
        """Accepts calls."""
        if self._callers is not None:
            self._callers.watch()
        await self._server.start()
        if self._local is not None:
            await self._local.start()
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
        await self._server.stop(LAST_ANSWERS_S)
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


def _make_directory(directory: Path, mode: int) -> None:
    """Makes the socket's directory and those above it, all with one mode: the socket's group has to get through."""
    before = os.umask(0o777 & ~mode)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(before)


def _check_private(directory: Path) -> None:
    """Anybody may make a directory of that name in /tmp. Raises StartError if it is not this user's own."""
    found = directory.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StartError(
            f"{directory}, the directory for the socket, is not only user {os.geteuid()}'s: it belongs to user "
            f"{found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}; remove it, or give --listen"
        )


def _clear_stale_socket(path: Path) -> None:
    """Removes the socket of a dead daemon. Raises StartError if anything else is at the path."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"--listen unix://{path}: the path exists and is not a socket; remove it, or listen elsewhere")
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.settimeout(1)
        probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    except OSError:
        pass  # a daemon is there, and too busy to answer
    finally:
        probe.close()
    raise StartError(f"--listen unix://{path}: another daemon answers there; stop it, or listen elsewhere")

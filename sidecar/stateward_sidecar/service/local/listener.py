"""Listens on unix sockets of the local wire, beside those of gRPC, and bounds their connections."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stateward._version import VERSION
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.service.admission.memory import Room
from stateward_sidecar.service.calls.calls import Gather
from stateward_sidecar.service.calls.localcall import Peer
from stateward_sidecar.service.local.connection import CALLS_MAX, Connection
from stateward_sidecar.service.local.incoming import LARGE_BYTES
from stateward_sidecar.service.local.passing import Passing
from stateward_sidecar.service.local.peers import peer_of
from stateward_sidecar.service.local.running import LocalMethod
from stateward_sidecar.telemetry import log

CONNECTIONS_MAX, OF_ONE_PROCESS_MAX = 1024, 512
"""The most connections, and of them those of one process. Fewer if half of the files that the process may open are."""
TAKEN_PART = 8
"""Calls that are not answered, their small messages, and small answers that were not taken may have one part of this
many of the memory for requests. Beyond it, each connection has few calls at a time (``OWN_CALLS``)."""
BACKLOG, TURN_CONNECTIONS = 1024, 8
"""How many may wait to be accepted, and how many of them are in one turn of the event loop."""
LOGGED_S = 60.0
"""A process whose connections are refused is named in the log once in this time."""
CLOSE_LOOK_S = 0.02
"""How often is looked whether the calls of a socket that is closed have ended."""


_Whose = tuple[int, Path | None]


@dataclass(slots=True)
class _Socket:
    made: socket.socket
    path: Path
    own: Path | None
    identity: tuple[int, int]
    server: asyncio.Server | None = None

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        with suppress(OSError):
            if _identity(self.path) == self.identity:
                self.path.unlink()
        self.made.close()  # afterwards: the identity of a socket that is gone may be that of the next one


class Listener:
    """All connections of the local wire. Used on the event loop only."""

    def __init__(self, methods: Sequence[LocalMethod], room: Room, gather: Gather) -> None:
        self.methods, self.room, self.gather = methods, room, gather
        self.loop = asyncio.get_running_loop()
        self.shared = memoryview(bytearray(LARGE_BYTES))
        """What all connections read into: a read is taken apart before the next one."""
        self.taken_bytes = 0
        """Of calls that are not answered yet, their small messages, and small answers that were not taken."""
        self._connections_max = min(CONNECTIONS_MAX, _open_files() // 2)
        self.passing = Passing(self.loop, gather)
        self.begun_calls = 0
        """Since the start."""
        self._taken_max = room.requests.total_bytes // TAKEN_PART
        self._connections: dict[Connection, _Whose] = {}
        self._of_process = Counter[_Whose]()
        # Who was named in the log as refused, since when.
        self._logged, self._logged_s = set[_Whose](), 0.0
        self._waiting: dict[Connection, None] = {}
        self._sockets = list[_Socket]()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    @property
    def is_listening(self) -> bool:
        """Whether there is a socket of the local wire."""
        return bool(self._sockets)

    def bind(self, path: Path, own: Path | None = None) -> None:
        """Makes a socket. Nobody is served before `start`. ``own``: the socket of a principal, beside which this one
        is. Raises OSError."""
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(os.fspath(path))
            made.listen(BACKLOG)
        except BaseException:
            made.close()
            raise
        self._sockets.append(_Socket(made, path, own, _identity(path)))

    async def start(self) -> None:
        """Serves what has come, and comes, at the sockets that are not served yet."""
        for each in self._sockets:
            if each.server is None:
                # To asyncio the backlog is also how many it accepts before it does anything else.
                each.server = await self.loop.create_unix_server(
                    partial(Connection, self, each.own), sock=each.made, backlog=TURN_CONNECTIONS
                )
                each.made.listen(BACKLOG)

    def stop(self) -> None:
        """Ends all connections, behind their last answers. Removes the sockets, unless others took their place."""
        for each in self._sockets:
            each.close()
        for connection in list(self._connections):
            connection.close()

    def unbind(self, own: Path) -> None:
        """Removes the socket beside that of a principal, if there is one."""
        for each in [each for each in self._sockets if each.own == own]:
            each.close()
            self._sockets.remove(each)

    async def end_connections(self, own: Path, grace_s: float) -> None:
        """Ends the connections that have come through the socket of a principal, behind their calls, or after the grace
        time."""
        connections, end = [each for each in self._connections if each.peer.socket == own], self.loop.time() + grace_s
        while any(each.is_busy for each in connections) and self.loop.time() < end:  # noqa: ASYNC110  of many
            await asyncio.sleep(CLOSE_LOOK_S)
        for connection in connections:
            connection.close()

    def greeting(self, version: int) -> bytes:
        """Returns what a client is told: the place of a method is its number."""
        methods = [[each.name, each.bytes_max] for each in self.methods]
        told = {"version": version, "daemon": VERSION, "calls": CALLS_MAX, "methods": methods}
        return json.dumps(told, separators=(",", ":")).encode()

    # The bounds of connections.

    def enter(self, connection: Connection, of: socket.socket, own: Path | None) -> Peer:
        """Counts a connection, and returns who is at its other end."""
        peer = peer_of(of)._replace(socket=own)
        self._connections[connection] = whose = _whose(peer)
        self._of_process[whose] += 1
        return peer

    def leave(self, connection: Connection) -> None:
        """Counts the end of a connection."""
        whose = self._connections.pop(connection)
        self._of_process[whose] -= 1
        if not self._of_process[whose]:
            del self._of_process[whose]
        self._waiting.pop(connection, None)

    def why_full(self, peer: Peer) -> QueueFull | None:
        """Returns why there is no place for a connection that has entered; None = there is one."""
        count, whose = len(self._connections), "all processes"
        if count <= self._connections_max:
            count = self._of_process[_whose(peer)]
            whose = f"process {peer.pid}" if peer.pid else f"the processes of user {peer.uid} in other containers"
            if count <= OF_ONE_PROCESS_MAX:
                return None
        if self._is_news(_whose(peer)):
            log.warning("connections were refused", wire="frames", pid=peer.pid, uid=peer.uid, connections=count - 1)
        return QueueFull(f"{whose} have {count - 1} connections of the local wire; use gRPC", queued=count - 1)

    def _is_news(self, whose: _Whose) -> bool:
        """Whether the log has not named somebody just now: else a loop of connects would fill the disk."""
        if (now := self.loop.time()) >= self._logged_s + LOGGED_S:
            self._logged, self._logged_s = set(), now
        is_news = whose not in self._logged
        self._logged.add(whose)
        return is_news

    # The bounds of messages.

    def has_room(self, connection: Connection) -> bool:
        """Whether a connection that has some calls may have another one. Else it is told when it may."""
        if self.taken_bytes < self._taken_max:
            return True
        self._waiting[connection] = None
        return False

    def take(self, size_bytes: int) -> None:
        """Counts calls, and answers that a peer has not taken; less than 0 = they are gone."""
        self.taken_bytes += size_bytes
        if self._waiting and self.taken_bytes < self._taken_max:
            waiting, self._waiting = self._waiting, {}
            for each in waiting:
                each.read_or_not()


def _open_files() -> int:
    """How many files the process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2 * CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft


def _whose(peer: Peer) -> _Whose:
    """Returns whom a connection is counted to: the process, or below 0 the user of one that has no number here; at the
    socket of a principal apart from those at others."""
    return peer.pid or -1 - peer.uid, peer.socket


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


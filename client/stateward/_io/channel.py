"""Reaching the daemon: settings, and the exceptions for a daemon that is away.

Nothing here waits. `aio` and `blocking` do. gRPC is in `stubs`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stateward._io.target import advice, find_fault, is_socket_missing
from stateward._io.tls import Tls, find_tls_fault
from stateward._io.token import Token
from stateward.blobs import Content
from stateward.errors import ServerUnavailable, StatewardError, WrongTarget

if TYPE_CHECKING:
    import grpc

# gRPC reads it when it is imported, also by others. Without it a forked worker that opens a channel hangs, and its
# parent may crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

MAX_SEND_BYTES = 64 * 1024 * 1024
UPLOAD_BYTES_PER_S = 1024 * 1024  # a slower upload is ended

K_co = TypeVar("K_co", covariant=True)


class Keeping(Protocol):
    """What a client of `stateward.open()` has of its daemon. Nothing here raises."""

    trouble: str
    """Why the daemon could not be started again; "" = it could, or was not tried."""

    def hold(self) -> None:
        """Keeps the daemon from ending while this process lives. May wait for a daemon that ends."""

    def away(self) -> None:
        """Notes that no daemon answered, and starts it again in the background. Does not wait."""

    def ahead(self) -> socket.socket | None:
        """Returns the connection by which `open` has seen the daemon, for the first caller; None = there is none. The
        daemon may have gone since."""

    def release(self) -> None:
        """Lets the daemon end."""


@dataclass(frozen=True)
class Settings:
    """How a client reaches its daemon. Times in seconds."""

    target: str
    namespace: str
    connect_timeout_s: float
    """How long the first call waits for the daemon."""
    call_timeout_s: float
    """How long each attempt of a call may take."""
    retry_timeout_s: float
    """How long a call is retried while the daemon is away, or while a sidecar that seems dead holds the thread."""
    credentials: grpc.ChannelCredentials | None = None
    """TLS of the caller's own; None = `tls`, or plain text."""
    take_over: bool = False
    """Whether a write takes its thread over from the sidecar that holds it."""
    token: Token | None = None
    """What calls carry to a daemon that asks for a token; None = nothing."""
    streams_beside: int = 3
    """Of the asyncio client: small calls go over one stream while more than this many others are under way. 0 = also
    if there are none, and the stream stays open until the client is closed."""
    keeper: Keeping | None = None
    """Of a client of `stateward.open()`."""
    tls: Tls | None = None
    """The files of TLS; None = plain text, or `credentials`."""
    waits_for_socket: bool = True
    """Whether the first call waits for a socket that does not exist."""
    session_key: bytes = field(default=b"", repr=False)
    """What calls on a held thread carry; empty = nothing."""

    def data_places(self) -> list[Path]:
        """Returns where data of a daemon of this host may lie, as far as the client knows."""
        found = [Path(self.target.removeprefix("unix://"))] if self.target.startswith("unix:///") else []
        if (place := getattr(self.keeper, "place", None)) is not None:
            found.append(place.data_dir)
        if given := os.environ.get("STATEWARD_DATA_DIR"):
            found.append(Path(given).expanduser())
        base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.environ.get("HOME", ""), ".local/share")  # noqa: PTH118
        found.append(Path(base) / "stateward")
        return [each for each in found if each.exists()]


class Reaching(Protocol[K_co]):
    """What streams need of a session."""

    settings: Settings
    has_met_daemon: bool

    @property
    def connection(self) -> K_co | None:
        """The open connection; None if there is none or the client is being closed."""

    def connected(self) -> K_co:
        """Returns the connection of this process and event loop, and opens one if there is none."""

    def look(self, method: str, namespace: str, thread: str, *, again: bool) -> Any:
        """Checks that the thread of a stream still has what was seen of it, before the stream is opened."""

    def hear(self, namespace: str, thread: str, message: Any) -> None:
        """Notes what a message of a stream says."""


def upload_deadline_s(settings: Settings, content: Content) -> float | None:
    """Returns how long one attempt to write a blob may take; None = no limit, because the size is not known."""
    return None if content.size_bytes is None else settings.call_timeout_s + content.size_bytes / UPLOAD_BYTES_PER_S


def explain_away(settings: Settings, said: str, code: str) -> StatewardError:
    """Returns the exception for a daemon that cannot be reached. `said`: by gRPC or the system."""
    if fault := _find_fault(settings, said):
        return WrongTarget(fault, code=code)
    found = "there is no such socket" if is_socket_missing(settings.target) else said
    what = "" if settings.tls is not None else advice(settings.target, said)
    if settings.keeper is not None:
        settings.keeper.away()
        what = f"; {settings.keeper.trouble}" if settings.keeper.trouble else ""
    return ServerUnavailable(f"no stateward daemon answers at {settings.target} ({found}){what}", code=code)


def _find_fault(settings: Settings, said: str) -> str:
    """Returns the lasting fault of a target; "" if a daemon may still start there."""
    if settings.tls is not None:
        return find_tls_fault(settings.target, settings.tls, said)
    return "" if settings.credentials else find_fault(settings.target, said)

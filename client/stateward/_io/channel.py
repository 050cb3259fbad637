"""Reaching the daemon: settings, channel options, the table of methods, and the exceptions for gRPC's errors.

Nothing here waits. `aio` and `blocking` do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

# gRPC reads it when it is imported. Without it a forked worker that opens a channel hangs, and its parent may crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
import grpc as grpc  # noqa: PLC0414  the rest of the package takes it from here, so that the line above comes first

from stateward._io import forks
from stateward._io.target import advice, find_fault, is_socket_missing
from stateward._io.token import Token
from stateward._operations.failures import DETAILS_KEY, error_from_rpc
from stateward.blobs import Content
from stateward.errors import Internal, ServerUnavailable, StatewardError, WrongTarget
from stateward.v1 import (
    admin_service_pb2_grpc,
    archive_service_pb2_grpc,
    backup_service_pb2_grpc,
    blob_service_pb2_grpc,
    call_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    effect_service_pb2_grpc,
    lease_service_pb2_grpc,
    record_service_pb2_grpc,
    signal_service_pb2_grpc,
    thread_service_pb2_grpc,
    writer_service_pb2_grpc,
)

MAX_SEND_BYTES = 64 * 1024 * 1024
UPLOAD_BYTES_PER_S = 1024 * 1024  # a slower upload is ended

K_co = TypeVar("K_co", covariant=True)

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    # The client finds a restarted daemon within a second; gRPC's default is two minutes. (gRPC's minimum is 100 ms.)
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # this library retries: gRPC's own retries stop after five, within about a second
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a channel opened after a fork must not use the parent's connections
)


class Keeping(Protocol):
    """What a client of `stateward.open()` has of its daemon. Nothing here raises."""

    trouble: str
    """Why the daemon could not be started again; "" = it could, or was not tried."""

    def hold(self) -> None:
        """Keeps the daemon from ending while this process lives. May wait for a daemon that ends."""

    def away(self) -> None:
        """Notes that no daemon answered, and starts it again in the background. Does not wait."""

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
    """TLS; None = plain text."""
    take_over: bool = False
    """Whether a write takes its thread over from the sidecar that holds it."""
    token: Token | None = None
    """What calls carry to a daemon that asks for a token; None = nothing."""
    streams_beside: int = 3
    """Of the asyncio client: small calls go over one stream while more than this many others are under way. 0 = also
    if there are none, and the stream stays open until the client is closed."""
    keeper: Keeping | None = None
    """Of a client of `stateward.open()`."""
    waits_for_socket: bool = True
    """Whether the first call waits for a socket that does not exist."""


class Reaching(Protocol[K_co]):
    """What streams need of a session."""

    settings: Settings
    has_met_daemon: bool

    @property
    def connection(self) -> K_co | None:
        """The open connection; None if there is none or the client is being closed."""

    def connected(self) -> K_co:
        """Returns the connection of this process and event loop, and opens one if there is none."""


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Returns a channel's options. Connecting may take as long as the first call may wait; gRPC's own limit is 20 s."""
    return [*_OPTIONS, ("grpc.min_reconnect_backoff_ms", max(int(settings.connect_timeout_s * 1000), 1))]


def open_channel(kind: Any, settings: Settings) -> Any:
    """Opens a channel with a module of gRPC: `grpc`, or `grpc.aio`. It connects with the first call."""
    forks.opening(is_async=kind is not grpc)
    if settings.credentials is None:
        return kind.insecure_channel(settings.target, options=channel_options(settings))
    return kind.secure_channel(settings.target, settings.credentials, options=channel_options(settings))


def bind_methods(channel: Any) -> dict[str, Callable[..., Any]]:
    """Returns the callables of all services by method name (unique across services), for a channel of either kind."""
    stubs = (
        checkpoint_service_pb2_grpc.CheckpointServiceStub(channel),
        thread_service_pb2_grpc.ThreadServiceStub(channel),
        admin_service_pb2_grpc.AdminServiceStub(channel),
        blob_service_pb2_grpc.BlobServiceStub(channel),
        effect_service_pb2_grpc.EffectServiceStub(channel),
        record_service_pb2_grpc.RecordServiceStub(channel),
        archive_service_pb2_grpc.ArchiveServiceStub(channel),
        backup_service_pb2_grpc.BackupServiceStub(channel),
        lease_service_pb2_grpc.LeaseServiceStub(channel),
        writer_service_pb2_grpc.WriterServiceStub(channel),
        call_service_pb2_grpc.CallServiceStub(channel),
        signal_service_pb2_grpc.SignalServiceStub(channel),
    )
    return {name: method for stub in stubs for name, method in vars(stub).items()}


def upload_deadline_s(settings: Settings, content: Content) -> float | None:
    """Returns how long one attempt to write a blob may take; None = no limit, because the size is not known."""
    return None if content.size_bytes is None else settings.call_timeout_s + content.size_bytes / UPLOAD_BYTES_PER_S


def explain(error: grpc.RpcError, settings: Settings) -> StatewardError:
    """Returns this library's exception for one of gRPC's."""
    found = error_from_rpc(error.code().name, error.details() or "", error.trailing_metadata() or ())
    if type(found) is not ServerUnavailable:
        return found
    fault = "" if settings.credentials else find_fault(settings.target, found.message)
    if fault:
        return WrongTarget(fault, code=found.code)
    said = "there is no such socket" if is_socket_missing(settings.target) else found.message
    what = advice(settings.target, found.message)
    if settings.keeper is not None:
        settings.keeper.away()
        what = f"; {settings.keeper.trouble}" if settings.keeper.trouble else ""
    return ServerUnavailable(
        f"no stateward daemon answers at {settings.target} ({said}){what}",
        code=found.code,
    )


def explain_status(status: Any) -> StatewardError:
    """Returns this library's exception for a `google.rpc.Status` that the daemon sent as an answer."""
    code = next((code.name for code in grpc.StatusCode if code.value[0] == status.code), "UNKNOWN")
    return error_from_rpc(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))


def explain_written(error: grpc.RpcError, settings: Settings) -> StatewardError:
    """Does the same for a stream that the client writes to.

    gRPC's asyncio client says INTERNAL of a write on a stream that has just broken. The daemon's errors have a reason.
    """
    found = explain(error, settings)
    if isinstance(found, Internal) and not found.reason:
        return ServerUnavailable("the stream to the daemon broke", code=found.code)
    return found

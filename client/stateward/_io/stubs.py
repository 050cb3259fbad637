"""gRPC: its channels, the table of its methods, and the exceptions for its errors. Imported when gRPC is first needed,
because it takes a quarter of a program's start and a third of its memory.

Nothing here waits. `aio.grpcwire` and `blocking.grpcwire` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from stateward._io import forks
from stateward._io.channel import MAX_SEND_BYTES, Settings, explain_away
from stateward._operations.failures import error_from_rpc
from stateward.errors import Internal, ServerUnavailable, StatewardError
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
    workspace_service_pb2_grpc,
    writer_service_pb2_grpc,
)

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


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Returns a channel's options. Connecting may take as long as the first call may wait; gRPC's own limit is 20 s."""
    return [*_OPTIONS, ("grpc.min_reconnect_backoff_ms", max(int(settings.connect_timeout_s * 1000), 1))]


def open_channel(kind: Any, settings: Settings) -> Any:
    """Opens a channel with a module of gRPC: `grpc`, or `grpc.aio`. It connects with the first call. Raises WrongTarget
    for files of TLS that cannot be used."""
    forks.opening()
    credentials = settings.credentials if settings.tls is None else settings.tls.credentials()
    options = channel_options(settings)
    if credentials is None:
        channel = kind.insecure_channel(settings.target, options=options)
    else:
        channel = kind.secure_channel(settings.target, credentials, options=options)
    if kind is not grpc:
        forks.opened_async()
    return channel


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
        workspace_service_pb2_grpc.WorkspaceServiceStub(channel),
        call_service_pb2_grpc.CallServiceStub(channel),
        signal_service_pb2_grpc.SignalServiceStub(channel),
    )
    return {name: method for stub in stubs for name, method in vars(stub).items()}


def explain(error: grpc.RpcError, settings: Settings) -> StatewardError:
    """Returns this library's exception for one of gRPC's."""
    found = error_from_rpc(error.code().name, error.details() or "", error.trailing_metadata() or ())
    return explain_away(settings, found.message, found.code) if type(found) is ServerUnavailable else found


def explain_written(error: grpc.RpcError, settings: Settings) -> StatewardError:
    """Does the same for a stream that the client writes to.

    gRPC's asyncio client says INTERNAL of a write on a stream that has just broken. The daemon's errors have a reason.
    """
    found = explain(error, settings)
    if isinstance(found, Internal) and not found.reason:
        return ServerUnavailable("the stream to the daemon broke", code=found.code)
    return found

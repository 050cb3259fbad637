"""What security events say of a call: its principal, its method and its peer."""

from __future__ import annotations

from typing import Any

import grpc.aio

from stateward_sidecar import security
from stateward_sidecar.errors import PermissionDenied, Unauthenticated
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.calls.method import caller_of_call, peer_of

PEER_CHARS_MAX = 256
"""Of the name in a certificate, which may be longer."""


def note_denied(error: Unauthenticated | PermissionDenied, method: str, context: grpc.aio.ServicerContext) -> None:
    """A call was denied. ``method``: with its package and service."""
    told, known = _tell_peer(context)
    security.denials.note(_short(method), error.reason, _principal(), told, known)


def note_call(kind: str, said: str, method: str, context: grpc.aio.ServicerContext, **facts: Any) -> None:
    """A call did something that somebody may ask for later."""
    security.note(kind, said, principal=_principal(), method=method, peer=_tell_peer(context)[0], **facts)


def _principal() -> str:
    caller = caller_of_call.get()
    return "" if caller is None else caller.principal.name


def _short(method: str) -> str:
    return method.rpartition(".")[2]


def _tell_peer(context: grpc.aio.ServicerContext) -> tuple[str, str]:
    """Returns the other end, and the part of it that a program cannot change at will: the socket of a principal that it
    came through, its user, or its certificate."""
    known = peer_of(context)
    told = [f"socket={known.socket}"] if known.socket is not None else []
    if isinstance(context, LocalCall):
        peer = context.peer
        told += [f"uid={peer.uid}"] if peer.uid >= 0 else []
        return " ".join([*told, f"pid={peer.pid}"] if peer.pid else told), " ".join(told)
    told += [" ".join(known.names)[:PEER_CHARS_MAX]] if known.names else []
    return " ".join([*told, context.peer()]).strip(), " ".join(told)

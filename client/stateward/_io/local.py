"""The local wire: calls as frames on a unix socket beside that of gRPC, which both clients prefer. Nothing here waits.

A frame is a head of 16 bytes and a body: u32 length of the body, u32 call, u8 kind, u8 flags, u16 method, u32 timeout
in ms, little-endian. docs/protocol.md describes the wire, and `service/local` in the daemon is its other side.
"""

from __future__ import annotations

import json
import os
import socket
import weakref
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from struct import Struct
from time import monotonic
from typing import NamedTuple, Self, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from stateward._io.channel import MAX_SEND_BYTES, Settings, explain_away
from stateward._io.target import check_owner, check_uid
from stateward._io.token import Metadata
from stateward._operations.failures import error_from_status
from stateward._version import VERSION
from stateward.errors import (
    DeadlineExceeded,
    FeatureUnavailable,
    ServerUnavailable,
    StateTooLarge,
    StatewardError,
    WrongTarget,
)
from stateward.v1 import (
    admin_service_pb2,
    archive_service_pb2,
    backup_service_pb2,
    blob_service_pb2,
    checkpoint_service_pb2,
    effect_service_pb2,
    lease_service_pb2,
    record_service_pb2,
    signal_service_pb2,
    thread_service_pb2,
    workspace_service_pb2,
    writer_service_pb2,
)

_HEAD = Struct("<IIBBHI")
HEAD_BYTES = _HEAD.size
HELLO, REQUEST, ANSWER, ERROR, CANCEL, MESSAGE, END_OF_MESSAGES = range(7)
_METADATA, _LAST = 1, 2
_METADATA_BYTES_MAX = (8 << 10) - 2
_VERSION = 1
SUFFIX = "~"
VARIABLE = "STATEWARD_WIRE"
WIRES = ("grpc", "frames")
LARGE_BYTES = 64 << 10
"""Larger requests have a connection of their own, so that small ones do not wait until the daemon has memory for it."""
LATE_S = 0.1
"""How much later than its deadline the daemon's own answer to a late call may come."""
LOOK_S = 1.0
"""How often a client that speaks gRPC looks whether the daemon speaks frames by now."""
AGAIN_S = 0.25
"""How long a daemon that spoke frames before, and now answers at gRPC's socket only, may just be starting or ending."""
_MODULES = (
    admin_service_pb2, archive_service_pb2, backup_service_pb2, blob_service_pb2, checkpoint_service_pb2,
    effect_service_pb2, lease_service_pb2, record_service_pb2, signal_service_pb2, thread_service_pb2,
    workspace_service_pb2, writer_service_pb2,
)  # fmt: skip


class NoFrames(Exception):
    """Raised if the daemon does not speak this wire, or has no place for one more connection."""


class Shape(NamedTuple):
    """A method, as the contract has it."""

    full_name: str
    answer: type[Message]
    is_stream: bool
    """Whether a call has many requests or answers, and so a connection of its own."""
    has_many_answers: bool


@cache
def shape_of(name: str) -> Shape:
    """Returns what the contract says of a method. Names are unique across services."""
    return _shapes()[name]


@cache
def _shapes() -> dict[str, Shape]:
    return {
        method.name: Shape(
            method.full_name, GetMessageClass(method.output_type),
            method.client_streaming or method.server_streaming, method.server_streaming,
        )
        for module in _MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }  # fmt: skip


def frames_path(settings: Settings, environment: Mapping[str, str] = os.environ) -> str:
    """Returns where the daemon of a client may speak frames; "" = nowhere. Raises ValueError for an unknown wire."""
    forced = environment.get(VARIABLE, "")
    if forced not in {"", *WIRES}:
        raise ValueError(f"{VARIABLE}={forced} is not known; use one of {', '.join(WIRES)}, or unset it")
    is_possible = settings.target.startswith("unix://") and settings.credentials is None
    if forced == "frames" and not is_possible:
        raise ValueError(f"{VARIABLE}=frames needs a unix socket, not {settings.target}")
    return settings.target.removeprefix("unix://") + SUFFIX if is_possible and forced != "grpc" else ""


class Socket(socket.socket):
    """A socket that ends silently with its last reference, and that a forked child closes: it is the parent's."""

    greeting: Greeting

    def __init__(self, number: int | None = None) -> None:
        """`number`: the descriptor of a connection that is open."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, number)
        if self.gettimeout() is not None:  # by `socket.setdefaulttimeout`, which is for other sockets of the program
            self.settimeout(None)
        _sockets.add(self)

    @classmethod
    def made(cls) -> Self:
        """Returns a socket. Raises ServerUnavailable if the process may open no more files."""
        try:
            return cls()
        except OSError as failure:
            what = f"no connection to the daemon can be opened: {failure.strerror}"
            raise ServerUnavailable(what, code="UNAVAILABLE") from None

    def is_quiet(self) -> bool:
        """Whether the daemon has neither sent something nor gone away."""
        try:
            self.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def __del__(self) -> None:
        if self.fileno() >= 0:  # else it was closed, or never made
            self.close()


_sockets: weakref.WeakSet[Socket] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for each in list(_sockets):
        each.close()  # the parent's own stays open
    _sockets.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


_PEER = Struct("iII")
"""Of SO_PEERCRED: pid, uid and gid of who listens."""


def check_listener(wire: socket.socket, settings: Settings) -> None:
    """Raises WrongTarget if a user listens whom this program need not trust, as the kernel names that user."""
    if hasattr(socket, "SO_PEERCRED"):
        check_uid(_PEER.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1], settings.target)
    else:
        check_owner(settings.target)


def check_second(path: str) -> None:
    """Raises NoFrames if somebody else than the owner of gRPC's socket has made the one beside it: in a directory that
    all may write, anybody can."""
    try:
        second, first = os.stat(path), os.stat(path.removesuffix(SUFFIX))  # noqa: PTH116  a Path takes longer
    except OSError:
        return  # connecting says why
    if second.st_uid != first.st_uid:
        raise NoFrames


def connect_ahead(
    target: str, is_right: Callable[[int], bool], environment: Mapping[str, str] = os.environ
) -> Socket | None:
    """Returns a connection to a daemon, which has been sent the HELLO, and whose greeting the first call reads. None =
    the daemon speaks no frames to this program at once, or `is_right` refuses the pid of who listens. Waits for
    nobody."""
    may_be = target.startswith("unix://") and environment.get(VARIABLE, "") in {"", "frames"}
    if not may_be or not hasattr(socket, "SO_PEERCRED"):
        return None
    path = target.removeprefix("unix://") + SUFFIX
    wire = Socket()
    try:
        check_second(path)
        wire.setblocking(False)
        wire.connect(path)
        pid, uid, _ = _PEER.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        check_uid(uid, target)
        if not is_right(pid):
            raise NoFrames
        wire.sendall(hello())
        wire.setblocking(True)
    except (OSError, NoFrames, WrongTarget):
        wire.close()
        return None
    return wire


def when_to_look_again(settings: Settings) -> float:
    """Returns until when a daemon that speaks no frames is taken for one that does not. Raises FeatureUnavailable if
    its client must not speak gRPC."""
    if os.environ.get(VARIABLE) == "frames":
        raise FeatureUnavailable(
            f"the daemon at {settings.target} speaks no frames; start it without --no-frames, or unset {VARIABLE}",
            code="UNIMPLEMENTED",
        )
    return monotonic() + LOOK_S


_spoken: dict[str, float] = {}
"""Where daemons have spoken frames, and since when they do not, in seconds of the monotonic clock; 0 = they do."""


def note_frames(settings: Settings) -> None:
    """Notes that the daemon has greeted as one that speaks frames."""
    _spoken[settings.target] = 0.0


def meet_failure(failure: OSError, settings: Settings) -> StatewardError:
    """Returns the error of a daemon that cannot be reached at its second socket. Raises NoFrames if it answers at its
    first one, unless it may just be starting: a process that has used gRPC can be forked less often."""
    if (found := _failure_of_grpc(settings, failure)) is not None:
        if settings.target in _spoken:
            _spoken[settings.target] = 0.0
        return explain_away(settings, found.strerror or str(found), "UNAVAILABLE")
    if (since_s := _spoken.get(settings.target)) is None:
        raise NoFrames
    now_s = monotonic()
    if since_s and now_s - since_s > AGAIN_S:
        _spoken.pop(settings.target, None)
        raise NoFrames
    _spoken[settings.target] = since_s or now_s
    return ServerUnavailable(f"the daemon at {settings.target} is starting or ending", code="UNAVAILABLE")


def _failure_of_grpc(settings: Settings, failure: OSError) -> OSError | None:
    """Returns why nobody answers at gRPC's socket; None = somebody does. `failure`: if it cannot be found out."""
    try:
        probe = socket.socket(socket.AF_UNIX)
    except OSError:
        return failure
    with probe:
        probe.setblocking(False)
        try:
            probe.connect(settings.target.removeprefix("unix://"))
        except BlockingIOError:  # there is somebody, who is busy
            pass
        except OSError as found:
            return found
    return None


def broken() -> ServerUnavailable:
    """Returns the error of a call whose connection ended before its answer: the outcome is unknown."""
    return ServerUnavailable("the daemon has gone away", code="UNAVAILABLE")


def late() -> DeadlineExceeded:
    """Returns the error of a call without an answer in time."""
    return DeadlineExceeded("the daemon did not answer in time", code="DEADLINE_EXCEEDED")


@cache
def hello() -> bytes:
    """Returns the first frame of a client."""
    return frame(HELLO, 0, json.dumps({"versions": [_VERSION], "client": f"stateward-python {VERSION}"}).encode())


class Greeting(NamedTuple):
    """What a daemon says of itself."""

    numbers: dict[str, int]
    """Of its methods, by full name."""

    def number_of(self, shape: Shape) -> int:
        """Returns the number of a method. Raises FeatureUnavailable."""
        found = self.numbers.get(shape.full_name)
        if found is None:
            raise FeatureUnavailable(f"the daemon does not know {shape.full_name}", code="UNIMPLEMENTED")
        return found


def read_greeting(kind: int, body: bytes | bytearray) -> Greeting:
    """Returns what a daemon has answered to a HELLO. Raises NoFrames for anything but a greeting of this version."""
    if kind != HELLO:
        raise NoFrames
    return _greeting(bytes(body))


@cache
def _greeting(body: bytes) -> Greeting:
    try:
        told = json.loads(body)
        if told["version"] != _VERSION:
            raise NoFrames
        return Greeting({name: number for number, (name, *_) in enumerate(told["methods"])})
    except (ValueError, LookupError, TypeError):
        raise NoFrames from None


def frame(kind: int, call: int, body: bytes = b"") -> bytes:
    """Returns a frame of a kind that is no request."""
    return _HEAD.pack(len(body), call, kind, 0, 0, 0) + body


def request_frame(
    number: int, call: int, shape: Shape, request: Message | None, timeout_s: float | None, metadata: Metadata | None
) -> bytes:
    """Returns the frame that begins a call of the method with this number. Raises StateTooLarge."""
    body, flags = b"" if request is None else request.SerializeToString(), 0
    check_size(len(body))
    if shape.is_stream and request is not None:
        flags |= _LAST
    if metadata:
        body = _metadata_bytes(metadata) + body
        flags |= _METADATA
    timeout_ms = 0 if timeout_s is None else max(int(timeout_s * 1e3), 1) if timeout_s < 1e6 else 0
    return _HEAD.pack(len(body), call, REQUEST, flags, number, timeout_ms) + body


def _metadata_bytes(metadata: Metadata) -> bytes:
    """Returns the metadata as they stand before a message. Raises StateTooLarge."""
    if len(metadata) == 1 and isinstance(metadata[0][1], bytes):
        return _alone(metadata)
    lines = _lines(metadata)
    if len(lines) > _METADATA_BYTES_MAX:  # a tracestate may be left out, and a call must not fail because of it
        lines = _lines(each for each in metadata if each[0] != "tracestate")
    if len(lines) > _METADATA_BYTES_MAX:
        what = f"token and trace of a call have {len(lines)} bytes, and {_METADATA_BYTES_MAX} are taken at most"
        raise StateTooLarge(what, code="RESOURCE_EXHAUSTED")
    return len(lines).to_bytes(2, "little") + lines


@lru_cache(maxsize=16)
def _alone(metadata: Metadata) -> bytes:
    """Those of a session key, which all calls of a connection have."""
    lines = _lines(metadata)
    return len(lines).to_bytes(2, "little") + lines


def _lines(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Bytes are written as base64, because a line has text only."""
    return b"\n".join([  # a list costs less than a generator, and most have one line
        f"{key}:{value}".encode() if isinstance(value, str)
        else b"%b:%b" % (key.encode(), b2a_base64(value, newline=False))
        for key, value in metadata
    ])  # fmt: skip


def check_size(size_bytes: int) -> None:
    """Raises StateTooLarge for a message that this library does not send."""
    if size_bytes > MAX_SEND_BYTES:
        what = f"the message has {size_bytes} bytes, and this library sends {MAX_SEND_BYTES} at most"
        raise StateTooLarge(what, code="RESOURCE_EXHAUSTED")


def read_head(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """Returns length of the body, call and kind."""
    length, call, kind, *_ = _HEAD.unpack_from(data, at)
    return length, call, kind


def read_answer(shape: Shape, kind: int, body: bytes | bytearray) -> Message:
    """Returns the answer of a call. Raises the daemon's error."""
    if kind in {ANSWER, MESSAGE}:
        try:
            return shape.answer.FromString(cast(bytes, body))  # it takes both
        except DecodeError:
            raise broken() from None
    raise read_error(body)


def read_error(body: bytes | bytearray) -> StatewardError:
    """Returns the exception for the body of an ERROR."""
    from google.rpc.status_pb2 import Status  # noqa: PLC0415  only a failing program needs it

    try:
        return error_from_status(Status.FromString(cast(bytes, body)))
    except DecodeError:
        return broken()

"""What mutual TLS and a token cost beside a unix socket that asks for neither: a daemon each, in turn, over gRPC."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.stateward import HYDRATE, MAX_BYTES, OPTIONS, append_request
from tests.bench.report import Section
from tests.bench.rounds import Prepare, p50_ms, p99_ms, take_turns
from tests.bench.sections import Effort
from tests.bench.servers import free_port
from tests.certificates import Authority

from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

SOCKET, TLS = "stateward, unix socket", "stateward, mutual TLS, token"
SAVE, APPEND, READ, CONNECT = "save of", "message onto", "hydrate of", "connection and first call"
CASES = ("10 KB", "1 MB")
TOKEN = "bench-" + "0" * 20


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """One table. Each row of TLS has its ratio to the socket's."""
    section = Section("tls", "mutual TLS and a token beside a unix socket, in turn")
    directory = field.work / "certificates"
    directory.mkdir()
    authority, port = Authority(directory), free_port()
    own, mine, tokens = authority.sign("daemon"), authority.sign("agent"), directory / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    flags: dict[str, Any] = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": authority.path}
    certificate = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (authority.path, mine.key, mine.cert)))
    opened: dict[str, Callable[[], grpc.Channel]] = {
        TLS: lambda: grpc.secure_channel(f"127.0.0.1:{port}", certificate, options=OPTIONS),
        SOCKET: lambda: grpc.insecure_channel(field.daemon.target, options=OPTIONS),
    }
    with ExitStack() as stack:
        stack.enter_context(field.own_daemon("tls", listen=f"127.0.0.1:{port}?tls", token_file=tokens, **flags))
        channels = {name: stack.enter_context(each()) for name, each in opened.items()}
        for case in CASES:
            prepare: dict[str, Prepare] = {}
            for name, channel in channels.items():
                prepare |= _calls(name, channel, case, payload)
            times = take_turns(prepare, effort.at_size(SIZES[case]))
            for kind in (SAVE, APPEND, READ):
                _add(section, f"{kind} {case}", {name: times[f"{name} {kind}"] for name in channels})
        connecting = {name: _connecting(name, each) for name, each in opened.items()}
        _add(section, CONNECT, take_turns(connecting, max(effort.rounds // 3, 2)))
    section.notes += [
        "x socket: of p50; save of: one message of that size",
        "message onto: a usual message, onto a state that had that size at first",
        "the certificates are ECDSA with P-256; the channel is open, but for the last row",
    ]
    yield section


def _metadata(name: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {TOKEN}")] if name == TLS else []


def _calls(name: str, channel: grpc.Channel, case: str, payload: Payload) -> dict[str, Prepare]:
    save, metadata = CheckpointServiceStub(channel).Save, _metadata(name)
    hydrate = channel.unary_unary(HYDRATE, pb.HydrateRequest.SerializeToString)  # the answer stays bytes
    whole, appended = payload.state(SIZES[case]), payload.appended()
    one, numbers, versions = b"".join(whole), itertools.count(), itertools.count(1)
    thread = f"tls-{case}"
    save(append_request(thread, 0, whole), metadata=metadata)
    asked = pb.HydrateRequest(thread=f"{thread}-read", max_bytes=MAX_BYTES)
    save(append_request(asked.thread, 0, whole), metadata=metadata)

    def saving() -> Callable[[], object]:
        content = str(next(numbers)).encode() + one  # no store meets the same bytes twice
        request = append_request(f"{thread}-{content[:8].hex()}", 0, [content])
        return lambda: save(request, metadata=metadata)

    def appending() -> Callable[[], object]:
        request = append_request(thread, next(versions), [next(appended)])
        return lambda: save(request, metadata=metadata)

    return {
        f"{name} {SAVE}": saving,
        f"{name} {APPEND}": appending,
        f"{name} {READ}": lambda: lambda: hydrate(asked, metadata=metadata),
    }


def _connecting(name: str, opened: Callable[[], grpc.Channel]) -> Prepare:
    asked, metadata = pb.HydrateRequest(thread=f"tls-{CASES[0]}-read", max_bytes=MAX_BYTES), _metadata(name)

    def connect() -> None:
        with opened() as channel:
            CheckpointServiceStub(channel).Hydrate(asked, metadata=metadata)

    return lambda: connect


def _add(section: Section, case: str, times: dict[str, list[float]]) -> None:
    floor = p50_ms(times[SOCKET])
    for name in (SOCKET, TLS):
        each = times[name]
        section.add(name, case, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_socket=p50_ms(each) / floor)

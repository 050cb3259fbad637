"""The two wires of one daemon: which one a client of the bench speaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc
from tests.bench.peers.stateward import OPTIONS, STUB

from stateward import Client
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

WIRES = ("gRPC", "frames")
Save = Callable[[SaveRequest], object]


@contextmanager
def forced(wire: str) -> Iterator[None]:
    """Clients that connect meanwhile speak this wire, and so do programs that are started."""
    os.environ["STATEWARD_WIRE"] = wire.lower()
    try:
        yield
    finally:
        del os.environ["STATEWARD_WIRE"]


def name_of(wire: str) -> str:
    """Of a row."""
    return f"{STUB.partition(',')[0]}, {wire}"


def connect(stack: ExitStack, target: str, wire: str, namespace: str = "") -> Client:
    """A client that speaks this wire, until the stack ends."""
    with forced(wire):
        client = stack.enter_context(Client(target, namespace=namespace or wire))
        assert client.server_info().wire == wire.lower()
    return client


def raw_saves(stack: ExitStack, target: str) -> dict[str, Save]:
    """Save as the stub of each wire has it, without a client around it."""
    channel = stack.enter_context(grpc.insecure_channel(target, options=OPTIONS))
    framed = connect(stack, target, "frames")._session.connected()
    return {
        "gRPC": CheckpointServiceStub(channel).Save,
        "frames": lambda request: framed.call("Save", request, None),
    }

"""Hostile clients: ten ways to ask one daemon for too much, and one caller beside them who behaves.

    python -m tests.soak.hostile ATTACK SOCKET SIZE

runs one of ``ATTACKS``, on data that ``prepare`` has made; SIZE 1 is the attack as it was found, less is cheaper. Each
returns when it has done its worst, and its calls may fail as they like. ``python -m tests.soak.hostile caller SOCKET``
saves and reads fifty times a second until its stdin ends, and prints how long each call took. It speaks gRPC, or what
STATEWARD_WIRE says. `tests.soak.hostile_frames` has the attacks on the local wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import lmdb
from google.protobuf.duration_pb2 import Duration
from tests.service.rawhttp2 import RawConnection

from stateward import Client
from stateward.v1 import checkpoint_service_pb2_grpc, thread_service_pb2_grpc
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import (
    BatchSaveRequest,
    HydrateRequest,
    ReadHistoryRequest,
    ReadLogRequest,
    SaveRequest,
)
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward.v1.write_pb2 import WriteOptions

MIB = 1 << 20
CALLS_PER_S, TIMEOUT_S = 50, 60.0
# How long what lies unread, or waits, is kept so, and at least which part of it.
HELD_S, HELD_PART = 6.0, 0.05
SERVICE = "/stateward.v1.CheckpointService/"
HISTORY_VERSIONS, HISTORY_BYTES = 5, 2_900_000
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def append(thread: str, request_id: str, data: bytes = b"x" * 200) -> SaveRequest:
    """A small save on top of whatever is there."""
    diff = Diff(edits=[Edit(append=Append(log="m", entries=[Value(data=data)]))])
    return SaveRequest(thread=thread, options=WriteOptions(request_id=request_id), diff=diff)


# -- what is there before ------------------------------------------------------------------------------------------


def prepare(socket: str, size: float, large_mib: int) -> None:
    """A large state, a long history, and the thread that is going to be damaged."""
    with grpc.insecure_channel(f"unix:{socket}", OPTIONS) as channel:
        saves = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel)
        large = State(slots={"s": Value(data=os.urandom(int(large_mib * MIB * size)))})
        saves.Save(
            SaveRequest(thread="large", options=WriteOptions(expected_version=0), state=large), timeout=TIMEOUT_S
        )
        for version in range(HISTORY_VERSIONS):
            value = Value(data=os.urandom(int(HISTORY_BYTES * size)))
            edits = [Edit(set_slot=SetSlot(slot="s", value=value))]
            request = SaveRequest(
                thread="history", options=WriteOptions(expected_version=version), diff=Diff(edits=edits)
            )
            saves.Save(request, timeout=TIMEOUT_S)
    make_thread(socket, "damaged")


def make_thread(socket: str, thread: str) -> None:
    """A thread with one version, which is archived."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        request = append(thread, "first")
        request.options.durability = DURABILITY_ARCHIVED
        checkpoint_service_pb2_grpc.CheckpointServiceStub(channel).Save(request, timeout=TIMEOUT_S)


def damage(data_dir: Path) -> None:
    """Flips the last bit of the only entry of the newest thread. No daemon runs."""
    with lmdb.open(str(data_dir), map_size=64 << 30) as store, store.begin(write=True) as txn:
        entries = [(bytes(key), bytes(value)) for key, value in txn.cursor() if bytes(value[:2]) == b"SJ"]
        key, value = entries[-1]
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))


# -- attacks ----------------------------------------------------------------------------------------------------------


class Attack:
    """One hostile client."""

    def __init__(self, socket: str, size: float) -> None:
        self.socket = socket
        self.size = size

    def count(self, count: int) -> int:
        return max(int(count * self.size), 2)

    def raw(self, method: str, data: bytes) -> None:
        """Sends bytes that no library would send."""
        with grpc.insecure_channel(f"unix:{self.socket}", OPTIONS) as channel, suppress(grpc.RpcError):
            channel.unary_unary(SERVICE + method, lambda sent: sent, lambda got: got)(data, timeout=TIMEOUT_S)

    def leave_unread(self, method: str, request: Any, count: int) -> None:
        connections = [RawConnection(self.socket) for _ in range(count)]
        for connection in connections:
            connection.call(SERVICE + method, request)
        time.sleep(HELD_S * max(self.size, HELD_PART))
        for connection in connections:
            connection.close()

    def empty_saves(self) -> None:
        self.raw("BatchSave", b"\x0a\x00" * self.count(30 * MIB))

    def empty_edits(self) -> None:
        edits = b"\x0a\x00" * self.count(30 * MIB)
        diff = _varint(SaveRequest.DIFF_FIELD_NUMBER << 3 | 2)
        self.raw("Save", append("x", "x").SerializeToString() + diff + _varint(len(edits)) + edits)

    def unread_states(self) -> None:
        self.leave_unread("Hydrate", HydrateRequest(thread="large", max_bytes=64 * MIB), self.count(40))

    def unread_histories(self) -> None:
        self.leave_unread("ReadHistory", ReadHistoryRequest(thread="history"), self.count(200))

    def failing_batches(self) -> None:
        async def fail(stub: Any, number: int) -> None:
            saves = [append(f"batch-{number}-{item}", "r") for item in range(7)]
            saves[-1].options.expected_version = 3
            with suppress(grpc.RpcError):
                await stub.BatchSave(BatchSaveRequest(saves=saves), timeout=TIMEOUT_S)

        self.at_once(fail, 20)

    def idle_watches(self) -> None:
        async def watch(_: Any, number: int) -> None:
            request = WatchRequest(namespace=f"idle-{number % 7}", thread="-")
            with suppress(grpc.RpcError):
                async for _ in self.threads.Watch(request, timeout=HELD_S * max(self.size, HELD_PART)):
                    pass

        self.at_once(watch, 1000)

    def hanging_bucket(self) -> None:
        async def save(stub: Any, number: int) -> None:
            request = append("hung", f"hung-{number}")
            request.options.durability = DURABILITY_ARCHIVED
            with suppress(grpc.RpcError):
                await stub.Save(request, timeout=HELD_S * max(self.size, HELD_PART))

        self.at_once(save, 200)

    def damaged_thread(self) -> None:
        async def poll(stub: Any, _: int) -> None:
            for _ in range(self.count(60)):
                with suppress(grpc.RpcError):
                    await stub.Hydrate(HydrateRequest(thread="damaged", max_bytes=1024), timeout=TIMEOUT_S)
                await asyncio.sleep(0.1)

        self.at_once(poll, 4)

    def burst(self) -> None:
        async def save(stub: Any, number: int) -> None:
            with suppress(grpc.RpcError):
                await stub.Save(append(f"burst-{number % 100}", f"burst-{number}"), timeout=TIMEOUT_S)

        self.at_once(save, 10_000)

    def long_polls(self) -> None:
        async def wait(stub: Any, number: int) -> None:
            request = ReadLogRequest(thread="history", log="none", wait=Duration(seconds=1))
            with suppress(grpc.RpcError):
                await stub.ReadLog(request, timeout=HELD_S)

        self.at_once(wait, 3000)

    def at_once(self, call: Callable[[Any, int], Any], count: int) -> None:
        """So many calls over one connection, none of which waits for another."""

        async def run() -> None:
            async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
                stub = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel)
                self.threads = thread_service_pb2_grpc.ThreadServiceStub(channel)
                await asyncio.gather(*(call(stub, number) for number in range(self.count(count))))

        asyncio.run(run())


ATTACKS = (
    "empty_saves", "empty_edits", "unread_states", "unread_histories", "failing_batches", "idle_watches",
    "hanging_bucket", "damaged_thread", "burst", "long_polls",
)  # fmt: skip


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


# -- who behaves ------------------------------------------------------------------------------------------------------


def behave(socket: str) -> None:
    """Saves and reads in turn until stdin ends; prints as JSON how long each took, and what was saved and is there."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    took, saved, name = [], 0, f"well-behaved-{os.getpid()}"
    with Client(f"unix:{socket}") as client:
        wire, connection = client.server_info().wire, client._session.connected()
        assert wire == os.environ["STATEWARD_WIRE"]

        def call(method: str, request: Any) -> Any:
            return connection.call(method, request, TIMEOUT_S)

        call("Save", append(name, "first"))
        print("ready", flush=True)
        while not over.is_set():
            saved += 1
            for method, request in (("Save", append(name, f"{saved}")), ("Hydrate", HydrateRequest(thread=name))):
                began = time.monotonic()
                call(method, request)
                took.append(time.monotonic() - began)
            time.sleep(max(1 / CALLS_PER_S - sum(took[-2:]), 0))
        kept = len(call("Hydrate", HydrateRequest(thread=name)).state.logs["m"].entries)
    print(json.dumps({"took": took, "saved": saved + 1, "kept": kept}))


if __name__ == "__main__":
    if sys.argv[1] == "caller":
        behave(sys.argv[2])
    else:
        getattr(Attack(sys.argv[2], float(sys.argv[3])), sys.argv[1])()

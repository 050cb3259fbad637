"""Stateward through its bare stub, as any language would call it, and through its Python client; and the echo."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from functools import partial

import grpc
from tests.bench.echo import GIVE_METHOD, METHOD
from tests.bench.peers.base import Call, Contender

from stateward import Client
from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.write_pb2 import WriteOptions
from stateward.values import JSON, RawValue

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
MAX_BYTES = 64 << 20
ECHO, STUB, CLIENT, WHOLE = "echo", "stateward", "stateward, Python client", "stateward, whole state sent"
ECHO_BOTH_WAYS = "echo, both ways"
HYDRATE = "/stateward.v1.CheckpointService/Hydrate"


class Echo(Contender):
    """The floor: the bytes of Stateward's request to and fro, and as many bytes back as a read gives."""

    name = ECHO

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target, options=OPTIONS)
        self.echo: Callable[[bytes], bytes] = self.channel.unary_unary(METHOD)
        self.give: Callable[[bytes], bytes] = self.channel.unary_unary(GIVE_METHOD)
        self.size: dict[str, int] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        request = pb.HydrateResponse()
        add_messages(request.state.logs["messages"].entries, messages)
        self.size[thread] = request.ByteSize()

    def step(self, thread: str, message: bytes) -> Call:
        return partial(self.echo, append_request(thread, 1, [message]).SerializeToString())

    def read(self, thread: str) -> Call:
        return partial(self.give, str(self.size[thread]).encode())

    def close(self) -> None:
        self.channel.close()


class EchoBothWays(Echo):
    """An echo in the narrow sense: a read sends as many bytes as come back. Another floor, twice the work."""

    name = ECHO_BOTH_WAYS

    def read(self, thread: str) -> Call:
        return partial(self.echo, b"x" * self.size[thread])


class Stub(Contender):
    """Diffs through the stub: compare-and-swap on the version, a request id, committed before the answer."""

    name = STUB

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target, options=OPTIONS)
        self.save = CheckpointServiceStub(self.channel).Save
        # The answer stays bytes, as the echo's does.
        self.hydrate = self.channel.unary_unary(HYDRATE, pb.HydrateRequest.SerializeToString)
        self.version: dict[str, int] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.version[thread] = 0
        # In several versions, so that the thread has a history and its snapshot a reason.
        part = max(len(messages) // 10, 1)
        for start in range(0, len(messages), part):
            self.save(append_request(thread, self._next(thread), messages[start : start + part]))

    def step(self, thread: str, message: bytes) -> Call:
        return partial(self.save, append_request(thread, self._next(thread), [message]))

    def read(self, thread: str) -> Call:
        return partial(self.hydrate, pb.HydrateRequest(thread=thread, max_bytes=MAX_BYTES))

    def close(self) -> None:
        self.channel.close()

    def _next(self, thread: str) -> int:
        self.version[thread] += 1
        return self.version[thread] - 1


class Whole(Stub):
    """Sends the whole state each time, as a client without diffs does; the daemon stores the difference."""

    name = WHOLE

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.request: dict[str, pb.SaveRequest] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.version[thread] = 0
        request = self.request[thread] = pb.SaveRequest(thread=thread)
        add_messages(request.state.logs["messages"].entries, messages)
        if messages:
            self._renew(thread)
            self.save(request)

    def step(self, thread: str, message: bytes) -> Call:
        request = self._renew(thread)
        add_messages(request.state.logs["messages"].entries, [message])
        return partial(self.save, request)

    def _renew(self, thread: str) -> pb.SaveRequest:
        request = self.request[thread]
        request.options.expected_version = self._next(thread)
        request.step = request.options.expected_version + 1
        request.options.request_id = secrets.token_hex(16)
        return request


class PythonClient(Contender):
    """`Client.thread().save(state)`, which finds the difference itself, and `hydrate()` with every message decoded."""

    name = CLIENT

    def __init__(self, target: str) -> None:
        self.client = Client(target)
        self.open: dict[str, tuple] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        handle = self.client.thread(thread)
        state = handle.hydrate()
        state.logs["messages"].extend(RawValue(JSON, message) for message in messages)
        if messages:
            handle.save(state)
        self.open[thread] = (handle, state)

    def step(self, thread: str, message: bytes) -> Call:
        handle, state = self.open[thread]
        value = json.loads(message)

        def save() -> None:
            state.logs["messages"].append(value)
            handle.save(state)

        return save

    def read(self, thread: str) -> Call:
        handle = self.client.thread(thread)
        return lambda: list(handle.hydrate().logs["messages"])

    def close(self) -> None:
        self.client.close()


def append_request(thread: str, version: int, messages: list[bytes]) -> pb.SaveRequest:
    """A save on top of a version that appends messages."""
    request = pb.SaveRequest(
        thread=thread, options=WriteOptions(request_id=secrets.token_hex(16), expected_version=version),
        step=version + 1
    )
    edit = request.diff.edits.add().append
    edit.log = "messages"
    add_messages(edit.entries, messages)
    return request


def add_messages(entries, messages: list[bytes]) -> None:
    """Messages as values of a log."""
    for message in messages:
        entries.add(media_type=JSON, data=message)

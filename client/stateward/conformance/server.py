"""The scripted daemon: a gRPC server that answers as the scenarios say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stateward.conformance import streams, trees
from stateward.conformance.failing import fail, refuse
from stateward.conformance.play import Play, ScenarioFailed
from stateward.conformance.relay import Relay
from stateward.conformance.scenarios import THREAD, UID, load
from stateward.conformance.v1.scenario_pb2 import Turn
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
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED, WORK_STATUS_RUNNING, Checkpoint

FEATURES = ("blobs", "effects", "leases", "records", "signals", "workspaces", "writer")
LOCKS = "locks/"
"""Before the thread of a scenario: the thread behind its lock."""
WORKERS = 64
SILENCE_MAX_S = 10.0
"""The longest deadline with which a client may wait for an answer that never comes."""
NO_DEADLINE_S = 1e9
"""gRPC reports a missing deadline as one in the far future."""
END_S = 0.2
_FILES = (
    admin_service_pb2, archive_service_pb2, backup_service_pb2, blob_service_pb2, checkpoint_service_pb2,
    effect_service_pb2, lease_service_pb2, record_service_pb2, signal_service_pb2, thread_service_pb2,
    workspace_service_pb2, writer_service_pb2,
)  # fmt: skip
_ANSWERS = (
    "page", "saved", "written", "stat", "acquired", "renewed", "released", "begun", "completed", "durable", "sent",
    "got", "put", "listed", "tree_page",
)  # fmt: skip
_STREAMS: dict[str, Callable[..., Iterator[bytes]]] = {
    "Watch": streams.watch,
    "Write": streams.write,
    "ReadBlob": streams.read_blob,
    "ReadObjects": trees.read_objects,
    "DiffTrees": trees.differences,
}


class ScriptedDaemon:
    """Plays scenarios, each in its own thread `conformance/<name>`. Use it as a context manager."""

    def __init__(self, listen: str, names: Iterable[str]) -> None:
        self.plays = {name: Play(name, load(name)) for name in names}
        self._relay = Relay(listen)
        self.target = self._relay.target
        """The address for clients."""
        # So many calls at a time can be open; each takes a thread.
        self._server = grpc.server(ThreadPoolExecutor(WORKERS), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Handlers(self.plays, self._relay),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        self._relay.start(self._port)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(END_S).wait()
        self._relay.stop()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a method: by its name, for all services of the contract."""

    def __init__(self, plays: dict[str, Play], relay: Relay) -> None:
        self._plays, self._relay = plays, relay
        self._methods: dict[str, MethodDescriptor] = {}
        for file in _FILES:
            services: dict[str, ServiceDescriptor] = file.DESCRIPTOR.services_by_name
            for service in services.values():
                self._methods |= {f"/{service.full_name}/{method.name}": method for method in service.methods}

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        read = GetMessageClass(method.input_type).FromString
        if method.client_streaming and method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(method), request_deserializer=read)
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(self._upload, request_deserializer=read)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method), request_deserializer=read)
        return grpc.unary_unary_rpc_method_handler(self._unary(method), request_deserializer=read)

    def _find(self, message: Any, context: grpc.ServicerContext) -> Play:
        thread = getattr(message, "thread", "").removeprefix(LOCKS)
        play = self._plays.get(thread.removeprefix(THREAD)) if thread.startswith(THREAD) else None
        if play is None:
            refuse(context, f"there is no scenario for thread {thread!r}; its name is {THREAD}<scenario>")
        return play

    def _unary(self, method: MethodDescriptor) -> Callable[[Any, grpc.ServicerContext], bytes]:
        def handle(request: Message, context: grpc.ServicerContext) -> bytes:
            if isinstance(request, admin_service_pb2.GetServerInfoRequest):
                info = admin_service_pb2.GetServerInfoResponse(version="conformance", features=FEATURES)
                return info.SerializeToString()
            play = self._find(request, context)
            try:
                turn = play.take(method.name, request)
                if turn.HasField("objects"):
                    return trees.find_missing(play, request, context)
                if turn.silence:
                    _keep_silent(play, context)
            except ScenarioFailed as failed:
                refuse(context, str(failed))
            return self._answer(turn, request.thread, context)  # type: ignore[attr-defined]

        return handle

    def _answer(self, turn: Turn, thread: str, context: grpc.ServicerContext) -> bytes:
        """Ends a call that is no stream of answers, as its turn says."""
        if turn.HasField("failure"):
            fail(context, turn.failure)
        answer = answer_of(turn, thread)
        if turn.cut:
            self._relay.cut(context.peer(), answer)
        return answer

    def _upload(self, messages: Iterator[Any], context: grpc.ServicerContext) -> bytes:
        first = next(messages, None)
        if first is None:
            refuse(context, "the client wrote a blob without a first message")
        play = self._find(first.begin, context)
        try:
            if isinstance(first, workspace_service_pb2.WriteObjectsRequest):
                cut = partial(self._relay.cut, context.peer())
                return trees.write_objects(play, first, messages, context, cut)
            turn = streams.take_blob(play, first, messages)
        except ScenarioFailed as failed:
            refuse(context, str(failed))
        return self._answer(turn, first.begin.thread, context)

    def _streaming(self, method: MethodDescriptor) -> Callable[[Any, grpc.ServicerContext], Iterator[bytes]]:
        play_stream = _STREAMS.get(method.name)

        def handle(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            first = next(request, None) if method.client_streaming else request
            play = self._find(first.open if method.client_streaming and first is not None else first, context)
            try:
                if play_stream is None:
                    raise play.fail(f"no scenario calls {method.name}")
                yield from play_stream(play, first, request, context, partial(self._relay.cut, context.peer()))
            except ScenarioFailed as failed:
                refuse(context, str(failed))

        return handle


def answer_of(turn: Turn, thread: str) -> bytes:
    """Returns the serialised answer to a call that is no stream of answers."""
    for name in _ANSWERS:
        if turn.HasField(name):
            answer = getattr(turn, name)
            if name == "page":
                _describe(answer.checkpoint, thread)
            # Parsed once more, so that a message in it is there once: not every library joins its parts.
            data: bytes = type(answer).FromString(answer.SerializeToString() + turn.unknown_fields).SerializeToString()
            return data
    return turn.unknown_fields


def _describe(checkpoint: Checkpoint, thread: str) -> None:
    """Fills in what every answer of a daemon says of a version, unless the scenario says it."""
    checkpoint.namespace, checkpoint.thread, checkpoint.branch = "default", thread, "main"
    checkpoint.uid = UID
    checkpoint.parent_version = checkpoint.version - 1
    checkpoint.sequence = checkpoint.sequence or checkpoint.version
    checkpoint.status = checkpoint.status or WORK_STATUS_RUNNING
    checkpoint.durability = checkpoint.durability or DURABILITY_COMMITTED


def _keep_silent(play: Play, context: grpc.ServicerContext) -> None:
    """Waits until the client's deadline has ended the call."""
    left_s = context.time_remaining()
    if left_s is None or left_s > SILENCE_MAX_S:
        given = "no deadline" if left_s is None or left_s > NO_DEADLINE_S else f"a deadline of {left_s:.0f} s"
        raise play.fail(f"the call has {given}; give each call a deadline of at most {SILENCE_MAX_S:.0f} s")
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait(SILENCE_MAX_S)
    refuse(context, "nobody reads this")

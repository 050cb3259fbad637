"""Calls of every method of the contract, made from its descriptors: a new method is among them by itself."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import FramedChannel

import stateward.v1
from stateward.v1.call_service_pb2 import RunCallsRequest, RunCallsResponse, StreamedCall
from stateward_sidecar.service.admission.grants import needs_of
from stateward_sidecar.service.methods import verb_name

RUN_CALLS = "/stateward.v1.CallService/RunCalls"
TIMEOUT_S = 60.0


def _methods() -> Iterator[MethodDescriptor]:
    for found in pkgutil.iter_modules(stateward.v1.__path__, "stateward.v1."):
        if found.name.endswith("_service_pb2"):
            module: Any = importlib.import_module(found.name)
            for service in module.DESCRIPTOR.services_by_name.values():
                yield from service.methods


METHODS: dict[str, MethodDescriptor] = {method.name: method for method in _methods()}
STREAMED: dict[str, FieldDescriptor] = {
    name: StreamedCall.DESCRIPTOR.fields_by_name[verb_name(method)]
    for name, method in METHODS.items()
    if verb_name(method) in StreamedCall.DESCRIPTOR.fields_by_name
}
"""The methods that RunCalls can call, with the field of their request."""


def request_of(method: MethodDescriptor, thread: str, namespace: str = "team") -> Message:
    """A request that names a thread wherever its method asks for one."""
    request = GetMessageClass(method.input_type)()
    for need in needs_of(method):
        place: Any = request
        for name in need.thread[:-1]:
            place = getattr(place, name)
            if not isinstance(place, Message):  # many
                place = place[0] if len(place) else place.add()
        if need.thread:
            setattr(place, need.thread[-1], thread)
            for each in (place, request):
                if "namespace" in each.DESCRIPTOR.fields_by_name:
                    each.namespace = namespace
        elif need.lists:
            request.namespace = namespace  # type: ignore[attr-defined]
    if method.name == "Drain":
        request.undo = True  # type: ignore[attr-defined]  # else all tests after it are refused
    return request


def metadata_of(token: str | None) -> list[tuple[str, str]]:
    """What a client sends with its calls."""
    return [] if token is None else [("authorization", f"Bearer {token}")]


def begin(channel: Any, method: MethodDescriptor, requests: Iterable[Message], token: str | None) -> Any:
    """Begins a call, as the stub of its method does."""
    kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
    call = getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    if not method.server_streaming:
        call = call.future
    given: Any = requests if method.client_streaming else next(iter(requests))
    return call(given, timeout=TIMEOUT_S, metadata=metadata_of(token))


def answers_of(
    channel: Any, method: MethodDescriptor, request: Message, token: str | None, most: int = 1
) -> list[Message]:
    """Makes a call with one message, and returns its first answers. Raises grpc.RpcError."""
    call = begin(channel, method, iter([request]), token)
    if not method.server_streaming:
        return [call.result()]
    found: list[Message] = []
    for answer in call:
        found.append(answer)
        if len(found) >= most:
            call.cancel()
            break
    return found


def reason_of(channel: Any, method: MethodDescriptor, request: Message, token: str | None) -> str:
    """Makes a call. Returns the reason of its error; "" = there was none."""
    try:
        answers_of(channel, method, request, token)
        return ""
    except grpc.RpcError as error:
        return reason_in(error)


def reason_in(error: grpc.RpcError) -> str:
    """The reason of an error of this product, else its code."""
    found = info_in(status_in(error))
    return found.reason if found is not None else str(error.code())  # type: ignore[attr-defined]


def status_in(error: grpc.RpcError) -> Status | None:
    """The whole of an error, as it came; None = it is gRPC's own."""
    for key, value in error.trailing_metadata() or ():  # type: ignore[attr-defined]
        if key == "grpc-status-details-bin":
            return Status.FromString(value)
    return None


def info_in(status: Status | None) -> ErrorInfo | None:
    """What this product says of an error."""
    for each in status.details if status is not None else ():
        if each.Is(ErrorInfo.DESCRIPTOR):
            return ErrorInfo.FromString(each.value)
    return None


def run_call(channel: Any, name: str, request: Message, token: str | None) -> Message | Status:
    """Makes a call inside RunCalls. Returns its answer or its error. Raises grpc.RpcError if the stream fails."""
    call = StreamedCall(call=1)
    getattr(call, STREAMED[name].name).CopyFrom(request)
    run = channel.stream_stream(
        RUN_CALLS, request_serializer=RunCallsRequest.SerializeToString,
        response_deserializer=RunCallsResponse.FromString,
    )  # fmt: skip
    for message in run(iter([RunCallsRequest(calls=[call])]), timeout=TIMEOUT_S, metadata=metadata_of(token)):
        (answer,) = message.answers
        return answer.refused if answer.HasField("refused") else getattr(answer, STREAMED[name].name)
    raise AssertionError("no answer came")


def streamed_reason(channel: Any, name: str, request: Message, token: str | None) -> str:
    """As ``reason_of``, for a call inside RunCalls."""
    try:
        answer = run_call(channel, name, request, token)
    except grpc.RpcError as error:
        return reason_in(error)
    found = info_in(answer) if isinstance(answer, Status) else None
    return found.reason if found is not None else ""


WIRES = ("grpc", "frames")


@contextmanager
def open_channel(target: str, wire: str) -> Iterator[Any]:
    """A channel to a daemon: of gRPC, or of the local wire."""
    if wire == "frames":
        with FramedChannel(target) as made:
            yield made
        return
    with grpc.insecure_channel(
        target.replace("unix://", "unix:"), options=[("grpc.use_local_subchannel_pool", 1)]
    ) as made:
        yield made


def digest_of(token: str) -> str:
    """What the access file has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def principal_of(name: str, token_sha256: str, grants: Iterable[str]) -> str:
    """A principal, as the access file has it."""
    told = ", ".join(f'"{each}"' for each in grants)
    return f'[[principal]]\nname = "{name}"\ntoken_sha256 = "{token_sha256}"\ngrants = [{told}]\n\n'


def fields_of(message: Message) -> Mapping[str, Any]:
    """The fields of a message that are set, by name."""
    return {field.name: value for field, value in message.ListFields()}

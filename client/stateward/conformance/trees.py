"""Calls about trees of the scripted daemon: FindMissing, and the streams of objects and of differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from stateward.conformance.compare import difference
from stateward.conformance.failing import fail
from stateward.conformance.objects import WrongCall
from stateward.conformance.play import Play
from stateward.conformance.scenarios import UID
from stateward.conformance.streams import Cut, cut_before, stay_open
from stateward.conformance.v1.scenario_pb2 import Failure
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.workspace_service_pb2 import (
    DiffTreesRequest,
    ReadObjectsRequest,
    WriteObjectsRequest,
    WriteObjectsResponse,
)
from stateward.v1.write_pb2 import Receipt, WriteOptions

NO_THREAD = Failure(code="NOT_FOUND", reason="THREAD_NOT_FOUND")


def find_missing(play: Play, request: Any, context: grpc.ServicerContext) -> bytes:
    """Answers a FindMissing."""
    if play.objects.is_new:
        fail(context, NO_THREAD)
    try:
        return play.objects.missing(request, UID).SerializeToString()
    except WrongCall as wrong:
        raise play.fail(str(wrong)) from None


def write_objects(
    play: Play, first: WriteObjectsRequest, messages: Iterator[WriteObjectsRequest], context: grpc.ServicerContext,
    cut: Cut,
) -> bytes:  # fmt: skip
    """Takes objects, up to the place where the stream breaks. Returns the answer."""
    turn, objects, size_bytes = play.take("WriteObjects", first), play.objects, 0
    options = WriteOptions()
    options.CopyFrom(first.begin.options)
    options.ClearField("create")
    if problem := difference(WriteOptions(), options):
        raise play.fail(f"begin.options.{problem}")
    if objects.is_new and not first.begin.options.HasField("create"):
        play.end_stream()
        fail(context, NO_THREAD)
    try:
        for message in messages:
            if not message.HasField("objects"):
                raise WrongCall("a message after the first one has no objects")
            size_bytes += objects.take(message.objects.objects)
            if 0 < turn.objects.broken_after_bytes <= size_bytes and not objects.is_broken:
                break
    except WrongCall as wrong:
        raise play.fail(str(wrong)) from None
    objects.is_new = objects.is_new and not size_bytes
    is_breaking = not objects.is_broken and (turn.cut or turn.HasField("failure"))
    objects.is_broken = objects.is_broken or is_breaking
    play.end_stream()
    if is_breaking and turn.HasField("failure"):
        fail(context, turn.failure)
    receipt = Receipt(uid=UID, sequence=1, digest=b"digest-of-objects", durability=DURABILITY_COMMITTED)
    answer = WriteObjectsResponse(receipt=receipt, size_bytes=size_bytes).SerializeToString()
    if is_breaking:
        cut(answer)
    return answer


def read_objects(
    play: Play, request: ReadObjectsRequest, _: object, context: grpc.ServicerContext, cut: Cut
) -> Iterator[bytes]:
    """Sends objects in small messages, up to the place where the stream breaks."""
    turn, objects, size_bytes = play.take("ReadObjects", request), play.objects, 0
    is_breaking = not objects.is_broken and (turn.cut or turn.HasField("failure"))
    try:
        for message in objects.read(request):
            data = message.SerializeToString()
            size_bytes += sum(len(each.data) for each in message.objects)
            if is_breaking and size_bytes >= turn.objects.broken_after_bytes:
                objects.is_broken = True
                play.end_stream()
                yield cut_before(cut, data) if turn.cut else data
                if turn.HasField("failure"):
                    fail(context, turn.failure)
                stay_open(play, context)
                return
            yield data
    except WrongCall as wrong:
        raise play.fail(str(wrong)) from None
    play.end_stream()


def differences(
    play: Play, request: DiffTreesRequest, _: object, context: grpc.ServicerContext, __: Cut
) -> Iterator[bytes]:
    """Sends what differs between two trees."""
    turn = play.take("DiffTrees", request)
    for message in turn.differences:
        yield message.SerializeToString() + turn.unknown_fields
    play.end_stream()
    if turn.HasField("failure"):
        fail(context, turn.failure)

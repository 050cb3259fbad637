"""Takes a message of a stream apart if it cannot be taken as a whole, so that a wrong part of it fails alone.

On the wire, a message has its parts one after another, each with its length. So a part that does not parse, or has too
many items, hides neither the parts beside it nor its own number.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall
from stateward.v1.writer_service_pb2 import WriteRequest, WriterSave
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.service.admission.weight import count_items, fields_of

_BYTES = 2
_CALLS = RunCallsRequest.DESCRIPTOR.fields_by_name["calls"].number
_NUMBER = StreamedCall.DESCRIPTOR.fields_by_name["call"].number
_REQUESTS: dict[int, Any] = {
    field.number: field.message_type for field in StreamedCall.DESCRIPTOR.oneofs_by_name["request"].fields
}
_SAVE = WriteRequest.DESCRIPTOR.fields_by_name["save"].number
_FRAME = WriterSave.DESCRIPTOR.fields_by_name["frame"].number


def numbers_of(data: bytes) -> list[int]:
    """Returns the numbers of the calls of a message. Raises DecodeError if it is no sequence of calls."""
    return [_number(call, _NUMBER) for call in _parts(data)]


def without_wrong_calls(data: bytes) -> tuple[bytes, list[int], dict[int, InvalidField]]:
    """Returns a message without its wrong calls, the numbers of all calls, and the error of each wrong one.

    Raises DecodeError if it is no sequence of calls.
    """
    kept, numbers, wrong = bytearray(), list[int](), dict[int, InvalidField]()
    for call in _parts(data):
        numbers.append(number := _number(call, _NUMBER))
        if (error := _error_of(call)) is None:
            kept += bytes([_CALLS << 3 | _BYTES]) + _length(len(call)) + call
        else:
            wrong[number] = error
    return bytes(kept), numbers, wrong


def frame_of(data: bytes) -> int:
    """Returns the number of the frame that a message of a writer saves; 0 if it saves none. Raises DecodeError."""
    saves = [found for number, wire, found in fields_of(data) if (number, wire) == (_SAVE, _BYTES)]
    return _number(saves[-1], _FRAME) if saves and isinstance(saves[-1], bytes) else 0


def _parts(data: bytes) -> list[bytes]:
    return [
        found for number, wire, found in fields_of(data)
        if (number, wire) == (_CALLS, _BYTES) and isinstance(found, bytes)
    ]  # fmt: skip


def _number(data: bytes, field: int) -> int:
    found = 0
    for number, _, value in fields_of(data):
        if number == field and isinstance(value, int):
            found = value
    return found if found < 1 << 63 else found - (1 << 64)


def _error_of(call: bytes) -> InvalidField | None:
    """Returns what the request of a call by itself would be refused with."""
    kind: Any = StreamedCall.DESCRIPTOR
    try:
        for number, _, value in fields_of(call):
            if (asked := _REQUESTS.get(number)) is not None and isinstance(value, bytes):
                kind = asked
                count_items(kind, value)
                GetMessageClass(kind).FromString(value)
        kind = StreamedCall.DESCRIPTOR
        StreamedCall.FromString(call)
    except DecodeError:
        return InvalidField("request", f"the bytes are not a {kind.name}")
    except InvalidField as error:
        return error
    return None


def _length(size: int) -> bytes:
    found = bytearray()
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size])

"""Python objects to stored values and back.

A stored value is a media type and bytes; the daemon never looks inside. `encode` picks the media type from the Python
type, `decode` the Python type from the media type, and `decode(encode(x)) == x` for everything JSON can say.

    Python                                   media type
    dict, list, str, int, float, bool, None  application/json          (tuples become lists)
    dataclasses, pydantic models             application/json          (come back as dict)
    bytes, bytearray, memoryview             application/octet-stream
    Text("…")                                text/plain
    protobuf messages                        application/x-protobuf; type=<full name>
    MsgPack(value)                           application/msgpack       (needs the package msgpack)
    RawValue(media_type, data)               as it says; also what an unknown media type comes back as
    Blob                                     names bytes that `thread.write_blob` wrote
    Number(3)                                none; in a slot, where it can be incremented (anywhere else JSON, as int)

`register_codec` adds further types. Nothing is ever pickled: reading a state must not run code.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from stateward.blobs import Blob as Blob  # noqa: PLC0414  for users, a value like the others here
from stateward.blobs import StateBlobs, is_blob_of, is_made, restored
from stateward.v1 import state_pb2

JSON = "application/json"
OCTETS = "application/octet-stream"
TEXT = "text/plain"
PROTOBUF = "application/x-protobuf"
MSGPACK = "application/msgpack"

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

# Objects of these types hold no others, and so no keys to be checked.
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})
# What nearly every value is. Subclasses go the long way: Text is a str, too.
_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


class Text(str):
    """A string that is stored as `text/plain` instead of as a JSON string."""

    __slots__ = ()


class Number(int):
    """An integer that a slot holds as a number, so that increments of any writers add up: `thread.increment(slot)`.

    What is computed with it is a plain int. A slot that holds a number goes on holding one when an int is put into it
    (`state.slots["hits"] += 1`, `= 0`); into any other slot an int is put as JSON, which cannot be incremented.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Number({int(self)})"

    __str__ = int.__repr__


@dataclasses.dataclass(frozen=True, slots=True)
class RawValue:
    """A value as it is stored: its media type and its bytes, not interpreted; of a number its digits."""

    media_type: str
    data: bytes


class MsgPack:
    """Marks `value` to be stored as msgpack; what was stored so comes back in this wrapper too."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MsgPack) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # equal by content that may change

    def __repr__(self) -> str:
        return f"MsgPack({self.value!r})"


_encoders: dict[type, tuple[str, Callable[[Any], bytes]]] = {}
_decoders: dict[str, Callable[[bytes], Any]] = {}


def register_codec(
    media_type: str, python_type: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Stores objects of `python_type` (and its subclasses) under `media_type`, given without parameters.

    Register before states are read or saved. A later registration replaces an earlier one, and the built-in choice.
    """
    _encoders[python_type] = (media_type, encode)
    _decoders[media_type.lower()] = decode


def encode(value: Any, path: str) -> state_pb2.Value:
    """Stored form of `value`. `path` names its place, such as `slots.goal`, in the TypeError or ValueError that is
    raised for what cannot be stored."""
    for python_type in type(value).__mro__ if _encoders else ():
        if python_type in _encoders:
            media_type, encode_registered = _encoders[python_type]
            return state_pb2.Value(media_type=media_type, data=encode_registered(value))
    if type(value) in _PLAIN:
        return state_pb2.Value(media_type=JSON, data=_encode_json(value, path))
    match value:
        case Text():
            return state_pb2.Value(media_type=TEXT, data=value.encode())
        case bytes() | bytearray() | memoryview():
            return state_pb2.Value(media_type=OCTETS, data=bytes(value))
        case RawValue():
            return state_pb2.Value(media_type=value.media_type, data=value.data)
        case MsgPack():
            return state_pb2.Value(media_type=MSGPACK, data=_msgpack().packb(value.value))
        case Message():
            media_type = f"{PROTOBUF}; type={value.DESCRIPTOR.full_name}"
            return state_pb2.Value(media_type=media_type, data=value.SerializeToString(deterministic=True))
        case Blob():
            blob = state_pb2.BlobRef(sha256=value.sha256, size_bytes=value.size_bytes, preview=value.preview)
            return state_pb2.Value(media_type=value.media_type, blob=blob)
        case _:
            return state_pb2.Value(media_type=JSON, data=_encode_json(value, path))


def encode_slot(value: Any, path: str, stored: state_pb2.Value | None = None) -> state_pb2.Value:
    """As `encode`, for a slot that holds `stored`: the one place where a number may stand."""
    is_number = type(value) is int and stored is not None and stored.WhichOneof("content") == "number"
    if not is_number and not isinstance(value, Number):
        return encode(value, path)
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{path}: {int(value)} is too large for a number, which has 64 bits")
    return state_pb2.Value(number=value)


def decode(value: state_pb2.Value, path: str, blobs: StateBlobs | None = None) -> Any:
    """Python form of a stored value. ValueError naming `path` if the bytes are not what the media type says; they can
    still be had with `raw`. `blobs` reads what the client made a blob of; without, that stays a Blob."""
    if value.media_type == JSON and JSON not in _decoders:
        # Nearly every value, and half the time that json.loads takes for a short one. What is not UTF-8, or has space
        # or garbage around it, is seen to below.
        try:
            text = value.data.decode()
            found, end = _parse_json(text)
            if end == len(text):
                return found
        except (ValueError, RecursionError):
            pass
    content = value.WhichOneof("content")
    if content in ("blob", "number"):
        return Number(value.number) if content == "number" else _decode_blob(value, path, blobs)
    media_type, _, parameters = value.media_type.partition(";")
    media_type, data = media_type.strip().lower(), value.data
    try:
        if media_type in _decoders:
            return _decoders[media_type](data)
        match media_type:
            case "application/json":
                return json.loads(data)
            case "application/octet-stream":
                return data
            case "text/plain":
                return Text(data.decode())
            case "application/x-protobuf":
                return _decode_protobuf(value.media_type, parameters, data)
            case "application/msgpack":
                return _decode_msgpack(data)
    except (ValueError, DecodeError, RecursionError) as error:
        raise ValueError(f"{path}: the stored bytes are not {value.media_type}: {error}") from error
    return RawValue(value.media_type, data)


def decode_leniently(value: state_pb2.Value) -> Any:
    """As `decode`, but bytes that do not fit their media type come back as RawValue: for listings, which must not fail
    because of one value."""
    try:
        return decode(value, "")
    except ValueError:
        return RawValue(value.media_type, value.data)


def is_unchanged(encoded: state_pb2.Value, stored: state_pb2.Value) -> bool:
    """Whether a value that is now encoded as `encoded` still says what `stored` says.

    Another client may have written the same JSON with other spaces or key escapes, so that equal bytes are the quick
    answer and not the only one: what differs is decoded and encoded once more.
    """
    if encoded == stored or is_blob_of(stored, encoded):
        return True
    if stored.WhichOneof("content") == "number":
        return False
    try:
        return encode(decode(stored, ""), "") == encoded
    except (TypeError, ValueError):
        return False


def _decode_blob(value: state_pb2.Value, path: str, blobs: StateBlobs | None) -> Any:
    if blobs is not None and is_made(value):
        data = blobs.fetch(value.blob)
        if data is not None:
            return decode(restored(value, data), path)
    access = blobs.access if blobs is not None else None
    return Blob(value.media_type, value.blob.sha256, value.blob.size_bytes, value.blob.preview, access)


def raw(value: state_pb2.Value, blobs: StateBlobs | None) -> RawValue:
    """A stored value without being decoded; of a blob its bytes, where they can be read."""
    if value.WhichOneof("content") == "blob" and blobs is not None:
        data = blobs.fetch(value.blob)
        if data is not None:
            value = restored(value, data)
    return RawValue(value.media_type, content_bytes(value))


def content_bytes(value: state_pb2.Value) -> bytes:
    """The bytes of which a writer can say that it expects them: the data, or the digits of a number."""
    return str(value.number).encode() if value.WhichOneof("content") == "number" else value.data


def _encode_json(value: Any, path: str) -> bytes:
    try:
        _check_keys(value)
        text = _JSON_ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _explain(value, path, error) from error
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot say but a JSON escape can
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_reduce).encode()


def _check_keys(value: Any) -> None:
    """TypeError for a dict key that is no string: json would turn 1 into "1" without a word."""
    kind = type(value)
    if kind is dict:
        "".join(value)  # the quickest way to look at all keys
        for child in value.values():
            if type(child) not in _ATOMS:
                _check_keys(child)
    elif kind is list or kind is tuple:
        for child in value:
            if type(child) not in _ATOMS:
                _check_keys(child)
    elif isinstance(value, dict):
        _check_keys(dict(value))


def _reduce(value: Any) -> Any:
    """What json is to write in place of an object it does not know."""
    if hasattr(value, "model_dump"):
        reduced = value.model_dump(mode="json")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        reduced = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")
    _check_keys(reduced)
    return reduced


_parse_json = json.JSONDecoder().raw_decode
_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_reduce)


def _explain(value: Any, path: str, error: Exception) -> TypeError | ValueError:
    """The error to raise for `value`, naming the innermost place that is at fault."""
    for place, problem in _find_faults(value, path, frozenset()):
        return TypeError(f"{place}: {problem}") if isinstance(problem, TypeError) else ValueError(f"{place}: {problem}")
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{path}: {error}")


def _find_faults(value: Any, path: str, above: frozenset[int]) -> Any:  # noqa: C901, PLR0912  a branch for each kind
    """Yields (place, error) for whatever JSON cannot say; `above` holds the ids of the containers around `value`."""
    if id(value) in above:
        yield path, ValueError("the value contains itself")
    elif len(above) > 200:
        yield path, ValueError("nested more than 200 levels deep")
    elif isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                yield path, TypeError(f"the key {key!r} is no string, and JSON knows no other keys")
            yield from _find_faults(child, f"{path}.{key}", above | {id(value)})
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from _find_faults(child, f"{path}[{index}]", above | {id(value)})
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, ValueError(f"{value} has no form in JSON")
    elif isinstance(value, int) or value is None or isinstance(value, (str, float)):
        return
    elif isinstance(value, (bytes, bytearray)):
        yield path, TypeError("bytes inside a JSON value: store them in a slot of their own, or as text (base64)")
    else:
        try:
            reduced = _reduce(value)
        except TypeError as error:
            yield path, error
        else:
            yield from _find_faults(reduced, path, above | {id(value)})


def _decode_protobuf(media_type: str, parameters: str, data: bytes) -> Any:
    name = parameters.strip().removeprefix("type=")
    if name.startswith("stateward.agent.v1."):  # our own, which nobody should have to import for a look
        importlib.import_module("stateward.agent.v1.agent_pb2")
    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:  # the program that reads has not imported this type
        return RawValue(media_type, data)
    return message_factory.GetMessageClass(descriptor).FromString(data)


def _decode_msgpack(data: bytes) -> Any:
    try:
        return MsgPack(_msgpack().unpackb(data, strict_map_key=False))
    except ImportError:
        return RawValue(MSGPACK, data)


def _msgpack() -> Any:
    try:
        import msgpack  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("MsgPack values need the package msgpack: pip install msgpack") from error
    return msgpack

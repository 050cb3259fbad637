"""Conversion of Python objects to stored values, and back.

A stored value is a media type and bytes; the daemon never reads the bytes. `encode` chooses the media type by the
Python type, `decode` the Python type by the media type. `decode(encode(x)) == x` for every x that JSON can represent.

    Python                                   media type
    dict, list, str, int, float, bool, None  application/json          (tuples become lists)
    dataclasses, pydantic models             application/json          (come back as dict)
    bytes, bytearray, memoryview             application/octet-stream
    Text("…")                                text/plain
    protobuf messages                        application/x-protobuf; type=<full name>
    MsgPack(value)                           application/msgpack       (needs the package msgpack)
    Json5(value)                             application/json5         (JSON that may also have NaN and infinities)
    RawValue(media_type, data)               the given one (values of unknown media types are read as RawValue)
    Blob                                     the blob's (the value names bytes that `thread.blobs.write` wrote)
    Number(3)                                none: a number, in a slot; anywhere else application/json, as int

`register_codec` adds further types. Nothing is pickled: reading a state must not run code.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from stateward.blobs import Blob as Blob  # noqa: PLC0414  for users, a value like the others here
from stateward.blobs import StateBlobs, is_blob_of, is_made, restored
from stateward.v1 import state_pb2

JSON = "application/json"
JSON5 = "application/json5"
OCTETS = "application/octet-stream"
TEXT = "text/plain"
PROTOBUF = "application/x-protobuf"
MSGPACK = "application/msgpack"

OTHER = object()
"""The answer of `decode_json` for values that are no ordinary JSON."""

_LEVELS_MAX = 200
"""How deep a value is looked through for what is wrong with it."""
_LEVELS_WALKED = 20_000
"""What is nested deeper, json refuses on every machine; or it contains itself, and would be walked for ever."""

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

# Objects of these types contain no others, so they have no keys to check.
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})
# Those of them that json and msgspec write with the same bytes.
_ALIKE = frozenset({str, int, bool, type(None)})
# The types of nearly all values. Subclasses take the longer way: Text is a str, too.
_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


class Text(str):
    """A string that is stored as `text/plain` instead of as a JSON string."""

    __slots__ = ()


class Number(int):
    """An integer that a slot stores as a number: the increments of all writers add up (`thread.increment(slot)`).

    Arithmetic with it returns a plain int. A slot that has a number keeps storing a number when it is set to an int
    (`state.slots["hits"] += 1`, `= 0`). Any other slot stores an int as JSON, which cannot be incremented.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Number({int(self)})"

    __str__ = int.__repr__


@dataclasses.dataclass(frozen=True, slots=True)
class RawValue:
    """A value as it is stored: its media type and its bytes, not decoded. The bytes of a number are its digits."""

    media_type: str
    data: bytes


class MsgPack:
    """Stores `value` as msgpack. A value that was stored so is read as a MsgPack, too."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MsgPack) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # it equals by content, which may change

    def __repr__(self) -> str:
        return f"MsgPack({self.value!r})"


class Json5:
    """Stores `value` as JSON that may also have NaN and infinities, which JSON5 has and JSON lacks.

    A value that was stored so is read as a Json5, too. Of JSON5, this client writes and reads nothing else that JSON
    lacks; other JSON5 is read as a RawValue.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json5) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # it equals by content, which may change

    def __repr__(self) -> str:
        return f"Json5({self.value!r})"


_encoders: dict[type, tuple[str, Callable[[Any], bytes]]] = {}
_decoders: dict[str, Callable[[bytes], Any]] = {}


def register_codec(
    media_type: str, python_type: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Stores objects of `python_type` (and its subclasses) as `media_type`, which has no parameters.

    Call this before states are read or saved. It replaces earlier registrations and the built-in choice.
    """
    _encoders[python_type] = (media_type, encode)
    _decoders[media_type.lower()] = decode


def encode(value: Any, path: str) -> state_pb2.Value:
    """Returns the stored form of `value`. Raises TypeError or ValueError if it cannot be stored; the message contains
    its place, `path`, such as `slots.goal`."""
    for python_type in type(value).__mro__ if _encoders else ():
        if python_type in _encoders:
            media_type, encode_registered = _encoders[python_type]
            return state_pb2.Value(media_type=media_type, data=encode_registered(value))
    if type(value) in _PLAIN:
        return state_pb2.Value(media_type=JSON, data=encode_json(value, path))
    match value:
        case Text():
            return state_pb2.Value(media_type=TEXT, data=value.encode())
        case bytes() | bytearray() | memoryview():
            return state_pb2.Value(media_type=OCTETS, data=bytes(value))
        case RawValue():
            return state_pb2.Value(media_type=value.media_type, data=value.data)
        case MsgPack():
            return state_pb2.Value(media_type=MSGPACK, data=_msgpack().packb(value.value))
        case Json5():
            return state_pb2.Value(media_type=JSON5, data=encode_json(value.value, path, finite=False))
        case Message():
            media_type = f"{PROTOBUF}; type={value.DESCRIPTOR.full_name}"
            return state_pb2.Value(media_type=media_type, data=value.SerializeToString(deterministic=True))
        case Blob():
            blob = state_pb2.BlobRef(sha256=value.sha256, size_bytes=value.size_bytes, preview=value.preview)
            return state_pb2.Value(media_type=value.media_type, blob=blob)
        case _:
            return state_pb2.Value(media_type=JSON, data=encode_json(value, path))


def encode_slot(value: Any, path: str, stored: state_pb2.Value | None = None) -> state_pb2.Value:
    """Does what `encode` does, for a slot that has the value `stored`. Only slots may have numbers."""
    is_number = type(value) is int and stored is not None and stored.WhichOneof("content") == "number"
    if not is_number and not isinstance(value, Number):
        return encode(value, path)
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{path}: {int(value)} is too large for a number, which has 64 bits")
    return state_pb2.Value(number=value)


def decode(value: state_pb2.Value, path: str, blobs: StateBlobs | None = None) -> Any:
    """Returns the Python form of a stored value. Raises ValueError, with `path`, if the bytes do not fit the media
    type; `raw` still returns them. `blobs` reads values that the client turned into blobs; without it, `decode` returns
    a Blob for them."""
    found = decode_json(value)
    if found is not OTHER:
        return found
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
            case "application/json5":
                return _decode_json5(value.media_type, data)
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


def decode_json(value: state_pb2.Value) -> Any:
    """Returns the Python form of a stored value that is ordinary JSON, as nearly all are; OTHER for any other value,
    which `decode` decodes or refuses. It needs no path, which takes longer to make than a short value to parse."""
    if value.media_type == JSON and JSON not in _decoders:
        try:
            return _parse_json(value.data)
        except _REFUSED:
            pass
    return OTHER


def decode_leniently(value: state_pb2.Value) -> Any:
    """Does what `decode` does, but returns a RawValue for bytes that do not fit their media type: one such value must
    not break a list."""
    try:
        return decode(value, "")
    except ValueError:
        return RawValue(value.media_type, value.data)


def is_unchanged(encoded: state_pb2.Value, stored: state_pb2.Value) -> bool:
    """Returns whether `encoded` and `stored` are the same value.

    Another client may have written the same JSON with other spaces or escapes. So if the bytes differ, the stored value
    is decoded and encoded again.
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
    """Returns a stored value without decoding it. For a blob it has the blob's bytes, if they can be read here."""
    if value.WhichOneof("content") == "blob" and blobs is not None:
        data = blobs.fetch(value.blob)
        if data is not None:
            value = restored(value, data)
    return RawValue(value.media_type, content_bytes(value))


def content_bytes(value: state_pb2.Value) -> bytes:
    """Returns the bytes that a writer can expect of a slot: the data, or the digits of a number."""
    return str(value.number).encode() if value.WhichOneof("content") == "number" else value.data


def encode_json(value: Any, path: str, *, finite: bool = True) -> bytes:
    """Returns a value as JSON; with `finite` False it may have NaN and infinities. Raises TypeError or ValueError, with
    `path`, for what JSON cannot represent."""
    encoder = _JSON_ENCODER if finite else _JSON5_ENCODER
    try:
        if _check_keys(value) and _encode_fast is not None:
            with suppress(ValueError, RecursionError, OverflowError):  # a lone surrogate; json says what else is wrong
                return _encode_fast(value)
        text = encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _explain(value, path, error, finite=finite) from (None if _is_of_json(error) else error)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate: UTF-8 cannot represent it, a JSON escape can
        return json.dumps(value, allow_nan=not finite, separators=(",", ":"), default=_reduce).encode()


def _is_of_json(error: BaseException) -> bool:
    """Whether json or this module raised it, and no method of the value: then the explanation says all."""
    each = error.__traceback__
    while each is not None and each.tb_next is not None:
        each = each.tb_next
    name = str(each.tb_frame.f_globals.get("__name__", "")) if each is not None else ""
    return name == __name__ or name.partition(".")[0] == "json"


def _check_keys(value: Any) -> bool:
    """Returns whether a value has only such parts as json and msgspec write alike. Raises TypeError for a dict key that
    is no string: json would turn 1 into "1" silently. Raises RecursionError for a value that contains itself."""
    around: list[Iterator[Any]] = []
    children = iter((value,))
    is_alike = True
    while True:
        for child in children:
            kind = type(child)
            if kind in _ALIKE:
                continue
            if kind is dict:
                "".join(child)  # the quickest check of all keys
                inner = iter(child.values())
            elif kind is list or kind is tuple:
                inner = iter(child)
            else:
                is_alike = False
                if kind in _ATOMS or not isinstance(child, dict):
                    continue
                inner = iter((dict(child),))  # without the methods of its class
            if len(around) == _LEVELS_WALKED:
                raise RecursionError
            around.append(children)
            children = inner
            break
        else:
            if not around:
                return is_alike
            children = around.pop()


def _reduce(value: Any) -> Any:
    """Returns what json writes in place of an object of a type that it does not know."""
    reduced = _held_by(value)
    _check_keys(reduced)
    return reduced


def _held_by(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


_parse_text = json.JSONDecoder().raw_decode


def parse_plainly(data: bytes) -> Any:
    """Decodes JSON, a short text in half the time of json.loads.

    Raises ValueError for text that is not UTF-8, or has spaces or garbage around it.
    """
    text = data.decode()
    found, end = _parse_text(text)
    if end != len(text):
        raise ValueError("text after the JSON value")
    return found


# msgspec, if it is installed (the extra `fast`), decodes: several times as fast. It refuses what it would decode
# differently: NaN, lone surrogates, numbers out of range. It encodes values without floats: recorded messages in an
# eighth of the time, long texts in a twentieth. It writes some floats in another form, and equal values must have equal
# bytes.
_encode_fast: Callable[[Any], bytes] | None = None
_parse_json: Callable[[bytes], Any] = parse_plainly
_REFUSED: tuple[type[Exception], ...] = (ValueError, RecursionError)
with suppress(ImportError):
    import msgspec

    _parse_json, _REFUSED = msgspec.json.Decoder().decode, (*_REFUSED, msgspec.MsgspecError)
    _encode_fast = msgspec.json.encode

_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_reduce)
_JSON5_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=True, separators=(",", ":"), default=_reduce)


def _explain(value: Any, path: str, error: Exception, *, finite: bool = True) -> TypeError | ValueError:
    """Returns the error to raise for `value`, with the innermost place that is at fault."""
    place, problem = _find_fault(value, path, finite=finite) or (path, error)
    return (TypeError if isinstance(problem, TypeError) else ValueError)(f"{place}: {problem}")


def _find_fault(value: Any, path: str, *, finite: bool) -> tuple[str, Exception] | None:
    """Returns the place and the error of the first thing in `value` that JSON cannot represent; None = there is none.
    With `finite` False, NaN and infinities are no faults."""
    around = list[tuple[int, Iterator[tuple[str, Any]]]]()  # containers, with their ids
    above = set[int]()
    places = iter([(path, value)])
    while True:
        for place, each in places:
            if id(each) in above:
                return place, ValueError("the value contains itself")
            if len(around) > _LEVELS_MAX:
                return place, ValueError(f"nested more than {_LEVELS_MAX} levels deep")
            if (fault := _fault_of(each, finite=finite)) is not None:
                return place, fault
            try:
                inner = _parts_of(each, place)
            except TypeError as error:
                return place, error
            if inner is not None:
                around.append((id(each), places))
                above.add(id(each))
                places = inner
                break
        else:
            if not around:
                return None
            over, places = around.pop()
            above.discard(over)


def _fault_of(value: Any, *, finite: bool) -> TypeError | ValueError | None:
    """Returns why JSON cannot represent a value, whatever it contains; None = it may."""
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        return TypeError(f"the key {wrong[0]!r} is no string; JSON has no other keys") if wrong else None
    if isinstance(value, bytes | bytearray):
        return TypeError("bytes inside a JSON value: store them in a slot of their own, or as text (base64)")
    if isinstance(value, float) and finite and not math.isfinite(value):
        return ValueError(f"{value} has no form in JSON")
    return None


def _parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]] | None:
    """Returns what a value contains, with the places; None = nothing. Raises TypeError if it cannot be stored, and what
    a method of the value raises."""
    if isinstance(value, dict):
        return ((f"{path}.{key}", child) for key, child in value.items())
    if isinstance(value, list | tuple):
        return ((f"{path}[{index}]", child) for index, child in enumerate(value))
    if value is None or isinstance(value, str | int | float):
        return None
    return iter([(path, _held_by(value))])


def _decode_protobuf(media_type: str, parameters: str, data: bytes) -> Any:
    name = parameters.strip().removeprefix("type=")
    if name.startswith("stateward.agent.v1."):  # Stateward's own: users need not import it
        importlib.import_module("stateward.agent.v1.agent_pb2")
    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:  # this program has not imported the type
        return RawValue(media_type, data)
    return message_factory.GetMessageClass(descriptor).FromString(data)


def _decode_json5(media_type: str, data: bytes) -> Any:
    try:
        return Json5(json.loads(data))
    except (ValueError, RecursionError):  # such as comments, which this client never writes
        return RawValue(media_type, data)


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

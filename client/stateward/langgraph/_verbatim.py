"""A serializer that passes on what another one wrote, without the classes of the program that wrote it.

An object lies in MessagePack as an extension: a code and bytes. Here these stay as they are. Bytes that are read and
written again are therefore the same bytes, also if the object's class is missing, and nothing of an object is executed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_OPTIONS = ormsgpack.OPT_NON_STR_KEYS | ormsgpack.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class Extension:
    """An object as it lies in MessagePack."""

    code: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of a type that this module does not know, such as pickle."""

    kind: str
    data: bytes


class Encrypted(ValueError):
    """Raised for a value that LangGraph encrypted."""


class Verbatim:
    """Reads and writes what LangGraph's JsonPlusSerializer writes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The type and the bytes that were read."""
        if isinstance(obj, Opaque):
            return obj.kind, obj.data
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", obj
        if isinstance(obj, bytearray):
            return "bytearray", bytes(obj)
        return "msgpack", ormsgpack.packb(obj, default=_pack, option=_OPTIONS)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Plain values, with an Extension for each object. Raises Encrypted."""
        kind, content = data
        match kind:
            case "null":
                return None
            case "bytes":
                return bytes(content)
            case "bytearray":
                return bytearray(content)
            case "msgpack":
                return ormsgpack.unpackb(content, ext_hook=Extension, option=ormsgpack.OPT_NON_STR_KEYS)
            case "json":
                return self._convert(content)
        if "+" in kind:
            raise Encrypted(f"a value is encrypted ({kind})")
        return Opaque(kind, bytes(content))

    def _convert(self, content: bytes) -> Any:
        """Values of LangGraph's old format. Its objects are made once, to be written in the present format."""
        found = json.loads(content)
        if b'"lc"' not in content:
            return found
        old = JsonPlusSerializer()
        return self.loads_typed(old.dumps_typed(old.loads_typed(("json", content))))


def _pack(value: Any) -> ormsgpack.Ext:
    if isinstance(value, Extension):
        return ormsgpack.Ext(value.code, value.data)
    raise TypeError(f"a value of type {type(value).__name__} was not read from a checkpoint")


def equal(a: Any, b: Any) -> bool:
    """Whether two values that were read are the same: also in the types of numbers, and in the order of keys."""
    pending = [(a, b)]
    while pending:
        one, other = pending.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            if list(one) != list(other):
                return False
            pending += ((value, other[key]) for key, value in one.items())
        elif isinstance(one, list | tuple):
            if len(one) != len(other):
                return False
            pending += zip(one, other, strict=True)
        elif one != other and not (isinstance(one, float) and math.isnan(one) and math.isnan(other)):
            return False
    return True

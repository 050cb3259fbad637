"""A frame of the local wire: a head of 16 bytes and a body.

    u32 length of the body | u32 call | u8 kind | u8 flags | u16 method | u32 timeout in ms (0 = none)

Numbers are little-endian. The body of a REQUEST may begin with metadata, the rest is a message of the contract.
`client/stateward/_io/local.py` is the other side.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

_HEAD = Struct("<IIBBHI")
HEAD_BYTES = _HEAD.size
HELLO, REQUEST, ANSWER, ERROR, CANCEL, MESSAGE, END = range(7)
METADATA, LAST = 1, 2
"""Flags of a REQUEST: its body begins with metadata; its message is the only one."""
METADATA_BYTES_MAX = 8 << 10
VERSIONS = (1,)
"""The versions of the wire that this daemon speaks, newest last."""
Metadata = tuple[tuple[str, str], ...]


class Head(NamedTuple):
    """The head of a frame."""

    length: int
    call: int
    kind: int
    flags: int
    method: int
    timeout_ms: int


def pack_head(length: int, call: int, kind: int) -> bytes:
    """Returns the head of a frame to a client."""
    return _HEAD.pack(length, call, kind, 0, 0, 0)


def unpack_head(data: bytes | bytearray | memoryview, at: int) -> Head:
    """Returns the head that begins at a place."""
    return Head._make(_HEAD.unpack_from(data, at))


def split_metadata(body: bytes | bytearray) -> tuple[Metadata, bytes | bytearray]:
    """Returns the metadata of a body that has some, and the message behind them. Raises ValueError.

    They are a u16 and so many bytes: a line for each, with its name in small letters, a colon and its value.
    """
    end = 2 + int.from_bytes(body[:2], "little")
    if not 2 <= end <= len(body) or end > METADATA_BYTES_MAX:
        raise ValueError("metadata do not fit their body")
    text = body[2:end].decode("ascii")
    name, mark, value = text.partition(":")
    metadata: Metadata = ((name, value),)  # most have one line
    if "\n" in text:
        found = [line.partition(":") for line in text.split("\n")]
        mark = mark if all(name and mark for name, mark, _ in found) else ""
        metadata = tuple((name, value) for name, _, value in found)
    elif not text:
        return (), body[end:]
    if not name or not mark:
        raise ValueError("a line of metadata has no name")
    return metadata, body[end:]  # a copy: the event loop still holds a view of it, so it cannot be cut

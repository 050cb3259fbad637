"""The canonical form of a state: the same state has the same bytes in every language.

It is a sequence of fields. A field is its length in bytes as decimal digits, a colon, and its bytes.

    state   slots by name, then logs by name; names ascend by their bytes in UTF-8
    slot    "slot" name value
    log     "log" name first_index rewritten_version number-of-entries value*
    value   media_type kind content

The kind is "data", "number" or "blob"; "" for a value whose content this client does not know. The content is the data,
the digits of the number, or the blob's SHA-256 (32 bytes). Numbers are decimal digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from stateward.v1 import state_pb2


def digest_of(state: state_pb2.State) -> str:
    """Returns the SHA-256 of a state's canonical form, as 64 hex digits."""
    return hashlib.sha256(canonical_form(state)).hexdigest()


def canonical_form(state: state_pb2.State) -> bytes:
    """Returns the canonical form of a state."""
    return b"".join(b"%d:%b" % (len(field), field) for field in _fields(state))


def _fields(state: state_pb2.State) -> Iterator[bytes]:
    for name in sorted(state.slots, key=str.encode):
        yield from (b"slot", name.encode())
        yield from _value(state.slots[name])
    for name in sorted(state.logs, key=str.encode):
        log = state.logs[name]
        yield from (b"log", name.encode(), b"%d" % log.first_index, b"%d" % log.rewritten_version)
        yield b"%d" % len(log.entries)
        for entry in log.entries:
            yield from _value(entry)


def _value(value: state_pb2.Value) -> Iterator[bytes]:
    kind = value.WhichOneof("content")
    yield value.media_type.encode()
    yield (kind or "").encode()
    match kind:
        case "data":
            yield value.data
        case "number":
            yield b"%d" % value.number
        case "blob":
            yield value.blob.sha256
        case _:
            yield b""

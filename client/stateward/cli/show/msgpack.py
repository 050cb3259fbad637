"""Reads MessagePack without a package and without making objects: what an extension holds is given to a function.

Follows https://github.com/msgpack/msgpack/blob/master/spec.md, all types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

DEPTH_MAX = 100
Extension = Callable[[int, bytes, int], Any]
"""Gets the code and the bytes of an extension, and how many levels deep it lies."""

_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: (1, "bin"), 0xC5: (2, "bin"), 0xC6: (4, "bin"), 0xC7: (1, "ext"), 0xC8: (2, "ext"), 0xC9: (4, "ext"),
    0xD9: (1, "str"), 0xDA: (2, "str"), 0xDB: (4, "str"), 0xDC: (2, "list"), 0xDD: (4, "list"),
    0xDE: (2, "map"), 0xDF: (4, "map"),
}  # fmt: skip
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes, extension: Extension, depth: int = 0) -> Any:
    """Returns the value. Raises ValueError if the bytes are not one value, or it is nested too deep."""
    reader = _Reader(data, extension)
    found = reader.read(depth)
    if reader.at != len(data):
        raise ValueError("there are bytes after the value")
    return found


class _Reader:
    """A place in the bytes."""

    def __init__(self, data: bytes, extension: Extension) -> None:
        self._data, self._extension, self.at = data, extension, 0

    def _take(self, count: int) -> bytes:
        piece = self._data[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError("the bytes end too early")
        self.at += count
        return piece

    def read(self, depth: int) -> Any:
        """Reads the next value."""
        if depth > DEPTH_MAX:
            raise ValueError(f"nested more than {DEPTH_MAX} levels deep")
        code = self._take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code < 0x90:
            return self._of("map", code & 0x0F, depth)
        if code < 0xC0:
            return self._of("list", code & 0x0F, depth) if code < 0xA0 else self._of("str", code & 0x1F, depth)
        if code in _PLAIN:
            return _PLAIN[code]
        if (form := _NUMBERS.get(code)) is not None:
            return struct.unpack(form, self._take(struct.calcsize(form)))[0]
        if 0xD4 <= code <= 0xD8:
            return self._of("ext", 1 << (code - 0xD4), depth)
        if code not in _LENGTHS:
            raise ValueError(f"{code:#x} begins no value")
        width, kind = _LENGTHS[code]
        return self._of(kind, int.from_bytes(self._take(width), "big"), depth)

    def _of(self, kind: str, count: int, depth: int) -> Any:
        if kind == "str":
            return self._take(count).decode(errors="surrogatepass")
        if kind == "bin":
            return self._take(count)
        if kind == "ext":
            code = struct.unpack(">b", self._take(1))[0]
            return self._extension(code, self._take(count), depth + 1)
        if count > len(self._data) - self.at:  # every value has a byte at least
            raise ValueError("the bytes end too early")
        if kind == "list":
            return [self.read(depth + 1) for _ in range(count)]
        return {_key(self.read(depth + 1)): self.read(depth + 1) for _ in range(count)}


def _key(found: Any) -> str:
    return found if isinstance(found, str) else str(found)

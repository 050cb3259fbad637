"""Where each key is in the key store's file, in eight bytes a key.

A number for each slot: the first four bytes of its owner's id, which is random, then the slot. The numbers are sorted,
so the slots of an owner stand together. Which of them it is, the file says: it has the kind and the whole id.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from threading import Lock

SLOT_BYTES = 128
HEAD = struct.Struct(">BBxx16s16s")
"""How a slot begins: kind, format, generation (`generation_of`), id, id of the wrapping key."""
GENERATION_MAX = (1 << 16) - 1
_SLOT_BITS = 32
_READ_SLOTS = 1 << 9
"""So many slots are read at a time."""


def pack_head(kind: int, form: int, owner: bytes, wrapping_id: bytes, generation: int = 0) -> bytes:
    """Returns how a slot begins."""
    head = HEAD.pack(kind, form, owner, wrapping_id)
    return head[:2] + generation.to_bytes(2, "big") + head[4:]


def generation_of(slot: bytes | memoryview) -> int:
    """The generation in a slot: of the root or of the namespace's key that is in it, or of the namespace's key that
    wraps a thread's."""
    return int.from_bytes(slot[2:4], "big")


def root_of(slot: bytes | memoryview) -> int:
    """The generation of the root that wraps a namespace's keys."""
    return int.from_bytes(HEAD.unpack_from(slot)[3], "big")


def read_slots(fd: int) -> Iterator[tuple[int, memoryview]]:
    """Yields the number and the bytes of each whole slot of the file, a part of the file at a time."""
    first = 0
    while data := os.pread(fd, _READ_SLOTS * SLOT_BYTES, first * SLOT_BYTES):
        view = memoryview(data)
        for at in range(len(data) // SLOT_BYTES):
            yield first + at, view[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]
        if len(data) < _READ_SLOTS * SLOT_BYTES:
            return
        first += _READ_SLOTS


class KeySlots:
    """The slots that are not free. One thread changes them, and any thread may look."""

    def __init__(self, fd: int, used: Iterable[tuple[bytes, int]]) -> None:
        """``used``: owner and number of each slot."""
        self._fd = fd
        self._numbers = array("Q", sorted(array("Q", (_number(owner, slot) for owner, slot in used))))
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, kind: int, owner: bytes) -> int | None:
        """Returns the slot of a kind that an owner has."""
        return next(self.find_all(kind, owner), None)

    def find_all(self, kind: int, owner: bytes) -> Iterator[int]:
        """Yields the slots of a kind that an owner has: a namespace has one for each generation of its key."""
        for slot in self._candidates(owner):
            head = os.pread(self._fd, HEAD.size, slot * SLOT_BYTES)
            if len(head) < HEAD.size:  # somebody has cut the file
                continue
            found, _, of, _ = HEAD.unpack(head)
            if found == kind and of == owner:
                yield slot

    def add(self, owner: bytes, slot: int) -> None:
        """A slot was written. Does nothing if it is known."""
        number = _number(owner, slot)
        with self._lock:
            at = bisect_left(self._numbers, number)
            if self._numbers[at : at + 1] != array("Q", (number,)):
                self._numbers.insert(at, number)

    def remove(self, owner: bytes, slot: int) -> None:
        """A slot is free."""
        number = _number(owner, slot)
        with self._lock:
            at = bisect_left(self._numbers, number)  # `array.remove` looks at each one
            if self._numbers[at : at + 1] == array("Q", (number,)):
                del self._numbers[at]

    def _candidates(self, owner: bytes) -> list[int]:
        first = _number(owner, 0)
        with self._lock:
            begin = bisect_left(self._numbers, first)
            end = bisect_left(self._numbers, first + (1 << _SLOT_BITS), begin)
            return [number - first for number in self._numbers[begin:end]]


def _number(owner: bytes, slot: int) -> int:
    return int.from_bytes(owner[:4], "big") << _SLOT_BITS | slot

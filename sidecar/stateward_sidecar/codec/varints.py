"""Numbers and frames as protobuf writes them.

A *framed* value is one element of ``Log.entries`` on the wire: tag, varint length, serialized Value.
"""

from __future__ import annotations

_ONE_BYTE = tuple(bytes((number,)) for number in range(128))
_ENTRY_TAG = 0x12


def varint(number: int) -> bytes:
    """Encodes a number >= 0 in base 128, lowest digits first, as protobuf does."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:  # most numbers: lengths of chat messages
        return bytes((number & 0x7F | 0x80, number >> 7))
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number at byte ``at``, and the place after it."""
    number = shift = 0
    while data[at] > 0x7F:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1


def frame(value: bytes) -> bytes:
    """Returns a serialized Value as an element of ``Log.entries``."""
    return b"\x12" + varint(len(value)) + value


def unframe(item: bytes) -> bytes:
    """Returns the serialized Value in a frame."""
    return item[skip_prefix(item) :]


def skip_prefix(item: bytes) -> int:
    """Returns the place in a frame at which the serialized Value begins."""
    return read_varint(item, 1)[1]


def split_frames(data: bytes, at: int = 0) -> list[bytes]:
    """Returns the frames that are joined in ``data`` from a place on. Raises ValueError for other bytes."""
    found, end = list[bytes](), len(data)
    try:
        while at < end:
            if data[at] != _ENTRY_TAG:
                raise ValueError(f"byte {at} begins no frame")
            length, start = read_varint(data, at + 1)
            found.append(data[at : start + length])
            at = start + length
    except IndexError:
        raise ValueError("the last frame is cut off") from None
    if at != end:
        raise ValueError("the last frame is cut off")
    return found

"""Held threads: every call of a handle with a session key makes a held thread, if it makes one."""

from __future__ import annotations

from typing import Any

SESSION_KEY_MIN, SESSION_KEY_MAX = 16, 64
_MAKES = frozenset(
    {
        "SaveRequest", "BatchSaveRequest", "BlobBegin", "BeginEffectRequest", "PutEffectsRequest", "PutRecordsRequest",
        "AcquireLeaseRequest", "ObjectsBegin", "OpenWriter",
    }
)  # fmt: skip


def session_key_of(value: Any) -> bytes:
    """Returns a session key. Raises TypeError and ValueError."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"session_key is {type(value).__name__}, but must be bytes")
    if not SESSION_KEY_MIN <= len(value) <= SESSION_KEY_MAX:
        raise ValueError(f"session_key has {len(value)} bytes instead of {SESSION_KEY_MIN} to {SESSION_KEY_MAX}")
    return bytes(value)


def hold(request: Any) -> None:
    """Asks for a held thread, if a request may make one. The daemon refuses it for a thread that is not held."""
    if request.DESCRIPTOR.name in _MAKES:
        for each in getattr(request, "saves", None) or (request,):
            each.options.create.held_key = True

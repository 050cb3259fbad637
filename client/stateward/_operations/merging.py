"""Operations that merge: they write on top of any head, so that concurrent writes neither fail nor get lost."""

from __future__ import annotations

import operator
from enum import Enum
from hashlib import sha256
from typing import Any

from stateward import values
from stateward._operations.saving import SaveOptions, accept_merge, begin_merge, merge, send_merge, store_values
from stateward._operations.steps import Operation, ThreadRef
from stateward._state.slots import Slots
from stateward.arguments import text
from stateward.models import Checkpoint


class Expected(Enum):
    """Expectations about a slot other than a value."""

    ANY = "any"
    """No expectation: the write replaces any value."""
    ABSENT = "absent"
    """The slot must not exist."""


ANY = Expected.ANY
ABSENT = Expected.ABSENT
"""For `set_slot(expected=ABSENT)`: the slot must not exist."""


def increment(ref: ThreadRef, slot: str, delta: int, options: SaveOptions) -> Operation[int]:
    """Adds to the number in a slot; a missing slot counts as 0. Returns the sum in the version that this call saved."""
    require_kept(ref, text(slot, "the name of a slot"))
    try:
        delta = operator.index(delta)
    except TypeError:
        raise TypeError(f"delta: {delta!r} is no whole number") from None
    if not values.INT64_MIN <= delta <= values.INT64_MAX:
        raise ValueError(f"delta: {delta} does not fit into 64 bits")
    request = yield from begin_merge("increment", ref, options)
    edit = request.diff.edits.add().add_number
    edit.slot, edit.delta = slot, delta
    response = yield from send_merge(ref, request)
    accept_merge(request, response)
    return response.numbers[slot]


def set_slot(
    ref: ThreadRef, slot: str, value: Any, expected: Any, options: SaveOptions, what: str = "set_slot"
) -> Operation[Checkpoint]:
    """Sets one slot, if it has the expected value. Errors call the operation `what`."""
    require_kept(ref, text(slot, "the name of a slot"))
    request = yield from begin_merge(what, ref, options)
    edit = request.diff.edits.add().set_slot
    edit.slot = slot
    encoded = values.encode_slot(value, f"slots.{slot}")
    if expected is not ANY:
        edit.expected_sha256 = _digest(slot, expected)
    edit.value.CopyFrom((yield from store_values(ref, [encoded], options, request.options.expected_uid))[0])
    return (yield from merge(ref, request))


def require_kept(ref: ThreadRef, slot: str, where: str = "") -> None:
    """Raises ValueError for an ephemeral slot, because this operation would save it."""
    declared = Slots()
    declared._keep_out(ref.ephemeral)
    if declared._is_ephemeral(slot):
        raise ValueError(f"{where}slot {slot!r} is ephemeral, so this client never saves it")


def _digest(slot: str, expected: Any) -> bytes:
    """Returns the SHA-256 of the expected value; empty = the slot must not exist."""
    if expected is ABSENT:
        return b""
    value = values.encode_slot(expected, f"slots.{slot} (expected)")
    return value.blob.sha256 if value.HasField("blob") else sha256(values.content_bytes(value)).digest()

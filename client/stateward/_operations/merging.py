"""Operations that merge: writes on top of whatever is the head, of which none is lost and none refused for another."""

from __future__ import annotations

import operator
from enum import Enum
from hashlib import sha256
from typing import Any

from stateward import values
from stateward._operations.reading import hydrate_stored
from stateward._operations.saving import SaveOptions, accept_merge, begin_merge, merge, send_merge, store_values
from stateward._operations.steps import Operation, ThreadRef
from stateward._state.slots import Slots
from stateward.models import Checkpoint


class Expected(Enum):
    """What is expected of a slot, where it is not a value."""

    ANY = "any"
    """Nothing: whatever it holds is replaced."""
    ABSENT = "absent"
    """That it does not exist."""


ANY, ABSENT = Expected.ANY, Expected.ABSENT


def increment(ref: ThreadRef, slot: str, delta: int, options: SaveOptions) -> Operation[int]:
    """Adds to the number in a slot, which is made with 0 if missing. Returns the sum in the version that this made."""
    require_kept(ref, slot)
    try:
        delta = operator.index(delta)
    except TypeError:
        raise TypeError(f"delta: {delta!r} is no whole number") from None
    if not values.INT64_MIN <= delta <= values.INT64_MAX:
        raise ValueError(f"delta: {delta} is too large for a number, which has 64 bits")
    request = yield from begin_merge("increment", ref, options)
    edit = request.diff.edits.add().add_number
    edit.slot, edit.delta = slot, delta
    response = yield from send_merge(ref, request)
    accept_merge(request, response)
    if slot in response.numbers:
        return response.numbers[slot]
    # An older daemon answered, now or at the first attempt. The version has the sum, whatever came after it.
    state = yield from hydrate_stored(ref, response.version, slots=[slot])
    return int(state.slots[slot])


def set_slot(
    ref: ThreadRef, slot: str, value: Any, expected: Any, options: SaveOptions, what: str = "set_slot"
) -> Operation[Checkpoint]:
    """Sets one slot, if it holds what is expected. Errors call the operation `what`."""
    require_kept(ref, slot)
    request = yield from begin_merge(what, ref, options)
    edit = request.diff.edits.add().set_slot
    edit.slot = slot
    encoded = values.encode_slot(value, f"slots.{slot}")
    if expected is not ANY:
        edit.expected_sha256 = _digest(slot, expected)
    edit.value.CopyFrom((yield from store_values(ref, [encoded], options))[0])
    return (yield from merge(ref, request))


def require_kept(ref: ThreadRef, slot: str, where: str = "") -> None:
    """ValueError for a slot that is declared to stay in this process: here it could only be saved."""
    declared = Slots()
    declared._keep_out(ref.ephemeral)
    if declared._is_ephemeral(slot):
        raise ValueError(f"{where}slot {slot!r} is ephemeral: this client was told never to save it")


def _digest(slot: str, expected: Any) -> bytes:
    """What names the expected value; empty = the slot must not exist."""
    if expected is ABSENT:
        return b""
    value = values.encode_slot(expected, f"slots.{slot} (expected)")
    return value.blob.sha256 if value.HasField("blob") else sha256(values.content_bytes(value)).digest()

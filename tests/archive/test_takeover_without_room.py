"""The danger: a sidecar whose disk is full takes a thread that it cannot keep, and nobody else gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.daemon.driven import LEASE_S, Driven, append
from tests.daemon.town import Town

from stateward_sidecar.errors import DiskFull, NotOwner
from stateward_sidecar.store.travel.install import Installer

ROOM_BYTES = 16_400  # for the smallest write, and not for the rows of a thread


def no_room(machine: Driven, patch: Callable[[Any, str, Any], None]) -> None:
    """The disk is full, and says so."""
    patch(machine.store.context.engine, "room_bytes", lambda: ROOM_BYTES)


def less_than_it_says(machine: Driven, patch: Callable[[Any, str, Any], None]) -> None:
    """The disk is full, which only the write finds."""

    def install(_installer: object, _incoming: object) -> None:
        raise DiskFull("the store is full; nothing was written")

    full = type("Full", (Installer,), {"install": install})
    patch(machine.archive.state, "installer", full(machine.store.context, machine.store.threads))


@pytest.mark.parametrize("fill", [no_room, less_than_it_says])
def test_another_machine_gets_the_thread(
    driven: Town, monkeypatch: pytest.MonkeyPatch, fill: Callable[..., None]
) -> None:
    """While a client retries at the full machine, a third one takes the thread of an owner that is gone."""
    first, full, third = (driven.machine(name) for name in ("first", "full", "third"))
    for version in range(6):
        first.put(append(after=version))
        first.ship_now()
    fill(full, monkeypatch.setattr)
    third.state()
    for _ in range(int(LEASE_S) + 2):
        driven.time.sleep(1.0)
        with pytest.raises((DiskFull, NotOwner)):
            full.put(append())
    assert third.put(append(after=6)).version == 7


def test_a_full_machine_writes_no_head(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What will not fit is known before HEAD is written."""
    first, full = driven.machine("first"), driven.machine("full")
    first.put(append(after=0))
    first.ship_now()
    first.stop()
    monkeypatch.setattr(full.store.context.engine, "room_bytes", lambda: ROOM_BYTES)
    before = dict(driven.bucket.objects)
    for _ in range(3):
        with pytest.raises(DiskFull):
            full.put(append())
    assert driven.bucket.objects == before
    monkeypatch.undo()
    assert full.put(append(after=1)).version == 2

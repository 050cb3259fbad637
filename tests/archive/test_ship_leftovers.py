"""The danger: an object stays in the bucket that no HEAD leads to: neither its owner nor a collection removes it."""

from __future__ import annotations

import os

import pytest
from tests.archive.test_ship_costs import head, objects, place
from tests.archive_model.litter import litter
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward.storage.v1.archive_pb2 import OBJECT_KIND_PACK
from stateward.v1.checkpoint_pb2 import WORK_STATUS_COMPLETED
from stateward_sidecar.archive.objects.holds import Hold
from stateward_sidecar.archive.own.pulse import Pulse, Uploads
from stateward_sidecar.archive.ship import ship


def let_a_snapshot_wait(machine: Driven) -> str:
    """Saves until the upload of a snapshot waits for its turn in the background. Returns the ending of its name."""
    for _ in range(60):
        machine.put(append(os.urandom(100)))
        machine.ship(machine.thread().number)
        hold = machine.hold_of("job")
        assert hold is not None
        refs = [each.spare.ref for each in hold.spares._uploads.values()]
        if found := [name for ref in refs if (name := place(machine).object(ref)).endswith(".snap")]:
            return found[0]
    raise AssertionError("no snapshot was put in the background")


def test_a_snapshot_that_is_being_put_is_not_put_again(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer snapshot takes its place in HEAD, so that HEAD must name an object: the one that is under way. Of two
    objects with the same bytes, the one that was put first would be forgotten."""
    monkeypatch.setattr(ship, "INLINE_SNAPSHOT_BYTES_MAX", 100_000)
    machine = driven.machine("first")
    waiting = let_a_snapshot_wait(machine)
    upload = Pulse.upload

    def ended_first(self: Pulse, hold: Hold, uploads: Uploads) -> None:
        if len(machine.thread().snapshots) > count:
            machine.wire.background()
        upload(self, hold, uploads)

    count = len(machine.thread().snapshots)
    monkeypatch.setattr(Pulse, "upload", ended_first)
    while len(machine.thread().snapshots) < count + 2:
        machine.put(append(os.urandom(100)))
        machine.ship(machine.thread().number)
    machine.ship_now()
    machine.put(append())
    machine.ship_now()
    held = objects(machine, ".snap")
    assert waiting in held
    assert len(held) == len(set(held.values()))
    assert litter(objects(machine), place(machine), head(machine), b"") == []


@pytest.mark.parametrize("is_ended", [False, True])
def test_an_owner_that_gives_a_thread_up_leaves_nothing(
    driven: Town, monkeypatch: pytest.MonkeyPatch, *, is_ended: bool
) -> None:
    """What it puts in the background for its next HEAD goes, whether the upload ends before or after its last HEAD."""
    monkeypatch.setattr(ship, "INLINE_SNAPSHOT_BYTES_MAX", 100_000)
    machine = driven.machine("first")
    waiting = let_a_snapshot_wait(machine)
    if is_ended:
        machine.wire.background()
        assert waiting in objects(machine)
    machine.put(append(status=WORK_STATUS_COMPLETED))
    machine.ship_now()
    machine.wire.background()
    assert head(machine).detached
    assert litter(objects(machine), place(machine), head(machine), b"") == []
    second = driven.machine("second")
    assert second.state().state == machine.state().state


def test_what_a_process_left_when_it_gave_a_thread_up_is_collected(driven: Town) -> None:
    """It died before it removed what no HEAD of its names. Nobody may ever work on the thread again. Not before the
    grace time: a HEAD that seems to give the thread up may be overtaken."""
    machine = driven.machine("first")
    for _ in range(10):
        machine.put(append(os.urandom(300)))
        machine.ship_now()
    machine.put(append(status=WORK_STATUS_COMPLETED))
    machine.ship_now()
    last = head(machine)
    assert last.detached
    names = machine.archive.state.names
    left = [
        f"{place(machine).prefix}{last.epoch}-{names.boot:016x}-{names.last + 7}{kind}" for kind in (".snap", ".pack")
    ]
    later = f"{place(machine).prefix}{last.epoch + 1}-{names.boot:016x}-{names.last + 7}.snap"
    for name in (*left, later):
        machine.bucket.objects[name] = b"x"
    second = driven.machine("second")
    second.collect(60)
    assert set(left) <= set(machine.bucket.objects)
    driven.time.sleep(61)
    second.collect(60)
    assert not set(left) & set(machine.bucket.objects)
    assert later in machine.bucket.objects
    assert second.state().state == machine.state().state


def test_an_object_of_a_ship_that_failed_goes_with_the_last_head(driven: Town) -> None:
    """A pack that a later HEAD could have named, while entries have become so few that HEAD carries them."""
    machine = driven.machine("first")
    machine.put(append(os.urandom(300)))
    machine.ship_now()
    hold = machine.hold_of("job")
    assert hold is not None
    last, names = head(machine), machine.archive.state.names
    ref = names.ref(OBJECT_KIND_PACK, last.epoch, b"entries")
    hold.spares.begin()
    hold.spares.stage(
        machine.wire, place(machine), ref, b"entries", lambda _, put: put(), after=last.tip_sequence + 9
    )  # fmt: skip
    assert place(machine).object(ref) in objects(machine)
    machine.put(append())
    machine.ship_now()
    assert place(machine).object(ref) in objects(machine)
    machine.put(append(status=WORK_STATUS_COMPLETED))
    machine.ship_now()
    assert head(machine).detached
    assert place(machine).object(ref) not in objects(machine)

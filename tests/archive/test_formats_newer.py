"""The danger: what a newer version wrote is taken for damage, and so overwritten or ignored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.storage.v1.archive_pb2 import ArchiveFormat, ArchiveHead, KeyObject
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.archive.objects import heads, packs
from stateward_sidecar.archive.objects.formats import ROTATED_FORMAT
from stateward_sidecar.archive.objects.holds import Hold
from stateward_sidecar.archive.objects.keys import slot_of
from stateward_sidecar.archive.objects.packs import pack_snapshot
from stateward_sidecar.archive.requests.places import FORMAT_KEY, ROOT_KEY
from stateward_sidecar.errors import NewerFormat, StartError
from stateward_sidecar.service.calls.ownership import await_archived


def hold_of(machine: Driven) -> Hold:
    return machine.archive.state.holds[machine.thread().number]


def rewrite(machine: Driven, **fields: object) -> ArchiveHead:
    """Replaces HEAD by one with other numbers, as a newer version of another machine writes it."""
    hold, wire = hold_of(machine), machine.wire
    keys = hold.thread.identity.namespace_keys
    found = wire.get(hold.place.head)
    head = heads.open_head(keys, hold.place, found.data)
    head.write_id, head.boot_id, head.epoch = b"n" * 16, b"b" * 16, head.epoch + 1
    for name, value in fields.items():
        setattr(head, name, value)
    wire.replace(hold.place.head, heads.seal_head(keys, hold.place, head), found.etag)
    return head


@pytest.fixture
def owner(driven: Town) -> Driven:
    """A machine with a thread that is archived."""
    first = driven.machine("first")
    first.put(append())
    first.ship_now()
    return first


def test_a_newer_head_is_neither_read_nor_written(driven: Town, owner: Driven) -> None:
    """Also not by a machine that has an earlier part of the thread. HEAD stays as it is."""
    other = driven.machine("other")
    assert other.state()
    rewrite(owner, min_reader=heads.FORMAT + 1, min_writer=heads.FORMAT + 1)
    key = hold_of(owner).place.head
    before = owner.wire.get(key).data
    for attempt in (
        other.state,
        lambda: other.put(append()),
        lambda: other.archive.own(NAMESPACE, "job", take_over=True),
    ):
        with pytest.raises(NewerFormat, match=f"HEAD has format {heads.FORMAT + 1}"):
            attempt()
    assert owner.wire.get(key).data == before


def test_a_newer_archive_is_not_joined(driven: Town, owner: Driven) -> None:
    """A version that does not know its format does not start."""
    made = ArchiveFormat.FromString(owner.wire.get(FORMAT_KEY).data)
    assert (made.format, made.min_reader, made.min_writer) == (1, 1, 1)
    made.min_reader = made.min_writer = ROTATED_FORMAT + 1
    owner.wire.replace(FORMAT_KEY, made.SerializeToString(), owner.wire.get(FORMAT_KEY).etag)
    with pytest.raises(StartError, match=f"format {ROTATED_FORMAT + 1}"):
        driven.machine("other")


def test_a_head_that_only_a_newer_version_may_write_is_not_taken(driven: Town, owner: Driven) -> None:
    """It can be read elsewhere. Nobody of this version writes the next HEAD, also not the former owner."""
    rewrite(owner, min_writer=heads.FORMAT + 1)
    other = driven.machine("other")
    assert other.state()
    with pytest.raises(NewerFormat, match="upgrade"):
        other.archive.own(NAMESPACE, "job", take_over=True)
    owner.put(append())
    owner.ship_now()  # HEAD can be read, so it is fenced as by any other sidecar
    assert [each.name for each in owner.threads() if each.access == THREAD_ACCESS_ORPHAN] == ["job@@1"]
    with pytest.raises(NewerFormat):
        owner.archive.own(NAMESPACE, "job", take_over=True)


def test_what_a_newer_version_wrote_on_this_disk_is_not_continued(driven: Town, owner: Driven) -> None:
    """The sidecar was set back to an older version: it neither writes the next HEAD nor acknowledges saves."""
    rewrite(owner, min_writer=heads.FORMAT + 1, boot_id=owner.archive.state.boot_id)
    again = owner.restart()
    for _ in range(2):
        with pytest.raises(NewerFormat):
            again.put(append())
    assert again.thread().is_outdated


def test_a_newer_seal_is_no_damage_and_is_not_written_down(owner: Driven) -> None:
    """Its format byte cannot be authenticated: the thread is refused while HEAD reads so, and goes on when it is put
    back."""
    hold, wire = hold_of(owner), owner.wire
    found = wire.get(hold.place.head)
    newer = found.data[:2] + bytes((found.data[2] + 1,)) + found.data[3:]
    etag = wire.replace(hold.place.head, newer, found.etag)
    owner.put(append())
    with pytest.raises(NewerFormat, match="bytes were changed"):
        owner.ship_now()
    with pytest.raises(NewerFormat):
        owner.put(append())
    assert not owner.thread().is_outdated
    wire.replace(hold.place.head, found.data, etag)
    assert owner.put(append()).version == 3


def test_a_newer_object_is_no_damage(driven: Town, owner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD names its bytes, so a newer version wrote them: a machine without the thread says so."""
    names = owner.archive.state.names
    with monkeypatch.context() as of_next_format:
        of_next_format.setattr(packs, "_PREFIX", b"SK" + bytes((packs.FORMAT + 1, 0)))
        ref, data = pack_snapshot(names, 1, 1, [b"x"])
    with pytest.raises(NewerFormat, match="format 2"):
        packs.open_pack(ref, data)


def test_a_newer_key_object_is_not_replaced(driven: Town, owner: Driven) -> None:
    """Neither a repair nor a start makes another key in its place."""
    hold, wire = hold_of(owner), owner.wire
    key = hold.place.key(hold.head.created_epoch)
    wraps = KeyObject.FromString(wire.get(key).data)
    wraps.wraps[0].wrapped = wraps.wraps[0].wrapped[:1] + b"\x09" + wraps.wraps[0].wrapped[2:]
    newer = wraps.SerializeToString()
    wire.replace(key, newer, wire.get(key).etag)
    with pytest.raises(NewerFormat, match="format 9"):
        slot_of(newer)
    other = driven.machine("other")
    with pytest.raises(NewerFormat):
        other.state()
    with pytest.raises(NewerFormat):
        Repairer(owner.archive.state)._ensure_keys(owner.thread(), hold.place)
    assert wire.get(key).data == newer
    root = wire.get(ROOT_KEY)
    wraps = KeyObject.FromString(root.data)
    wraps.wraps[0].wrapped = wraps.wraps[0].wrapped[:1] + b"\x09" + wraps.wraps[0].wrapped[2:]
    wire.replace(ROOT_KEY, wraps.SerializeToString(), root.etag)
    with pytest.raises(StartError, match="upgrade"):
        driven.machine("third")


def test_a_save_that_waits_for_the_archive_hears_that_its_entry_is_kept(owner: Driven) -> None:
    """It was written before this sidecar could know: the error does not look like one of a save that wrote nothing."""
    rewrite(owner, min_reader=heads.FORMAT + 1, min_writer=heads.FORMAT + 1)
    sequence = owner.put(append()).receipt.sequence
    context: Any = SimpleNamespace(time_remaining=lambda: 60.0)

    async def wait() -> None:
        waiting = asyncio.create_task(await_archived(owner.archive, owner.thread(), sequence, context))
        await asyncio.sleep(0)
        with pytest.raises(NewerFormat):
            owner.ship_now()
        await waiting

    with pytest.raises(NewerFormat, match=f"entry {sequence} is kept on this disk") as caught:
        asyncio.run(wait())
    assert caught.value.metadata["sequence"] == str(sequence)
    with pytest.raises(NewerFormat) as refused:
        owner.put(append())
    assert "sequence" not in refused.value.metadata

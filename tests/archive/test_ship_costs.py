"""The danger: a ship puts what did not change, or puts it twice, and what nobody needs stays in the bucket."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from tests.archive_model.litter import litter
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.storage.v1.archive_pb2 import ArchiveHead, ThreadImage
from stateward.storage.v1.head_pb2 import SignalRow, ThreadHead
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import SetTagRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.objects import image
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.image import Cutter, open_image, part_refs, seal_image, seal_part
from stateward_sidecar.archive.objects.spares import DROPPED_MAX, SURE_S
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.archive.ship import ship
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import ArchiveUnavailable
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.thread import Identity, Thread
from stateward_sidecar.store.travel import outbox


def signal(machine: Driven, size: int) -> str:
    """One that waits. Returns its id."""
    request = SendSignalRequest(
        namespace=NAMESPACE, thread="job", name="n", options=WriteOptions(request_id=os.urandom(8).hex())
    )
    request.payload.media_type, request.payload.data = "application/octet-stream", os.urandom(size)
    return machine.write(machine.store.signals.send(request)).signal.signal_id


def tag(machine: Driven, name: str, version: int = 1) -> None:
    request = SetTagRequest(namespace=NAMESPACE, thread="job", tag=name)
    request.version.version = version
    machine.tag(request)


def sent_bytes(machine: Driven, saves: int = 10) -> int:
    """What ships of small saves put."""
    traffic = machine.wire.traffic
    before = traffic.object_bytes + traffic.head_bytes
    for _ in range(saves):
        machine.put(append())
        machine.ship_now()
    return traffic.object_bytes + traffic.head_bytes - before


def place(machine: Driven) -> Place:
    return machine.archive.state.place(machine.thread().identity.namespace_keys, "job")


def head(machine: Driven) -> ArchiveHead:
    at, objects = place(machine), machine.bucket.objects
    return open_head(machine.thread().identity.namespace_keys, at, objects[at.head])


def objects(machine: Driven, ending: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = machine.bucket.objects
    return {key: data for key, data in found.items() if key.startswith(place(machine).prefix) and key.endswith(ending)}


def test_what_waits_is_not_put_again(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves of one byte put much the same, with and without waiting signals and tags."""
    monkeypatch.setattr(image, "PART_BYTES", 16 << 10)
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    small = sent_bytes(machine)
    for _ in range(8):
        signal(machine, 100_000)
    for number in range(300):
        tag(machine, f"{number}")
    machine.ship_now()
    large = sent_bytes(machine)
    assert large < 4 * small
    assert len(head(machine).image_parts) > 8


def test_a_tag_puts_the_part_that_it_is_in(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of more than a thousand tags moves: a small part of them is put again. On the next machine it is the same.

    Where parts end depends on the key of the thread. A row that ends a part may join two of them, and both may be four
    times as large as usual. So one of five moves may cost more, and none costs half of all. There are 25 to 40
    parts: with some more tags their size would double.
    """
    monkeypatch.setattr(image, "PART_BYTES", 1 << 9)
    machine, names = driven.machine("first"), ("low", "lower", "middle", "upper", "high")
    machine.put(append())
    for name in (*names, *(os.urandom(6).hex() for _ in range(1300))):
        tag(machine, name)
    machine.ship_now()
    whole = sum(map(len, objects(machine, ".image").values()))
    machine.put(append())
    machine.ship_now()
    for at, owner in enumerate((machine, driven.machine("second"))):
        if at:
            owner.archive.own(NAMESPACE, "job", take_over=True)
        costs = list[int]()
        for name in names:
            before = set(objects(owner, ".image"))
            tag(owner, name, version=2 - at)
            owner.ship_now()
            new = objects(owner, ".image").keys() - before
            costs.append(sum(len(objects(owner)[key]) for key in new))
        assert min(costs) > 0
        assert sorted(costs)[3] < whole / 4
        assert max(costs) < whole / 2


def test_dropped_parts_go(driven: Town) -> None:
    """Each of many ships replaces a part: after the grace time, no more are left than HEAD names."""
    machine = driven.machine("first")
    machine.put(append())
    for number in range(40):
        tag(machine, f"the tag with the number {number}")
    for number in range(150):  # more than HEAD has room for, all within the grace time
        tag(machine, f"the tag with the number {number % 40}", version=machine.put(append()).version)
        machine.ship_now()
    assert len(objects(machine, ".image")) > 100
    driven.time.sleep(60)
    for _ in range(2):
        machine.put(append())
        machine.ship_now()
    assert len(objects(machine, ".image")) < 30
    assert litter(objects(machine), place(machine), head(machine), b"") == []


def test_a_part_that_comes_back_is_a_new_object(driven: Town) -> None:
    """A tag goes to another version and back: HEAD names no object that an earlier HEAD dropped."""
    machine = driven.machine("first")
    machine.put(append())
    machine.put(append())
    for number in range(40):
        tag(machine, f"the tag with the number {number}")
    machine.ship_now()
    first = {place(machine).object(ref) for ref in part_refs(head(machine))}
    for version in (2, 1):
        tag(machine, "the tag with the number 7", version)
        machine.ship_now()
    now = {place(machine).object(ref) for ref in part_refs(head(machine))}
    assert now - first
    driven.time.sleep(60)
    machine.put(append())
    machine.ship_now()
    assert {place(machine).object(ref) for ref in part_refs(head(machine))} <= objects(machine).keys()


def test_a_tail_is_packed_once(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the upload of a tail and of a small snapshot takes its time, later ships do not begin it again."""
    monkeypatch.setattr(ship, "TAIL_BYTES_MAX", 40_000)
    monkeypatch.setattr(ship, "INLINE_SNAPSHOT_BYTES_MAX", 100_000)
    machine = driven.machine("first")
    for _ in range(30):
        machine.put(append(os.urandom(100)))
        machine.ship(machine.thread().number)
    assert machine.wire.waiting
    machine.wire.background()
    for _ in range(2):
        machine.put(append())
        machine.ship_now()
    assert litter(objects(machine), place(machine), head(machine), b"") == []
    assert machine.wire.traffic.objects < 20


def test_a_ship_waits_for_the_tail_that_is_being_packed(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail gets too large for HEAD while it is being packed: the same entries are not put a second time."""
    machine = driven.machine("first")
    packs: list[str] = []
    put = machine.wire.put
    monkeypatch.setattr(machine.wire, "put", lambda key, data: (packs.append(key), put(key, data)))
    for _ in range(40):
        machine.put(append(os.urandom(100)))
        machine.ship(machine.thread().number)  # what is put off never begins by itself
    refs = [ref for ref in head(machine).objects if ref.last_sequence]
    assert all(ref.first_sequence == before.last_sequence + 1 for before, ref in pairwise(refs))
    assert len({key for key in packs if key.endswith(".pack")}) == sum(key.endswith(".pack") for key in packs)
    for _ in range(3):
        machine.put(append())
        machine.ship_now()
    assert litter(objects(machine), place(machine), head(machine), b"") == []


def test_uploads_that_end_late_leave_nothing(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is being put in the background, and a ship that cannot wait puts it, too: one of the two objects goes,
    though the first is in an index by then."""
    monkeypatch.setattr(ship, "INLINE_SNAPSHOT_BYTES_MAX", 100_000)
    machine = driven.machine("first")
    for _ in range(120):
        machine.put(append(os.urandom(100)))
        machine.ship(machine.thread().number)
    assert head(machine).HasField("index")
    for _ in range(3):
        machine.wire.background()
        machine.put(append())
        machine.ship(machine.thread().number)
    assert litter(objects(machine), place(machine), head(machine), b"") == []
    assert head(machine).settled_counter > machine.archive.state.names.last - 4


@pytest.mark.parametrize("kind", [".pack", ".snap"])
def test_what_the_bucket_lost_is_put_again(driven: Town, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The bucket is set back to the same HEAD, without what was put since: the next HEAD does not name that."""
    monkeypatch.setattr(ship, "INLINE_SNAPSHOT_BYTES_MAX", 100_000)
    machine = driven.machine("first")
    for _ in range(30):
        machine.put(append(os.urandom(100)))
        before = set(objects(machine))
        machine.ship_now()
        hold = machine.hold_of("job")
        assert hold is not None
        spares = {place(machine).object(spare.ref) for spare in hold.spares._spares.values()} - before
        if any(key.endswith(kind) for key in spares):
            break
    for key in spares:
        machine.wire.delete(key)
    driven.time.sleep(SURE_S + 1)
    machine.put(append(os.urandom(2000)))
    with suppress(ArchiveUnavailable):
        machine.ship_now()
    machine.ship_now()
    for _ in range(3):
        machine.put(append(os.urandom(2000)))
        machine.ship_now()
    assert any(key.endswith(kind) for key in spares)
    second = driven.machine("second")
    assert second.state().state == machine.state().state
    second.archive.complete(NAMESPACE, "job")
    assert second.thread().snapshots == machine.thread().snapshots
    assert not second.thread().floor_sequence


def test_a_head_that_fails_costs_no_second_upload(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD cannot be written, again and again, while saves go on: what was put once is named in the end."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    refuse: Callable[..., str] = machine.wire.replace
    traffic = machine.wire.traffic

    def fail(*_: object) -> str:
        raise ArchiveUnavailable("the bucket is away")

    for _ in range(20):
        machine.put(append(os.urandom(600)))
    monkeypatch.setattr(machine.wire, "replace", fail)
    counts = []
    for _ in range(4):
        with pytest.raises(ArchiveUnavailable):
            machine.ship(machine.thread().number)
        counts.append(traffic.object_bytes)
        machine.put(append())
    monkeypatch.setattr(machine.wire, "replace", refuse)
    machine.ship_now()
    assert counts[0] > 10_000
    assert traffic.object_bytes - counts[0] < 5_000
    assert litter(objects(machine), place(machine), head(machine), b"") == []


def test_what_the_owner_forgot_is_collected_while_it_lives(driven: Town) -> None:
    """An upload that landed after its error goes; what the next HEAD will name stays."""
    machine = driven.machine("first")
    for _ in range(20):
        machine.put(append(os.urandom(100)))
        machine.ship_now()
    at, names = place(machine), machine.archive.state.names
    stray = names.ref(1, head(machine).epoch, b"stray")
    machine.wire.put(at.object(stray), b"stray")
    machine.put(append())
    machine.ship_now()
    later = names.ref(1, head(machine).epoch, b"later")  # the next HEAD may name it
    machine.wire.put(at.object(later), b"later")
    other = driven.machine("second")
    other.collect(0)
    assert at.object(stray) not in objects(machine)
    assert at.object(later) in objects(machine)
    assert litter(objects(machine), at, head(machine), b"") == []


def test_what_no_head_has_room_for_is_bounded(driven: Town) -> None:
    """The owner remembers so many dropped objects, and forgets the others."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    hold = machine.hold_of("job")
    assert hold is not None
    for _ in range(3):
        hold.spares.begin()
        for _ in range(DROPPED_MAX // 2):
            hold.spares.drop(ArchiveHead().garbage.add())
        hold.spares.landed(head(machine), ())
    assert len(hold.spares._dropped) == DROPPED_MAX


def rows(thread: Thread) -> ThreadImage:
    """All rows of a thread, uncut."""
    whole = ThreadImage(head=thread.head, pruned=thread.pruned.to_message())
    for name, version in sorted(thread.tags.items()):
        whole.tags.add(name=name, version=version)
    whole.signals.extend(row for _, row in sorted(thread.signals.items()))
    return whole


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_the_whole(driven: Town, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """However rows come, change and go: the parts give all of them back, and few parts change with a row."""
    monkeypatch.setattr(image, "PART_BYTES", 300)
    machine = driven.machine("first")
    machine.put(append())
    identity: Identity = machine.thread().identity
    dice, cutter, cipher = random.Random(seed), Cutter(), Cipher(b"k" * 32)
    thread = Thread(identity, ThreadHead(tip_sequence=1))
    part_bytes, before = 0, set[bytes]()
    for step in range(120):
        tags, signals = dict(thread.tags), dict(thread.signals)
        for _ in range(40 if step == 0 else 1):
            tags[f"{dice.randrange(10**6)}"] = dice.randrange(100)
            signals[dice.randrange(10**6)] = SignalRow(create_time_us=dice.randrange(10**9))
        if step and tags and dice.random() < 0.4:
            del tags[dice.choice(list(tags))]
        thread.tags, thread.signals = tags, signals
        pairs = [*thread.pruned.pairs(), (step * 3 + 1, step * 3 + 1 + dice.randrange(2))]
        thread.pruned = Pruned(pairs)
        cut = cutter.cut(cipher, outbox.Moment(thread, thread.head, []), part_bytes)
        made = ArchiveHead(uid=identity.uid, tip_sequence=1, image=seal_image(cipher, identity.uid, cut.inline))
        for part in cut.parts:
            made.image_parts.add(digest=part.digest)
        opened = open_image(cipher, made, [seal_part(cipher, identity.uid, part) for part in cut.parts])
        assert opened == rows(thread)
        digests = {part.digest for part in cut.parts}
        if cut.part_bytes == part_bytes and before:
            assert len(digests - before) <= 8
        part_bytes, before = cut.part_bytes, digests
    assert before


def test_a_pack_is_there_and_its_blob_is_not(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upload of a blob fails, and that of the pack with its entry does not: the next ship puts the blob."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    content = os.urandom(3000)
    machine.write_blob("job", content)
    for _ in range(20):
        machine.put(append(os.urandom(600)))
    run_long, put_file = machine.wire.run_long, machine.wire.put_file

    def fail(*_: object) -> None:
        raise ArchiveUnavailable("the bucket is away")

    def packs_first(calls: list[Callable[[], object]], *how: Any) -> None:
        run_long(calls[::-1], *how)

    monkeypatch.setattr(machine.wire, "run_long", packs_first)
    monkeypatch.setattr(machine.wire, "put_file", fail)
    with pytest.raises(ArchiveUnavailable):
        machine.ship(machine.thread().number)
    monkeypatch.setattr(machine.wire, "put_file", put_file)
    machine.ship_now()
    assert [len(data) for data in objects(machine, ".blob").values()] != []
    other = driven.machine("second")
    other.archive.own(NAMESPACE, "job", take_over=True)
    assert other.read_blob("job", sha256(content).digest()) == content


def test_a_restart_uploads_no_archived_blob_again(driven: Town) -> None:
    """HEAD still carries the entry of the blob when a new process ships: the blob is in the bucket already."""
    first = driven.machine("first")
    first.write_blob("job", b"a picture, " * 50)
    first.ship_now()
    first.restart()
    first.put(append(b"next"))
    before = first.wire.traffic.objects
    first.ship_now()
    assert first.wire.traffic.objects == before
    assert first.state().state

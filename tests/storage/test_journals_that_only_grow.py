"""The danger: what nobody asks for any more stays in the journal for ever: acknowledged messages, old locks, tags."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, get, opened, save_request, write
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.storage.v1.journal_pb2 import (
    ENTRY_KIND_HEADS,
    ENTRY_KIND_LEASE,
    ENTRY_KIND_OPTIONS,
    ENTRY_KIND_SIGNAL,
    ENTRY_KIND_TAG_SET,
    EntryKind,
)
from stateward.v1.checkpoint_service_pb2 import ReadLogRequest, SaveRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest, SendSignalResponse
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    MoveBranchRequest,
    PruneThreadRequest,
    SetTagRequest,
    UpdateThreadRequest,
    WatchRequest,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import RequestIdReused
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import journal, replay, requests
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import context
from stateward_sidecar.store.thread.thread import rows

PLACE = {"namespace": "default", "thread": "t"}
SECRET = b"the personal words of a letter"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A window of eight entries for retries."""
    for module in (clear, context, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 8)
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    with opened(tmp_path, MovedClock()) as made:
        yield made


def save(store: Store, *acks: str, **more: Any) -> int:
    request = to_write(
        SaveRequest, **PLACE, request_id=os.urandom(8).hex(), diff=appends("x"), ack_signals=acks, **more
    )
    return save_request(store, request).version


def send(store: Store, payload: bytes = SECRET, request_id: str = "") -> SendSignalResponse:
    request = SendSignalRequest(
        **PLACE, name="mail", options=WriteOptions(request_id=request_id or os.urandom(8).hex())
    )
    request.payload.media_type, request.payload.data = "text/plain", payload
    answer: SendSignalResponse = write(store, store.signals.send(request))
    return answer


def lock(store: Store) -> int:
    """Takes the lock, and gives it back."""
    request = AcquireLeaseRequest(**PLACE, options=WriteOptions(request_id=os.urandom(8).hex()))
    request.holder.name, request.holder.incarnation = "w", "1"
    token: int = write(store, store.leases.acquire(request)).lease.token
    write(store, store.leases.release(ReleaseLeaseRequest(**PLACE, options=WriteOptions(lease_token=token))))
    return token


def prune(store: Store, keep: int = 1) -> None:
    store.pruner.prune(PruneThreadRequest(**PLACE, keep_latest_per_branch=keep))


def move(store: Store, version: int, request_id: str = "") -> int:
    """Moves main's head. Returns the sequence."""
    request = MoveBranchRequest(
        **PLACE, options=WriteOptions(request_id=request_id or os.urandom(8).hex()), version={"version": version}
    )
    sequence: int = write(store, store.mover.move(request)).receipt.sequence
    return sequence


def try_out(store: Store, number: int, **more: Any) -> None:
    """A branch that is made and deleted."""
    save(store, branch=f"try {number}", parent={"version": get(store).head.main_version}, **more)
    write(store, store.mover.delete(DeleteBranchRequest(**PLACE, branch=f"try {number}")))


def kinds(store: Store) -> Counter[EntryKind]:
    with store.context.engine.read() as txn:
        return Counter(entry.header.kind for entry in replay.read_entries(txn, get(store).identity, 1))


def payloads(store: Store) -> int:
    """How many entries have the secret in them."""
    found = 0
    with store.context.engine.read() as txn:
        for entry in replay.read_entries(txn, get(store).identity, 1):
            found += replay.open_metadata(get(store).identity, entry).signal.payload.data == SECRET
    return found


def test_an_acknowledged_signal_goes_with_its_version(store: Store) -> None:
    """As long as the version is there that acknowledged it, it can be seen; waiting ones stay whatever is pruned."""
    save(store)
    kept = [send(store).signal.signal_id for _ in range(20)]
    waiting = send(store, b"nobody has read this")
    kept += [send(store).signal.signal_id for _ in range(20)]
    for each in kept:
        save(store, each)
    prune(store, keep=20)
    for _ in range(12):
        save(store)
    prune(store, keep=32)
    assert payloads(store) == 20
    prune(store)
    for _ in range(12):
        save(store)
    prune(store)
    assert payloads(store) == 0
    assert [row.record.signal_id for row in get(store).signals.values()] == [waiting.signal.signal_id]
    assert kinds(store)[ENTRY_KIND_SIGNAL] == 1
    assert get(store).pruned.signals.pairs()
    assert len(get(store).pruned.signals.pairs()) <= 2
    assert findings(store) == []


def test_signals_between_others_are_few_ranges(store: Store) -> None:
    """What lies between dead entries, and is no signal that lives, does not make the note longer."""
    save(store)
    for _ in range(60):
        save(store, send(store).signal.signal_id)
    prune(store, keep=10)
    assert len(get(store).pruned.signals.pairs()) == 1
    prune(store, keep=1)
    assert len(get(store).pruned.signals.pairs()) == 1


def test_a_lock_does_not_grow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken and given back for ever, in a thread that nobody prunes: a sweep cleans it. Tokens go on rising."""
    monkeypatch.setattr(journal, "LOOSE_MAX", 40)
    save(store)
    sizes, last = [], 0
    for _ in range(12):
        for _ in range(30):
            token = lock(store)
            assert token > last
            last = token
        store.sweeper.sweep()
        sizes.append(get(store).head.stored_bytes)
    assert max(sizes) < 1.5 * sizes[1]
    assert sum(kinds(store).values()) < 120
    assert findings(store) == []


def test_tags_and_settings_go(store: Store) -> None:
    """Those of the journal, with the next prune: what is true now is in rows and in the head."""
    version = save(store)
    for number in range(30):
        request = SetTagRequest(**PLACE, tag=f"{number % 3}")
        request.version.version = version
        write(store, store.settings.set_tag(request))
        update = UpdateThreadRequest(**PLACE)
        update.update.labels["n"] = f"{number}"
        update.update_mask.paths.append("labels")
        write(store, store.settings.update(update))
    save(store)
    for _ in range(3):
        for _ in range(10):
            save(store)
        prune(store, keep=2)
    assert kinds(store)[ENTRY_KIND_TAG_SET] == kinds(store)[ENTRY_KIND_OPTIONS] == 0
    assert get(store).tags == {"0": 1, "1": 1, "2": 1}
    assert get(store).head.options.labels["n"] == "29"
    assert findings(store) == []


def test_retries_in_the_window_get_their_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that was acknowledged, and whose version was pruned, is known for the last entries."""
    for module in (clear, context, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 100)
    save(store)
    first = send(store, request_id="once")
    save(store, first.signal.signal_id)
    save(store)
    prune(store)
    again = send(store, request_id="once")
    assert (again.receipt.replayed, again.signal.signal_id) == (True, first.signal.signal_id)
    with pytest.raises(RequestIdReused):
        send(store, b"something else", request_id="once")
    assert not get(store).signals


def test_the_next_start_clears_what_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the prune and the clearing."""
    save(store)
    for _ in range(20):
        save(store, send(store).signal.signal_id)
        lock(store)
    monkeypatch.setattr(store.pruner, "clear_up", lambda *_: None)
    prune(store)
    monkeypatch.undo()
    assert payloads(store) == 20
    for module in (clear, context, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 8)
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    store.pruner._lineages._lineages.clear()  # as a new process
    store.pruner.resume()
    for _ in range(12):
        save(store)
    prune(store)
    assert payloads(store) == 0
    assert kinds(store)[ENTRY_KIND_LEASE] == 0
    assert findings(store) == []


def test_a_watch_does_not_hear_of_a_cleaning(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has changed that anybody sees."""
    monkeypatch.setattr(journal, "LOOSE_MAX", 2)
    save(store)
    lock(store)
    watch = store.watcher.open(WatchRequest(**PLACE))
    store.sweeper.sweep()
    version = save(store)
    events = store.watcher.read(watch)
    assert [each.checkpoint.version for each in events] == [version]


def test_moved_heads_and_deleted_branches_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows say where the heads are. Undone again and again in a thread that nobody prunes, and tried out again and
    again in one that is pruned: the journal does not grow, and everything is as the calls left it."""
    monkeypatch.setattr(journal, "LOOSE_MAX", 20)
    first, second = save(store), save(store)
    for _ in range(40):
        move(store, first)
        move(store, second)
    for _ in range(3):
        store.sweeper.sweep()
    assert kinds(store)[ENTRY_KIND_HEADS] <= 20
    monkeypatch.setattr(journal, "LOOSE_MAX", 1)
    for _ in range(2):
        move(store, first)
        store.sweeper.sweep()
        for _ in range(12):
            save(store, branch="other")
    lock(store)
    store.sweeper.sweep()
    assert kinds(store)[ENTRY_KIND_HEADS] == 0
    assert get(store).head.main_version == first
    assert findings(store) == []
    for number in range(60):
        try_out(store, number)
        save(store)
        if number % 10 == 0:
            prune(store)
    prune(store)
    for _ in range(12):
        save(store)
    prune(store)
    assert kinds(store)[ENTRY_KIND_HEADS] == 0
    assert sorted(get(store).branches) == ["main", "other"]
    assert findings(store) == []


def test_a_retry_of_a_move_gets_its_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a retry may come, although the entry counts for nothing."""
    for module in (clear, context, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 100)
    first, _ = save(store), save(store)
    sequence = move(store, first, "once")
    save(store, branch="other")
    prune(store)
    assert move(store, first, "once") == sequence


def test_an_effect_of_a_deleted_branch_stays(store: Store) -> None:
    """Its version is retained, and only the entry of the deletion says what the branch was called. A version of main
    with the same checkpoint id is pruned."""
    save(store)
    try_out(store, 1, checkpoint_id="c")
    kept = get(store).head.last_version
    tag = SetTagRequest(**PLACE, tag="kept")
    tag.version.version = kept
    write(store, store.settings.set_tag(tag))
    request = SaveRequest(
        **PLACE, options=WriteOptions(request_id="with an effect"), diff=appends("x"), checkpoint_id="c"
    )
    request.effects.add(anchor="c", key="k")
    save_request(store, request)
    for _ in range(3):
        for _ in range(12):
            save(store)
        prune(store)
    assert kinds(store)[ENTRY_KIND_HEADS] == 1
    assert get(store).head.effects == 1
    assert findings(store) == []


def test_a_reader_goes_on_from_a_version_whose_place_is_forgotten(store: Store) -> None:
    """Each version has a message before it that nobody has read, so each has an index row of its own, and these go.
    Whoever knows a pruned version is not told that it never was."""
    known = list[tuple[int, bytes]]()
    for _ in range(30):
        known.append((save(store), get(store).head.tip_digest))
        send(store)
    prune(store)
    for _ in range(12):
        save(store)
    prune(store)
    with store.context.engine.read() as txn:
        assert len(list(rows(txn, get(store).identity.keys.all_of(b"V")))) < 6
    for version, digest in known:
        request = ReadLogRequest(**PLACE, log="messages", known_version=version, known_digest=digest)
        assert not store.log_reader.read(request).answer.known_missing, version
    assert findings(store) == []

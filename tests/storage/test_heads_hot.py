"""The danger: a head whose state is in memory costs a read of the disk, or is shown otherwise than from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import get, opened, rest, save, write
from tests.daemon.wire import appends, text

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow
from stateward.storage.v1.head_pb2 import SignalRow
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, WORK_STATUS_WAITING
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.store.read import read as read_module
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.cache import Facts
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.travel.orphans import Orphans

THREAD = HydrateRequest(namespace="default", thread="t", include_signals=True)


def hydrate(store: Store, **fields: Any) -> HydrateResponse:
    request = HydrateRequest()
    request.CopyFrom(THREAD)
    request.MergeFrom(HydrateRequest(**fields))
    return HydrateResponse.FromString(store.reader.hydrate(request))


def fail(*args: object) -> Any:
    raise AssertionError("a hot head was read from the disk")


def make_history(store: Store) -> None:
    """Main with everything that a version says of itself, and a branch."""
    save(store, "a", "t", diff=appends("one"), labels={"k": "v"}, metrics={"cost": 1.5}, step=7, checkpoint_id="c")
    save(
        store, "b", "t", diff=appends("two"), expected_version=1, metadata=text("about it"),
        status=WORK_STATUS_WAITING, wait_id="w", status_detail="for a person", schema_version=3,
    )  # fmt: skip
    save(store, "c", "t", diff=appends("side"), branch="side", parent={"version": 1})


def test_a_saved_head_is_read_from_memory_as_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the save nothing is read; after a start the first hydrate reads, and the next ones do not."""
    with opened(tmp_path) as store:
        make_history(store)
        rest(store)
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "read", fail)
            saved = [hydrate(store, branch=branch) for branch in ("main", "side")]
    with opened(tmp_path) as store:
        read = [hydrate(store, branch=branch) for branch in ("main", "side")]
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "read", fail)
            again = [hydrate(store, branch=branch) for branch in ("main", "side")]
            head = read[0].checkpoint
            same = hydrate(store, branch="main", known_version=head.version, known_digest=head.digest)
    assert saved == read == again
    assert (read[0].checkpoint.wait_id, read[1].checkpoint.branch) == ("w", "side")
    assert (same.base_version, same.checkpoint) == (head.version, head)
    assert not same.state.slots
    assert not same.state.logs


def test_a_head_in_memory_shows_the_level_it_has_reached(tmp_path: Path) -> None:
    """The view that was made before the archive had the version is not shown after."""
    with opened(tmp_path) as store:
        make_history(store)
        first = hydrate(store)
        thread = store.threads.cached("default", "t")
        assert thread is not None
        thread.archived_sequence = first.checkpoint.sequence
        assert hydrate(store).checkpoint.durability == DURABILITY_ARCHIVED != first.checkpoint.durability


def test_a_known_version_of_another_line_is_sent_whole(tmp_path: Path) -> None:
    """The right number with another digest is not "unchanged"."""
    with opened(tmp_path) as store:
        make_history(store)
        answer = hydrate(store, known_version=2, known_digest=b"\0" * 16)
    assert not answer.base_version
    assert answer.state.logs


def test_effects_of_a_head_cost_one_transaction_and_none_if_the_thread_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the event loop reads few small ones; many, large or unchecked ones are left to a worker."""
    request = HydrateRequest(include_effects=True)
    request.MergeFrom(THREAD)
    with opened(tmp_path) as store:
        save(store, "a", "t", diff=appends("one"), checkpoint_id="c")
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "read", fail)
            assert not hydrate(store, include_effects=True).effects
            assert store.reader.find_hot(request) is not None
        put(store, "few", 3)
        hydrate(store, include_effects=True)
        reads, read = [], Engine.read
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "read", lambda engine: reads.append(1) or read(engine))
            found = store.reader.find_hot(request)
            assert found is not None
            answer = HydrateResponse.FromString(store.reader.answer(request, found))
        assert len(reads) == 1
        assert answer == hydrate(store, include_effects=True)
        assert len(answer.effects) == 3
        put(store, "large", 1, size_bytes=100_000)
        assert store.reader.find_hot(request) is None
        put(store, "many", 20)
        assert store.reader.find_hot(request) is None
        assert len(hydrate(store, include_effects=True).effects) == 24
    with opened(tmp_path) as store:
        hydrate(store)
        assert store.reader.find_hot(request) is None  # the rows were not compared with the head yet
        assert len(hydrate(store, include_effects=True).effects) == 24


def put(store: Store, name: str, count: int, size_bytes: int = 10) -> None:
    made = [Effect(anchor="c", key=f"{name} {n}", value=text("x" * size_bytes)) for n in range(count)]
    asked = PutEffectsRequest(namespace="default", thread="t", effects=made, options=WriteOptions(request_id=name))
    write(store, store.effects.put(asked))


def test_an_orphan_is_not_shown_under_the_name_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was set aside while a reader had the thread, and keeps the thread's number: the reader's facts are its own."""
    names = list[str]()
    with opened(tmp_path) as store:
        save(store, "a", "t", expected_version=0)
        store.context.cache.drop_thread(get(store).number)
        read_facts, row = read_module.read_facts, ArchiveRow(head=ArchiveHead(uid=get(store).identity.uid, epoch=2))

        def read_slowly(thread: Thread, entry: Entry) -> Facts:
            facts = read_facts(thread, entry)
            if not names:
                names.append(Orphans(store.context, store.threads).set_aside(thread, 0, row)[0])
            return facts

        monkeypatch.setattr(read_module, "read_facts", read_slowly)
        assert hydrate(store).checkpoint.thread == "t"
        for _ in range(2):
            assert hydrate(store, thread=names[0]).checkpoint.thread == names[0]


def test_signals_are_never_older_than_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes while a save is shown sees the version before it, or no signal that it acknowledged: an agent
    would handle the signal twice."""
    seen, real = list[tuple[int, list[str]]](), ThreadDraft.all_signals

    def all_signals(draft: ThreadDraft) -> dict[int, SignalRow]:
        shown = hydrate(store)  # between the old signals and the new ones
        seen.append((shown.checkpoint.version, [each.signal_id for each in shown.signals]))
        return real(draft)

    with opened(tmp_path) as store:
        save(store, "1")
        options = WriteOptions(request_id="s")
        send = SendSignalRequest(namespace="default", thread="t", name="n", options=options)
        write(store, store.signals.send(send))
        (sent,) = (each.signal_id for each in hydrate(store).signals)
        monkeypatch.setattr(ThreadDraft, "all_signals", all_signals)
        save(store, "2", ack_signals=[sent])
        monkeypatch.undo()
        assert seen
        assert all(shown == (1, [sent]) for shown in seen)
        assert list(hydrate(store).signals) == []

"""The danger: a new kind of entries has to be written into nine files, and is forgotten in one of them.

``NoteKind`` is such a kind, in this file alone. It goes through a write, a watch, a fork, a backup, a takeover, Verify
and the cleaning of the journal, and no file of the daemon knows of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import refused

from stateward import Client
from stateward.storage.v1.journal_pb2 import EntryHeader, EntryMetadata
from stateward.transfer import read_parts
from stateward.v1.backup_service_pb2 import BackupEntry, BackupThread, ImportBegin, ImportThreadRequest, ThreadPart
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import Corrupt, InvalidField
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.kind import Carried, Kind, Watched
from stateward_sidecar.store.kinds import table
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows

TABLE = b"!"


class NoteKind(Kind):
    """A note beside the versions: name and text, in the second part of its entry."""

    number = 1000  # type: ignore[assignment]
    is_loose = True  # its row has all of it

    def put(self, txn: lmdb.Transaction, identity: Identity, content: bytes) -> None:
        """Puts the row."""
        key = identity.keys.all_of(TABLE) + identity.hash_id(b"note", json.loads(content)["name"])
        txn.put(key, identity.seal_row(key, content))

    def notes(self, txn: lmdb.Transaction, identity: Identity) -> Iterator[bytes]:
        """Opens all rows."""
        for key, record in rows(txn, identity.keys.all_of(TABLE)):
            yield identity.open_row(key, record)

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """That there is a note."""
        event.options_changed.agent = json.loads(_content(watched.thread.identity, watched.entry))["name"]
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The row."""
        if is_whole:
            self.put(txn, draft.identity, _content(draft.identity, entry))

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """All rows open."""
        try:
            list(self.notes(txn, thread.identity))
        except Corrupt as error:
            yield error.locate(thread.name)

    def carry(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Carried]:
        """All notes."""
        for content in self.notes(txn, thread.identity):
            yield Carried(EntryMetadata(), content)

    def check(self, carried: Carried) -> None:
        """It has a name."""
        try:
            assert json.loads(carried.content)["name"]
        except (ValueError, KeyError, AssertionError):
            raise InvalidField("parts.entry.content", "is no note") from None

    def land(self, txn: lmdb.Transaction, draft: ThreadDraft, header: EntryHeader, carried: Carried) -> None:
        """The row."""
        self.put(txn, draft.identity, carried.content)


NOTE = NoteKind()


def _content(identity: Identity, entry: Entry) -> bytes:
    return entry.open_edits(identity.cipher, identity.uid)


def write(daemon: Inside, thread: str, name: str, text: str) -> None:
    """The verb of the kind."""
    store, content = daemon.parts.store, json.dumps({"name": name, "text": text}).encode()

    def run(txn: lmdb.Transaction, batch: Batch) -> None:
        draft = store.threads.draft(txn, batch, "default", thread)
        assert draft is not None
        entry = append(store.context, txn, draft, NOTE, draft_content(EntryMetadata(), content))
        NOTE.put(txn, draft.identity, content)
        commit_entry(store.context, txn, batch, draft, entry, {})
        store.threads.keep_draft(batch, draft)

    store.context.writer.submit(Write(run=run), wait=True).wait()


def read(daemon: Inside, thread: str) -> dict[str, str]:
    """All notes of a thread."""
    store = daemon.parts.store
    with store.context.engine.read() as txn:
        found = [json.loads(each) for each in NOTE.notes(txn, store.threads.get(txn, "default", thread).identity)]
    return {each["name"]: each["text"] for each in found}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The line in the table."""
    monkeypatch.setitem(table._BY_NUMBER, NOTE.number, NOTE)
    table.KINDS.append(NOTE)
    yield
    table.KINDS.remove(NOTE)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Inside, Inside]]:
    """Two sidecars on one archive."""
    flags = {"archive": f"file://{tmp_path}/bucket"}
    with daemon_inside(tmp_path, name="A", **flags) as one, daemon_inside(tmp_path, name="B", **flags) as other:
        yield one, other


def client(daemon: Inside) -> Client:
    return Client(daemon.settings.listen[0])


def make(daemon: Inside) -> None:
    """A thread of two versions with two notes, one of which was written again."""
    with client(daemon) as made:
        thread = made.thread("t")
        state = thread.hydrate()
        for number in range(2):
            state.logs["messages"].append(number)
            thread.save(state)
            write(daemon, "t", "plan", f"version {number}")
    write(daemon, "t", "risk", "none")


NOTES = {"plan": "version 1", "risk": "none"}


def test_watches_are_told(two: tuple[Inside, Inside]) -> None:
    """Each entry has its event."""
    make(two[0])
    with client(two[0]) as made, made.thread("t").watch(after_sequence=0) as events:
        told = [event.what.agent for _, event in zip(range(5), events, strict=False) if event.kind == "options_changed"]
    assert told == ["plan", "plan", "risk"]


def test_a_fork_has_them(two: tuple[Inside, Inside]) -> None:
    """A copy of all versions has the notes, under its own key."""
    make(two[0])
    with client(two[0]) as made:
        made.thread("t").fork("copy", all_versions=True)
    assert read(two[0], "copy") == NOTES


def test_a_backup_has_them(two: tuple[Inside, Inside]) -> None:
    """What is exported is imported."""
    make(two[0])
    daemon = two[0]
    with client(daemon) as made:
        parts = list(read_parts(made, "t"))
    begin = ImportBegin(thread="restored")
    begin.options.request_id = "once"
    daemon.wire.backups.ImportThread(iter([ImportThreadRequest(begin=begin, parts=parts)]), timeout=20)
    assert read(daemon, "restored") == NOTES


def test_a_backup_is_not_trusted(two: tuple[Inside, Inside]) -> None:
    """A note without a name, and a kind that nobody knows, are refused, and nothing is made."""
    wrong = {
        "parts.entry.content": BackupEntry(kind=NOTE.number, content=b"{}"),
        "parts.entry.kind": BackupEntry(kind=1001, content=b"{}"),
        "parts.entry.metadata": BackupEntry(kind=NOTE.number, metadata=b"\xff", content=b"{}"),
    }
    planted = EntryMetadata(request_hash=b"12345678").SerializeToString()
    named = BackupEntry(kind=NOTE.number, metadata=planted, content=b'{"name": "n"}')
    for field, entry in [*wrong.items(), ("parts.entry.metadata", named)]:
        begin = ImportBegin(thread="restored")
        begin.options.request_id = "once"
        parts = [ThreadPart(thread=BackupThread()), ThreadPart(entry=entry)]
        call = two[0].wire.backups.ImportThread
        assert refused(call, iter([ImportThreadRequest(begin=begin, parts=parts)])).field == field
    with client(two[0]) as made:
        assert not [each.name for each in made.threads()]


def test_another_machine_has_them(two: tuple[Inside, Inside]) -> None:
    """After a takeover the rows are there, made of the entries."""
    make(two[0])
    with client(two[0]) as made:
        made.thread("t").archive.detach()
    with client(two[1]) as made:
        thread = made.thread("t")
        thread.archive.attach()
        list(thread.history())
        assert read(two[1], "t") == NOTES
        assert not [step.finding for step in made.verify() if step.finding is not None]


def test_verify_finds_damage(two: tuple[Inside, Inside]) -> None:
    """A row that cannot be opened is a finding."""
    make(two[0])
    store = two[0].parts.store

    def run(txn: lmdb.Transaction, _: Batch) -> None:
        identity = store.threads.get(txn, "default", "t").identity
        key, record = next(rows(txn, identity.keys.all_of(TABLE)))
        txn.put(key, bytes(record)[:-1] + b"?")

    store.context.writer.submit(Write(run=run), wait=True).wait()
    with client(two[0]) as made:
        assert [step.finding.thread for step in made.verify() if step.finding is not None] == ["t"]


def test_the_journal_is_cleaned_of_them(two: tuple[Inside, Inside]) -> None:
    """After a prune the second parts of the entries are gone, and the notes stay."""
    make(two[0])
    store, end = two[0].parts.store, time.monotonic() + WAIT_S
    with client(two[0]) as made:
        made.thread("t").prune(versions=[1])
        while not all(notes_are_cut(two[0])):
            assert time.monotonic() < end
            store.sweeper.sweep()
        assert read(two[0], "t") == NOTES
        assert not [step.finding for step in made.verify() if step.finding is not None]


def notes_are_cut(daemon: Inside) -> list[bool]:
    """Of each entry of a note, whether its second part is gone."""
    store = daemon.parts.store
    with store.context.engine.read() as txn:
        keys = store.threads.get(txn, "default", "t").identity.keys
        found = [unpack(record, sequence) for sequence, record in blocks.entries(txn, keys, 1)]
    return [entry.is_husk for entry in found if entry.header.kind == NOTE.number]

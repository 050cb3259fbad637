"""What is true of records: how each entry leaves them, told by the requests that made it.

The records after an entry follow from the line up to it, as its digest does. So whoever shows a thread up to an entry
shows these, and no promise about records needs more than the promises about entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.archive_model.truth import Entry

from stateward.storage.v1.journal_pb2 import EntryMetadata, RecordBatch, RecordChange
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import DeleteRecordsRequest, PutRecordsRequest
from stateward_sidecar.store.journal.requests import hash_request

Request = PutRecordsRequest | DeleteRecordsRequest


@dataclass(frozen=True, slots=True)
class Kept:
    """A record as some entry leaves it."""

    data: bytes
    revision: int
    expire_us: int  # 0 = never
    sequence: int  # of the newest entry about it
    value_sequence: int  # of the entry that has its value


Records = Mapping[str, Kept]


@dataclass(frozen=True, slots=True)
class Page:
    """All records after an entry."""

    records: Records = field(default_factory=dict)
    newest: int = 0  # the highest revision that any record of the line ever had
    before: Page | None = None  # what was there before a call, of which more entries follow

    @property
    def is_part(self) -> bool:
        """Whether the entry is one of a call, and not the last one."""
        return self.before is not None


@dataclass(slots=True)
class RecordBook:
    """Records after each entry that was ever seen on a disk."""

    pages: dict[bytes, Page] = field(default_factory=lambda: {b"": Page()})  # by digest
    entries: set[bytes] = field(default_factory=set)  # digests of entries about records
    asked: dict[bytes, Request] = field(default_factory=dict)  # by the hash of the request's id
    made: dict[bytes, str] = field(default_factory=dict)  # digest of a call's last entry → id of the request
    _writers: dict[bytes, str] = field(default_factory=dict)  # a value → id of the request that has it
    _revisions: dict[tuple[bytes, int], str] = field(default_factory=dict)  # by uid and revision

    def ask(self, request: Request) -> None:
        """A request that is going to be sent, perhaps several times. No other one has its values."""
        self.asked[hash_request(request.options.request_id)] = request
        if isinstance(request, PutRecordsRequest):
            for write in request.writes:
                self._writers[write.value.data] = request.options.request_id

    def see(
        self, digest: bytes, entry: Entry, metadata: EntryMetadata, batch: RecordBatch | None, newest_us: int, *,
        epochs_repeat: bool,
    ) -> None:  # fmt: skip
        """An entry that is new. ``batch``: what it says of records. ``newest_us``: the latest time that any clock ever
        showed. ``epochs_repeat``: a disk was copied, or the bucket set back, so two lines may have one epoch."""
        before = self.pages[entry.previous if entry.sequence > 1 else b""]
        if batch is None:
            assert not before.is_part, "a call that writes records has another entry in the middle of it"
            self.pages[digest] = before
            return
        self.entries.add(digest)
        page = self._after(entry, metadata, batch, before, newest_us)
        self.pages[digest] = page
        if not epochs_repeat:
            self._see_revisions(entry.uid, batch)
        if metadata.request_hash:
            self._see_call(digest, metadata, before.before or before, page, newest_us)

    def _after(
        self, entry: Entry, metadata: EntryMetadata, batch: RecordBatch, before: Page, newest_us: int
    ) -> Page:  # fmt: skip
        records, newest, whole = dict(before.records), before.newest, before.before or before
        is_write = bool(batch.deleted) and not batch.expired
        for change in batch.changes:
            key, revision = change.facts.key, change.facts.revision
            if batch.moved or not change.HasField("value"):
                records[key] = _moved(entry, change, records.get(key), is_refresh=not batch.moved)
                continue
            assert change.value.data in self._writers, f"record {key} has a value that nobody wrote"
            assert revision > whole.newest, f"a write of record {key} has a revision that is not above all others"
            is_write, newest = True, max(newest, revision)
            records[key] = Kept(
                change.value.data, revision, change.facts.expire_time_us, entry.sequence, entry.sequence
            )
        for key in batch.deleted:
            gone = records.pop(key, None)
            assert gone is not None, f"record {key} was deleted, and was not there"
            assert not batch.expired or 0 < gone.expire_us <= newest_us, f"record {key} went before its time was over"
        floor = metadata.records.floor_sequence
        below = [key for key, each in records.items() if min(each.sequence, each.value_sequence) <= floor]
        assert not below, f"records {below} are below the floor, and count for nothing"
        is_part = not metadata.request_hash and (is_write or (batch.moved and not floor))
        return Page(records, newest, whole if is_part else None)

    def _see_revisions(self, uid: bytes, batch: RecordBatch) -> None:
        """A revision is that of one write, whatever machine made it, and whatever became of its line."""
        for change in batch.changes:
            if change.HasField("value") and not batch.moved:
                writer = self._writers[change.value.data]
                known = self._revisions.setdefault((uid, change.facts.revision), writer)
                assert known == writer, "one revision stands for two writes of records"

    def _see_call(
        self, digest: bytes, metadata: EntryMetadata, before: Page, after: Page, newest_us: int
    ) -> None:  # fmt: skip
        """The last entry of a call: it did all that was asked for, and nothing else."""
        request = self.asked[metadata.request_hash]
        self.made[digest] = request.options.request_id
        if isinstance(request, PutRecordsRequest):
            for write in request.writes:
                _check_write(write, before.records.get(write.key), after.records.get(write.key), newest_us)
            writes = {write.key for write in request.writes}
        else:
            writes = {key for key in before.records if key.startswith(request.prefix)}
            revisions = [{before.records[key].revision for key in keys} for keys in _apart(writes, after.records)]
            assert metadata.records.has_more or revisions[0].isdisjoint(revisions[1]), "a deletion took a part of a put"
        others = [_without(page.records, writes) for page in (before, after)]
        assert others[0] == others[1], "a call changed records that it does not name"


def _moved(entry: Entry, change: RecordChange, old: Kept | None, *, is_refresh: bool) -> Kept:
    """A record is written once more, at a new place or with a new time."""
    facts = change.facts
    assert old is not None, f"record {facts.key} is written again, and was not there"
    assert facts.revision == old.revision, f"record {facts.key} has another revision than it had"
    if is_refresh:
        assert facts.value_sequence == old.value_sequence, f"the value of record {facts.key} is not where it is sought"
        return replace(old, expire_us=facts.expire_time_us, sequence=entry.sequence)
    assert change.value.data == old.data, f"record {facts.key} has another value than it had"
    assert facts.expire_time_us == old.expire_us, f"record {facts.key} has another time than it had"
    return replace(old, sequence=entry.sequence, value_sequence=entry.sequence)


def _check_write(write: RecordWrite, old: Kept | None, new: Kept | None, newest_us: int) -> None:
    if write.HasField("expected_revision") and write.expected_revision != (old.revision if old is not None else 0):
        is_expired = old is not None and 0 < old.expire_us <= newest_us and not write.expected_revision
        assert is_expired, f"record {write.key} was replaced at another revision than expected"
    assert (new.data if new is not None else b"") == write.value.data, f"record {write.key} is not what was written"


def _apart(keys: set[str], records: Records) -> tuple[set[str], set[str]]:
    """The keys of records that are there, and of those that are not."""
    return keys & records.keys(), keys - records.keys()


def _without(records: Records, keys: set[str]) -> dict[str, tuple[bytes, int]]:
    return {key: (each.data, each.revision) for key, each in records.items() if key not in keys}


@dataclass(frozen=True)
class Shown:
    """What a reader was shown, by key: data, revision, time of expiry. ``keys``: all that it asked for; None = all that
    there are. ``since_us``, ``until_us``: when its daemon looked."""

    records: Mapping[str, tuple[bytes, int, int]]
    keys: frozenset[str] | None
    since_us: float
    until_us: float
    ignores_times: bool = False  # the read began them anew

    def is_of(self, page: Page) -> bool:
        """Whether these are the records after an entry, without what had expired."""
        kept = page.records
        keys = kept.keys() | self.records.keys() if self.keys is None else self.keys
        return all(self._fits(self.records.get(key), kept.get(key)) for key in keys)

    def _fits(self, shown: tuple[bytes, int, int] | None, kept: Kept | None) -> bool:
        if shown is None:
            return kept is None or 0 < kept.expire_us <= self.until_us
        if kept is None or shown[:2] != (kept.data, kept.revision):
            return False
        return self.ignores_times or (shown[2] == kept.expire_us and not 0 < kept.expire_us <= self.since_us)

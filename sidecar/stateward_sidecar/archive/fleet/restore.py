"""Copies threads from the archive to this disk, without taking ownership.

For a thread whose copy is up to date only HEAD is read, so an interrupted restore continues where it stopped. Several
threads are copied at the same time. A thread that cannot be read is reported, and the restore continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stateward.v1.archive_service_pb2 import RestoreArchiveRequest, RestoreArchiveResponse
from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.fleet.fleet import Fleet, Found, Survey, in_chunks, object_refs
from stateward_sidecar.archive.fleet.reread import CountedFetcher
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.own.completing import Completer
from stateward_sidecar.archive.own.history import History
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.ship.blobs import BlobCarrier
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    DiskFull,
    Locked,
    OutcomeUnknown,
    ShuttingDown,
    StatewardError,
)
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.install import entries_here

# How many threads are copied at the same time; each of them makes several requests at once.
THREADS_AT_ONCE = 8
# If the bucket has not answered for this long, the restore stops.
AWAY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result for one thread."""

    name: str = ""
    entries: int = 0
    size_bytes: int = 0  # of blobs; in a dry run: of everything that would be read
    problem: str = ""
    is_locked: bool = False  # nobody can read it without its session key; a call that has the key fetches it


class Restorer:
    """Made for one command; runs on the archive's threads, and on some of its own."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        self._fleet = Fleet(state)
        self._fetcher = CountedFetcher(state.wire)
        reconciler = Reconciler(state, self._fetcher)
        self._attacher = Attacher(state, self._fetcher, reconciler)
        self._completer = Completer(state, History(state, self._fetcher, reconciler), self._attacher)
        self._blobs = BlobCarrier(state, self._attacher)
        self._other_bytes = 0

    def restore(self, request: RestoreArchiveRequest) -> Iterator[RestoreArchiveResponse]:
        """Yields progress; raises ThreadNotFound, ArchiveUnavailable, DiskFull.

        A dry run counts what would be copied.
        """
        told, survey = RestoreArchiveResponse(), Survey()
        if request.thread:
            survey.heads = [self._fleet.place(request.namespace, request.thread)]
            self._state.wire.check_there()  # an archive that is not mounted looks empty
        else:
            for _ in self._fleet.survey(request.namespace, survey):
                yield RestoreArchiveResponse()
        told.progress.total_threads = len(survey.heads) + len(survey.headless)
        with ThreadPoolExecutor(THREADS_AT_ONCE, thread_name_prefix="restore") as pool:
            for places in in_chunks(survey.heads):
                outcomes = pool.map(lambda found: self._restore(found, request), self._fleet.read(places))
                for outcome in outcomes:
                    yield self._add(told, outcome)
        for place in survey.headless:
            lost = Found(place, error=Corrupt("HEAD is missing in the archive"))
            yield self._add(told, _Outcome(problem=self._fleet.explain(lost)))
        told.thread = told.problem = ""
        yield told

    def _add(self, told: RestoreArchiveResponse, outcome: _Outcome) -> RestoreArchiveResponse:
        if outcome.name or outcome.problem or outcome.is_locked:
            told.progress.threads += 1
        else:
            told.progress.total_threads -= 1  # it was deleted, and the archive has only a tombstone
        told.entries += outcome.entries
        self._other_bytes += outcome.size_bytes
        told.progress.bytes = self._fetcher.read_bytes + self._other_bytes
        told.thread, told.problem = outcome.name, outcome.problem
        answer = RestoreArchiveResponse()
        answer.CopyFrom(told)
        return answer

    def _restore(self, found: Found, request: RestoreArchiveRequest) -> _Outcome:
        if isinstance(found.error, Locked):
            return _Outcome(is_locked=True)
        if found.error is not None:
            return _Outcome(problem=self._fleet.explain(found))
        if not found.is_live:
            if request.thread:
                raise not_found(request.namespace, request.thread)
            return _Outcome()
        assert found.image is not None
        name: Name = found.image.head.namespace, found.image.head.thread
        try:
            if request.dry_run:
                return self._foresee(found, name)
            entries = self._copy(found, name)
            return _Outcome(name[1], entries, self._copy_blobs(name))
        except (DiskFull, OutcomeUnknown, ShuttingDown):
            raise
        except StatewardError as error:
            if isinstance(error, ArchiveUnavailable) and self._state.wire.away_s > AWAY_S:
                raise
            return _Outcome(name[1], problem=error.message)

    def _copy(self, found: Found, name: Name) -> int:
        """Returns how many entries were copied."""
        before = self._fleet.thread_here(name)
        uid, had = (before.identity.uid, entries_here(before)) if before is not None else (b"", 0)
        if not self._is_current(found, before):
            self._attacher.know(name)
        after = self._fleet.thread_here(name)
        if after is None:
            raise not_found(*name)
        newer = entries_here(after) - max(had if uid == after.identity.uid else 0, after.floor_sequence)
        floor = after.floor_sequence + 1
        while 0 < after.floor_sequence < floor:  # if one attempt was incomplete, another one raises the reason
            floor = after.floor_sequence
            newer += self._completer.complete(name)
            after = self._fleet.thread_here(name) or after
        return newer

    def _copy_blobs(self, name: Name) -> int:
        """Returns how many bytes were copied."""
        thread, files = self._fleet.thread_here(name), self._state.context.blob_files
        if thread is None:
            return 0
        with self._state.context.engine.read() as txn:
            records = [row.record for row in list_blobs(txn, thread.identity)]
        missing = [record for record in records if not files.is_here(thread.identity.uid, record.blob_id)]
        for record in records:
            self._blobs.fetch(name, record.sha256, keeps=True)
        return sum(record.stored_bytes for record in missing)

    def _foresee(self, found: Found, name: Name) -> _Outcome:
        """Estimates from HEAD what would be copied."""
        assert found.seen is not None
        head, here = found.seen.head, self._fleet.thread_here(name)
        if here is not None and here.access != THREAD_ACCESS_REMOTE and not here.floor_sequence:
            return _Outcome(name[1])
        missing = head.tip_sequence
        if here is not None and here.identity.uid == head.uid:
            missing -= entries_here(here) - min(here.floor_sequence, entries_here(here))
        size = sum(ref.size_bytes for ref in object_refs(head)) if missing else 0
        files, blobs = self._state.context.blob_files, found.image.blobs if found.image is not None else ()
        size += sum(row.record.stored_bytes for row in blobs if not files.is_here(head.uid, row.record.blob_id))
        return _Outcome(name[1], max(missing, 0), size)

    @staticmethod
    def _is_current(found: Found, here: Thread | None) -> bool:
        """Whether the newest entries are here. Older entries may still be missing."""
        assert found.seen is not None
        head = found.seen.head
        if here is None or here.archive is None:
            return False
        if here.access != THREAD_ACCESS_REMOTE:
            return True  # this sidecar owns it, or it is an orphan
        is_same = here.archive.head.write_id == head.write_id and here.identity.uid == head.uid
        return is_same and entries_here(here) == head.tip_sequence

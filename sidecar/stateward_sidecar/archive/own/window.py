"""Fetches the entries that a retry may ask for, before anything is written to a thread.

A copy that was made for a reader may lack them, and another sidecar may have answered a request id that it lacks. So a
writer needs the thread's last 1,024 entries first. Their states stay in the archive.
"""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward_sidecar.archive.objects.chain import Chain
from stateward_sidecar.archive.objects.desk import Desk, Name
from stateward_sidecar.archive.objects.fetch import Fetcher
from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.archive.own.history import History
from stateward_sidecar.archive.wire.places import Place
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal.lines import digest_before
from stateward_sidecar.store.journal.requests import window_start
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.telemetry import log


class Window:
    """Fetches missing entries of the window. Runs on the archive's workers."""

    def __init__(self, desk: Desk, fetcher: Fetcher, history: History) -> None:
        self._desk = desk
        self._fetcher = fetcher
        self._history = history

    def complete(self, name: Name) -> None:
        """Fetches the entries of the window that this disk lacks. Raises HistoryChanged, Corrupt and others."""
        with self._desk.locks.of(name):
            with self._desk.context.engine.read() as txn:
                thread = self._desk.store.threads.get(txn, *name)
            keys = thread.identity.namespace_keys
            place = self._desk.place(keys, thread.name)
            seen = self._fetcher.look(keys, place, with_key=False)
            if seen is None or not seen.leads_to(thread):
                raise not_found(*name)
            if thread.floor_sequence:
                self._history.check_known(thread, place, seen.head)
            self.fill(thread, place, seen.head)

    def fill(self, thread: Thread, place: Place, head: ArchiveHead) -> None:
        """Does the same with a HEAD that was read, under the lock of the thread's name.

        A thread continues without entries that the archive has lost. Their retries count as new.
        """
        floor, start = thread.floor_sequence, window_start(head.tip_sequence)
        if floor <= start or floor <= thread.lost_sequence:
            return
        lost = self._fetch(thread, place, head, floor, start) if start else self._fetch_all(thread)
        if lost is not None:
            log.error(
                "the archive has lost entries that a retry may ask for", uid=thread.identity.uid_text,
                error=lost.message,
            )  # fmt: skip
            live = self._live(thread)
            thread.lost_sequence = live.lost_sequence = live.floor_sequence

    def _fetch_all(self, thread: Thread) -> Corrupt | None:
        try:
            self._history.complete((thread.identity.namespace, thread.name))
        except Corrupt as error:
            return error
        is_whole = not self._live(thread).floor_sequence
        return None if is_whole else Corrupt("an object is missing or damaged", thread.name)

    def _fetch(self, thread: Thread, place: Place, head: ArchiveHead, floor: int, start: int) -> Corrupt | None:
        """Puts the entries in (start, floor] on this disk. Returns the error if one of them could not be read."""
        refs = list(head.objects)
        if head.HasField("index") and head.index.last_sequence > start:
            refs = [*self._history.indexed(thread, place, head.index), *refs]
        packs = [ref for ref in refs if is_pack(ref) and ref.first_sequence <= floor and ref.last_sequence > start]
        chain = Chain(thread, self._following(thread), after=start)
        for ref, found in self._history.read(thread, place, packs):
            if isinstance(found, Corrupt):
                return found
            self._desk.installer.add_history(thread, list(chain.missing(found, place.object(ref))))
        self._desk.installer.finish_history(thread, set(), (start, thread.floor_version))
        return None

    def _live(self, thread: Thread) -> Thread:
        with self._desk.context.engine.read() as txn:
            return self._desk.store.threads.by_number(txn, thread.number) or thread

    def _following(self, thread: Thread) -> bytes:
        """Returns the digest of the entry at the floor, as the entry above it says; empty if that one was pruned."""
        with self._desk.context.engine.read() as txn:
            return digest_before(txn, thread.identity, thread.floor_sequence + 1)

"""Verifies the archive: everything that HEADs name exists, and a chosen share of the data can be opened.

For each thread: HEAD, key and image can be opened. Every object of HEAD and of its chain of indexes exists with the
right size. Packs and tail cover the journal without a hole, except for pruned entries. No entry lacks its dictionary.
The blobs of the image exist. HEAD is not older than what this disk knows to be archived.

A missing object is one finding, and the verification continues. Sidecars may write
meanwhile: a missing object is looked up again, and is no finding if HEAD no longer names it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef, PackedRow
from stateward.v1.admin_service_pb2 import ScanProgress, VerifyFinding
from stateward.v1.archive_service_pb2 import VerifyArchiveRequest, VerifyArchiveResponse
from stateward.v1.error_reason_pb2 import ERROR_REASON_CORRUPT
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.archive.fleet.fleet import Fleet, Found, Survey, in_chunks, judge_here, known_head
from stateward_sidecar.archive.fleet.reread import CountedFetcher, Rereader, find_missing_blobs, reread_blob
from stateward_sidecar.archive.objects.holds import ArchiveState
from stateward_sidecar.archive.objects.judge import Verdict, set_back_text
from stateward_sidecar.archive.objects.packs import (
    Flaw,
    find_holes,
    find_missing_snapshots,
    flaw_of,
    is_pack,
    open_tail,
)
from stateward_sidecar.archive.objects.start import find_change, missing
from stateward_sidecar.archive.requests.places import Place, whole_sizes
from stateward_sidecar.bucket.base import ObjectNotFound
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import Corrupt, Locked, StatewardError, reason_number
from stateward_sidecar.store.thread.threads import not_found

OBJECTS_A_STEP = 200


@dataclass(slots=True)
class Tally:
    """The progress of a verification."""

    threads: int = 0
    objects: int = 0


class Inspector:
    """Made for one command; runs on the archive's threads."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        self._fleet = Fleet(state)
        self._fetcher = CountedFetcher(state.wire)
        self._tally = Tally()

    def verify(self, request: VerifyArchiveRequest) -> Iterator[VerifyArchiveResponse]:
        """Yields findings and progress. Raises ThreadNotFound, ArchiveUnavailable."""
        survey = Survey()
        if request.thread:
            self._choose(request.namespace, request.thread, survey)
        else:
            for key in missing(self._state.wire):
                message = f"{key} is missing in the archive; a sidecar without data cannot use the archive"
                yield self._progress(VerifyFinding(reason=ERROR_REASON_CORRUPT, message=message))
            if message := find_change(self._state.context, self._state.wire):
                yield self._progress(VerifyFinding(reason=ERROR_REASON_CORRUPT, message=message))
            for _ in self._fleet.survey(request.namespace, survey):
                yield self._progress()
            for _ in self._fleet.add_lost(request.namespace, survey):
                yield self._progress()
        for places in in_chunks(survey.heads):
            for found in self._fleet.read(places):
                self._tally.threads += 1
                if (set_back := self._compare(found)) is not None:
                    yield self._progress(self._finding(found, set_back))
                for flaw in self.check(found, request.data_percent):
                    yield self._progress(self._finding(found, flaw) if flaw is not None else None)
            yield self._progress()
        for place in survey.headless:
            self._tally.threads += 1
            lost = Flaw(f"{place.head} is missing in the archive")
            yield self._progress(self._finding(Found(place), lost))
        yield self._progress()

    def _choose(self, namespace: str, name: str, survey: Survey) -> None:
        place = self._fleet.place(namespace, name)
        found = self._fleet.heads([place])[0]
        if found.seen is None:
            self._state.wire.check_there()  # an archive that is not mounted looks empty
        if found.seen is not None or found.error is not None:
            if found.seen is not None and not found.is_live and self._compare(found) is None:
                raise not_found(namespace, name)
            survey.heads.append(place)
        elif self._fleet.name_here(place) is not None or next(self._state.wire.walk(place.prefix), None):
            survey.headless.append(place)
        else:
            raise not_found(namespace, name)

    def _progress(self, finding: VerifyFinding | None = None) -> VerifyArchiveResponse:
        progress = ScanProgress(
            threads=self._tally.threads, items=self._tally.objects, bytes=self._fetcher.read_bytes
        )
        return VerifyArchiveResponse(progress=progress, finding=finding)

    def _finding(self, found: Found, flaw: Flaw) -> VerifyFinding:
        finding = VerifyFinding(
            reason=reason_number(flaw.reason), message=flaw.message, version=flaw.version, sequence=flaw.sequence
        )
        if found.image is not None:
            finding.namespace, finding.thread = found.image.head.namespace, found.image.head.thread
        elif name := self._fleet.name_here(found.place):
            finding.namespace, finding.thread = name
        elif found.place.prefix not in flaw.message:  # without its HEAD or key, only the place names the thread
            finding.message = f"{found.place.prefix.rstrip('/')}: {flaw.message}"
        if found.seen is not None:
            finding.uid = found.seen.head.uid.hex()
        return finding

    def _compare(self, found: Found) -> Flaw | None:
        """Returns a flaw if this disk knows that more of a thread was archived than HEAD says. A copy knows only what
        others archived, and counts likewise; a copy that is behind is none."""
        name = self._fleet.name_here(found.place)
        if found.seen is None or name is None:
            return None
        try:
            thread = self._fleet.thread_here(name)
        except StatewardError:
            return None  # Verify of the disk reports it
        if thread is None or thread.archive is None or thread.access == THREAD_ACCESS_ORPHAN:
            return None
        known = known_head(self._state, thread)
        if judge_here(self._state, thread, known, found.seen.head) is not Verdict.ROLLED_BACK:
            return None
        # This process may have written HEAD since it was read: then what it knows is newer, and HEAD in order.
        again = self._fleet.heads([found.place])[0].seen
        if again is None or again.head.write_id != found.seen.head.write_id:
            return None
        return Flaw(set_back_text(found.seen.head, known))

    # -- one thread -----------------------------------------------------------------------------------------------

    def check(self, found: Found, data_percent: float) -> Iterator[Flaw | None]:
        """Yields what is wrong with a thread that was read; None = progress. Raises ArchiveUnavailable."""
        if found.error is not None and not isinstance(found.error, Locked):
            yield flaw_of(found.error)
        if not found.is_live:
            return
        assert found.seen is not None
        head = found.seen.head
        refs, broken_at, flaws = self._follow_index(found.place, head)
        refs += head.objects
        yield from flaws
        bad: list[ObjectRef] = []
        sizes = whole_sizes(self._state.wire.walk(found.place.prefix))
        yield from self._check_presence(found, refs, sizes, bad)
        self._tally.objects += len(head.image_parts)  # they were read with HEAD
        if found.image is None or found.seen.key is None:
            return
        tail: list[Entry] = []
        try:
            tail = open_tail(head, Cipher(found.seen.key.data_key))
            version = broken_at.last_version if broken_at is not None else 0
            start = broken_at.last_sequence if broken_at is not None else 0
            yield from find_holes(head, found.image, refs, tail, start, version)
        except Corrupt as error:
            yield flaw_of(error)
        if broken_at is None:
            yield from find_missing_snapshots(head, found.image, refs, tail)
        if data_percent > 0:
            self._fetcher.count(found.head_bytes)  # it was opened, and has all of a small thread
            told = {ref.first_version for ref in bad if not is_pack(ref)}
            rereader = Rereader(self._fetcher, found.place, head, found.image, found.seen.key.data_key, refs, told)
            yield from self._reread(found, rereader, [ref for ref in refs if ref not in bad], tail, data_percent)
        yield from self._check_blobs(found, sizes, data_percent)

    def _check_blobs(self, found: Found, sizes: Mapping[str, int], data_percent: float) -> Iterator[Flaw | None]:
        image, seen, place = found.image, found.seen, found.place
        assert image is not None
        assert seen is not None
        assert seen.key is not None
        self._tally.objects += len(image.blobs)
        missing = list(find_missing_blobs(self._fetcher, place, image, sizes))
        if missing:
            named = self._named_blobs(place)
            yield from (flaw for row, flaw in missing if row.record.blob_id in named)
        bad = {bytes(row.record.blob_id) for row, _ in missing}
        for row in image.blobs:
            if row.record.blob_id not in bad and _is_chosen(data_percent):
                for flaw in reread_blob(self._fetcher, place, row):
                    if flaw is None or row.record.blob_id in self._named_blobs(place):  # else it was removed meanwhile
                        yield flaw

    def _named_blobs(self, place: Place) -> set[bytes]:
        """Returns the ids of the blobs that a thread has now."""
        now = self._fleet.read([place])[0]
        return {bytes(row.record.blob_id) for row in now.image.blobs} if now.image is not None else set()

    def _follow_index(self, place: Place, head: ArchiveHead) -> tuple[list[ObjectRef], ObjectRef | None, list[Flaw]]:
        """Returns the objects of the chain of indexes, oldest first; the index at which it breaks off; and why."""
        refs: list[ObjectRef] = []
        at = head.index
        try:
            for _, index in self._fetcher.chain(place, head):
                refs = [*index.objects, *refs]
                self._tally.objects += 1
                at = index.previous
        except Corrupt as error:
            return refs, at, [flaw_of(error, at.first_version)]
        return refs, None, []

    def _check_presence(
        self, found: Found, refs: list[ObjectRef], sizes: Mapping[str, int], bad: list[ObjectRef]
    ) -> Iterator[Flaw | None]:
        """Looks for packs and snapshots. Adds those that are missing or have another size to ``bad``."""
        place = found.place
        for number, ref in enumerate(refs, 1):
            self._tally.objects += 1
            key = place.object(ref)
            size = sizes.get(key)
            wrong = ""
            if size is None:
                try:
                    self._state.wire.get_range(key, 0, 1)  # it may be newer than the listing
                except ObjectNotFound:
                    wrong = f"the object {key}, which HEAD names, is missing in the archive"
            elif size != ref.size_bytes:
                wrong = f"the object {key} has {size} bytes in the archive instead of {ref.size_bytes}"
            if wrong:
                bad.append(ref)
                if self._is_named(found, ref):  # else its owner was removing it, perhaps slice by slice
                    yield _flaw_at(ref, wrong)
            if number % OBJECTS_A_STEP == 0:
                yield None

    def _is_named(self, found: Found, ref: ObjectRef) -> bool:
        """Whether HEAD still needs an object. An index and the objects that it names are needed together."""
        assert found.namespace is not None
        assert found.seen is not None
        now = self._fleet.heads([found.place])[0].seen
        if now is None or now.head.uid != found.seen.head.uid or not Found(found.place, seen=now).is_live:
            return False
        return ref not in found.seen.head.objects or ref in now.head.objects

    def _reread(
        self, found: Found, rereader: Rereader, refs: list[ObjectRef], tail: list[Entry], data_percent: float
    ) -> Iterator[Flaw | None]:
        for ref in sorted(refs, key=lambda ref: (ref.first_sequence, ref.first_version)):
            if _is_chosen(data_percent):
                flaws = list(rereader.check(ref))
                if flaws and self._is_named(found, ref):  # else its owner removed it meanwhile
                    yield from flaws
                yield None
        yield from rereader.check_entries(
            [PackedRow(sequence=entry.header.sequence, record=entry.record) for entry in tail]
        )


def _is_chosen(data_percent: float) -> bool:
    return random.random() * 100 < data_percent  # noqa: S311  (no secret)


def _flaw_at(ref: ObjectRef, message: str) -> Flaw:
    what = f" (entries {ref.first_sequence} to {ref.last_sequence})" if is_pack(ref) else ""
    return Flaw(message + what, ref.first_version, ref.first_sequence)


def flaws_of(state: ArchiveState, found: Found) -> list[Flaw]:
    """Reads all bytes of a thread, and returns everything that is wrong with it. Raises ArchiveUnavailable."""
    return [flaw for flaw in Inspector(state).check(found, 100) if flaw is not None]

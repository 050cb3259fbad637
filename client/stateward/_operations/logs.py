"""Operations that read a log as a stream of events: page by page, from an index on, with or without waiting."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stateward import values
from stateward._operations.steps import Call, Download, Operation, ThreadRef, version_ref
from stateward._operations.uploads import read_request
from stateward.blobs import StateBlobs, is_made, restored
from stateward.errors import NotFound, VersionNotFound
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import state_pb2

FOLLOW_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of a log, and its index, which never changes."""

    index: int
    value: Any


class LogPages:
    """Reads a log at one version, page by page."""

    def __init__(self, ref: ThreadRef, log: str, start: int, version: int | None) -> None:
        self.ended = False
        self._ref = ref
        self._request = page_request(ref, log, start, version)
        self._version, self._is_begun = version, False

    def next_page(self) -> Operation[list[LogEntry]]:
        """Returns the next entries. All pages are read at the version of the first; ends if there is no version."""
        try:
            if not self._is_begun:
                yield from prepare_reading(self._ref, self._version)
            page = yield from read_page(self._ref, self._request)
        except NotFound:
            if self._is_begun or self._version is not None:
                raise
            self.ended = True
            return []
        self._request.version.version, self._request.version.digest = page.version, page.version_digest
        note_known(self._request, page)
        self._is_begun = True
        self._request.from_index, self.ended = page.next_index, page.next_index >= page.end_index
        return (yield from decode_entries(self._ref, self._request.log, page))


class LogFollower:
    """Reads a log from an index on, and waits at its end for more. `start` None = the current end."""

    def __init__(self, ref: ThreadRef, log: str, start: int | None, wait_s: float) -> None:
        self._ref = ref
        self._request = page_request(ref, log, start or 0, None)
        self._wait_s = wait_s
        self._starts_at_end = start is None
        self._is_begun = False
        self._version: int | None = None  # of the last page

    def next_page(self) -> Operation[list[LogEntry]]:
        """Returns the next entries; empty = there were none within `wait_s`."""
        request = self._request
        if not self._is_begun:
            yield from prepare_reading(self._ref, None)
            self._is_begun = True
        if self._starts_at_end:
            request.page_size = 1
            page = yield from read_page(self._ref, request)
            request.ClearField("page_size")
            request.from_index, self._version, self._starts_at_end = page.end_index, page.version, False
            note_known(request, page)
        request.wait.FromTimedelta(timedelta(seconds=self._wait_s))
        page = yield from read_page(self._ref, request)
        is_rewritten = self._version is not None and not page.rewritten_version <= self._version <= page.version
        is_rewritten = is_rewritten or page.known_missing  # another sidecar went on from an earlier version
        request.from_index, self._version = page.next_index, page.version
        note_known(request, page)
        if is_rewritten:  # the end may have been cut off: new entries get those indexes again
            request.from_index = min(page.next_index, page.end_index)
            yield from prepare_reading(self._ref, None)  # a newer program may have migrated it too far
        return (yield from decode_entries(self._ref, request.log, page))


def prepare_reading(ref: ThreadRef, version: int | None) -> Operation[None]:
    """Ensures, before the first page, that the entries have the current schema, if the handle has migrations.

    Migrates the head (`version` None). Raises SchemaMismatch for a version of another schema."""
    if ref.migrations is not None:
        yield from ref.migrations._prepare_reading(ref, version)


def page_request(ref: ThreadRef, log: str, start: int, version: int | None) -> checkpoints.ReadLogRequest:
    """Builds the request for the entries from `start` on."""
    at = version_ref(version, called="version")
    return ref.on_branch(checkpoints.ReadLogRequest, log=log, from_index=start, version=at)


def note_known(request: checkpoints.ReadLogRequest, page: checkpoints.ReadLogResponse) -> None:
    """Names a page in the request for the next one, so that this is of the same thread and history."""
    request.expected_uid, request.known_version, request.known_digest = page.uid, page.version, page.version_digest


def read_page(ref: ThreadRef, request: checkpoints.ReadLogRequest) -> Operation[checkpoints.ReadLogResponse]:
    """Reads a page. If the branch does not exist yet, reads the version from which it will start."""
    page: checkpoints.ReadLogResponse
    try:
        page = yield Call("ReadLog", request)
    except VersionNotFound:
        if ref.at is None or request.HasField("version"):
            raise
        start = checkpoints.ReadLogRequest()
        start.CopyFrom(request)
        start.ClearField("branch")
        start.ClearField("wait")
        start.version.CopyFrom(ref.start)
        page = yield Call("ReadLog", start)
    return page


def decode_entries(ref: ThreadRef, log: str, page: checkpoints.ReadLogResponse) -> Operation[list[LogEntry]]:
    """Returns the entries of a page as Python values. Fetches those that a save stored as blobs."""
    blobs = StateBlobs(ref.blobs) if ref.blobs is not None else None
    found = []
    for index, stored in enumerate(page.entries, page.first_index):
        value: state_pb2.Value = stored
        if is_made(value):
            value = restored(value, (yield Download("ReadBlob", read_request(ref, value.blob.sha256))))
        found.append(LogEntry(index, values.decode(value, f"logs.{log}, index {index}", blobs)))
    return found

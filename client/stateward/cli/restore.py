"""Exported threads become threads again: whole, or not at all.

Each is sent as one stream, and is there when its last record was taken. So the same import again passes over the
threads that are there, and goes on with the first one that is not. A thread of the name that this export did not make
is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from stateward.cli.exporting import FILE_END, FORMAT, FORMAT_OLD, KIND, MARK
from stateward.cli.importing import RunInvalid, RunRefused
from stateward.cli.recordings import CutOff, Line, Recording, parse, read_lines
from stateward.errors import StatewardError, ThreadExists, ThreadNotFound, Unavailable

if TYPE_CHECKING:
    from stateward import Client
    from stateward.transfer import ThreadUpload
    from stateward.v1.backup_service_pb2 import ThreadPart

WRONG_RECORD = (KeyError, TypeError, ValueError, AttributeError)


@dataclass
class Restored:
    """What was restored, and how far the file is read."""

    lines: int = 0
    threads: int = 0
    """Threads that are there now."""
    versions: int = 0
    versions_before: int = 0
    """Versions of threads that were there already."""


@dataclass(frozen=True)
class Options:
    """How threads are restored."""

    prefix: str = ""
    resume: bool = True
    limit: int | None = None
    keep_all: bool = False
    """Leaves TTL and retention out."""


def restore(
    client: Client,
    recording: Recording,
    options: Options,
    *,
    on_line: Callable[[Restored], None],
    on_problem: Callable[[str], None],
) -> Restored:
    """Restores the threads of a file, one after the other. What is wrong with one costs no other."""
    totals, run = Restored(), _File(client, recording, options, on_problem)
    try:
        for line, record in _records(recording, on_problem):
            totals.lines += 1
            if not run.take(line, record, totals):
                return totals
            on_line(totals)
        run.finish(totals)
    finally:
        run.cancel()
    return totals


def _records(recording: Recording, on_problem: Callable[[str], None]) -> Iterator[tuple[Line, dict[str, Any]]]:
    for line in _lines(recording):
        where = f"{recording.path} line {line.number}"
        try:
            record = parse(line, recording.path)
        except RunInvalid as error:
            on_problem(str(error))
            continue
        if not isinstance(record, dict) or MARK not in record:
            on_problem(f"{where} is no record of an export, as the lines before it are")
        elif record[MARK] not in (FORMAT, FORMAT_OLD):
            on_problem(f"{where} has format {record[MARK]!r}; this program reads {FORMAT}, so use a newer one")
        elif record.get(KIND) != FILE_END and not isinstance(record.get("thread"), str):
            on_problem(f"{where} names no thread")
        else:
            yield line, record


def _lines(recording: Recording) -> Iterator[Line]:
    try:
        yield from read_lines(recording.path)
    except CutOff:
        return  # the end of the file is missing, which is told where it is


class _File:
    """The threads of a file, in the course of being restored."""

    def __init__(
        self, client: Client, recording: Recording, options: Options, on_problem: Callable[[str], None]
    ) -> None:
        self._client, self._recording, self._options, self._on_problem = client, recording, options, on_problem
        self._old_ids = _old_request_ids(recording)
        self._thread: _Thread | None = None
        self._given_up = ""
        self._begun = 0
        self._is_whole = False

    def take(self, line: Line, record: Mapping[str, Any], totals: Restored) -> bool:
        """Takes a record. False: there are as many threads as were asked for."""
        self._is_whole = record.get(KIND) == FILE_END
        if self._is_whole:
            return True
        where, source = f"{self._recording.path} line {line.number}", record["thread"]
        is_new = record[MARK] == FORMAT and record.get(KIND) == "thread"
        if is_new or source != (self._thread.source if self._thread is not None else self._given_up):
            self._leave(totals)
            self._given_up = ""
            if self._begun == self._options.limit:
                return False
            self._begun += 1
        elif self._thread is None:
            return True  # given up
        try:
            self._thread = self._thread or self._begin(record)
            self._thread.take(line, record)
            if self._thread.is_over:
                self._leave(totals)
                self._given_up = source  # what comes of it now is not part of it
        except Unavailable:
            raise
        except (RunRefused, StatewardError, *WRONG_RECORD) as problem:
            self._on_problem(f"{where}: {_explain(problem)}")
            self.cancel()
            self._given_up = source
        return True

    def _begin(self, record: Mapping[str, Any]) -> _Thread:
        source = record["thread"]
        if record[MARK] == FORMAT_OLD:
            return _Thread(self._client, source, self._old_ids[source], self._options, is_old=True)
        if record.get(KIND) != "thread":
            raise RunRefused(f"the first records of thread {source!r} are missing; {NOTHING_RESTORED}")
        return _Thread(self._client, source, f"import {record['export']}", self._options, is_old=False)

    def _leave(self, totals: Restored) -> None:
        """Ends the thread that is open, if one is."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.finish()
        except Unavailable:
            raise
        except (RunRefused, StatewardError) as problem:
            self._on_problem(f"{self._recording.path}: {_explain(problem)}")
            return
        finally:
            thread.cancel()
        totals.threads += 1
        totals.versions += 0 if thread.existed else thread.versions
        totals.versions_before += thread.versions if thread.existed else 0

    def finish(self, totals: Restored) -> None:
        """The file has ended."""
        self._leave(totals)
        if not self._is_whole and not self._old_ids:
            self._on_problem(f"{self._recording.path} was cut off: threads that came later are missing; get it again")

    def cancel(self) -> None:
        """Leaves nothing of the thread that is open."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.cancel()


NOTHING_RESTORED = "nothing of it was restored"


@dataclass
class _Thread:
    """One thread in the course of being restored."""

    client: Client
    source: str
    request_id: str
    options: Options
    is_old: bool
    versions: int = 0
    existed: bool = False
    is_over: bool = False
    _sums: Any = field(default_factory=sha256)
    _upload: ThreadUpload | None = None

    def __post_init__(self) -> None:
        from stateward.cli.restores import OldFormat  # noqa: PLC0415  the client is loaded when it is used
        from stateward.transfer import ThreadUpload  # noqa: PLC0415

        self._old = OldFormat(keep_all=self.options.keep_all)
        self.existed = self._look()
        if not self.existed:
            self._upload = ThreadUpload(self.client, self.name, self.request_id)

    @property
    def name(self) -> str:
        """What it is called here."""
        return self.options.prefix + self.source

    def _look(self) -> bool:
        """Whether this import made it before. Raises RunRefused for another thread of the name."""
        from stateward.transfer import ThreadUpload  # noqa: PLC0415

        try:
            self.client.thread(self.name).info()
        except ThreadNotFound:
            return False
        if not self.options.resume:
            raise RunRefused(
                f"thread {self.name!r} exists already; leave --no-resume out to pass over what an import made, or give "
                "a --thread-prefix"
            )
        try:
            return bool(ThreadUpload(self.client, self.name, self.request_id).finish().existed)
        except ThreadExists:
            raise RunRefused(
                f"thread {self.name!r} exists, and this export did not make it; nothing was written to it, give "
                "another --thread-prefix"
            ) from None

    def take(self, line: Line, record: Mapping[str, Any]) -> None:
        """Sends a record."""
        kind = record.get(KIND, "version")
        self.versions += kind == "version"
        if kind == "end":
            self.is_over = True
            if record.get("sha256", self._sums.hexdigest()) != self._sums.hexdigest():
                raise RunRefused(
                    f"the records of thread {self.source!r} are not those that were exported: the file is damaged; "
                    f"{NOTHING_RESTORED}"
                )
        self._sums.update(line.data + b"\n")
        if self._upload is None:
            return
        for part in self._parts(record):
            self._upload.take(part)

    def _parts(self, record: Mapping[str, Any]) -> Iterator[ThreadPart]:
        from stateward.cli.restores import parts_of  # noqa: PLC0415

        return self._old.parts_of(record) if self.is_old else parts_of(record, keep_all=self.options.keep_all)

    def finish(self) -> None:
        """Makes the thread. RunRefused where its end did not come."""
        if self.is_old and self._upload is not None:
            self._upload.take(self._old.end())
        elif not self.is_over and not self.is_old:
            raise RunRefused(f"the end of thread {self.source!r} is missing: the file is cut off; {NOTHING_RESTORED}")
        if self._upload is not None:
            self._upload.finish()

    def cancel(self) -> None:
        """Leaves nothing, unless it is finished."""
        if self._upload is not None:
            self._upload.cancel()


def _old_request_ids(recording: Recording) -> dict[str, str]:
    """For each thread in records of format 1, which name no export: a request id that follows from all of them."""
    sums: dict[str, Any] = {}
    for line in read_lines(recording.path) if recording.is_old else ():
        try:
            record = parse(line, recording.path)
        except RunInvalid:
            continue  # told when it is restored
        if isinstance(record, dict) and isinstance(record.get("thread"), str):
            sums.setdefault(record["thread"], sha256()).update(line.data)
    return {thread: f"import {found.hexdigest()}" for thread, found in sums.items()}


def _explain(problem: Exception) -> str:
    if isinstance(problem, RunRefused):
        return str(problem)
    if isinstance(problem, StatewardError):
        return problem.message
    what = f"lacks {problem}" if isinstance(problem, KeyError) else str(problem)
    return f"this is no record as `stateward export --versions` writes it: {what}"

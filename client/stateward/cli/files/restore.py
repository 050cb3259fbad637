"""Restores exported threads, each completely or not at all.

A thread is sent as one stream and exists once the daemon has taken its last record. Repeating an import therefore skips
the threads that exist and continues with the first missing one. A thread of the same name from another source is not
changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from stateward.cli.files.exporting import FILE_END, FORMAT, KIND, MARK
from stateward.cli.files.importing import RunInvalid, RunRefused
from stateward.cli.files.lacking import Held, compare
from stateward.cli.files.recordings import CutOff, Line, Recording, parse, read_lines, thread_name
from stateward.errors import StatewardError, ThreadExists, ThreadNotFound, Unavailable

if TYPE_CHECKING:
    from stateward import Client
    from stateward.transfer import ThreadUpload

WRONG_RECORD = (KeyError, TypeError, ValueError, AttributeError)


@dataclass
class Restored:
    """What was restored so far, and how many lines were read."""

    lines: int = 0
    threads: int = 0
    """Threads that exist now."""
    saved: Counter[str] = field(default_factory=Counter)
    """Number of things that were saved, by kind."""
    versions_before: int = 0
    """Versions of threads that already existed."""


@dataclass(frozen=True)
class Options:
    """Options of a restore."""

    prefix: str = ""
    resume: bool = True
    limit: int | None = None
    keep_all: bool = False
    """Restore threads without their TTL and retention."""


def restore(
    client: Client,
    recording: Recording,
    options: Options,
    *,
    on_line: Callable[[Restored], None],
    on_problem: Callable[[str], None],
) -> Restored:
    """Restores the threads of a file one by one. A problem with one thread does not stop the others."""
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
            on_problem(f"{where} is not a record of an export, unlike the lines before it")
        elif record[MARK] != FORMAT:
            on_problem(f"{where} has format {record[MARK]!r}; this version reads format {FORMAT}; use a newer one")
        elif record.get(KIND) != FILE_END and not isinstance(record.get("thread"), str):
            on_problem(f"{where} has no thread name")
        else:
            yield line, record


def _lines(recording: Recording) -> Iterator[Line]:
    try:
        yield from read_lines(recording.path)
    except CutOff:
        return  # `finish` reports that the end of the file is missing


class _File:
    """Restores the threads of one file."""

    def __init__(
        self, client: Client, recording: Recording, options: Options, on_problem: Callable[[str], None]
    ) -> None:
        self._client, self._recording, self._options, self._on_problem = client, recording, options, on_problem
        self._thread: _Thread | None = None
        self._given_up = ""
        self._begun = self._ended = self._exported = 0
        self._is_whole = False

    def take(self, line: Line, record: Mapping[str, Any], totals: Restored) -> bool:
        """Takes a record. Returns False once the limit of threads is reached."""
        self._is_whole = record.get(KIND) == FILE_END and type(record.get("threads")) is int
        if record.get(KIND) == FILE_END:
            self._exported += record["threads"] if self._is_whole else 0
            return True
        self._ended += record.get(KIND) == "end"
        where, source = f"{self._recording.path} line {line.number}", record["thread"]
        known = self._thread.source if self._thread is not None else self._given_up
        if record.get(KIND) == "thread" or source != known:
            self._leave(totals)
            self._given_up = ""
            if self._begun == self._options.limit:
                return False
            self._begun += 1
        elif self._thread is None:
            return True  # skips the rest of a thread that failed
        try:
            self._thread = self._thread or self._begin(record)
            self._thread.take(line, record)
            if self._thread.is_over:
                self._leave(totals)
                self._given_up = source  # later records of this thread are ignored
        except Unavailable:
            raise
        except (RunRefused, StatewardError, *WRONG_RECORD) as problem:
            self._on_problem(f"{where}: {_explain(problem, source)}")
            self.cancel()
            self._given_up = source
        return True

    def _begin(self, record: Mapping[str, Any]) -> _Thread:
        source = record["thread"]
        if record.get(KIND) != "thread":
            raise RunRefused(f"the first records of thread {source!r} are missing; {NOTHING_RESTORED}")
        return _Thread(self._client, source, f"import {record['export']}", self._options)

    def _leave(self, totals: Restored) -> None:
        """Finishes the open thread, if any."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.finish()
        except Unavailable:
            raise
        except (RunRefused, StatewardError) as problem:
            self._on_problem(f"{self._recording.path}: {_explain(problem, thread.source)}")
            return
        finally:
            thread.cancel()
        totals.threads += 1
        if thread.existed:
            self._compare(thread, totals)
        else:
            totals.saved.update(thread.came)

    def _compare(self, thread: _Thread, totals: Restored) -> None:
        """Counts what is there of a thread that an earlier import made, and reports what was removed since."""
        try:
            found, lacking = compare(self._client, thread.name, thread.held)
        except Unavailable:
            raise
        except StatewardError as problem:
            self._on_problem(f"{self._recording.path}: thread {thread.name!r} cannot be compared: {problem.message}")
            return
        totals.versions_before += found
        if lacking:
            self._on_problem(
                f"{self._recording.path}: thread {thread.name!r} was imported before and changed since: "
                f"{lacking}; nothing was written; to restore it again, give a --thread-prefix, or delete it first"
            )

    def finish(self, totals: Restored) -> None:
        """Finishes the last thread at the end of the file. Reports a problem if the file lacks threads."""
        self._leave(totals)
        path, ended, exported = self._recording.path, self._ended, self._exported
        if not self._is_whole:
            self._on_problem(f"{path} is truncated: threads at its end are missing; get it again")
        elif ended < exported:
            self._on_problem(f"{path} has only {ended:,} of the {exported:,} threads that were exported; get it again")

    def cancel(self) -> None:
        """Cancels the open thread, if any, so that nothing of it is stored."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.cancel()


NOTHING_RESTORED = "nothing of it was restored"


@dataclass
class _Thread:
    """Restores one thread."""

    client: Client
    source: str
    request_id: str
    options: Options
    came: Counter[str] = field(default_factory=Counter)
    """Number of the file's lines of this thread, by kind."""
    existed: bool = False
    is_over: bool = False
    held: Held = field(default_factory=Held)
    """What the file has of a thread that existed."""
    _sums: Any = field(default_factory=sha256)
    _upload: ThreadUpload | None = None

    def __post_init__(self) -> None:
        from stateward.transfer import ThreadUpload  # noqa: PLC0415  the client is loaded at first use

        self.existed = self._look()
        if not self.existed:
            self._upload = ThreadUpload(self.client, self.name, self.request_id)

    @property
    def name(self) -> str:
        """The name of the restored thread. An orphan gets another name, because no thread can be made with its own."""
        return thread_name(self.options.prefix, self.source, 0)

    def _look(self) -> bool:
        """Returns whether this import already made the thread. Raises RunRefused if another thread has its name."""
        from stateward.transfer import ThreadUpload  # noqa: PLC0415

        try:
            self.client.thread(self.name).info()
        except ThreadNotFound:
            return False
        if not self.options.resume:
            raise RunRefused(
                f"thread {self.name!r} already exists; omit --no-resume to skip threads that an import made, or give "
                "a --thread-prefix"
            )
        try:
            return bool(ThreadUpload(self.client, self.name, self.request_id).finish().receipt.replayed)
        except ThreadExists:
            raise RunRefused(
                f"thread {self.name!r} exists, and was not restored from this export; nothing was written; give "
                "another --thread-prefix"
            ) from None

    def take(self, line: Line, record: Mapping[str, Any]) -> None:
        """Sends a record."""
        kind = record[KIND]
        self.came[kind] += 1
        if kind == "end":
            self.is_over = True
            if record.get("sha256", self._sums.hexdigest()) != self._sums.hexdigest():
                raise RunRefused(
                    f"the records of thread {self.source!r} do not match their SHA-256: the file is damaged; "
                    f"{NOTHING_RESTORED}"
                )
        self._sums.update(line.data + b"\n")
        if self._upload is None:
            self.held.take(record)
            return
        from stateward.cli.files.restores import parts_of  # noqa: PLC0415

        for part in parts_of(record, keep_all=self.options.keep_all):
            self._upload.take(part)

    def finish(self) -> None:
        """Finishes the thread on the daemon. Raises RunRefused if its end record is missing."""
        if not self.is_over:
            raise RunRefused(f"the end of thread {self.source!r} is missing: the file is truncated; {NOTHING_RESTORED}")
        if self._upload is not None:
            self._upload.finish()

    def cancel(self) -> None:
        """Discards what was sent, unless the thread is finished."""
        if self._upload is not None:
            self._upload.cancel()


def _explain(problem: Exception, thread: str) -> str:
    """Returns the problem of a thread, with the thread's name."""
    if isinstance(problem, RunRefused):
        return str(problem)  # has the name
    if isinstance(problem, StatewardError):
        return f"thread {thread!r} is not restored: {problem.message}"
    what = f"lacks {problem}" if isinstance(problem, KeyError) else str(problem)
    return f"thread {thread!r}: this is not a record of `stateward export --versions`: {what}"

# Generated from stateward/_async/archive.py by client/generate.py. Do not edit.
"""`client.archive`: looking after the archive as a whole."""

from __future__ import annotations

from stateward._io.blocking.session import Session
from stateward._io.blocking.stream import Stream
from stateward._operations import archive
from stateward.archive import (
    ArchivedThread,
    ArchiveStatus,
    ArchiveVerifyProgress,
    GarbageProgress,
    Repair,
    RestoreProgress,
)
from stateward.durations import Duration


class Archive:
    """The archive of the daemon, as far as it holds the client's namespace. NoArchive where there is none.

    These are the only calls that list the bucket: they cost requests by the number of threads.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def status(self) -> ArchiveStatus:
        """Where the archive is and how it does. Asks the daemon only, not the bucket."""
        return self._session.run(archive.status())

    def list(self, *, index: bool = False) -> Stream[ArchivedThread]:
        """All threads in the archive, whoever holds them; one request to the bucket for each.

        `index` also keeps them on this disk as copies without history, so that `client.threads()` finds them.
        """
        return self._session.open(archive.list_threads(self._session.namespace, index=index))

    def verify(self, thread: str | None = None, *, data_percent: float = 0.0) -> Stream[ArchiveVerifyProgress]:
        """Looks whether everything is there, and reads `data_percent` (0 to 100) of the bytes back."""
        return self._session.open(archive.verify(self._session.namespace, thread, data_percent))

    def restore(self, thread: str | None = None, *, dry_run: bool = False) -> Stream[RestoreProgress]:
        """Copies threads (or one) from the archive to this disk, without taking them from who holds them.

        Can be made again: what is here is not read anew. `dry_run` only tells what there is.
        """
        return self._session.open(archive.restore(self._session.namespace, thread, dry_run=dry_run))

    def collect(self, *, dry_run: bool = False, older_than: Duration | None = None) -> Stream[GarbageProgress]:
        """Removes objects that nobody needs any more; `dry_run` only names them.

        Only those that were let go at least `older_than` ago (None = an hour), so that a stalled writer loses nothing.
        """
        return self._session.open(archive.collect(self._session.namespace, dry_run=dry_run, older_than=older_than))

    def repair(self, thread: str, *, dry_run: bool = False) -> Repair:
        """Writes a thread's place in the archive anew from this disk, where it was lost, damaged or rolled back.

        `dry_run` only tells what is wrong.
        """
        return self._session.run(archive.repair(self._session.namespace, thread, dry_run=dry_run))

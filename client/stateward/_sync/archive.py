# Generated from stateward/_async/archive.py by client/generate.py. Do not edit.
"""`client.archive`: looking after the archive as a whole."""

from __future__ import annotations

from stateward._frames import ends_at_the_caller
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


@ends_at_the_caller
class Archive:
    """The archive of the daemon, for the client's namespace. Its methods raise NoArchive if there is no archive.

    `list`, `verify`, `restore` and `collect` list the bucket, and so cost requests by the number of threads.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def status(self) -> ArchiveStatus:
        """Returns the place and the state of the archive. Asks only the daemon, not the bucket."""
        return self._session.run(archive.status())

    def list(self, *, index: bool = False, elsewhere: bool = False) -> Stream[ArchivedThread]:
        """Lists all threads in the archive, whoever owns them, with one request to the bucket for each.

        With `index` the daemon also keeps a copy of each without its history, so that `client.threads()` finds them.
        With `elsewhere` it lists only those that its disk does not know.
        """
        return self._session.open(archive.list_threads(self._session.namespace, index=index, elsewhere=elsewhere))

    def verify(
        self, thread: str | None = None, *, data_percent: float = 0.0, deleted_keys: bool = False
    ) -> Stream[ArchiveVerifyProgress]:
        """Checks that every object is there, and reads `data_percent` (0 to 100) of the bytes back.

        With `deleted_keys` it returns instead the deleted threads that the archive remembers, and whether a key of each
        is still in the bucket.
        """
        return self._session.open(archive.verify(self._session.namespace, thread, data_percent, deleted_keys))

    def restore(self, thread: str | None = None, *, dry_run: bool = False) -> Stream[RestoreProgress]:
        """Copies all threads, or one, from the archive to this disk. Their owners keep them.

        The call can be repeated: it skips what is on this disk already. `dry_run` only returns what would be copied.
        """
        return self._session.open(archive.restore(self._session.namespace, thread, dry_run=dry_run))

    def collect(self, *, dry_run: bool = False, older_than: Duration | None = None) -> Stream[GarbageProgress]:
        """Removes objects from the bucket that no thread needs any more. `dry_run` only names them.

        `older_than` is how long ago an object must have been unlinked (None = an hour), so that a stalled writer loses
        nothing.
        """
        return self._session.open(archive.collect(self._session.namespace, dry_run=dry_run, older_than=older_than))

    def repair(self, thread: str, *, dry_run: bool = False) -> Repair:
        """Writes a thread's HEAD in the archive anew from this disk, if it was lost, damaged or rolled back.

        `dry_run` only returns what is wrong.
        """
        return self._session.run(archive.repair(self._session.namespace, thread, dry_run=dry_run))

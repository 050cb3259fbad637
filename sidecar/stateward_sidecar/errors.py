"""Every failure the daemon names.

One class for each reaction a caller can have. The reason is the contract's ``ErrorReason``; the one table that turns
it into a gRPC status is ``service/status.py``.

    StatewardError
    ├── InvalidField            the request is wrong whatever is stored
    ├── RequestIdReused         the request id was used with another body
    ├── CheckpointIdReused      the checkpoint id names another checkpoint
    ├── ThreadExists            the name of a copy is taken
    ├── VersionMismatch         the head is not what was expected
    ├── EditConflict            an edit does not fit the state
    ├── SchemaMismatch          the head has another schema than what is added to it
    ├── ThreadNotFound          no such thread
    ├── VersionNotFound         no such version, checkpoint id, tag, branch
    ├── VersionPruned           it was there, and was removed
    ├── StateTooLarge           larger than the server allows
    ├── DiskFull                disk or map is full; reads and deletions go on
    ├── QueueFull               too many writes wait
    ├── Corrupt                 stored bytes are missing or were changed
    ├── KeyUnavailable          the key that opens the data is not there
    ├── NoArchive               ARCHIVED was asked for, none is configured
    ├── ArchiveUnavailable      the archive cannot be asked, and the call needs it
    ├── NotOwner                another sidecar holds the thread
    ├── Fenced                  another sidecar took the thread over
    ├── LeaseHeld               somebody else may write the thread
    ├── ClaimLost               somebody else is at the effect
    ├── StaleAnswer             the question is not asked any more
    ├── QuotaExceeded           too many of something wait
    ├── WriterAborted           an earlier frame of the stream was refused
    ├── HistoryElsewhere        only the archive has it: fetched, and the call made again, before anybody hears of it
    ├── FeatureUnavailable      this server cannot do that
    ├── ShuttingDown            the daemon is stopping
    ├── DeadlineExceeded        the deadline passed before the write was taken
    ├── OutcomeUnknown          the disk failed in the middle of a commit
    └── StartError              the daemon cannot start; the message is for the operator
"""

from __future__ import annotations


class StatewardError(Exception):
    """Base of all. ``metadata`` holds every fact of the message for machines."""

    reason = "INTERNAL"

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidField(StatewardError):
    """A field is wrong whatever is stored. Correct the request."""

    reason = "INVALID_FIELD"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)
        self.field = field
        self.description = message


class RequestIdReused(StatewardError):
    """The request id was answered before, for another request. Use a fresh id."""

    reason = "REQUEST_ID_REUSED"


class CheckpointIdReused(StatewardError):
    """The checkpoint id names a checkpoint with other content. Use another id."""

    reason = "CHECKPOINT_ID_REUSED"


class ThreadExists(StatewardError):
    """A thread of that name exists. Choose another name or delete it."""

    reason = "THREAD_EXISTS"


class VersionMismatch(StatewardError):
    """The branch's head is not what the caller expected. Hydrate, redo the change, save again."""

    reason = "VERSION_MISMATCH"


class EditConflict(StatewardError):
    """An edit does not fit the state it is applied to. Hydrate and make the edits anew."""

    reason = "EDIT_CONFLICT"

    def __init__(self, edit_index: int, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", edit=edit_index, field=field)
        self.edit_index = edit_index
        self.field = field


class SchemaMismatch(StatewardError):
    """The head has another schema than a save that only adds to it. Migrate the thread, or update the program."""

    reason = "SCHEMA_MISMATCH"


class ThreadNotFound(StatewardError):
    """No thread of this name."""

    reason = "THREAD_NOT_FOUND"


class VersionNotFound(StatewardError):
    """The thread has no such version, checkpoint id, tag or branch."""

    reason = "VERSION_NOT_FOUND"


class VersionPruned(StatewardError):
    """The version, or the place in the journal, was removed by retention or pruning."""

    reason = "VERSION_PRUNED"


class StateTooLarge(StatewardError):
    """Larger than the server allows. Store less, or less at once."""

    reason = "STATE_TOO_LARGE"

    def __init__(self, size_bytes: int, limit_bytes: int, message: str | None = None) -> None:
        text = message or f"the state has {size_bytes} bytes, more than the limit of {limit_bytes}"
        super().__init__(text, size_bytes=size_bytes, limit_bytes=limit_bytes)


class DiskFull(StatewardError):
    """Disk or map is full. Free space or prune, then retry; reads and deletions go on meanwhile."""

    reason = "DISK_FULL"


def no_room(needed_bytes: int, room_bytes: int) -> DiskFull:
    """The error of a write that is larger than what is left of disk and map."""
    return DiskFull(f"disk or map is full: about {needed_bytes} bytes are needed, and {max(room_bytes, 0)} are left")


class QueueFull(StatewardError):
    """Too many writes wait. Retry after a moment."""

    reason = "QUEUE_FULL"


class Corrupt(StatewardError):
    """Stored bytes are missing or were changed. Other threads are not affected; ``stateward verify`` lists all."""

    reason = "CORRUPT"

    def __init__(self, message: str, thread: str = "", version: int = 0) -> None:
        super().__init__(message)
        self.locate(thread, version)

    def locate(self, thread: str = "", version: int = 0) -> Corrupt:
        """Adds where it happened, once that is known, and returns itself."""
        if thread and "thread" not in self.metadata:
            self.metadata["thread"] = thread
            self.message = f"thread {thread!r}: {self.message}"
        if version and "version" not in self.metadata:
            self.metadata["version"] = str(version)
            self.message = f"{self.message} (version {version})"
        return self


class KeyUnavailable(StatewardError):
    """The key that opens the data is not there, or is another one."""

    reason = "KEY_UNAVAILABLE"


class NoArchive(StatewardError):
    """ARCHIVED was asked for and no archive is configured. Configure one, or ask for COMMITTED."""

    reason = "NO_ARCHIVE"


class ArchiveUnavailable(StatewardError):
    """The archive cannot be reached, and the call needs it. Nothing was written; retry when it is back."""

    reason = "ARCHIVE_UNAVAILABLE"


class NotOwner(StatewardError):
    """Another sidecar holds the thread. Wait until it is free, or attach it with TAKE_OVER."""

    reason = "NOT_OWNER"


class Fenced(StatewardError):
    """Another sidecar took the thread over. What was committed here since is kept as an orphan: read it, fork it."""

    reason = "FENCED"


class LeaseHeld(StatewardError):
    """Somebody else holds the thread's lease, or the token is not the newest one. Wait, or acquire it."""

    reason = "LEASE_HELD"


class ClaimLost(StatewardError):
    """The claim on the effect is somebody else's by now. Begin it again, to see what became of it."""

    reason = "CLAIM_LOST"


class StaleAnswer(StatewardError):
    """The answer is for a question that is not asked any more, or was answered. Look at the thread again."""

    reason = "STALE_ANSWER"


class QuotaExceeded(StatewardError):
    """Too many of something wait. Use some of them up first."""

    reason = "QUOTA_EXCEEDED"


class WriterAborted(StatewardError):
    """An earlier frame of the stream was refused. Reset the writer."""

    reason = "WRITER_ABORTED"


class HistoryElsewhere(StatewardError):
    """The archive has it and this disk has not. Whoever serves the call fetches it and tries again."""

    reason = "ARCHIVE_UNAVAILABLE"


class FeatureUnavailable(StatewardError):
    """This server cannot do that; GetServerInfo lists what it can."""

    reason = "FEATURE_UNAVAILABLE"


class ShuttingDown(StatewardError):
    """The daemon is stopping. Nothing was written; retry when it is back."""

    reason = "SHUTTING_DOWN"


class DeadlineExceeded(StatewardError):
    """The deadline passed, or the call was cancelled, before the write was taken. Nothing was written."""

    reason = "DEADLINE_EXCEEDED"


class OutcomeUnknown(StatewardError):
    """The disk failed in the middle of a commit. Retry with the same request id once the daemon is back."""

    reason = "OUTCOME_UNKNOWN"


class StartError(StatewardError):
    """The daemon cannot start. The message is one line for the operator."""

"""Every failure that the daemon names.

There is one class for each reaction of a caller. The reason is the contract's ``ErrorReason``. The one table that turns
it into a gRPC status is in ``service/calls/status.py``.

    StatewardError
    ├── InvalidField            the request is wrong whatever is stored
    ├── RequestIdReused         the request id was used with another body
    ├── CheckpointIdReused      the checkpoint id names another checkpoint
    ├── ThreadExists            the name of a copy is taken
    ├── VersionMismatch         the head is not what was expected
    ├── RecordConflict          a record is not what was expected
    ├── UidMismatch             the thread is another creation than was expected
    ├── EditConflict            an edit does not fit the state
    ├── SchemaMismatch          the head has another schema than the save
    ├── ThreadNotFound          no such thread
    ├── VersionNotFound         no such version, checkpoint id, tag, branch
    ├── BlobNotFound            the thread has no such blob
    ├── VersionPruned           the version existed, and was removed
    ├── StateTooLarge           larger than the server allows
    ├── DiskFull                disk or map is full; reads and deletions still work
    ├── QueueFull               too many writes wait
    ├── Corrupt                 stored bytes are missing or were changed
    │   └── NewerFormat         a newer version of Stateward wrote them
    ├── KeyUnavailable          the key that opens the data is missing
    │   └── Locked              the thread is held, and the call has not sent its session key
    ├── NoArchive               ARCHIVED was asked for, none is configured
    ├── ArchiveUnavailable      the archive does not answer, and the call needs it
    ├── NotOwner                another sidecar holds the thread
    ├── Fenced                  another sidecar took the thread over
    ├── LeaseHeld               somebody else holds the thread's lease
    ├── ClaimLost               somebody else holds the claim on the effect
    ├── StaleAnswer             the question is no longer open
    ├── QuotaExceeded           a limit is reached: of what waits, of a principal, of a namespace
    ├── WriterAborted           an earlier frame of the stream was refused
    ├── HistoryElsewhere        only the archive has it; internal: the service fetches it and repeats the verb
    ├── FeatureUnavailable      this server does not support that
    ├── ShuttingDown            the daemon is stopping
    ├── DeadlineExceeded        the deadline passed before the write was taken
    ├── OutcomeUnknown          the disk failed in the middle of a commit
    └── StartError              the daemon cannot start; the message is for the operator
"""

from __future__ import annotations

from stateward.v1.error_reason_pb2 import ErrorReason


def reason_number(reason: str) -> ErrorReason:
    """Returns the number that the contract gives to a reason."""
    return ErrorReason.Value(f"ERROR_REASON_{reason}")  # type: ignore[return-value]  # the stub says int


class StatewardError(Exception):
    """Base class. ``metadata`` holds every fact of the message for machines."""

    reason = "INTERNAL"

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidField(StatewardError):
    """A field is wrong, whatever is stored. Correct the request."""

    reason = "INVALID_FIELD"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)
        self.field = field
        self.description = message


class RequestIdReused(StatewardError):
    """The request id was used before for another request. Use a new id."""

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


class RecordConflict(StatewardError):
    """A record has another revision than the caller expected. Get it, redo the change, put it again."""

    reason = "RECORD_CONFLICT"


class UidMismatch(StatewardError):
    """The thread is another creation than the caller expected, or is gone. Read it anew; the work may be over."""

    reason = "UID_MISMATCH"


class EditConflict(StatewardError):
    """An edit does not fit the state that it applies to. Hydrate and make the edits again."""

    reason = "EDIT_CONFLICT"

    def __init__(self, edit_index: int, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", edit=edit_index, field=field)
        self.edit_index = edit_index
        self.field = field


class SchemaMismatch(StatewardError):
    """The head has another schema than a save without expectation. Migrate the thread, or update the program."""

    reason = "SCHEMA_MISMATCH"


class ThreadNotFound(StatewardError):
    """There is no thread of this name. A caller who named a uid gets UidMismatch: see ``service/calls/status.py``."""

    reason = "THREAD_NOT_FOUND"


class VersionNotFound(StatewardError):
    """The thread has no such version, checkpoint id, tag or branch."""

    reason = "VERSION_NOT_FOUND"


class BlobNotFound(StatewardError):
    """The thread has no such blob. Write it."""

    reason = "BLOB_NOT_FOUND"


class VersionPruned(StatewardError):
    """The version, or the place in the journal, was removed by retention or pruning."""

    reason = "VERSION_PRUNED"


class StateTooLarge(StatewardError):
    """State or message is larger than the server allows. Store less, or send less at once."""

    reason = "STATE_TOO_LARGE"

    def __init__(self, size_bytes: int, limit_bytes: int, message: str | None = None) -> None:
        text = message or f"the state has {size_bytes} bytes, more than the limit of {limit_bytes}"
        super().__init__(text, size_bytes=size_bytes, limit_bytes=limit_bytes)


class DiskFull(StatewardError):
    """Disk or map is full. Free space or prune, then retry. Reads and deletions still work."""

    reason = "DISK_FULL"


def no_room(needed_bytes: int, room_bytes: int) -> DiskFull:
    """Returns the error of a write that is larger than the free space of disk and map."""
    return DiskFull(f"disk or map is full: about {needed_bytes} bytes are needed, and {max(room_bytes, 0)} are left")


class QueueFull(StatewardError):
    """Too many writes wait, or too much memory is in use. Retry after a moment."""

    reason = "QUEUE_FULL"


class Corrupt(StatewardError):
    """Stored bytes are missing or were changed. Other threads are not affected. ``stateward verify`` lists all."""

    reason = "CORRUPT"

    def __init__(self, message: str, thread: str = "", version: int = 0) -> None:
        super().__init__(message)
        self.locate(thread, version)

    def locate(self, thread: str = "", version: int = 0) -> Corrupt:
        """Adds thread and version, unless they are known already. Returns the error itself."""
        if thread and "thread" not in self.metadata:
            self.metadata["thread"] = thread
            self.message = f"thread {thread!r}: {self.message}"
        if version and "version" not in self.metadata:
            self.metadata["version"] = str(version)
            self.message = f"{self.message} (version {version})"
        return self


class NewerFormat(Corrupt):
    """A newer version of Stateward wrote the bytes, and this version cannot read them. Upgrade this sidecar.

    As damage does, this concerns one thread only. But it is no damage: what this disk has is not current any more.
    ``is_proven`` is False if the format is outside of the seal, so that the bytes may have been changed instead.
    """

    reason = "NEWER_FORMAT"

    def __init__(self, message: str, found: int = 0, known: int = 0, *, is_proven: bool = True) -> None:
        super().__init__(message)
        self.format, self.is_proven = found, is_proven
        self.metadata |= {"format": str(found), "known_format": str(known)}


def newer_format(what: str, found: int, known: int, *, is_proven: bool = True) -> NewerFormat:
    """Returns the error of bytes that have a newer format."""
    unless = "" if is_proven else "; or its bytes were changed"
    message = f"{what} has format {found}, and this sidecar knows formats up to {known}: upgrade it{unless}"
    return NewerFormat(message, found, known, is_proven=is_proven)


def kept_until_upgrade(error: NewerFormat, sequence: int) -> NewerFormat:
    """Returns the error for a call that has written an entry, and whose entry cannot be archived for this reason."""
    message = f"{error.message}; entry {sequence} is kept on this disk until then"
    kept = NewerFormat(message, error.format, int(error.metadata["known_format"]), is_proven=error.is_proven)
    kept.metadata |= {**error.metadata, "sequence": str(sequence)}
    return kept


class KeyUnavailable(StatewardError):
    """The key that opens the data is missing, or is another key."""

    reason = "KEY_UNAVAILABLE"


class Locked(KeyUnavailable):
    """The thread is held, and its session key is missing or wrong. Send the key that it was made with."""

    reason = "LOCKED"


class Unauthenticated(StatewardError):
    """The call carries no valid token. Send one."""

    reason = "UNAUTHENTICATED"


class IssuerUnavailable(StatewardError):
    """The key that the call's token is signed with cannot be read at present, or may be a new one that is read in a
    moment. Nothing was done. Try again after ``retry_after_ms``."""

    reason = "ISSUER_UNAVAILABLE"

    def __init__(self, message: str, *, retry_after_ms: int = 200, **metadata: object) -> None:
        super().__init__(message, **metadata)
        self.retry_after_ms = retry_after_ms


class PermissionDenied(StatewardError):
    """No grant of the caller allows the call. Says nothing about what exists. Use another identity, or ask for a
    grant."""

    reason = "PERMISSION_DENIED"


class NoArchive(StatewardError):
    """ARCHIVED was asked for and no archive is configured. Configure one, or ask for COMMITTED."""

    reason = "NO_ARCHIVE"


class ArchiveUnavailable(StatewardError):
    """The archive does not answer, and the call needs it. Nothing was written. Retry when the archive is back."""

    reason = "ARCHIVE_UNAVAILABLE"


class NotOwner(StatewardError):
    """Another sidecar holds the thread. Wait until it is free, or attach it with TAKE_OVER."""

    reason = "NOT_OWNER"


class Unclaimed(NotOwner):
    """A write makes a thread whose name this sidecar has not claimed in the archive. The daemon claims it, and repeats
    the write: no caller sees this error."""


class Fenced(StatewardError):
    """Another sidecar took the thread over. Entries committed here since are kept as an orphan: read it or fork it."""

    reason = "FENCED"


class LeaseHeld(StatewardError):
    """Somebody else holds the thread's lease, or the token is not the newest one. Wait, or acquire the lease."""

    reason = "LEASE_HELD"


class ClaimLost(StatewardError):
    """Somebody else holds the claim on the effect by now. Begin the effect again to see its result."""

    reason = "CLAIM_LOST"


class StaleAnswer(StatewardError):
    """The answered question is no longer open, or has an answer already. Read the thread again."""

    reason = "STALE_ANSWER"


class QuotaExceeded(StatewardError):
    """Too many items of a kind wait, or a principal or a namespace has all that it may have. Consume or delete some
    first. ``retry_after_ms``: the limit is one of time, and the call passes if it is made again then; 0 = it is not."""

    reason = "QUOTA_EXCEEDED"

    def __init__(self, message: str, *, retry_after_ms: int = 0, **metadata: object) -> None:
        super().__init__(message, **metadata)
        self.retry_after_ms = retry_after_ms


class WriterAborted(StatewardError):
    """An earlier frame of the stream was refused. Reset the writer."""

    reason = "WRITER_ABORTED"


class HistoryElsewhere(StatewardError):
    """Only the archive has the history. The service fetches it and repeats the verb."""

    reason = "ARCHIVE_UNAVAILABLE"


class FeatureUnavailable(StatewardError):
    """This server does not support the feature. GetServerInfo lists the features that it supports."""

    reason = "FEATURE_UNAVAILABLE"


class ShuttingDown(StatewardError):
    """The daemon is stopping. Nothing was written. Retry when the daemon is back."""

    reason = "SHUTTING_DOWN"


class DeadlineExceeded(StatewardError):
    """The deadline passed, or the call was cancelled, before the write was taken. Nothing was written."""

    reason = "DEADLINE_EXCEEDED"


class OutcomeUnknown(StatewardError):
    """The disk failed in the middle of a commit. Retry with the same request id once the daemon is back."""

    reason = "OUTCOME_UNKNOWN"


class StartError(StatewardError):
    """The daemon cannot start. The message is one line for the operator."""

    #: The exit code of the process.
    exit_code = 1


class DirectoryInUse(StartError):
    """Another daemon works on the data directory."""

    exit_code = 75  # EX_TEMPFAIL

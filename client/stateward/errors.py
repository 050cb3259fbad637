"""What can go wrong, one class for each different reaction.

    StatewardError
    ├── VersionMismatch        somebody else saved first: hydrate, redo the change, save (or use `update`)
    ├── NotFound
    │   ├── ThreadNotFound     no such thread
    │   ├── VersionNotFound    no such version, checkpoint id, tag or branch
    │   └── NoHandoff          the thread is not handed to anybody
    ├── VersionPruned          it existed, and retention removed it
    ├── InvalidRequest         the call is wrong whatever is stored: correct the program
    │   ├── InvalidField       `.field` says where
    │   ├── RequestIdReused    one request id for two different requests
    │   └── FeatureUnavailable this daemon lacks what was asked for
    ├── AlreadyExists
    │   ├── ThreadExists       the new thread's name is taken
    │   └── CheckpointIdReused one checkpoint id for two different checkpoints
    ├── SchemaMismatch         the head has another schema than what is added to it
    ├── EditConflict           an edit does not fit the stored state; `.edit` is its index
    ├── OwnershipLost          somebody else may write this thread now
    │   ├── NotOwner           another sidecar holds it; nothing was written: wait, or `attach(take_over=True)`
    │   ├── Fenced             another sidecar took it; what only this disk had is kept as the thread `.orphan`
    │   ├── LeaseHeld  WriterAborted
    ├── StaleAnswer            the question is no longer asked
    ├── EffectError            what `thread.effect` says of a tool's call instead of its result
    │   ├── ClaimLost          it was called, and somebody else settles it by now; `.result` is what it returned
    │   ├── EffectFailed       it failed before
    │   ├── EffectUncertain    it may have happened: find out, or call again with `check=`
    │   └── EffectInProgress   somebody else is at it
    ├── HandoffTaken           another agent has taken the work over
    ├── KeyUnavailable         the data is there, its key is not
    ├── NoArchive              ARCHIVED was asked for and no archive is configured
    ├── NotArchivedYet         the version IS saved, on this disk only so far: `wait_archived(.checkpoint)`
    ├── Exhausted              something is full
    │   ├── StateTooLarge  QuotaExceeded  DiskFull  QueueFull
    ├── Corrupt                stored bytes are missing or were changed
    ├── Unavailable            try again later; the client itself already did for `retry_timeout` seconds
    │   ├── ServerUnavailable  no daemon answered
    │   │   └── WrongTarget    what is at the target is no daemon, or may not be used: trying again does not help
    │   ├── ArchiveUnavailable the bucket does not answer, and the call needs it
    │   ├── ShuttingDown  OutcomeUnknown
    ├── DeadlineExceeded       no answer in time; a save may have happened: retry it with the same request id
    ├── Unauthenticated  PermissionDenied
    └── Internal               a fault of the daemon; its log has more

React to the class (or `.reason`), never to the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from stateward.models import Checkpoint


class StatewardError(Exception):
    """Base of all errors of this library.

    `reason` is the ErrorReason without its prefix ("" = the error came without one), `code` the gRPC status code's
    name, `metadata` the facts in machine-readable form, `retry_delay` how long the daemon asks to wait, if it does.
    """

    #: Whether the same request may succeed a moment later with nothing changed.
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.code = code
        self.metadata = dict(metadata or {})
        self.retry_delay = retry_delay

    def _number(self, key: str) -> int | None:
        text = self.metadata.get(key, "")
        return int(text) if text.lstrip("-").isdigit() else None

    def _span(self, key: str) -> timedelta | None:
        try:
            return timedelta(seconds=float(self.metadata[key]))
        except (KeyError, ValueError, OverflowError):
            return None


class VersionMismatch(StatewardError):
    """The branch's head is not what was expected: somebody saved in between. Hydrate, redo the change, save again."""

    @property
    def current_version(self) -> int | None:
        """Version of the head; 0 = the branch does not exist. None = not said."""
        return self._number("current_version")

    @property
    def current_digest(self) -> bytes:
        """Digest of the head, 16 bytes; empty = not said."""
        return bytes.fromhex(self.metadata.get("current_digest", ""))

    @property
    def expected_version(self) -> int | None:
        """The version that the request expected."""
        return self._number("expected_version")


class NotFound(StatewardError):
    """Base of what is not there."""

    @property
    def thread(self) -> str:
        """Name of the thread that was asked for; empty = not said."""
        return self.metadata.get("thread", "")


class ThreadNotFound(NotFound):
    """There is no thread of this name (and uid)."""


class VersionNotFound(NotFound):
    """The thread has no such version, checkpoint id, tag or branch."""


class NoHandoff(NotFound):
    """The thread is not handed to anybody: it never was, or who gave it away went on with it."""


class VersionPruned(StatewardError):
    """The version, or the place in the journal, was removed by retention or pruning. Take a newer one."""

    @property
    def version(self) -> int | None:
        """The version that was asked for; None = not said."""
        return self._number("version")


class InvalidRequest(StatewardError):
    """Base of what only a change of the program mends."""


class InvalidField(InvalidRequest):
    """A field of the request is wrong whatever is stored."""

    @property
    def field(self) -> str:
        """Path of the field in the request, such as `diff.edits[3].set_slot.slot`."""
        return self.metadata.get("field", "")


class RequestIdReused(InvalidRequest):
    """The request id was used with another body. Every operation needs its own."""


class FeatureUnavailable(InvalidRequest):
    """The daemon does not have what the request uses. `.metadata["feature"]` names it."""


class AlreadyExists(StatewardError):
    """Base of names that are taken."""


class ThreadExists(AlreadyExists):
    """A thread of this name exists already. Choose another, or delete that one."""


class CheckpointIdReused(AlreadyExists):
    """The checkpoint id names another checkpoint of the branch."""


class EditConflict(StatewardError):
    """An edit does not fit the state it is applied to. Hydrate and make the change again."""

    @property
    def edit(self) -> int | None:
        """Index of the edit in the diff; None = not said."""
        return self._number("edit")

    @property
    def field(self) -> str:
        """Path of the field that does not fit."""
        return self.metadata.get("field", "")


class SchemaMismatch(StatewardError):
    """The head has another schema than what was to be added to it. Migrate the thread, or update this program."""

    @property
    def schema(self) -> int | None:
        """The head's; None = not said."""
        return self._number("schema")


class OwnershipLost(StatewardError):
    """Base of: somebody else may write this thread now. Stop, or take the thread over on purpose."""

    @property
    def owner_id(self) -> str:
        """The --owner-id of the sidecar that has the thread; empty = not said."""
        return self.metadata.get("owner_id", "")

    @property
    def epoch(self) -> int | None:
        """That sidecar's owner epoch; None = not said."""
        return self._number("epoch")


class LeaseHeld(OwnershipLost):
    """Someone else holds the thread's lease. Wait for its end."""


class NotOwner(OwnershipLost):
    """Another sidecar holds the thread; nothing was written. Go there, or wait with `thread.attach(wait=seconds)`.

    The client waited already, if that sidecar was idle and its lease would have been over within `retry_timeout`.

    Where that sidecar's machine is known to be dead: `thread.attach(take_over=True)`, then the call again.
    """

    @property
    def unchanged(self) -> timedelta | None:
        """For how long it has been seen to archive nothing; None = not said."""
        return self._span("unchanged_s")

    @property
    def free_in(self) -> timedelta | None:
        """When the thread is free if it stays like that; None = not said."""
        return self._span("free_in_s")


class Fenced(OwnershipLost):
    """Another sidecar took the thread over. Hydrate to see the history as it is now.

    What was committed here and not archived is kept: `client.thread(error.orphan)` can be read and forked.
    """

    @property
    def orphan(self) -> str:
        """Name of the thread that keeps what only this disk had; empty = there was nothing."""
        return self.metadata.get("orphan", "")

    @property
    def common_sequence(self) -> int | None:
        """The newest place in the journal that both histories share; None = not said."""
        return self._number("common_sequence")


class WriterAborted(OwnershipLost):
    """An earlier frame of the stream failed. Reset the writer and send again what was not acknowledged."""


class StaleAnswer(StatewardError):
    """The answer is for a question that is no longer asked. Look at the thread again."""


class EffectError(StatewardError):
    """Base of what `thread.effect` says of a tool's call instead of its result. `key` and `anchor` name the effect."""

    @property
    def key(self) -> str:
        """The effect's key."""
        return self.metadata.get("key", "")

    @property
    def anchor(self) -> str:
        """The effect's anchor; may be empty."""
        return self.metadata.get("anchor", "")


class ClaimLost(EffectError):
    """The claim on the effect is somebody else's: it ran out, or an agent with the same holder name was started.

    The tool was called all the same where `has_result` is true: then `result` is what it returned, and is not recorded.
    """

    result: Any = None
    has_result: bool = False


class EffectFailed(EffectError):
    """The tool failed before, with `detail`. It is called again only with `retry_failed=True`."""

    @property
    def detail(self) -> str:
        """Type and text of the error it raised."""
        return self.metadata.get("detail", "")


class EffectUncertain(EffectError):
    """The tool may have been called, and nobody knows what became of it. Find out, then `thread.effect` with `check`.

    A tool raises it itself, as `raise EffectUncertain("no answer in time") from error`, where it cannot tell whether it
    did its work: that is then recorded, and not that it failed.
    """

    @property
    def idempotency_key(self) -> str:
        """What the tool was given, if it takes one; empty = not said."""
        return self.metadata.get("idempotency_key", "")


class EffectInProgress(EffectError):
    """Somebody else has begun it and not ended within the time that was waited. Ask again later."""

    @property
    def holder(self) -> str:
        """Name of who is at it."""
        return self.metadata.get("holder", "")


class HandoffTaken(StatewardError):
    """Another agent has taken the work over. Look for something else to do."""

    @property
    def taken_by(self) -> str:
        """Name of who has it."""
        return self.metadata.get("taken_by", "")


class KeyUnavailable(StatewardError):
    """The key that opens the data is not there. An operator must give the daemon the right key."""


class NoArchive(StatewardError):
    """The call needs an archive and the daemon has none. Start it with --archive URL, or ask for COMMITTED."""


class NotArchivedYet(StatewardError, TimeoutError):
    """The version IS saved on this disk, but was not archived in time. It is a TimeoutError, too.

    Do not save again: the state continues from the version, and `thread.wait_archived(checkpoint)` waits further.
    Raised only if ARCHIVED was asked for. `checkpoints` are all versions that the call made, `checkpoint` is the first
    one that is not archived (None after `wait_archived(sequence)`), and `sequence` is its place in the journal.
    """

    def __init__(
        self, thread: str, sequence: int, checkpoint: Checkpoint | None = None, checkpoints: Sequence[Checkpoint] = ()
    ) -> None:
        what, known = (
            (f"version {checkpoint.version}", "checkpoint") if checkpoint else (f"sequence {sequence}", sequence)
        )
        super().__init__(
            f"{what} of thread {thread!r} is saved on this disk and not archived yet; "
            f"do not save it again, wait on with: thread.wait_archived({known})",
            reason="NOT_ARCHIVED_YET",
        )
        self.thread = thread
        self.sequence = sequence
        self.checkpoint = checkpoint
        self.checkpoints = tuple(checkpoints)


class Exhausted(StatewardError):
    """Base of what is full."""


class StateTooLarge(Exhausted):
    """The state or the message is larger than the daemon allows. Trim it."""

    @property
    def size_bytes(self) -> int | None:
        """Its size; None = not said."""
        return self._number("size_bytes")

    @property
    def limit_bytes(self) -> int | None:
        """What is allowed; None = not said."""
        return self._number("limit_bytes")


class QuotaExceeded(Exhausted):
    """A quota of the namespace is used up. Delete something, or ask for more."""


class DiskFull(Exhausted):
    """The disk or the map is full; reads and deletions go on. Free space, then retry."""


class QueueFull(Exhausted):
    """Too many writes wait. Retry after a moment."""

    retryable = True


class Corrupt(StatewardError):
    """Stored bytes are missing or were changed. Take another version, or restore; `verify` says how far it goes."""


class Unavailable(StatewardError):
    """Base of what passes by itself. The client has already retried when this is raised."""

    retryable = True


class ServerUnavailable(Unavailable):
    """No daemon answered. Start it, or correct the target."""


class WrongTarget(ServerUnavailable):
    """What is at the target is no daemon, or this user may not use it. Said at once: correct target or permissions."""

    retryable = False


class ShuttingDown(Unavailable):
    """The daemon is stopping. Retry when it is back."""


class OutcomeUnknown(Unavailable):
    """The disk failed in the middle of a commit. Retry with the same request id to learn what became of the write."""


class ArchiveUnavailable(Unavailable):
    """The bucket does not answer, and the call needs it: nothing was written, and no thread is called new meanwhile."""


class DeadlineExceeded(StatewardError, TimeoutError):
    """No answer came within `call_timeout`. It is a TimeoutError, too. A write may have happened: retry it with the
    same request id."""


class Unauthenticated(StatewardError):
    """The call carries no valid token."""


class PermissionDenied(StatewardError):
    """The token does not allow this call."""


class Internal(StatewardError):
    """A fault of the daemon. Its log has more."""


#: Every reason of the contract and the exception it becomes (a test checks that none is missing).
BY_REASON: Mapping[str, type[StatewardError]] = {
    "VERSION_MISMATCH": VersionMismatch,
    "WRITER_ABORTED": WriterAborted,
    "THREAD_NOT_FOUND": ThreadNotFound,
    "VERSION_NOT_FOUND": VersionNotFound,
    "VERSION_PRUNED": VersionPruned,
    "INVALID_FIELD": InvalidField,
    "REQUEST_ID_REUSED": RequestIdReused,
    "CHECKPOINT_ID_REUSED": CheckpointIdReused,
    "EDIT_CONFLICT": EditConflict,
    "SCHEMA_MISMATCH": SchemaMismatch,
    "LEASE_HELD": LeaseHeld,
    "NOT_OWNER": NotOwner,
    "FENCED": Fenced,
    "KEY_UNAVAILABLE": KeyUnavailable,
    "NO_ARCHIVE": NoArchive,
    "STALE_ANSWER": StaleAnswer,
    "STATE_TOO_LARGE": StateTooLarge,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "DISK_FULL": DiskFull,
    "QUEUE_FULL": QueueFull,
    "CORRUPT": Corrupt,
    "ARCHIVE_UNAVAILABLE": ArchiveUnavailable,
    "SHUTTING_DOWN": ShuttingDown,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "INTERNAL": Internal,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "OUTCOME_UNKNOWN": OutcomeUnknown,
    "FEATURE_UNAVAILABLE": FeatureUnavailable,
    "THREAD_EXISTS": ThreadExists,
    "CLAIM_LOST": ClaimLost,
}

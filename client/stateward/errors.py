"""What can go wrong, one class for each different reaction.

    StatewardError
    ├── VersionMismatch        another agent saved first: hydrate, redo the change, save (or use `update`)
    ├── RecordConflict         a record has another revision than expected: get it, redo the change, put it again
    ├── UidMismatch            the thread that was meant was deleted, and another one may have its name: read it anew
    ├── SetBack                the thread lacks what this client has seen of it: its store or archive was set back
    ├── SaveLost               a save that was not archived went when another sidecar took the thread: read it anew
    ├── NotFound
    │   ├── ThreadNotFound     no such thread
    │   ├── VersionNotFound    no such version, checkpoint id, tag or branch
    │   ├── BlobNotFound       the thread has no such blob: write it, or do without
    │   └── NoHandoff          the thread is not handed to any agent
    ├── VersionPruned          the version existed, and retention removed it
    ├── InvalidRequest         the request can never succeed: correct the program
    │   ├── InvalidField       `.field` names the wrong field
    │   ├── RequestIdReused    one request id was used for two different requests
    │   ├── WorkspaceRefused   a directory must not be a workspace, or has more files than its rules allow
    │   └── FeatureUnavailable this daemon lacks a feature that the request uses
    ├── AlreadyExists
    │   ├── ThreadExists       the new thread's name is taken
    │   └── CheckpointIdReused one checkpoint id was used for two different checkpoints
    ├── SchemaMismatch         the head's schema differs from the schema of the new data
    ├── EditConflict           an edit does not fit the stored state; `.edit` is its index
    ├── OwnershipLost          this caller may not write the thread now
    │   ├── NotOwner           another sidecar holds it; nothing was written: wait, or take it over
    │   ├── Fenced             another sidecar took it; the thread `.orphan` keeps what only this disk had
    │   ├── LeaseHeld  WriterAborted
    ├── StaleAnswer            the thread no longer asks this question
    ├── UnreadAnswer           the state has an answer that the program has not read
    ├── EffectError            `thread.effects.run` has no result to return
    │   ├── ClaimLost          another agent has the claim now; `.result` is what the tool returned here
    │   ├── EffectFailed       the tool failed before
    │   ├── EffectUncertain    the tool may have run: find out, or call again with `check=`
    │   └── EffectInProgress   another agent is running the tool
    ├── HandoffTaken           another agent has taken the work over
    ├── KeyUnavailable         the daemon does not have the key that decrypts the data
    │   └── Locked             the thread is held, and the call has not sent its session key
    ├── NoArchive              ARCHIVED was asked for and no archive is configured
    ├── NotArchivedYet         the version IS saved, but only on this disk: `archive.wait(.checkpoint)`
    ├── Exhausted              a limit is reached
    │   ├── StateTooLarge  DiskFull  QueueFull
    │   ├── QuotaExceeded
    │   │   └── RateExceeded
    ├── Corrupt                stored bytes are missing or were changed
    ├── NewerFormat            a newer version of the daemon wrote the thread: upgrade this one
    ├── WorkspaceError         files of a directory
    │   ├── WorkspaceChanged   somebody changed files since the plan was made: plan again
    │   ├── RestoreBlocked     a directory cannot be written, or holds what a restore must keep
    │   ├── RestoreUnfinished  a restore was begun there and is not over: resume it, or take it back
    │   └── WorkspaceUnsupported  this system lacks what it needs
    ├── ThreadsUnreadable      a list showed all threads but `.threads`, which cannot be opened
    ├── Unavailable            try again later; the client has already retried for `retry_timeout` seconds
    │   ├── ServerUnavailable  no daemon answered
    │   │   └── WrongTarget    no daemon listens at the target, or this user may not use it: do not retry
    │   ├── ArchiveUnavailable the bucket does not answer, and the call needs it
    │   ├── ShuttingDown  OutcomeUnknown  IssuerUnavailable
    ├── CannotStart            `open` found no daemon that it could use, and could start none: the message says why
    │   └── OtherSettings      the daemon has another archive, or other files, than `open` asked for
    ├── ForkedProcess          the parent had connected before the fork: connect in the child, after it
    ├── DeadlineExceeded       no answer in time; a save may have happened: retry it with the same request id
    ├── Unauthenticated  PermissionDenied
    └── Internal               a bug in the daemon; its log has details

`ThreadNotFound` says that no thread has the name: who gets it may make one. `UidMismatch` says that the thread was
deleted since a handle read or wrote it, or since a program kept the uid that it gives as `expected_uid`. It is raised
whether or not another thread has the name now. It is no `ThreadNotFound`, because a program that makes what is missing
must not bring back what somebody deleted. A read that expects no uid raises ThreadNotFound even then.

`OtherVersion` is a warning of `open`. Programs should test the class (or `.reason`), never the message text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from stateward.models import Checkpoint, Status, UnreadableThread

T = TypeVar("T")


class Fact(Generic[T]):
    """An attribute of an error that is read from the text in `metadata`; without text it is empty, or None."""

    def __init__(self, read: Callable[[str], T], documentation: str, *, key: str = "") -> None:
        self._read, self._key, self.__doc__ = read, key, documentation

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = self._key or name

    @overload
    def __get__(self, error: None, owner: type) -> Self: ...
    @overload
    def __get__(self, error: StatewardError, owner: type) -> T: ...
    def __get__(self, error: StatewardError | None, owner: type) -> Self | T:
        return self if error is None else self._read(error.metadata.get(self._key, ""))

    def __set__(self, error: StatewardError, value: object) -> None:
        raise AttributeError(f"{self._key} is read-only")


def _whole(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None


def _span(text: str) -> timedelta | None:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        return None


class StatewardError(Exception):
    """Base of all errors of this library.

    `reason` is the ErrorReason without its prefix, or "" if the error has none. `code` is the name of the gRPC status
    code. `metadata` holds the facts of the message for programs. `retry_delay` is the time that the daemon asks the
    client to wait before it retries; None = the daemon named no time.
    """

    #: Whether the same request may succeed a moment later.
    retryable: ClassVar[bool] = False
    _is_stateward: ClassVar[bool] = True  # `hide_frames` asks

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


class VersionMismatch(StatewardError):
    """The branch's head is not the expected version: another agent saved first. Hydrate, redo the change, save."""

    current_version = Fact(_whole, "Version of the head; 0 = the branch does not exist, None = unknown.")
    current_digest = Fact(bytes.fromhex, "Digest of the head, 16 bytes; empty = unknown.")
    expected_version = Fact(_whole, "The version that the request expected; None = unknown.")


class RecordConflict(StatewardError):
    """A record has another revision than expected: another agent wrote it. Get it, redo the change, put it again."""

    thread = Fact(str, "Name of the thread; empty = unknown.")
    key = Fact(str, "Key of the record; empty = unknown.")
    current_revision = Fact(_whole, "Revision of the record; 0 = there is no such record, None = unknown.")
    expected_revision = Fact(_whole, "The revision that the request expected; None = unknown.")


class UidMismatch(StatewardError):
    """The thread that was read, or that has the expected uid, was deleted: the name has another thread now, or none.

    Nothing was written. Read the thread anew, and decide whether any work is left. A handle does so with `hydrate`.
    """

    thread = Fact(str, "Name of the thread; empty = unknown.")
    uid = Fact(str, "Uid of the thread that has the name now; empty = there is none.")
    expected_uid = Fact(str, "The uid that the request expected; empty = unknown.")


class SetBack(StatewardError):
    """The thread lacks an entry that this client has seen, by the file that STATEWARD_LAST_SEEN names: its store, or
    its archive, was set back to an older copy.

    Nothing was sent. Each call about the thread raises it until the file no longer names the thread. Find out who put
    the older copy there before you go on.
    """

    thread = Fact(str, "Name of the thread.")
    sequence = Fact(int, "The place in the journal of the entry that is missing.")
    newest_sequence = Fact(int, "The newest place that the journal has.")


class SaveLost(StatewardError):
    """The thread lacks an entry that this client has seen, by the file that STATEWARD_LAST_SEEN names: the entry was
    not archived, and another sidecar has taken the thread since.

    That is what COMMITTED promises: it holds while the machine does. Raised once. Read the thread anew, and do again
    what is missing; `orphan` keeps the entry if its machine is back.
    """

    thread = Fact(str, "Name of the thread.")
    sequence = Fact(int, "The place in the journal of the entry that is missing.")
    newest_sequence = Fact(int, "The newest place that the journal has.")
    orphan = Fact(str, "Name of the thread that keeps the entry; empty = unknown.")


class NotFound(StatewardError):
    """Base of the errors for a thread, version, blob or handoff that does not exist."""

    thread = Fact(str, "Name of the requested thread; empty = unknown.")


class ThreadNotFound(NotFound):
    """No thread has this name."""


class VersionNotFound(NotFound):
    """The thread has no such version, checkpoint id, tag or branch."""


class BlobNotFound(NotFound):
    """The thread has no such blob: nobody wrote it, or it was removed because no retained version names it."""

    sha256 = Fact(bytes.fromhex, "SHA-256 of the blob, 32 bytes; empty = unknown.")


class NoHandoff(NotFound):
    """The thread is not handed to any agent: it never was, or the agent that handed it over has continued it."""


class VersionPruned(StatewardError):
    """Retention or pruning removed the version or the journal position. Use a newer one."""

    version = Fact(_whole, "The requested version; None = unknown.")


class InvalidRequest(StatewardError):
    """Base of the errors that can be corrected only by changing the program."""


class InvalidField(InvalidRequest):
    """A field of the request is invalid, whatever the daemon has stored. Correct it."""

    field = Fact(str, "Path of the field in the request, such as `diff.edits[3].set_slot.slot`; empty = unknown.")


class RequestIdReused(InvalidRequest):
    """The request id was used before, with another body. Give every operation its own request id."""


class WorkspaceRefused(InvalidRequest):
    """A directory must not be a workspace, or it has more files than the rules of the workspace allow. Nothing was
    saved."""

    path = Fact(str, "What was refused: the directory, or a file in it.")
    limit = Fact(str, "Which rule refused it: a field of `Rules`, or `home`, `daemon`, `system`, `directory`.")


class FeatureUnavailable(InvalidRequest):
    """The daemon does not have a feature that the request uses. `.metadata["feature"]` names the feature."""


class AlreadyExists(StatewardError):
    """Base of the errors for a name that is taken."""


class ThreadExists(AlreadyExists):
    """A thread of this name exists already. Choose another name, or delete that thread."""


class CheckpointIdReused(AlreadyExists):
    """Another checkpoint of the branch already has this checkpoint id."""


class EditConflict(StatewardError):
    """An edit does not fit the stored state. Hydrate and make the change again."""

    edit = Fact(_whole, "Index of the edit in the diff; None = unknown.")
    field = Fact(str, "Path of the field that does not fit; empty = unknown.")


class SchemaMismatch(StatewardError):
    """The head's schema differs from the schema of the new data. Migrate the thread, or update this program."""

    schema = Fact(_whole, "Schema of the head; None = unknown.")


class OwnershipLost(StatewardError):
    """Base of the errors that mean: this caller may not write the thread now. Stop, or take the thread over."""

    owner_id = Fact(str, "The --owner-id of the sidecar that holds the thread; empty = unknown.")
    epoch = Fact(_whole, "That sidecar's owner epoch; None = unknown.")


class LeaseHeld(OwnershipLost):
    """Another holder has the thread's lease. Wait until the lease ends."""

    remaining = Fact(_span, "How long the lease lasts unless its holder renews it; None = unknown.", key="remaining_s")


class NotOwner(OwnershipLost):
    """Another sidecar holds the thread; nothing was written.

    Send the call to that sidecar, or wait for the thread with `thread.archive.attach(wait=seconds)`. The client has
    already waited if that sidecar was idle and its lease was to end within `retry_timeout`.

    If that sidecar's machine is dead, call `thread.archive.attach(take_over=True)`, then repeat the call.
    """

    unchanged = Fact(_span, "How long the owner was seen to archive nothing; None = unknown.", key="unchanged_s")
    free_in = Fact(_span, "How long until the thread is free if its owner stays idle; None = unknown.", key="free_in_s")


class Fenced(OwnershipLost):
    """Another sidecar took the thread over. Hydrate to see the history as it is now.

    The daemon keeps the entries that were committed here and not archived: `client.thread(error.orphan)` can be read
    and forked.
    """

    orphan = Fact(str, "Name of the thread that keeps the entries that only this disk had; empty = there were none.")
    common_sequence = Fact(_whole, "The newest journal position that both histories share; None = unknown.")


class WriterAborted(OwnershipLost):
    """An earlier frame of the stream failed. Reset the writer and send the unacknowledged changes again."""


class StaleAnswer(StatewardError):
    """The thread no longer asks the question that was answered. Read the thread again."""


class UnreadAnswer(StatewardError):
    """The state has an answer that the program has not read, and a question would use it up. Read `state.answer`."""


class EffectError(StatewardError):
    """Base of the errors that `thread.effects.run` raises if it has no result. `key` and `anchor` name the effect."""

    key = Fact(str, "The effect's key.")
    anchor = Fact(str, "The effect's anchor; may be empty.")


class ClaimLost(EffectError):
    """Another agent has the claim on the effect: the claim ran out, or an agent with the same holder name started.

    If `has_result` is true, the tool was called here and returned `result`, which is not recorded.
    """

    result: Any = None
    has_result: bool = False


class EffectFailed(EffectError):
    """The tool failed before, with `detail`. `thread.effects.run` calls it again only with `retry_failed=True`."""

    detail = Fact(str, "Type and text of the error that the tool raised.")


class EffectUncertain(EffectError):
    """The tool may have been called, and its outcome is unknown. Find out, then call `thread.effects.run` with `check`.

    A tool that cannot tell whether it did its work raises this error itself, as in `raise EffectUncertain("no answer
    in time") from error`. The effect is then recorded as uncertain, not as failed.
    """

    idempotency_key = Fact(str, "The idempotency key that the tool received, if it takes one; empty = unknown.")


class EffectInProgress(EffectError):
    """Another agent began the effect and did not end it while this call waited. Try again later."""

    holder = Fact(str, "Name of the agent that has the claim.")


class HandoffTaken(StatewardError):
    """Another agent has taken the work over. Look for something else to do."""

    taken_by = Fact(str, "Name of that agent; empty = unknown.")


class KeyUnavailable(StatewardError):
    """The daemon does not have the key that decrypts the data. An operator must give the daemon that key."""


class Locked(KeyUnavailable):
    """The thread is held, and the call has not sent its session key, or has sent another one. Nothing was done. Use
    `client.thread(name, session_key=…)` with the key that the thread was made with."""

    uid = Fact(str, "Uid of the thread; empty = unknown.")


class NoArchive(StatewardError):
    """The call needs an archive and the daemon has none. Start it with --archive URL, or ask for COMMITTED."""


class NotArchivedYet(StatewardError, TimeoutError):
    """The version IS saved on this disk, but was not archived in time. It is a TimeoutError, too.

    Do not save again: the state already continues from this version. `thread.archive.wait(checkpoint)` continues to
    wait. Raised only if the caller asked for ARCHIVED. `checkpoints` are all versions that the call saved.
    `checkpoint` is the first of them that is not archived (None after `archive.wait(sequence)`), and `sequence` is
    its position in the journal.
    """

    def __init__(
        self, thread: str, sequence: int, checkpoint: Checkpoint | None = None, checkpoints: Sequence[Checkpoint] = ()
    ) -> None:
        what, known = (
            (f"version {checkpoint.version}", "checkpoint") if checkpoint else (f"sequence {sequence}", sequence)
        )
        super().__init__(
            f"{what} of thread {thread!r} is saved on this disk but not archived yet; "
            f"do not save it again, wait with: thread.archive.wait({known})",
            reason="NOT_ARCHIVED_YET",
        )
        self.thread = thread
        self.sequence = sequence
        self.checkpoint = checkpoint
        self.checkpoints = tuple(checkpoints)


class Exhausted(StatewardError):
    """Base of the errors for a limit that is reached."""


class StateTooLarge(Exhausted):
    """The state or the message is larger than the daemon allows. Trim it."""

    size_bytes = Fact(_whole, "Size of the state or message; None = unknown.")
    limit_bytes = Fact(_whole, "The largest size that the daemon allows; None = unknown.")


class QuotaExceeded(Exhausted):
    """A limit is reached: of what waits for a thread, or one that the daemon's operator has set for this client or for
    the namespace. Delete data, do less at a time, or ask for a higher limit."""

    limit = Fact(str, "Which limit: such as `streams` or `bytes` (docs/operations.md); empty = unknown.")
    principal = Fact(str, "Whose limit it is; empty = it is no limit of a principal.")
    namespace = Fact(str, "Of which namespace it is; empty = it is no limit of a namespace.")
    maximum = Fact(_whole, "The limit; None = unknown.")
    used = Fact(_whole, "How much is used; None = unknown.")


class RateExceeded(QuotaExceeded):
    """This client makes more saves a second than it may. The call was repeated for as long as `retry_timeout_s`."""

    retryable = True


class DiskFull(Exhausted):
    """The disk or the LMDB map is full; reads and deletions still work. Free space, then retry."""


class QueueFull(Exhausted):
    """Too many writes wait in the daemon. Retry after a moment."""

    retryable = True


class Corrupt(StatewardError):
    """Stored bytes are missing or were changed. Use another version, or restore; `verify` shows the extent."""


class NewerFormat(StatewardError):
    """A newer version of the daemon wrote the thread in the archive, and this daemon cannot read it. Nothing was
    written, except by a call that waits for "archived": its entry is kept on this daemon's disk until the upgrade.
    Upgrade this daemon, or call the newer one."""

    thread = Fact(str, "Name of the thread; empty = unknown.")
    format = Fact(_whole, "The format that the daemon found; None = unknown.")
    known_format = Fact(_whole, "The newest format that the daemon knows; None = unknown.")
    sequence = Fact(_whole, "The entry that is kept on the daemon's disk; None = nothing was written.")


class WorkspaceError(StatewardError):
    """Base of the errors about files of a directory. `path` is relative to it."""

    path = Fact(str, "The path, or the first of several; empty = unknown.")


class WorkspaceChanged(WorkspaceError):
    """Somebody changed files since the plan was made, or put a symlink in the place of a directory. Plan again.

    The message says whether the restore had begun. If it had, take it back, or resume it.
    """


class RestoreBlocked(WorkspaceError):
    """A restore cannot be done, and nothing was written: this user may not write into a directory, or a directory that
    must give its place to a file holds something that a restore keeps."""


class RestoreUnfinished(WorkspaceError):
    """A restore of the directory was begun and is not over: it was killed, a disk was full, or it runs now. Resume it,
    or take it back. Also raised if there is none to resume or take back."""

    root = Fact(str, "The directory.")


class WorkspaceUnsupported(WorkspaceError):
    """This system cannot restore files: it has no calls that work relative to an open directory."""


class ThreadsUnreadable(StatewardError):
    """A list or count has ended, and these threads cannot be opened. Everything else was shown. `verify` says more.

    `.threads` are the threads. `.counts` are the counts of `count_threads`.
    """

    threads: Sequence[UnreadableThread] = ()
    counts: Mapping[Status | int, int] = MappingProxyType({})


class Unavailable(StatewardError):
    """Base of temporary failures. The client has already retried when it raises this."""

    retryable = True


class ServerUnavailable(Unavailable):
    """No daemon answered. Start it, or correct the target."""


class WrongTarget(ServerUnavailable):
    """No daemon listens at the target, or this user may not use it. Correct the target or the permissions.

    The client raises this at once, without a retry.
    """

    retryable = False


class ShuttingDown(Unavailable):
    """The daemon is stopping. Retry when it runs again."""


class IssuerUnavailable(Unavailable):
    """The daemon cannot read the key that the token is signed with, or has not read it yet. Retry; if it lasts, see the
    daemon's log."""


class OutcomeUnknown(Unavailable):
    """The disk failed during a commit. Retry with the same request id to learn whether the write happened."""


class ArchiveUnavailable(Unavailable):
    """The bucket does not answer, and the call needs it. Nothing was written.

    Until the bucket answers, the daemon also raises this for a thread that is not on its disk: it cannot tell whether
    the thread is new.
    """


class CannotStart(StatewardError):
    """`stateward.open()` found no daemon that it could use, and could start none. The message says why, in one line."""


class OtherSettings(CannotStart):
    """The daemon of a data directory has another archive, or other files, than `stateward.open()` asked for."""


class OtherVersion(UserWarning):
    """The daemon that `stateward.open()` uses has another version than the client."""


class ForkedProcess(StatewardError, RuntimeError):
    """This process was forked from one that had connected, and its clients cannot be used. Connect after the fork."""


class DeadlineExceeded(StatewardError, TimeoutError):
    """No answer came within `call_timeout`. It is a TimeoutError, too. A write may have happened: retry it with the
    same request id."""


class Unauthenticated(StatewardError):
    """The call has no valid token."""


class PermissionDenied(StatewardError):
    """The token does not allow this call."""


class Internal(StatewardError):
    """A bug in the daemon. Its log has details."""

"""What a write expects of the thread: its uid, and the version and digest of a head.

Every verb that writes finds its thread here, in the transaction that writes. A request with an expected uid belongs to
one creation of the thread. If this creation was deleted, the request is refused before anything is made: it neither
brings the thread back nor reaches the next thread of the name. A digest says the same of a version: after the loss of a
machine, another version may have its number.

``UidMismatch`` means here that another creation has the name. If there is no thread, the error is ``ThreadNotFound``,
as everywhere below the calls: ``service/calls/expected.py`` makes ``UidMismatch`` of it for the caller.
"""

from __future__ import annotations

from typing import Protocol

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import UidMismatch, VersionMismatch
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.identity import Identity
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads, not_found


class Expects(Protocol):
    """A request that names the thread it writes."""

    @property
    def namespace(self) -> str:
        """Namespace of the thread."""

    @property
    def thread(self) -> str:
        """Name of the thread."""

    @property
    def options(self) -> WriteOptions:
        """What every write has."""


class Renews(Protocol):
    """A request that goes on with something, and writes nothing."""

    @property
    def namespace(self) -> str:
        """Namespace of the thread."""

    @property
    def thread(self) -> str:
        """Name of the thread."""

    @property
    def expected_uid(self) -> str:
        """Uid that the thread must have, 32 hex digits; empty = any."""


def expected_uid(request: Expects | Renews) -> str:
    """Returns the uid that a request expects, 32 hex digits; empty = any."""
    options: WriteOptions | None = getattr(request, "options", None)
    uid: str = options.expected_uid if options is not None else request.expected_uid  # type: ignore[union-attr]
    return uid


def find_draft(threads: Threads, txn: lmdb.Transaction, batch: Batch, request: Expects | Renews) -> ThreadDraft | None:
    """Returns the draft of the thread that a request writes; None if there is none and the request may make it.

    Raises UidMismatch if the request expects another creation of the thread, and ThreadNotFound if it expects a
    creation and there is no thread.
    """
    draft, uid = threads.draft(txn, batch, request.namespace, request.thread), expected_uid(request)
    if uid and (draft is None or draft.identity.uid_text != uid):
        check_uid(draft.identity if draft is not None else None, request)
    return draft


def get_draft(threads: Threads, txn: lmdb.Transaction, batch: Batch, request: Expects | Renews) -> ThreadDraft:
    """Does the same for a thread that must exist. Raises ThreadNotFound or UidMismatch."""
    draft = find_draft(threads, txn, batch, request)
    if draft is None:
        raise not_found(request.namespace, request.thread)
    return draft


def get_same(threads: Threads, txn: lmdb.Transaction, batch: Batch, identity: Identity) -> ThreadDraft:
    """Returns the draft of the creation that a longer call works on. Raises ThreadNotFound, or UidMismatch if another
    creation has its name by now."""
    draft = threads.draft(txn, batch, identity.namespace, identity.name)
    if draft is None:
        raise not_found(identity.namespace, identity.name)
    if draft.identity.uid != identity.uid:
        raise other_creation(draft.identity, identity.uid_text)
    return draft


def check_uid(identity: Identity | None, request: Expects | Renews) -> None:
    """Raises UidMismatch or ThreadNotFound if a request expects a uid that the thread does not have."""
    expected = expected_uid(request)
    if not expected:
        return
    if identity is None:
        raise not_found(request.namespace, request.thread)
    if identity.uid_text != expected:
        raise other_creation(identity, expected)


def other_creation(
    identity: Identity, expected: str, advice: str = "read the thread before the next write"
) -> UidMismatch:
    """Returns the error for a thread that has another uid than expected. ``advice``: what the caller does next."""
    return UidMismatch(
        f"thread {identity.name!r} was deleted and made again: it has uid {identity.uid_text}, and {expected} was "
        f"expected; {advice}",
        namespace=identity.namespace, thread=identity.name, uid=identity.uid_text, expected_uid=expected,
    )  # fmt: skip


def check_head(where: str, current: int, digest: bytes, expected: int, expected_digest: bytes, **facts: str) -> None:
    """Raises VersionMismatch if a head is not the expected version, or has another digest than expected.

    ``where``: the begin of the message, such as "thread 'a' is at"; ``facts``: for the metadata of the error.
    """
    if expected == current and expected_digest in (b"", digest):
        return
    wanted = f"version {expected}" + (" with another digest" if expected == current else "")
    raise VersionMismatch(
        f"{where} version {current}, but {wanted} was expected", **facts,
        current_version=current, current_digest=digest.hex(), expected_version=expected,
    )  # fmt: skip


def check_main(draft: ThreadDraft, options: WriteOptions) -> None:
    """Raises VersionMismatch if the head of main is not the version and digest that the write expects."""
    if options.HasField("expected_version"):
        head = draft.head
        check_head(
            f"thread {head.thread!r} is at", head.main_version, head.main_digest, options.expected_version,
            options.expected_digest, thread=head.thread,
        )  # fmt: skip


def check_unchanged(head: ThreadHead, request: DeleteThreadRequest | SendSignalRequest) -> None:
    """Raises VersionMismatch if the journal has another newest entry than the one that was shown."""
    expected, digest, name = request.expected_sequence, request.expected_sequence_digest, head.thread
    if not expected or (expected == head.tip_sequence and digest in (b"", bytes(head.tip_digest))):
        return
    wanted = f"entry {expected}" + (" with another digest" if expected == head.tip_sequence else "")
    raise VersionMismatch(
        f"the journal of thread {name!r} ends with entry {head.tip_sequence}, but {wanted} was expected", thread=name,
        current_version=head.main_version, current_digest=head.main_digest.hex(),
    )

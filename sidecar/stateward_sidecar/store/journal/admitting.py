"""What lets a write pass, the same for every verb: the expected uid and head, the lease, the owner.

What a write expects of the thread: its uid, and the version and digest of a head.

Every verb that writes finds its thread here, in the transaction that writes. A request with an expected uid belongs to
one creation of the thread. If this creation was deleted, the request is refused before anything is made: it neither
brings the thread back nor reaches the next thread of the name. A digest says the same of a version: after the loss of a
machine, another version may have its number.

``UidMismatch`` means here that another creation has the name. If there is no thread, the error is ``ThreadNotFound``,
as everywhere below the calls: ``service/calls/status.py`` makes ``UidMismatch`` of it for the caller.

Whether a write may pass the thread's lease, and the tokens that leases and claims get.

What lets a new write pass, the same for every verb: the owner, the lease, and the expected head of main.

A verb answers a retry first. Save, MoveBranch and DeleteBranch expect the head of their own branch instead.
"""

from __future__ import annotations

from typing import Protocol

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import LeaseRecord
from stateward.v1.checkpoint_service_pb2 import LeaseGuard
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import LeaseHeld, StatewardError, UidMismatch, VersionMismatch
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.thread.times import LEASE


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
    holder: WriteOptions | Renews = getattr(request, "options", request)  # type: ignore[arg-type]
    return holder.expected_uid


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


_COUNTER_BITS = 32


def next_token(draft: ThreadDraft, entries: int = 1) -> int:
    """Returns the token for the next entry, or for the last one of the next ``entries``.

    The tokens of a thread only grow, also across machines.
    """
    epoch = max(draft.head.epoch, draft.thread.epoch)
    counter = (draft.head.tip_sequence + entries) & ((1 << _COUNTER_BITS) - 1)
    return draft.head.token_floor + (epoch << _COUNTER_BITS | counter)


def sequence_of(token: int, head: ThreadHead) -> int:
    """Returns the sequence of the entry for which ``next_token`` made this token."""
    return (token - head.token_floor) & ((1 << _COUNTER_BITS) - 1)


def token_floor(thread: Thread) -> int:
    """Returns a number above all tokens of the thread so far. The tokens of a restored copy begin there."""
    epoch = max(thread.head.epoch, thread.epoch)
    return thread.head.token_floor + ((epoch + 1) << _COUNTER_BITS)


def check_lease(context: Context, draft: ThreadDraft, token: int) -> None:
    """Raises LeaseHeld unless a write with this token may pass; 0 = the caller has no token."""
    head = draft.head
    if not head.HasField("lease"):
        if token:
            raise LeaseHeld(f"token {token} is not valid: thread {draft.identity.name!r} has no lease",
                            thread=draft.identity.name, token=0, remaining_s=0)  # fmt: skip
        return
    lease = head.lease
    if token == lease.token and lease.HasField("holder"):
        return  # also after the term: nobody else has acquired the lease since
    if token or remaining_s(context, draft.identity.number, lease):
        raise held_error(context, draft, lease, token)


def check_guard(context: Context, draft: ThreadDraft | None, namespace: str, guard: LeaseGuard) -> None:
    """Raises LeaseHeld unless the token holds the lease of the guarding thread; ThreadNotFound, UidMismatch,
    NotOwner."""
    if draft is None:
        raise not_found(namespace, guard.thread)
    if guard.expected_uid not in ("", draft.identity.uid_text):
        raise other_creation(draft.identity, guard.expected_uid)
    draft.check_writable()
    check_lease(context, draft, guard.token)


def remaining_s(context: Context, number: int, lease: LeaseRecord) -> float:
    """Returns how long a lease lasts unless it is renewed; 0 = nobody holds it, or its term is over."""
    if not lease.HasField("holder"):
        return 0.0
    return context.terms.remaining_s((number, LEASE), lease.token, lease.term_us)


def held_error(context: Context, draft: ThreadDraft, lease: LeaseRecord, token: int) -> StatewardError:
    """Returns the refusal of a write while somebody else holds the lease, or with a token that is out of date."""
    name, left_s = draft.identity.name, remaining_s(context, draft.identity.number, lease)
    if token:
        holder = f"{lease.holder.name!r} holds it" if left_s else "nobody holds it"
        message = f"token {token} of thread {name!r} is out of date: the newest is {lease.token}, and {holder} now"
    else:
        message = f"{lease.holder.name!r} holds the lease of thread {name!r} for another {left_s:.1f} s"
    return LeaseHeld(
        message, thread=name, holder=lease.holder.name, token=lease.token, remaining_s=f"{left_s:.3f}"
    )


def admit(context: Context, draft: ThreadDraft, options: WriteOptions, *, needs_lease: bool) -> None:
    """Raises an error unless a new write may pass: NotOwner, Fenced, LeaseHeld, VersionMismatch and others.

    ``needs_lease``: while a lease lives, the write needs its token. A token that is given is always checked.
    """
    draft.check_writable()
    if needs_lease or options.lease_token:
        check_lease(context, draft, options.lease_token)
    check_main(draft, options)


def check_deletion(context: Context, draft: ThreadDraft, options: WriteOptions) -> None:
    """Raises LeaseHeld or VersionMismatch if a thread may not be deleted. Whoever holds its lease may be gone."""
    if options.lease_token:
        check_lease(context, draft, options.lease_token)
    check_main(draft, options)

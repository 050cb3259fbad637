"""Leases: which agent may write a thread, among the agents of this sidecar.

The newest lease is in the thread's head, so it moves with the thread, and its token never decreases. Grants and returns
are entries of the journal, renewals are not: only this process knows when a term ends (store/thread/times.py).
"""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import EntryMetadata, LeaseRecord
from stateward.v1.lease_pb2 import Lease
from stateward.v1.lease_service_pb2 import (
    AcquireLeaseRequest,
    AcquireLeaseResponse,
    ReleaseLeaseRequest,
    ReleaseLeaseResponse,
    RenewLeaseRequest,
)
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.admitting import (
    check_main,
    check_uid,
    find_draft,
    held_error,
    next_token,
    remaining_s,
    sequence_of,
)
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import describe_creation, opened, settle_options
from stateward_sidecar.store.journal.requests import hash_request
from stateward_sidecar.store.journal.views import newest_receipt, receipt_of
from stateward_sidecar.store.kinds.lease import LEASE as LEASE_ENTRY
from stateward_sidecar.store.kinds.lease import view_record
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import LEASE

TERM_US = 30_000_000


class Leases:
    """Acquire, renew, release."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def acquire(
        self, request: AcquireLeaseRequest, answered_in_s: float = 0.0
    ) -> Callable[[lmdb.Transaction, Batch], AcquireLeaseResponse]:
        """Returns the write that grants a lease. It raises LeaseHeld if the lease is not free.

        ``answered_in_s``: how long the answer waits for the archive at most. The lease lives longer by that time, as
        its holder cannot renew it before the answer. See ``answered``.
        """
        request_hash, term_us = hash_request(request.options.request_id), TERM_US
        if request.HasField("term"):
            term_us = request.term.ToMicroseconds()
        late_us = int(answered_in_s * 1e6)

        def run(txn: lmdb.Transaction, batch: Batch) -> AcquireLeaseResponse:
            with opened(self._context, self._threads, txn, batch, request) as draft:
                draft.check_writable()  # also for a retry: another sidecar may have granted the lease since
                lease = draft.head.lease
                if lease.HasField("holder"):
                    if lease.request_hash == request_hash:
                        again = draft.identity.number, LEASE
                        longest_us = lease.term_us + late_us
                        batch.after_commit.append(lambda: self._context.terms.begin(again, lease.token, longest_us))
                        return self._answer(txn, draft, draft.head, replayed=True)
                    self._check_free(draft, lease, request)
                check_main(draft, request.options)
                record = LeaseRecord(
                    holder=request.holder, token=next_token(draft), term_us=term_us, request_hash=request_hash,
                    grant_time_us=self._context.clock.now_us(),
                )  # fmt: skip
                head = self._append(txn, batch, draft, record, request)
                key = draft.identity.number, LEASE
                batch.after_commit.append(lambda: self._context.terms.begin(key, record.token, term_us + late_us))
                return self._answer(txn, draft, head, replayed=False)

        return run

    def answered(self, request: AcquireLeaseRequest, answer: AcquireLeaseResponse) -> None:
        """Begins the term of a lease whose answer is sent now, or whose caller has left. Reads memory only."""
        thread = self._threads.cached(request.namespace, request.thread)
        if thread is None or thread.identity.uid_text != answer.receipt.uid:
            return  # the lease lives longer, as nobody can tell for how much of the time it waited
        lease = answer.lease
        self._context.terms.begin_again((thread.number, LEASE), lease.token, lease.term.ToMicroseconds())

    def renew(self, thread: Thread, token: int) -> Lease:
        """Restarts the term of a lease. Raises LeaseHeld if the token is not that of the newest lease."""
        lease = thread.head.lease
        if not token or token != lease.token or not lease.HasField("holder"):
            raise held_error(self._context, ThreadDraft(thread), lease, token)
        self._context.terms.begin((thread.number, LEASE), token, lease.term_us)
        found = view_lease(self._context, thread.number, thread.head)
        assert found is not None
        return found

    def renew_by_name(self, request: RenewLeaseRequest) -> Lease:
        """Finds the thread and renews its lease. Raises ThreadNotFound, UidMismatch or LeaseHeld."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
        check_uid(thread.identity, request)
        return self.renew(thread, request.lease_token)

    def release(self, request: ReleaseLeaseRequest) -> Callable[[lmdb.Transaction, Batch], ReleaseLeaseResponse]:
        """Returns the write that gives a lease back. It gives nothing back if the token no longer holds the lease."""
        token = request.options.lease_token

        def run(txn: lmdb.Transaction, batch: Batch) -> ReleaseLeaseResponse:
            draft = find_draft(self._threads, txn, batch, request)
            if draft is None:
                return ReleaseLeaseResponse(receipt=Receipt())
            if draft.head.lease.token != token or not draft.head.lease.HasField("holder"):
                return ReleaseLeaseResponse(receipt=newest_receipt(draft))
            draft.check_writable()
            check_main(draft, request.options)
            record = LeaseRecord(token=token, grant_time_us=self._context.clock.now_us())
            self._append(txn, batch, draft, record, AcquireLeaseRequest())
            key = draft.identity.number, LEASE
            batch.after_commit.append(lambda: self._context.terms.forget(key))
            return ReleaseLeaseResponse(receipt=newest_receipt(draft), released=True)

        return run

    def _check_free(self, draft: ThreadDraft, lease: LeaseRecord, request: AcquireLeaseRequest) -> None:
        before, now = lease.holder, request.holder
        was_restarted = before.name == now.name and before.incarnation != now.incarnation
        if request.take_over or was_restarted:
            return
        if remaining_s(self._context, draft.identity.number, lease):
            raise held_error(self._context, draft, lease, 0)

    def _append(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, record: LeaseRecord, request: AcquireLeaseRequest
    ) -> ThreadHead:
        is_new, old = draft.head.tip_sequence == 0, draft.head
        metadata = EntryMetadata(lease=record)
        describe_creation(draft, metadata, request.options.create)
        entry = append(self._context, txn, draft, LEASE_ENTRY, draft_content(metadata))
        entry.head.lease.CopyFrom(record)
        if is_new:
            settle_options(txn, draft, old, entry.head, request.options.create)
        commit_entry(self._context, txn, batch, draft, entry, {})
        self._threads.keep_draft(batch, draft)
        return entry.head

    @staticmethod
    def _answer(txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, *, replayed: bool) -> AcquireLeaseResponse:
        record = head.lease
        sequence = sequence_of(record.token, head)
        return AcquireLeaseResponse(
            receipt=receipt_of(txn, draft, sequence, replayed=replayed),
            lease=view_record(record, record.term_us / 1e6),
            version=head.main_version, version_digest=head.main_digest,
        )  # fmt: skip


def view_lease(context: Context, number: int, head: ThreadHead) -> Lease | None:
    """Returns the lease of a thread; None if nobody holds one, or if its term is over."""
    if not head.HasField("lease"):
        return None
    left_s = remaining_s(context, number, head.lease)
    return view_record(head.lease, left_s) if left_s else None

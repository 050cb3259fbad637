"""Whether a write may pass the thread's lease, and the tokens that leases and claims get."""

from __future__ import annotations

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import LeaseRecord
from stateward.v1.checkpoint_service_pb2 import LeaseGuard
from stateward_sidecar.errors import LeaseHeld, StatewardError
from stateward_sidecar.store.journal.expecting import other_creation
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.terms import LEASE
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import not_found

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

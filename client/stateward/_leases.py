"""Leases without I/O: taking, renewing and giving back the right to write a thread."""

from __future__ import annotations

from dataclasses import dataclass

from stateward._holder import Holder
from stateward._operations import Call, Operation, ThreadRef, duration_s, new_request_id
from stateward.errors import LeaseHeld, StatewardError, ThreadNotFound
from stateward.models import Lease, ThreadOptions
from stateward.v1 import lease_service_pb2 as leases

TERM_S = 30.0
LOCKS = "locks/"
"""What the names of the threads behind named locks begin with."""
RENEWAL_SHARE = 0.3
"""A lease is renewed after this part of its term, so that two renewals may fail."""
RELEASE_PATIENCE_S = 5.0
"""For how long to try to give a lease back: it ends by itself."""
ANSWER_S = 10.0
"""How much longer than the wait for a lease its call may take."""


@dataclass(frozen=True)
class Claim:
    """Who wants a lease, and how."""

    holder: Holder
    term_s: float = TERM_S
    wait_s: float | None = None
    take_over: bool = False
    create: ThreadOptions | None = None


def acquire(ref: ThreadRef, claim: Claim) -> Operation[Lease]:
    """Takes the lease, or waits for it. LeaseHeld where it is not to be had in time."""
    request = leases.AcquireLeaseRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        holder=claim.holder.to_proto(),
        term=duration_s(claim.term_s),
        wait=duration_s(claim.wait_s) if claim.wait_s else None,
        take_over=claim.take_over,
        request_id=new_request_id(),
        create=claim.create.to_proto() if claim.create else None,
    )
    deadline_s = claim.wait_s + ANSWER_S if claim.wait_s else None
    return Lease.from_proto((yield Call("AcquireLease", request, deadline_s)).lease)


def renew(ref: ThreadRef, token: int, deadline_s: float | None = None) -> Operation[Lease]:
    """Begins the term anew. LeaseHeld where it was lost, also with its thread."""
    request = leases.RenewLeaseRequest(namespace=ref.namespace, thread=ref.thread, token=token)
    try:
        return Lease.from_proto((yield Call("RenewLease", request, deadline_s)).lease)
    except ThreadNotFound as error:
        raise LeaseHeld(f"the lease was lost: {error.message}", reason="LEASE_HELD", code=error.code) from None


def release(ref: ThreadRef, token: int) -> Operation[bool]:
    """Gives it back, if the daemon can be reached. False where it was not held any more."""
    request = leases.ReleaseLeaseRequest(namespace=ref.namespace, thread=ref.thread, token=token)
    try:
        return bool((yield Call("ReleaseLease", request, RELEASE_PATIENCE_S)).released)
    except StatewardError:
        return False  # it ends by itself


def check_times(term_s: float, wait_s: float | None) -> None:
    """ValueError for a term or a wait that the daemon would refuse."""
    if not 1 <= term_s <= 3600:
        raise ValueError(f"term is {term_s:g} s; it must be 1 s to 1 h")
    if wait_s is not None and not 0 <= wait_s <= 3600:
        raise ValueError(f"wait is {wait_s:g} s; it must be 0 s to 1 h")

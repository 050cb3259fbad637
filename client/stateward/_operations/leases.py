"""Leases, without I/O: to take, renew and give back the right to write a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from stateward._operations.holder import Holder
from stateward._operations.retry import Backoff
from stateward._operations.steps import Call, Operation, Pause, ThreadRef, new_request_id
from stateward.durations import Duration, seconds
from stateward.errors import LeaseHeld, NotOwner, StatewardError, ThreadNotFound, UidMismatch
from stateward.models import Lease
from stateward.options import ThreadOptions, options_to_proto
from stateward.v1 import lease_service_pb2 as leases

TERM_S, TERM_MAX_S = 30.0, 3600.0
WAIT_MAX_S = 3600.0
LOCKS = "locks/"
"""Prefix of the names of the threads behind named locks."""
RENEWAL_SHARE = 0.3
"""A lease is renewed after this part of its term, so that two renewals may fail."""
RELEASE_PATIENCE_S = 5.0
"""The most time for giving a lease back; an unreleased lease ends with its term."""
ANSWER_S = 10.0
"""The deadline of a call that waits for a lease is this much longer than the wait."""
OWNER_POLL_S = 0.5
"""The pause between two requests for a thread that another sidecar holds: each makes the daemon read the bucket."""


@dataclass(frozen=True)
class Claim:
    """A request for a lease."""

    holder: Holder
    term_s: float = TERM_S
    wait_s: float = 0.0
    take_over: bool = False
    create: ThreadOptions | None = None

    @classmethod
    def of(cls, holder: Holder, term: Duration, wait: Duration, take_over: bool, create: ThreadOptions | None) -> Claim:
        """From the caller's options. Raises ValueError for a term or a wait that the daemon would refuse."""
        term_s = seconds(term, "term", least=1, most=TERM_MAX_S)
        return cls(holder, term_s, seconds(wait, "wait", most=WAIT_MAX_S), take_over, create)


def owner_polls(claim: Claim) -> Backoff:
    """Returns the pauses between requests for a thread of another sidecar. For a held lease the daemon itself waits."""
    return Backoff(OWNER_POLL_S, OWNER_POLL_S, claim.wait_s)


def acquire(ref: ThreadRef, claim: Claim) -> Operation[Lease]:
    """Takes the lease, and waits for it if the claim says so. Raises LeaseHeld if it is not free in time, and NotOwner
    if another sidecar still holds the thread then."""
    request = ref.to_write(
        leases.AcquireLeaseRequest,
        holder=claim.holder.to_proto(),
        term=timedelta(seconds=claim.term_s),
        take_over=claim.take_over,
        request_id=new_request_id(),
        create=options_to_proto(claim.create),
    )
    polls = owner_polls(claim)
    while True:
        left_s = polls.left_s()
        request.wait.FromTimedelta(timedelta(seconds=left_s))
        try:
            deadline_s = left_s + ANSWER_S if left_s else None
            answer = yield Call("AcquireLease", request, deadline_s, waits_for_owner=False)
            return replace(Lease.from_proto(answer.lease), uid=answer.receipt.uid)
        except LeaseHeld as error:
            raise advised(error, claim) from None
        except NotOwner:
            pause_s = polls.next_s()
            if pause_s is None:
                raise
        yield Pause(pause_s)


def advised(error: StatewardError, claim: Claim) -> StatewardError:
    """Returns the error to raise for a lease that was not got. If somebody holds it, and the caller did not wait, it
    names the option that waits."""
    if not isinstance(error, LeaseHeld) or claim.wait_s:
        return error
    said = f"{error.message}; wait= says for how long to wait until it is free"
    return LeaseHeld(said, reason=error.reason, code=error.code, metadata=error.metadata, retry_delay=error.retry_delay)


def renew(ref: ThreadRef, token: int, uid: str, deadline_s: float | None = None) -> Operation[Lease]:
    """Starts the term of a lease again. Raises LeaseHeld if the lease is lost, also if its thread is deleted."""
    request = ref.about(leases.RenewLeaseRequest, lease_token=token, expected_uid=uid)
    try:
        return Lease.from_proto((yield Call("RenewLease", request, deadline_s)).lease)
    except (ThreadNotFound, UidMismatch) as error:
        raise LeaseHeld(f"the lease was lost: {error.message}", reason="LEASE_HELD", code=error.code) from None


def release(ref: ThreadRef, token: int, uid: str) -> Operation[bool]:
    """Gives the lease back. Returns False if it was not held any more, or if the call failed."""
    request = ref.about(leases.ReleaseLeaseRequest, lease_token=token, expected_uid=uid)
    try:
        return bool((yield Call("ReleaseLease", request, RELEASE_PATIENCE_S)).released)
    except StatewardError:
        return False  # the lease ends with its term

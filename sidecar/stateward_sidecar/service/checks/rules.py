"""What each write may have of the common options, in one table. ``check.check_write`` looks at it.

``docs/protocol.md`` has the same table for people, and a test compares the two and the contract.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from stateward.v1.write_pb2 import WriteOptions


class RequestId(Enum):
    """Whether a write needs a request id."""

    REQUIRED = "required"
    UNLESS_EXPECTED = "required without `expected_version`"
    OPTIONAL = "optional"
    NEEDLESS = "not needed"
    """What the call names cannot happen twice."""


class Lease(Enum):
    """What a write needs of the thread's lease."""

    NEEDED = "needed while a lease lives"
    CHECKED = "checked if given"
    REQUIRED = "required"
    NONE = "not allowed"


class Head(Enum):
    """Which head `expected_version` means."""

    BRANCH = "of the branch"
    MAIN = "of main"
    NONE = "not allowed"


class Rule(NamedTuple):
    """What one write may have."""

    request_id: RequestId
    lease: Lease
    head: Head
    makes: bool = False  # it makes the thread if it does not exist, so `create` is allowed


RULES = {
    "Save": Rule(RequestId.UNLESS_EXPECTED, Lease.NEEDED, Head.BRANCH, makes=True),
    "PutEffects": Rule(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, makes=True),
    "DeleteEffects": Rule(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN),
    "BeginEffect": Rule(RequestId.REQUIRED, Lease.CHECKED, Head.MAIN, makes=True),
    "CompleteEffect": Rule(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN),
    "PutRecords": Rule(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, makes=True),
    "DeleteRecords": Rule(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN),
    "SendSignal": Rule(RequestId.REQUIRED, Lease.CHECKED, Head.MAIN),
    "AcquireLease": Rule(RequestId.REQUIRED, Lease.NONE, Head.MAIN, makes=True),
    "ReleaseLease": Rule(RequestId.NEEDLESS, Lease.REQUIRED, Head.MAIN),
    "WriteBlob": Rule(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN, makes=True),
    "SetTag": Rule(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN),
    "DeleteTag": Rule(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN),
    "MoveBranch": Rule(RequestId.OPTIONAL, Lease.NEEDED, Head.BRANCH),
    "DeleteBranch": Rule(RequestId.OPTIONAL, Lease.NEEDED, Head.BRANCH),
    "PruneThread": Rule(RequestId.OPTIONAL, Lease.NEEDED, Head.MAIN),
    "UpdateThread": Rule(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN),
    "DeleteThread": Rule(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN),
    "ForkThread": Rule(RequestId.OPTIONAL, Lease.NONE, Head.NONE, makes=True),
    "ImportThread": Rule(RequestId.REQUIRED, Lease.NONE, Head.NONE),
    "Write": Rule(RequestId.REQUIRED, Lease.NONE, Head.NONE, makes=True),
}
"""By name of the method. PruneThread needs the lease only if it moves a head. In ForkThread, `expected_uid` is
that of the source."""

_NAMES = {"BlobBegin": "WriteBlob", "ImportBegin": "ImportThread", "OpenWriter": "Write"}


class WriteRequest(Protocol):
    """A request that writes."""

    namespace: str
    thread: str

    @property
    def options(self) -> WriteOptions:
        """What every write has."""


def rule_of(request: WriteRequest) -> Rule:
    """Returns the rule of a request's method."""
    name = type(request).__name__
    return RULES[_NAMES.get(name) or name.removesuffix("Request")]


def must_exist(request: WriteRequest) -> bool:
    """Returns whether a write never makes its thread."""
    return bool(request.options.expected_uid) or not rule_of(request).makes

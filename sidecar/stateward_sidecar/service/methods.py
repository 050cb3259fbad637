"""What is true of each method of the contract, in one table.

``docs/protocol.md`` has the rules of the writes for people, and tests compare the two and the contract. A new method
has a row here, or the daemon does not start.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, Protocol

from google.protobuf.descriptor import MethodDescriptor

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


class Kind(Enum):
    """What a call does, which decides in which line it waits for its turn, and whether it goes on during a drain."""

    READ = "reads, and goes on"
    WORK = "makes work, and is refused during a drain"
    UPKEEP = "helps to empty the machine, and goes on"


class Facts(NamedTuple):
    """What is true of a method."""

    kind: Kind
    rule: Rule | None = None
    """What a write may have of the common options; None = it is no write of a thread."""
    is_large: bool = False
    """Whether its messages may hold states, values or bytes of blobs."""
    keeps_messages: bool = False
    """Whether its messages make up versions, so that a large version keeps memory until it is whole."""
    is_streamed: bool = False
    """Whether RunCalls can make the call."""
    stores: bool = False
    """Whether calls store something, so that the saves of their principal are counted."""
    eases: bool = False
    """Whether calls free, renew or answer something. They have places of their own, beside all other calls."""
    follows: bool = False
    """Whether a call that waits follows something, as a stream does, and has the place of one."""
    is_repeatable: bool = False
    """Whether a write may be made again if there is no room for its answer. Reads may. BeginEffect may: its answer is
    only large if the call is over and it has the result. The answers of other writes are small."""

    @property
    def goes_on(self) -> bool:
        """Whether a daemon that is drained takes such calls."""
        return self.kind is not Kind.WORK

    @property
    def may_repeat(self) -> bool:
        """Whether a call may be made again without another effect."""
        return self.is_repeatable or self.goes_on


def _write(request_id: RequestId, lease: Lease, head: Head, *, makes: bool = False, **facts: bool) -> Facts:
    return Facts(Kind.WORK, Rule(request_id, lease, head, makes), **facts)


READ, WORK, UPKEEP = Facts(Kind.READ), Facts(Kind.WORK), Facts(Kind.UPKEEP, eases=True)
METHODS = {
    # CheckpointService
    "Save": _write(
        RequestId.UNLESS_EXPECTED, Lease.NEEDED, Head.BRANCH, makes=True, is_large=True, is_streamed=True, stores=True
    ),
    "BatchSave": WORK._replace(is_large=True, stores=True),
    "Hydrate": READ,
    "GetCheckpoint": READ,
    "ListCheckpoints": READ,
    "ReadHistory": READ,
    "ReadLog": READ._replace(follows=True),
    "DiffCheckpoints": READ,
    # ThreadService
    "GetThread": READ,
    "ListThreads": READ,
    "CountThreads": READ,
    "ForkThread": _write(RequestId.OPTIONAL, Lease.NONE, Head.NONE, makes=True, stores=True),
    "PruneThread": _write(RequestId.OPTIONAL, Lease.NEEDED, Head.MAIN, eases=True),
    "DeleteThread": _write(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN, eases=True),
    "UpdateThread": _write(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN),
    "SetTag": _write(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN),
    "DeleteTag": _write(RequestId.OPTIONAL, Lease.CHECKED, Head.MAIN, eases=True),
    "MoveBranch": _write(RequestId.OPTIONAL, Lease.NEEDED, Head.BRANCH),
    "DeleteBranch": _write(RequestId.OPTIONAL, Lease.NEEDED, Head.BRANCH, eases=True),
    "Watch": READ,
    "WaitDurable": READ,
    "ReadDigests": READ,
    "Attach": WORK,
    "Detach": UPKEEP,
    # BlobService
    "WriteBlob": _write(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN, makes=True, is_large=True, stores=True),
    "ReadBlob": READ,
    "StatBlob": READ,
    # WorkspaceService
    "FindMissing": READ._replace(is_large=True),
    "WriteObjects": _write(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN, makes=True, is_large=True, stores=True),
    "ReadTree": READ,
    "ReadObjects": READ._replace(is_large=True),
    "DiffTrees": READ,
    "StatWorkspace": READ,
    # EffectService
    "BeginEffect": _write(RequestId.REQUIRED, Lease.CHECKED, Head.MAIN, makes=True, is_repeatable=True, stores=True),
    "CompleteEffect": _write(RequestId.NEEDLESS, Lease.CHECKED, Head.MAIN, is_large=True, eases=True),
    "RenewEffect": WORK._replace(eases=True),
    "PutEffects": _write(
        RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, makes=True, is_large=True, is_streamed=True, stores=True
    ),
    "ListEffects": READ,
    "DeleteEffects": _write(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, eases=True),
    # CallService
    "RunCalls": WORK,
    # RecordService
    "PutRecords": _write(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, makes=True, is_large=True, stores=True),
    "GetRecords": READ,
    "ListRecords": READ,
    "ListRecordPrefixes": READ,
    "DeleteRecords": _write(RequestId.REQUIRED, Lease.NEEDED, Head.MAIN, eases=True),
    # LeaseService
    "AcquireLease": _write(RequestId.REQUIRED, Lease.NONE, Head.MAIN, makes=True),
    "RenewLease": WORK._replace(eases=True),
    "ReleaseLease": _write(RequestId.NEEDLESS, Lease.REQUIRED, Head.MAIN, eases=True),
    # SignalService
    "SendSignal": _write(RequestId.REQUIRED, Lease.CHECKED, Head.MAIN, eases=True),
    "ListSignals": READ,
    # WriterService
    "Write": _write(RequestId.REQUIRED, Lease.NONE, Head.NONE, makes=True, is_large=True, stores=True),
    # AdminService
    "GetServerInfo": READ._replace(eases=True),
    "GetStats": READ,
    "Verify": READ,
    "Compact": WORK,
    "RekeyThread": WORK,
    "Drain": UPKEEP,
    "Diagnose": READ,
    # ArchiveService
    "GetArchive": READ,
    "ListArchive": READ,
    "VerifyArchive": READ,
    "RestoreArchive": WORK,
    "CollectGarbage": WORK,
    "RepairThread": UPKEEP,
    # BackupService
    "ExportThread": READ,
    "ImportThread": _write(RequestId.REQUIRED, Lease.NONE, Head.NONE, is_large=True, keeps_messages=True, stores=True),
}
"""By name of the method. PruneThread needs the lease only if it moves a head. In ForkThread, `expected_uid` is that of
the source."""

RULES = {name: each.rule for name, each in METHODS.items() if each.rule is not None}
"""Of the writes."""


def verb_name(method: MethodDescriptor) -> str:
    """Returns the name of the function of a service that answers a method."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()


_NAMES = {
    "BlobBegin": "WriteBlob", "ObjectsBegin": "WriteObjects", "ImportBegin": "ImportThread", "OpenWriter": "Write",
}  # fmt: skip


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

"""The danger: a write asks for more than the table of docs/protocol.md says, or checks less.

The page has a row for each method that writes; each test makes the calls of all rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.wire import THREAD, appends, refused, text
from tests.service.agents import new_id
from tests.service.conftest import Place
from tests.service.test_leases_unexpected import methods
from tests.trees.yard import chunk

from stateward.v1 import backup_service_pb2 as b
from stateward.v1 import blob_service_pb2 as blobs
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import record_service_pb2 as r
from stateward.v1 import signal_service_pb2 as s
from stateward.v1 import thread_service_pb2 as t
from stateward.v1 import writer_service_pb2 as w
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED, VersionRef
from stateward.v1.effect_pb2 import EFFECT_STATE_NEW, Effect
from stateward.v1.lease_pb2 import Holder
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions
from stateward_sidecar.service.methods import RULES, Head, Lease, RequestId

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
# Where a message has the options of its writes, and where their receipts, if not in itself.
INSIDE = {"saves", "open", "begin", "opened"}
MADE, MUST_EXIST, MAY_BE_MISSING = "made", "must exist", "may be missing"
HOLDER = Holder(name="other", incarnation="other")


class Row(NamedTuple):
    """What the page says of a method."""

    request_id: str
    lease: str
    head: str
    thread: str


def rows() -> dict[str, Row]:
    head = "| method | request id | lease token | expected version | thread |\n"
    table = PAGE.read_text().split(head)[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    return {name.strip("`"): Row(*rest) for name, *rest in cells}


def is_said(cell: str, *values: Enum | str) -> bool:
    """Whether a cell begins with one of these values; it may say more behind them."""
    said = re.split(r",|;| in `open`| with `create`", cell)[0]
    return said in {each.value if isinstance(each, Enum) else each for each in values}


def has(message: Any, kind: Any) -> bool:
    """Whether a message has a field of this kind, in itself or where it has its writes."""
    return any(
        field.message_type is kind.DESCRIPTOR or (field.name in INSIDE and has(field.message_type, kind))
        for field in message.fields
        if field.message_type
    )


def test_every_write_has_a_row() -> None:
    """What has options is a write, has a row, and answers with a receipt; nothing else does."""
    writes = {each.name for each in methods() if each.name != "RunCalls" and has(each.input_type, WriteOptions)}
    answers = {each.name for each in methods() if each.name != "RunCalls" and has(each.output_type, Receipt)}
    assert writes == rows().keys()
    assert answers == writes | {"WaitDurable"}


def test_the_daemon_has_the_same_table() -> None:
    """Each cell of the page begins as the rule of the daemon says. A batch has the rule of its saves."""
    assert rows().keys() == RULES.keys() | {"BatchSave"}
    assert rows()["BatchSave"] == rows()["Save"]
    for name, rule in RULES.items():
        row = rows()[name]
        assert is_said(row.request_id, rule.request_id), name
        assert is_said(row.lease, rule.lease), name
        assert is_said(row.head, rule.head), name
        is_made = (rule.makes and name != "ForkThread") or name == "ImportThread"  # these two make another thread
        assert is_said(row.thread, *([MADE] if is_made else [MUST_EXIST, MAY_BE_MISSING])), name


def exported(place: Place) -> Iterator[Any]:
    asked = b.ExportThreadRequest(namespace=place.namespace, thread=THREAD)
    for answer in place.wire.backups.ExportThread(asked):
        yield b.ImportThreadRequest(parts=answer.parts)


# Requests by method; `call` adds namespace, thread and options.
REQUESTS: dict[str, Callable[[Place], Any]] = {
    "Save": lambda _: c.SaveRequest(diff=appends("more")),
    "BatchSave": lambda _: c.SaveRequest(diff=appends("more")),
    "Write": lambda _: w.OpenWriter(holder=HOLDER),
    "PutEffects": lambda _: e.PutEffectsRequest(effects=[Effect(key="k", value=text("1"))]),
    "DeleteEffects": lambda _: e.DeleteEffectsRequest(keys=e.EffectKeys(keys=["old"])),
    "BeginEffect": lambda _: e.BeginEffectRequest(key="tool", holder=HOLDER),
    "CompleteEffect": lambda place: e.CompleteEffectRequest(
        key="begun", claim_token=begun(place), state=EFFECT_STATE_NEW
    ),
    "PutRecords": lambda _: r.PutRecordsRequest(writes=[RecordWrite(key="k", value=text("1"))]),
    "DeleteRecords": lambda _: r.DeleteRecordsRequest(all=Empty()),
    "SendSignal": lambda _: s.SendSignalRequest(name="n"),
    "AcquireLease": lambda _: l.AcquireLeaseRequest(holder=HOLDER),
    "ReleaseLease": lambda _: l.ReleaseLeaseRequest(),
    "WriteBlob": lambda _: blobs.BlobBegin(sha256=hashlib.sha256(b"x").digest()),
    "WriteObjects": lambda _: ObjectsBegin(),
    "ForkThread": lambda _: t.ForkThreadRequest(new_thread="copy"),
    "ImportThread": lambda _: b.ImportBegin(),
    "PruneThread": lambda _: t.PruneThreadRequest(versions={"spans": [{"first": 2, "last": 2}]}, move_heads=True),
    "DeleteThread": lambda _: t.DeleteThreadRequest(),
    "UpdateThread": lambda _: t.UpdateThreadRequest(update={"agent": "a"}, update_mask={"paths": ["agent"]}),
    "SetTag": lambda _: t.SetTagRequest(tag="best"),
    "DeleteTag": lambda _: t.DeleteTagRequest(tag="kept"),
    "MoveBranch": lambda _: t.MoveBranchRequest(version=VersionRef(version=1)),
    "DeleteBranch": lambda _: t.DeleteBranchRequest(branch="side"),
}
WRITES = sorted(REQUESTS)


def begun(place: Place) -> int:
    """The token of a claim."""
    at: dict[str, Any] = {"namespace": place.namespace, "thread": THREAD, "options": {"request_id": "begun"}}
    return int(place.wire.effects.BeginEffect(e.BeginEffectRequest(**at, key="begun", holder=HOLDER)).claim_token)


def prepare(place: Place) -> None:
    """What the calls change: an effect, a record, a tag, and the branch "side" with version 3."""
    at: dict[str, Any] = {"namespace": place.namespace, "thread": THREAD}

    def options(**fields: Any) -> dict[str, Any]:
        return {**at, "options": {"request_id": new_id(), **fields}}

    place.wire.effects.PutEffects(e.PutEffectsRequest(**options(), effects=[Effect(key="old", value=text("1"))]))
    place.wire.records.PutRecords(r.PutRecordsRequest(**options(), writes=[RecordWrite(key="old", value=text("1"))]))
    place.wire.threads.SetTag(t.SetTagRequest(**options(), tag="kept", version=VersionRef(version=1)))
    side = options(expected_version=0)
    place.wire.save(c.SaveRequest(**side, branch="side", parent=VersionRef(version=2), diff=appends("s")))


def taken(place: Place, name: str = "holder") -> int:
    """The token of a lease on the thread."""
    at: dict[str, Any] = {"namespace": place.namespace, "thread": THREAD, "options": {"request_id": new_id()}}
    holder = Holder(name=name, incarnation=new_id())
    return int(place.wire.leases.AcquireLease(l.AcquireLeaseRequest(**at, holder=holder)).lease.token)


def method(place: Place, name: str) -> Callable[..., Any]:
    stubs = place.wire.__dict__.values()
    found: Callable[..., Any] = next(getattr(stub, name) for stub in stubs if hasattr(stub, name))
    return found


def call(place: Place, name: str, thread: str = THREAD, branch: str = "", **options: Any) -> Any:
    """Makes the call, with a request id of its own unless ``options`` say otherwise."""
    request = REQUESTS[name](place)
    request.namespace = place.namespace
    request.thread = new_id() if name == "ImportThread" and thread == THREAD else thread
    if branch:
        request.branch = branch
    if name == "ReleaseLease" and "lease_token" not in options:
        options["lease_token"] = taken(place)
    if name == "MoveBranch" and branch:
        request.version.version = 3
    request.options.CopyFrom(WriteOptions(**{"request_id": new_id(), **options}))
    make = method(place, name)
    if name == "BatchSave":
        return make(c.BatchSaveRequest(saves=[request]))
    if name == "Write":
        return list(make(iter([w.WriteRequest(open=request)])))
    if name == "WriteBlob":
        return make(iter([blobs.WriteBlobRequest(begin=request), blobs.WriteBlobRequest(data=b"x")]))
    if name == "WriteObjects":
        objects = TreeObjects(objects=[chunk(b"x")])
        return make(iter([WriteObjectsRequest(begin=request), WriteObjectsRequest(objects=objects)]))
    if name == "ImportThread":
        return make(iter([b.ImportThreadRequest(begin=request), *exported(place)]))
    return make(request)


def reason(place: Place, name: str, **fields: Any) -> tuple[str, str]:
    """How a call fails: its reason, and the end of the path of the field."""
    found = refused(lambda _request, timeout: call(place, name, **fields), None)
    return found.reason, ".".join(found.field.split(".")[-2:])


def test_the_tests_make_every_call() -> None:
    """A row without a request would be believed."""
    assert rows().keys() == REQUESTS.keys()


@pytest.mark.parametrize("name", WRITES)
def test_a_request_id_is_asked_for(place: Place, name: str) -> None:
    """Where the table says that it is required, and nowhere else."""
    prepare(place)
    if is_said(rows()[name].request_id, RequestId.OPTIONAL, RequestId.NEEDLESS):
        call(place, name, request_id="")
    else:
        assert reason(place, name, request_id="") == ("INVALID_FIELD", "options.request_id")
    if is_said(rows()[name].request_id, RequestId.UNLESS_EXPECTED):
        call(place, name, request_id="", expected_version=2)


@pytest.mark.parametrize("name", WRITES)
def test_a_lease_is_asked_for(place: Place, name: str) -> None:
    """While a lease lives, what needs it fails without its token. A token that is given must be the newest."""
    prepare(place)
    lost, token, what = taken(place), taken(place), rows()[name].lease
    if is_said(what, Lease.NONE):
        assert reason(place, name, lease_token=token) == ("INVALID_FIELD", "options.lease_token")
    elif is_said(what, Lease.REQUIRED):
        assert reason(place, name, lease_token=0) == ("INVALID_FIELD", "options.lease_token")
        assert not call(place, name, lease_token=lost).released
        assert call(place, name, lease_token=token).released
    else:
        assert reason(place, name, lease_token=lost)[0] == "LEASE_HELD"
        if is_said(what, Lease.NEEDED):
            assert reason(place, name)[0] == "LEASE_HELD"
            call(place, name, lease_token=token)
        else:
            call(place, name)


def test_a_prune_that_moves_no_head_needs_no_lease(place: Place) -> None:
    """And checks a token that is given."""
    lost, _ = taken(place), taken(place)
    at: dict[str, Any] = {"namespace": place.namespace, "thread": THREAD}
    at["versions"] = {"spans": [{"first": 1, "last": 1}]}
    late = t.PruneThreadRequest(**at, options={"lease_token": lost})
    assert refused(place.wire.threads.PruneThread, late).reason == "LEASE_HELD"
    assert place.wire.threads.PruneThread(t.PruneThreadRequest(**at)).pruned.spans


@pytest.mark.parametrize("name", WRITES)
def test_a_version_is_compared(place: Place, name: str) -> None:
    """With the head of the branch that the table names, and with no other one."""
    prepare(place)
    what = rows()[name].head
    if is_said(what, Head.NONE):
        assert reason(place, name, expected_version=2) == ("INVALID_FIELD", "options.expected_version")
        return
    branch = "side" if is_said(what, Head.BRANCH) else ""
    mine, other = (3, 2) if branch else (2, 3)
    assert reason(place, name, branch=branch, expected_version=other)[0] == "VERSION_MISMATCH"
    digest = b"0" * 16
    wrong = reason(place, name, branch=branch, expected_version=mine, expected_digest=digest)
    assert wrong[0] == "VERSION_MISMATCH"
    call(place, name, branch=branch, expected_version=mine)


@pytest.mark.parametrize("name", WRITES)
def test_a_thread_is_made(place: Place, name: str) -> None:
    """By the calls of which the table says so. All others refuse a missing thread, and settings for a new one."""
    prepare(place)
    made = {"ForkThread": "copy"}.get(name, "new")
    is_made = is_said(rows()[name].thread, MADE)
    if is_made and name not in ("WriteBlob", "WriteObjects"):
        call(place, name, thread="newer")
    elif is_said(rows()[name].thread, MAY_BE_MISSING):
        assert not call(place, name, thread="missing").receipt.uid
    else:
        assert reason(place, name, thread="missing")[0] == "THREAD_NOT_FOUND"
    if (is_made and name != "ImportThread") or name == "ForkThread":
        call(place, name, thread=THREAD if name == "ForkThread" else made, create={"agent": "maker"})
        assert place.wire.thread(place.namespace, made).agent == "maker"
    else:  # an import makes the thread with the settings that it had
        assert reason(place, name, create={"agent": "maker"}) == ("INVALID_FIELD", "options.create")


@pytest.mark.parametrize("name", WRITES)
def test_the_checks_come_in_their_order(place: Place, name: str) -> None:
    """The thread's uid, then the lease, then the version: a caller learns first what makes the rest meaningless."""
    prepare(place)
    row, lost, _ = rows()[name], taken(place), taken(place)
    wrong: dict[str, Any] = {"expected_version": 99, "lease_token": lost, "expected_uid": "0" * 32}
    if is_said(row.head, Head.NONE):
        return
    if is_said(row.lease, Lease.NONE):
        wrong["lease_token"] = 0
    assert reason(place, name, **wrong)[0] == "UID_MISMATCH"
    del wrong["expected_uid"]
    if not is_said(row.lease, Lease.REQUIRED):
        assert reason(place, name, **wrong)[0] == "LEASE_HELD"


def test_a_blob_that_the_thread_has_is_answered(place: Place) -> None:
    """As a retry is: the caller cannot tell it from one. No version and no lease keeps the answer back."""
    lost, _ = taken(place), taken(place)
    assert not call(place, "WriteBlob").existed
    assert call(place, "WriteBlob", expected_version=99, lease_token=lost).existed


@pytest.mark.parametrize("name", sorted(set(WRITES) - {"ImportThread"}))
def test_a_write_belongs_to_one_creation(place: Place, name: str) -> None:
    """Every write is refused if the thread has another uid than expected, and makes no thread."""
    prepare(place)
    for thread in (THREAD, "missing"):
        found = reason(place, name, thread=thread, expected_uid="0" * 32)
        assert found[0] == "UID_MISMATCH", thread


@pytest.mark.parametrize("name", WRITES)
def test_a_write_answers_with_its_entry(place: Place, name: str) -> None:
    """The receipt has the uid of the thread, and sequence, digest and level of the newest entry."""
    prepare(place)
    uid = place.thread().uid
    answer = call(place, name)
    if name == "Write":
        answer = answer[0].opened
    receipt = (answer.saves[0] if name == "BatchSave" else answer).receipt
    if name == "DeleteThread":
        assert (receipt.uid, receipt.sequence) == (uid, 0)
        return
    thread = {"ForkThread": "copy"}.get(name) or (answer.thread.thread if name == "ImportThread" else THREAD)
    found = place.wire.thread(place.namespace, thread)
    assert (receipt.uid, receipt.durability) == (found.uid, DURABILITY_COMMITTED)
    assert len(receipt.digest) == 16
    assert not receipt.replayed
    if name == "Write":  # the end of the stream gave the lease back
        assert receipt.sequence == found.sequence - 1
    elif not name.endswith("Records"):  # values of records are moved together in the background, which writes entries
        assert (receipt.sequence, receipt.digest) == (found.sequence, found.sequence_digest)

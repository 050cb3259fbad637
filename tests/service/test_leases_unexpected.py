"""The danger: a lease stops what its table says passes, or passes what would be written under the holder's feet.

docs/protocol.md has the table. Every method of the contract is in it, or only reads.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.wire import appends, refused
from tests.service.agents import Agent, new_id
from tests.service.conftest import THREAD, Place
from tests.service.test_retries_under_a_new_lease import CALLS, prepare
from tests.trees.yard import chunk

import stateward.v1
from stateward._operations.threads import spans_of
from stateward.v1 import backup_service_pb2 as b
from stateward.v1 import blob_service_pb2 as blobs
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import thread_service_pb2 as t
from stateward.v1 import writer_service_pb2 as w
from stateward.v1.effect_pb2 import EFFECT_STATE_NEW
from stateward.v1.lease_pb2 import Holder
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.methods import RULES, Lease

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
PASSES, REFUSED, HEADS = "passes", "refused", "refused if it moves heads, else passes"
# Methods that write nothing of a thread. `refresh_ttl` of a read moves a time and no value.
READS = {
    "GetServerInfo", "GetStats", "Verify", "Diagnose", "GetArchive", "ListArchive", "VerifyArchive", "ExportThread",
    "ReadBlob", "StatBlob", "Hydrate", "GetCheckpoint", "ListCheckpoints", "ReadHistory", "ReadLog", "DiffCheckpoints",
    "FindMissing", "ReadTree", "ReadObjects", "DiffTrees", "StatWorkspace",
    "ListEffects", "GetRecords", "ListRecords", "ListRecordPrefixes", "ListSignals", "GetThread", "ListThreads",
    "CountThreads", "Watch", "WaitDurable", "ReadDigests",
}  # fmt: skip
# They need an archive, or end the daemon. None of them has a field for a token, which the test of fields checks.
ELSEWHERE = {
    "Attach", "Detach", "RepairThread", "RestoreArchive", "CollectGarbage", "Compact", "Drain", "RekeyThread",
    "RunCalls",
}  # fmt: skip


def rows() -> dict[str, str]:
    """What the page says, by method."""
    table = PAGE.read_text().split("| method | while another holder has the lease |")[1].split("\n\n")[0]
    lines = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return {name: what.strip() for names, what in lines for name in re.findall(r"`(\w+)`", names)}


def methods() -> Iterator[Any]:
    """The methods of all services, as the descriptors have them."""
    for module in pkgutil.iter_modules(stateward.v1.__path__):
        if module.name.endswith("_service_pb2"):
            found = importlib.import_module(f"stateward.v1.{module.name}").DESCRIPTOR
            for service in found.services_by_name.values():
                yield from service.methods


def test_every_method_has_a_row() -> None:
    """A new method says what a lease does to it, or only reads."""
    assert {method.name for method in methods()} == rows().keys() | READS
    assert not rows().keys() & READS


def test_what_is_refused_needs_the_token() -> None:
    """This table and that of what each write has say the same."""
    for name, what in rows().items():
        rule = RULES.get("Save" if name == "BatchSave" else name)
        if rule and name not in {"AcquireLease", "ReleaseLease", "Write"}:
            assert (what != PASSES) == (rule.lease is Lease.NEEDED), name


def begun(place: Place) -> int:
    """The token of a claim that was made before the lease."""
    request = e.BeginEffectRequest(
        namespace=place.namespace, thread=THREAD, key="begun", options=WriteOptions(request_id=new_id()),
        holder=Holder(name="h", incarnation="1"),
    )  # fmt: skip
    return int(place.wire.effects.BeginEffect(request).claim_token)


def imported(place: Place) -> Iterator[Any]:
    asked = b.ExportThreadRequest(namespace=place.namespace, thread=THREAD)
    begin = b.ImportBegin(namespace=place.namespace, thread="imported", options=WriteOptions(request_id=new_id()))
    yield b.ImportThreadRequest(begin=begin)
    for answer in place.wire.backups.ExportThread(asked):
        yield b.ImportThreadRequest(parts=answer.parts)


def written(place: Place) -> Iterator[Any]:
    yield blobs.WriteBlobRequest(
        begin=blobs.BlobBegin(namespace=place.namespace, thread=THREAD, sha256=hashlib.sha256(b"x").digest())
    )
    yield blobs.WriteBlobRequest(data=b"x")


def objects_written(place: Place) -> Iterator[Any]:
    yield WriteObjectsRequest(begin=ObjectsBegin(namespace=place.namespace, thread=THREAD))
    yield WriteObjectsRequest(objects=TreeObjects(objects=[chunk(b"x")]))


OTHER = Holder(name="other", incarnation="other")
REQUESTS: dict[str, Callable[[Place], Any]] = {
    **{name: (lambda _place, build=build: build()) for name, build in CALLS.items()},
    "BatchSave": lambda place: c.BatchSaveRequest(saves=[place.request()]),
    "CompleteEffect": lambda place: e.CompleteEffectRequest(
        key="begun", claim_token=begun(place), state=EFFECT_STATE_NEW
    ),
    "RenewEffect": lambda place: e.RenewEffectRequest(key="begun", claim_token=begun(place)),
    "AcquireLease": lambda _: l.AcquireLeaseRequest(holder=OTHER),
    "RenewLease": lambda _: l.RenewLeaseRequest(lease_token=1),
    "ReleaseLease": lambda _: l.ReleaseLeaseRequest(options=WriteOptions(lease_token=1)),
    "Write": lambda place: iter(
        [
            w.WriteRequest(
                open=w.OpenWriter(
                    namespace=place.namespace, thread=THREAD, holder=OTHER, options=WriteOptions(request_id=new_id())
                )
            )
        ]
    ),
    "DeleteTag": lambda _: t.DeleteTagRequest(tag="kept"),
    "ForkThread": lambda _: t.ForkThreadRequest(new_thread="copy"),
    "DeleteThread": lambda _: t.DeleteThreadRequest(),
    "ImportThread": imported,
    "WriteBlob": written,
    "WriteObjects": objects_written,
}


@pytest.mark.parametrize("name", sorted(rows().keys() - ELSEWHERE))
def test_a_lease_does_what_the_table_says(place: Place, name: str) -> None:
    """Without the token: what is refused is LEASE_HELD and changes nothing, and what passes is answered."""
    prepare(place, 0)
    kept = t.SetTagRequest(namespace=place.namespace, thread=THREAD, tag="kept", version={"version": 1})
    place.wire.threads.SetTag(kept)
    request = REQUESTS[name](place)
    what = rows()[name]
    Agent(place.wire, place.namespace, "holder").take()
    if hasattr(request, "DESCRIPTOR") and name != "BatchSave":
        request.namespace, request.thread = place.namespace, THREAD
        if "options" in request.DESCRIPTOR.fields_by_name:
            request.options.request_id = new_id()
    stubs = place.wire.__dict__.values()
    call = next(getattr(stub, name) for stub in stubs if hasattr(stub, name))
    before = place.look()[1:]  # the view of the thread shows how long the lease lives
    if what == PASSES:
        call(request)
        return
    assert what in (REFUSED, HEADS)
    assert refused(call, request).reason == "LEASE_HELD"
    assert place.look()[1:] == before
    if what == HEADS:
        place.wire.threads.DeleteTag(t.DeleteTagRequest(namespace=place.namespace, thread=THREAD, tag="kept"))
        call(t.PruneThreadRequest(namespace=place.namespace, thread=THREAD, versions=spans_of([1])))


def test_a_token_that_is_given_is_checked(place: Place) -> None:
    """An effect passes without a token, and not with one that is lost."""
    agent = Agent(place.wire, place.namespace, "holder")
    lost = agent.take()
    Agent(place.wire, place.namespace, "holder").take()
    request = e.BeginEffectRequest(
        namespace=place.namespace,
        thread=THREAD,
        key="k",
        holder=OTHER,
        options=WriteOptions(request_id=new_id(), lease_token=lost),
    )
    assert refused(place.wire.effects.BeginEffect, request).reason == "LEASE_HELD"


def test_the_holder_writes_nothing_after_a_deletion(place: Place) -> None:
    """A lease stops no deletion, and the next save under it makes no thread."""
    token = Agent(place.wire, place.namespace, "holder").take()
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=place.namespace, thread=THREAD))
    late = c.SaveRequest(
        namespace=place.namespace,
        thread=THREAD,
        options=WriteOptions(request_id=new_id(), lease_token=token),
        diff=appends("late"),
    )
    assert refused(place.wire.checkpoints.Save, late).reason == "LEASE_HELD"
    listed = place.wire.threads.ListThreads(t.ListThreadsRequest(namespace=place.namespace))
    assert not [each for each in listed.threads if each.thread == THREAD]

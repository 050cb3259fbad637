"""The danger: one write spells, checks or answers its options otherwise than all the others."""

from __future__ import annotations

import importlib
import pkgutil
import queue
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tests.daemon.wire import TIMEOUT_S, Refusal, Wire, appends, refused, replayed, sets, text
from tests.service.agents import Agent, new_id
from tests.service.conftest import THREAD, Place
from tests.service.test_retries_under_a_new_lease import CALLS, TOOL, prepare
from tests.service.walk import METHODS
from tests.trees.yard import chunk

import stateward.v1
from stateward.testing import run_daemon
from stateward.v1 import backup_service_pb2 as b
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.admin_service_pb2 import ScanProgress
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.call_service_pb2 import StreamedCall
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, VersionRef
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions
from stateward.v1.writer_service_pb2 import OpenWriter, WriteRequest
from stateward_sidecar.service.methods import METHODS as FACTS
from stateward_sidecar.service.methods import RULES, Head, Lease, RequestId, verb_name

# -- the contract ------------------------------------------------------------------------------------------------------

# Where the request of a stream has what a write is asked, and the answer what it is answered.
BEGINS = {"WriteBlob": "begin", "WriteObjects": "begin", "ImportThread": "begin", "Write": "open"}
OPENS = {"Write": "opened"}
# What has a receipt and is no write.
RECEIPTS = {"WaitDurableRequest": "waits for the entry of one", "WaitDurableResponse": "says how far the entry is"}
# Requests with a field of the name of an option: none of them writes.
NAMESAKES = {
    "RenewLeaseRequest": "names the lease, and writes nothing", "RenewEffectRequest": "writes nothing",
    "ReadLogRequest": "goes on with a thread that it has read", "WaitDurableRequest": "says which level is waited for",
    "RekeyThreadRequest": "changes the key, and no word of the thread",
}  # fmt: skip
# What is no rule without an exception.
UNPAGED = {"ListArchive": "is a stream"}
TRUTHS = {"AttributeValue.bool_value": "is the truth itself"}
# How a bool is called that chooses the parts of an answer.
PART = re.compile("include|exclude|with|omit|no_|show|return|only")


def asked_of(name: str) -> Descriptor:
    kind: Descriptor = METHODS[name].input_type
    return kind.fields_by_name[BEGINS[name]].message_type if name in BEGINS else kind


def answered_of(name: str) -> Descriptor:
    kind: Descriptor = METHODS[name].output_type
    return kind.fields_by_name[OPENS[name]].message_type if name in OPENS else kind


def messages() -> dict[str, Descriptor]:
    """All messages of the package, also those inside of others."""
    found: dict[str, Descriptor] = {}

    def add(each: Descriptor) -> None:
        found[each.full_name.removeprefix("stateward.v1.")] = each
        for inner in each.nested_types:
            add(inner)

    for module in pkgutil.iter_modules(stateward.v1.__path__, "stateward.v1."):
        if module.name.endswith("_pb2"):
            for each in importlib.import_module(module.name).DESCRIPTOR.message_types_by_name.values():
                add(each)
    return found


def having(kind: type) -> dict[str, list[tuple[str, int]]]:
    """The messages that have a field of this kind, with name and number of the field."""
    wanted = kind.DESCRIPTOR  # type: ignore[attr-defined]
    found = {
        name: [(field.name, field.number) for field in each.fields if field.message_type is wanted]
        for name, each in messages().items()
    }
    return {name: fields for name, fields in found.items() if fields}


def test_every_write_has_the_same_options_and_receipt() -> None:
    """Those of the daemon's table have them, in the same place, and nothing else has."""
    assert set(METHODS) > set(RULES)
    assert having(WriteOptions) == {asked_of(name).name: [("options", 3)] for name in RULES}
    found = having(Receipt)
    assert {name: found.pop(name) for name in RECEIPTS} == {
        "WaitDurableRequest": [("receipt", 3)], "WaitDurableResponse": [("receipt", 1)],
    }  # fmt: skip
    assert found == {answered_of(name).name: [("receipt", 1)] for name in RULES}


def test_no_request_has_an_option_beside_its_options() -> None:
    """A field of the same name would be a second place for the same thing."""
    options = set(WriteOptions.DESCRIPTOR.fields_by_name)
    requests = {each.name: each for name in METHODS for each in (METHODS[name].input_type, asked_of(name))}
    found = {name for name, each in requests.items() if options & set(each.fields_by_name)}
    assert found == set(NAMESAKES)


def test_every_list_has_the_same_pages() -> None:
    """Size and token in the request, and the next token in the answer."""
    lists = {name for name in METHODS if name.startswith("List")}
    assert len(lists) > 5
    assert set(UNPAGED) == {name for name in lists if METHODS[name].server_streaming}
    for name in lists - set(UNPAGED):
        fields, answered = METHODS[name].input_type.fields_by_name, METHODS[name].output_type.fields_by_name
        assert fields["page_size"].type == FieldDescriptor.TYPE_INT32, name
        assert fields["page_token"].type == FieldDescriptor.TYPE_STRING, name
        assert answered["next_page_token"].type == FieldDescriptor.TYPE_STRING, name


def test_a_stream_of_calls_makes_the_calls_of_the_table() -> None:
    """Each field of the contract's message has its method, and each such method its field."""
    requests = StreamedCall.DESCRIPTOR.oneofs_by_name["request"].fields
    streamed = [METHODS[name] for name, facts in FACTS.items() if facts.is_streamed]
    assert {each.name: each.message_type for each in requests} == {verb_name(m): m.input_type for m in streamed}


def test_every_long_scan_tells_how_far_it_has_come() -> None:
    """The streams of the two services that look after a daemon do, in one way; those of a list have items instead."""
    streams = {
        method.name: method.output_type
        for method in METHODS.values()
        if method.server_streaming and method.containing_service.name in ("AdminService", "ArchiveService")
    }
    scans = {name for name in streams if not name.startswith("List")}
    assert len(scans) > 3
    wanted = {streams[name].name: [("progress", 1)] for name in scans}
    assert having(ScanProgress) == wanted


def test_no_alternative_is_a_truth() -> None:
    """False as one of several alternatives says nothing that somebody could mean."""
    found = {
        f"{name}.{field.name}"
        for name, each in messages().items()
        for oneof in each.oneofs
        if not oneof.name.startswith("_")  # an optional field
        for field in oneof.fields
        if field.type == FieldDescriptor.TYPE_BOOL
    }
    assert found == set(TRUTHS)


def test_what_is_added_and_what_is_left_out() -> None:
    """A bool of a request that adds to the answer is named so, and one that leaves something out, too."""
    requests = {METHODS[name].input_type.name: METHODS[name].input_type for name in METHODS}
    truths = {
        f"{name}.{field.name}"
        for name, each in requests.items()
        for field in each.fields
        if field.type == FieldDescriptor.TYPE_BOOL
    }
    found = {each for each in truths if PART.match(each.split(".")[1])}
    assert len(found) > 8
    assert {each for each in found if not each.split(".")[1].startswith(("include_", "without_values"))} == set()


def test_fields_are_counted_from_1() -> None:
    """Without a gap: nothing was released that had other numbers."""
    found = messages()
    assert len(found) > 150
    numbers = {name: sorted(field.number for field in each.fields) for name, each in found.items()}
    assert {name: has for name, has in numbers.items() if has != [*range(1, len(has) + 1)]} == {}


def test_the_contract_knows_no_older_daemon(repository: Path) -> None:
    """There is none."""
    texts = {file.name: file.read_text() for file in (repository / "proto/stateward/v1").glob("*.proto")}
    assert len(texts) > 15
    assert {name for name, text in texts.items() if "older daemon" in " ".join(text.split()).lower()} == set()


# -- a daemon ----------------------------------------------------------------------------------------------------------

NOBODY = "0" * 32
MADE = {"ForkThread": "copy", "ImportThread": "restored"}  # the thread that is written, if it is another one


def begun(place: Place) -> int:
    """The token of a claim."""
    asked = e.BeginEffectRequest(namespace=place.namespace, thread=THREAD, key="begun", holder=TOOL)
    asked.options.request_id = new_id()
    return int(place.wire.effects.BeginEffect(asked).claim_token)


ASKED: dict[str, Callable[[Place], Any]] = {
    **{name: (lambda _, build=build: build()) for name, build in CALLS.items()},
    "CompleteEffect": lambda place: e.CompleteEffectRequest(
        key="begun", claim_token=begun(place), state=EFFECT_STATE_DONE, value=text("1")
    ),
    "AcquireLease": lambda _: l.AcquireLeaseRequest(holder=TOOL),
    "ReleaseLease": lambda _: l.ReleaseLeaseRequest(),
    "WriteBlob": lambda _: BlobBegin(),
    "WriteObjects": lambda _: ObjectsBegin(),
    "DeleteTag": lambda _: t.DeleteTagRequest(tag="kept"),
    "DeleteThread": lambda _: t.DeleteThreadRequest(),
    "ForkThread": lambda _: t.ForkThreadRequest(new_thread=MADE["ForkThread"]),
    "ImportThread": lambda _: b.ImportBegin(thread=MADE["ImportThread"]),
    "Write": lambda _: OpenWriter(holder=TOOL),
}


def ask(place: Place, name: str) -> Any:
    """A write with the options that it needs, and no others."""
    asked, rule = ASKED[name](place), RULES[name]
    asked.namespace, asked.thread = place.namespace, asked.thread or THREAD
    if rule.request_id in (RequestId.REQUIRED, RequestId.UNLESS_EXPECTED):
        asked.options.request_id = new_id()
    if rule.lease is Lease.REQUIRED:
        asked.options.lease_token = Agent(place.wire, place.namespace, "holder").take()
    return asked


def write(place: Place, name: str, asked: Any) -> Any:
    wire = place.wire
    if name == "WriteBlob":
        messages = [WriteBlobRequest(begin=asked), WriteBlobRequest(data=b"x")]
        return wire.blobs.WriteBlob(iter(messages), timeout=TIMEOUT_S)
    if name == "WriteObjects":
        objects = TreeObjects(objects=[chunk(b"x")])
        sent_ = [WriteObjectsRequest(begin=asked), WriteObjectsRequest(objects=objects)]
        return wire.workspaces.WriteObjects(iter(sent_), timeout=TIMEOUT_S)
    if name == "Write":  # the stream breaks: else its end would give the lease back
        sent: queue.SimpleQueue[WriteRequest | None] = queue.SimpleQueue()
        sent.put(WriteRequest(open=asked))
        call = wire.writers.Write(iter(sent.get, None), timeout=TIMEOUT_S)
        try:
            return next(call).opened
        finally:
            call.cancel()
            sent.put(None)
    if name == "ImportThread":
        original = b.ExportThreadRequest(namespace=place.namespace, thread=THREAD)
        parts = [b.ImportThreadRequest(parts=each.parts) for each in wire.backups.ExportThread(original)]
        return wire.backups.ImportThread(iter([b.ImportThreadRequest(begin=asked), *parts]), timeout=TIMEOUT_S)
    method = next(getattr(stub, name) for stub in vars(wire).values() if hasattr(stub, name))
    return method(asked, timeout=TIMEOUT_S)


def refusal(place: Place, name: str, asked: Any, **options: Any) -> Refusal:
    """How a write with these options beside those that it needs is refused."""
    changed = type(asked)()
    changed.CopyFrom(asked)
    for option, value in options.items():
        changed.options.ClearField(option)
        changed.options.MergeFrom(WriteOptions(**{option: value}))
    return refused(lambda request, timeout: write(place, name, request), changed)


def untouched(place: Place) -> tuple[bytes, int]:
    """What a refused write leaves as it was. How long a lease still lives is not of it."""
    return place.look()[1:]


@pytest.fixture
def line(place: Place) -> Place:
    """Version 2 is the head of main, and 3 that of the branch side. There is something to delete for every write."""
    prepare(place, 0)
    tag = t.SetTagRequest(namespace=place.namespace, thread=THREAD, tag="kept", version=VersionRef(version=1))
    place.wire.threads.SetTag(tag)
    return place


def test_every_write_is_asked() -> None:
    """A new method of the table has a request here."""
    assert set(ASKED) == set(RULES)


def wrong(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options that the rule of a method forbids, each with the name that the refusal has for it."""
    rule, digest = RULES[name], b"d" * 16
    yield "request_id", {"request_id": "r" * 257}
    yield "expected_uid", {"expected_uid": "me"}
    yield "lease_token", {"lease_token": -1}
    yield "expected_version", {"expected_version": -1}
    yield "durability", {"durability": 99}
    yield ("create.ttl" if rule.makes else "create"), {"create": ThreadOptions(ttl={})}
    if rule.request_id in (RequestId.REQUIRED, RequestId.UNLESS_EXPECTED):
        yield "request_id", {"request_id": ""}
    if rule.lease in (Lease.NONE, Lease.REQUIRED):
        yield "lease_token", {"lease_token": 0 if rule.lease is Lease.REQUIRED else 1}
    if rule.head is Head.NONE:
        yield "expected_version", {"expected_version": 0}
        yield "expected_version", {"expected_digest": digest}
    else:
        yield "expected_digest", {"expected_digest": digest}
        yield "expected_digest", {"expected_version": 0, "expected_digest": digest}
        yield "expected_digest", {"expected_version": 2, "expected_digest": b"d"}


@pytest.mark.parametrize("name", RULES)
def test_what_the_rule_forbids_is_named(line: Place, name: str) -> None:
    """The option, by its path; nothing is written. A durability that this daemon has not is refused as well."""
    asked = ask(line, name)
    before = untouched(line)
    path = f"{BEGINS[name]}.options" if name in BEGINS else "options"
    for option, fields in wrong(name):
        found = refusal(line, name, asked, **fields)
        assert (found.reason, found.field, found.fields) == (
            "INVALID_FIELD", f"{path}.{option}", (f"{path}.{option}",),
        ), fields  # fmt: skip
    assert refusal(line, name, asked, durability=DURABILITY_ARCHIVED).reason == "NO_ARCHIVE"
    assert untouched(line) == before
    assert write(line, name, asked).receipt.uid


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.lease in (Lease.NEEDED, Lease.CHECKED)])
def test_a_wrong_token_is_refused(line: Place, name: str) -> None:
    """One that was never given out, and one of a lease that somebody else took; the newest passes."""
    asked = ask(line, name)
    before = untouched(line)
    assert refusal(line, name, asked, lease_token=1 << 60).reason == "LEASE_HELD"
    assert untouched(line) == before
    lost = Agent(line.wire, line.namespace, "first").take()
    newest = Agent(line.wire, line.namespace, "second").take(take_over=True)
    before = untouched(line)
    for token in (lost, newest + 1):
        assert refusal(line, name, asked, lease_token=token).reason == "LEASE_HELD"
    if RULES[name].lease is Lease.NEEDED:
        assert refusal(line, name, asked).reason == "LEASE_HELD"
    assert untouched(line) == before
    asked.options.lease_token = newest
    assert write(line, name, asked).receipt.uid


def test_a_wrong_token_releases_nothing(line: Place) -> None:
    """The one write that such a token does not fail: the lease is not the caller's, which is what it wants."""
    asked = ask(line, "ReleaseLease")
    Agent(line.wire, line.namespace, "second").take(take_over=True)
    before = untouched(line)
    assert not write(line, "ReleaseLease", asked).released
    assert untouched(line) == before
    assert line.described().HasField("lease")


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.head is not Head.NONE])
def test_a_wrong_version_is_refused(line: Place, name: str) -> None:
    """By number or by digest, of the branch that the call names or of main; the head itself passes."""
    asked = ask(line, name)
    head = 3 if name == "DeleteBranch" else 2
    shown = c.GetCheckpointRequest(namespace=line.namespace, thread=THREAD, version=VersionRef(version=head))
    digest = line.wire.checkpoints.GetCheckpoint(shown).checkpoint.digest
    before = untouched(line)
    for fields in (
        {"expected_version": 0}, {"expected_version": 1}, {"expected_version": 5 - head}, {"expected_version": 9},
        {"expected_version": head, "expected_digest": b"d" * 16},
    ):  # fmt: skip
        found = refusal(line, name, asked, **fields)
        assert (found.reason, found.metadata["current_version"]) == ("VERSION_MISMATCH", str(head)), fields
    assert untouched(line) == before
    asked.options.expected_version, asked.options.expected_digest = head, digest
    assert write(line, name, asked).receipt.uid


@pytest.mark.parametrize("name", RULES)
def test_a_wrong_uid_is_refused(line: Place, name: str) -> None:
    """Also if there is no thread of the name, and none is made; the uid that the thread has passes."""
    asked = ask(line, name)
    before = untouched(line)
    found = refusal(line, name, asked, expected_uid=NOBODY)
    assert (found.reason, found.metadata["expected_uid"]) == ("UID_MISMATCH", NOBODY)
    elsewhere = type(asked)()
    elsewhere.CopyFrom(asked)
    elsewhere.thread = "nowhere"
    assert refusal(line, name, elsewhere, expected_uid=NOBODY).reason == "UID_MISMATCH"
    assert untouched(line) == before
    threads = line.wire.threads.ListThreads(t.ListThreadsRequest(namespace=line.namespace)).threads
    assert [each.thread for each in threads] == [THREAD]
    if name != "ImportThread":  # its name must be free
        asked.options.expected_uid = line.thread().uid
        assert write(line, name, asked).receipt.uid


def test_an_import_is_retried_with_the_uid(line: Place) -> None:
    """Of the thread that it made. Another request gets no thread of the name, whatever uid it expects."""
    asked = ask(line, "ImportThread")
    made = write(line, "ImportThread", asked)
    asked.options.expected_uid = made.receipt.uid
    assert write(line, "ImportThread", asked) == replayed(made)
    assert refusal(line, "ImportThread", asked, expected_uid=NOBODY).reason == "UID_MISMATCH"
    assert refusal(line, "ImportThread", asked, request_id=new_id()).reason == "THREAD_EXISTS"


# What they name cannot happen twice, so they keep no request id. CompleteEffect knows its claim.
UNKEPT = {"ReleaseLease", "WriteBlob", "WriteObjects", "DeleteThread"}


@pytest.mark.parametrize("name", sorted(RULES.keys() - UNKEPT))
def test_a_retry_gets_the_first_answer(line: Place, name: str) -> None:
    """With `replayed`, and nothing is written; level and uid may be others than the first time."""
    asked = ask(line, name)
    asked.options.request_id = asked.options.request_id or new_id()
    first = write(line, name, asked)
    assert not first.receipt.replayed
    before = line.wire.entries_written()
    for _ in range(2):
        assert write(line, name, asked).receipt == replayed(first).receipt
        asked.options.durability = DURABILITY_COMMITTED
        asked.options.expected_uid = first.receipt.uid if name == "ImportThread" else line.thread().uid
    if not name.endswith("Records"):  # values of records are moved together in the background, which writes entries
        assert line.wire.entries_written() == before


@pytest.mark.parametrize("name", sorted(UNKEPT))
def test_what_cannot_happen_twice_is_answered_as_done(line: Place, name: str) -> None:
    """Nothing is written, and the second answer says that there was nothing to do."""
    assert RULES[name].request_id is RequestId.NEEDLESS
    asked = ask(line, name)
    first = write(line, name, asked)
    before = line.wire.entries_written()
    if name == "DeleteThread":
        assert refusal(line, name, asked).reason == "THREAD_NOT_FOUND"
        asked.allow_missing = True
    again = write(line, name, asked)
    match name:
        case "DeleteThread":
            assert again.receipt == Receipt()
        case "ReleaseLease":
            assert (first.released, again.released, again.receipt) == (True, False, first.receipt)
        case "WriteBlob":
            assert (first.existed, again.existed, again.blob, again.receipt) == (
                False, True, first.blob, first.receipt,
            )  # fmt: skip
        case "WriteObjects":
            assert (first.written, first.existed, again.written, again.existed) == (1, 0, 0, 1)
            assert again.receipt == first.receipt
    assert line.wire.entries_written() == before


def test_a_deletion_has_no_entry(line: Place) -> None:
    """Its receipt says which thread is gone."""
    uid = line.thread().uid
    receipt = write(line, "DeleteThread", ask(line, "DeleteThread")).receipt
    assert receipt == Receipt(uid=uid, durability=DURABILITY_COMMITTED)


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"DeleteThread"}))
def test_a_receipt_names_an_entry(line: Place, name: str) -> None:
    """WaitDurable takes it as it came."""
    answer = write(line, name, ask(line, name))
    thread, receipt = MADE.get(name, THREAD), answer.receipt
    waited = line.wire.threads.WaitDurable(
        t.WaitDurableRequest(namespace=line.namespace, thread=thread, receipt=receipt), timeout=TIMEOUT_S
    )
    assert receipt.durability == DURABILITY_COMMITTED
    assert waited.receipt == receipt
    assert (len(receipt.digest), receipt.uid) == (16, line.wire.thread(line.namespace, thread).uid)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A daemon with an archive, to which nothing goes by itself for a while."""
    bucket = tmp_path_factory.mktemp("bucket")
    with run_daemon(archive=bucket.as_uri(), archive_interval=60, sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        yield wire
        wire.close()


@pytest.mark.parametrize("name", RULES)
def test_every_write_waits_for_the_archive(archived: Wire, daemon: Any, name: str) -> None:
    """If it is asked to, and says so."""
    place = Place(archived, daemon, f"archived {name}")
    archived.save(place.request(expected_version=0, diff=appends("first", "second")))
    archived.save(place.request(expected_version=1, diff=sets("goal", "Paris")))
    prepare(place, 0)
    tag = t.SetTagRequest(namespace=place.namespace, thread=THREAD, tag="kept", version=VersionRef(version=1))
    archived.threads.SetTag(tag)
    asked = ask(place, name)
    asked.options.durability = DURABILITY_ARCHIVED
    receipt = write(place, name, asked).receipt
    assert receipt.durability == DURABILITY_ARCHIVED
    assert receipt.archived_sequence >= receipt.sequence


def test_an_import_that_expects_a_thread_asks_the_archive(archived: Wire, daemon: Any) -> None:
    """Which has none of the name, so none is made."""
    place = Place(archived, daemon, "expected")
    archived.save(place.request(expected_version=0, diff=appends("first")))
    asked = ask(place, "ImportThread")
    assert refusal(place, "ImportThread", asked, expected_uid=NOBODY).reason == "UID_MISMATCH"
    assert write(place, "ImportThread", asked).receipt.uid

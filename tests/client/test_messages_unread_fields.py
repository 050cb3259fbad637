"""The danger: a field of a message that no dataclass shows, or a dataclass that asks a message for a field it lacks."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.message import Message

from stateward import admin, archive, events, fromproto, models, options, records, signals
from stateward.fromproto import FromProto
from stateward.v1 import (
    admin_service_pb2,
    archive_service_pb2,
    checkpoint_pb2,
    error_reason_pb2,
    lease_pb2,
    record_pb2,
    record_service_pb2,
    signal_pb2,
    thread_pb2,
    thread_service_pb2,
    workspace_pb2,
    workspace_service_pb2,
)
from stateward.v1.thread_service_pb2 import GetThreadResponse

PAIRS: list[tuple[type[FromProto], type[Message]]] = [
    (admin.ArchiveStats, admin_service_pb2.ArchiveStats),
    (admin.Compaction, admin_service_pb2.CompactResponse),
    (admin.DeletedKey, admin_service_pb2.DeletedKey),
    (admin.Diagnoses, admin_service_pb2.DiagnoseResponse),
    (admin.Diagnosis, admin_service_pb2.Diagnosis),
    (admin.DrainResult, admin_service_pb2.DrainResponse),
    (admin.Finding, admin_service_pb2.VerifyFinding),
    (admin.LimitUse, admin_service_pb2.LimitUse),
    (admin.Rekeyed, admin_service_pb2.RekeyThreadResponse),
    (admin.ServerInfo, admin_service_pb2.GetServerInfoResponse),
    (admin.Stats, admin_service_pb2.GetStatsResponse),
    (admin.VerifyProgress, admin_service_pb2.VerifyResponse),
    (archive.ArchivedThread, archive_service_pb2.ListArchiveResponse),
    (archive.ArchiveStatus, archive_service_pb2.GetArchiveResponse),
    (archive.ArchiveVerifyProgress, archive_service_pb2.VerifyArchiveResponse),
    (archive.GarbageProgress, archive_service_pb2.CollectGarbageResponse),
    (archive.Repair, archive_service_pb2.RepairThreadResponse),
    (archive.RestoreProgress, archive_service_pb2.RestoreArchiveResponse),
    (events.Pruned, thread_service_pb2.VersionSpans),
    (models.Branch, thread_pb2.Branch),
    (models.EntryDigest, thread_service_pb2.EntryDigest),
    (models.Checkpoint, checkpoint_pb2.Checkpoint),
    (models.DurableResult, thread_service_pb2.WaitDurableResponse),
    (models.ForkSource, thread_pb2.ForkSource),
    (models.Lease, lease_pb2.Lease),
    (models.MovedHead, thread_service_pb2.MoveBranchResponse),
    (models.Orphan, thread_pb2.Orphan),
    (models.Tag, thread_pb2.Tag),
    (models.Tree, workspace_pb2.TreeRef),
    (models.WorkspaceUsage, workspace_service_pb2.StatWorkspaceResponse),
    (models.UnreadableThread, thread_pb2.UnreadableThread),
    (models.HeldThread, thread_pb2.UnreadableThread),
    (options.ThreadOptions, thread_pb2.ThreadOptions),
    (records.RecordPrefix, record_pb2.RecordPrefix),
    (records.RecordsWritten, record_service_pb2.PutRecordsResponse),
    (signals.Signal, signal_pb2.Signal),
]

LEFT_OUT = {
    admin.ServerInfo: {"max_request_items"},
    models.Branch: {"moved_version", "first_version"},
    models.MovedHead: {"receipt"},
    models.UnreadableThread: {"reason", "create_time", "update_time", "stored_bytes"},  # the last three: of held ones
    models.HeldThread: {"thread", "reason", "message"},
    options.ThreadOptions: {"held_key"},  # a client with a session key sets it
    records.RecordsWritten: {"durability", "archived_sequence", "uid", "digest"},
}


@pytest.mark.parametrize(("kind", "message"), PAIRS, ids=[kind.__name__ for kind, _ in PAIRS])
def test_a_dataclass_has_all_fields_of_its_message(kind: type[FromProto], message: type[Message]) -> None:
    """Each field is read from a field of the message, and every field of the message is read, but for two."""
    sources = [field.metadata.get("proto", field.name) for field in fields(kind)]  # type: ignore[arg-type]
    asked = {source.partition(".")[0] for source in sources if source}
    assert asked == set(message.DESCRIPTOR.fields_by_name) - LEFT_OUT.get(kind, set())


def test_every_kind_is_listed_here() -> None:
    """A new dataclass that is read from a message is checked as well."""
    public = {kind for kind in FromProto.__subclasses__() if kind.__module__.startswith("stateward.")}
    assert public == {kind for kind, _ in PAIRS}


def test_unset_fields() -> None:
    """A field that the message does not set is None if the dataclass says so, otherwise empty."""
    found = models.Checkpoint.from_proto(checkpoint_pb2.Checkpoint())
    assert {found.step, found.status, found.durability, found.metadata_value, found.question} == {None}
    assert (found.version, found.branch, found.labels, found.replayed) == (0, "", {}, False)
    assert options.ThreadOptions.from_proto(thread_pb2.ThreadOptions()) == options.ThreadOptions()


def test_a_finding_names_its_reason() -> None:
    """As errors do, without the prefix. A reason that this client does not know is its number."""
    found = admin_service_pb2.VerifyResponse(finding={"reason": error_reason_pb2.ERROR_REASON_CORRUPT, "version": 3})
    finding = admin.VerifyProgress.from_proto(found).finding
    assert finding is not None
    assert (finding.reason, finding.version) == ("CORRUPT", 3)
    assert fromproto.read_reason(0) == ""
    assert fromproto.read_reason(999) == "999"


def test_fields_are_converted_by_their_types() -> None:
    """Times, lengths of time, members of enums, nested messages and fields of other names."""
    message = lease_pb2.Lease(token=3, term=timedelta(seconds=9), remaining=timedelta(seconds=1.5))
    message.holder.name = "a"
    message.grant_time.FromSeconds(60)
    thread = thread_pb2.ThreadInfo(thread="t", access=99)  # type: ignore[arg-type]
    tags = [thread_pb2.Tag(name="x", version=2)]
    found = models.ThreadInfo.from_proto(GetThreadResponse(thread=thread, lease=message, tags=tags))
    begin = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    assert found.lease == models.Lease("a", 3, timedelta(seconds=9), timedelta(seconds=1.5), begin)
    assert (found.name, found.access, found.tags, found.expire_time) == ("t", 99, (models.Tag("x", 2),), None)

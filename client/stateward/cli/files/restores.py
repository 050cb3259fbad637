"""Turns the records of `backups.py` back into the parts that the daemon restores a thread from.

Raises ValueError, TypeError or KeyError if a record is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from stateward.attributes import write_attributes
from stateward.cli.files.exporting import KIND, edit_from_json, from_base64, value_from_json
from stateward.models import Status, choice_number
from stateward.options import Retention, ThreadOptions
from stateward.transfer import MESSAGE_BYTES
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.effect_pb2 import EffectState
from stateward.v1.signal_pb2 import Question, QuestionPart
from stateward.v1.state_pb2 import State
from stateward.v1.thread_pb2 import Branch, ForkSource, Tag
from stateward.v1.workspace_pb2 import TREE_OBJECT_KIND_CHUNK, TREE_OBJECT_KIND_DIRECTORY, TreeObject, TreeObjects

VERSION_FACTS = (
    "checkpoint_id", "parent_checkpoint_id", "status_detail", "schema_version", "labels", "metrics", "wait_id",
    "branch",
)  # fmt: skip


def parts_of(record: Mapping[str, Any], *, keep_all: bool = False) -> Iterator[backup.ThreadPart]:
    """Yields the parts of a record. `keep_all` leaves out retention and every TTL."""
    match record[KIND]:
        case "thread":
            yield backup.ThreadPart(thread=_thread(record, keep_all=keep_all))
        case "blob":
            part = backup.ThreadPart()
            part.blob.media_type = record["type"]
            part.blob.blob.sha256, part.blob.blob.size_bytes = bytes.fromhex(record["sha256"]), record["size"]
            part.blob.blob.preview = from_base64(record.get("preview", ""))
            yield part
        case "data":
            yield backup.ThreadPart(blob_data=from_base64(record["base64"]))
        case "objects":
            yield backup.ThreadPart(objects=TreeObjects(objects=map(_object, record["objects"])))
        case "version":
            yield from _version(record)
        case "effect":
            yield backup.ThreadPart(effect=_effect(record))
        case "record":
            yield backup.ThreadPart(record=_kept(record, keep_all=keep_all))
        case "signal":
            yield backup.ThreadPart(signal=_signal(record))
        case "entry":
            metadata, content = from_base64(record["metadata"]), from_base64(record.get("content", ""))
            yield backup.ThreadPart(
                entry=backup.BackupEntry(kind=record["number"], metadata=metadata, content=content)
            )
        case "end":
            yield backup.ThreadPart(end=_end(record))
        case kind:
            raise ValueError(f"unknown kind of record {kind!r}; use a newer version of stateward")


def read_options(found: Mapping[str, Any], *, keep_all: bool = False) -> ThreadOptions:
    """Returns the options of a thread."""
    ttl = timedelta(seconds=found["ttl_s"]) if found.get("ttl_s") else None
    retention = None
    if found.get("keep_last") or found.get("keep_for_s"):
        keep_for = timedelta(seconds=found["keep_for_s"]) if found.get("keep_for_s") else None
        retention = Retention(keep_last=found.get("keep_last"), keep_for=keep_for)
    return ThreadOptions(
        labels=found.get("labels", {}),
        ttl=None if keep_all else ttl,
        retention=None if keep_all else retention,
        parent_thread=found.get("parent_thread", ""),
        agent=found.get("agent", ""),
    )


def _thread(record: Mapping[str, Any], *, keep_all: bool) -> backup.BackupThread:
    options = read_options(record.get("options", {}), keep_all=keep_all)
    thread = backup.BackupThread(options=options.to_proto(), token_floor=record.get("token_floor", 0))
    _read_time(thread.create_time, record["create_time"])
    _read_time(thread.update_time, record["update_time"])
    if "oldest_time" in record:
        _read_time(thread.oldest_time, record["oldest_time"])
    if source := record.get("forked_from"):
        fork = ForkSource(thread=source["thread"], uid=source.get("uid", ""), version=source.get("version", 0))
        thread.forked_from.CopyFrom(fork)
    return thread


def _version(record: Mapping[str, Any]) -> Iterator[backup.ThreadPart]:
    version = backup.BackupVersion(whole="state" in record, acked_signals=record.get("acked_signals", ()))
    shown = version.checkpoint
    shown.MergeFrom(type(shown)(**{name: record[name] for name in VERSION_FACTS if name in record}))
    shown.version, shown.parent_version = record["version"], record["parent_version"]
    shown.status = choice_number(Status, record["status"])  # type: ignore[assignment]
    shown.edit_bytes = record.get("edit_bytes", 0)
    _read_time(shown.create_time, record["time"])
    if record.get("step") is not None:
        shown.step = record["step"]
    for key, value in write_attributes(record.get("attributes", {})).items():
        shown.attributes[key].CopyFrom(value)
    if "metadata" in record:
        shown.metadata.CopyFrom(value_from_json(record["metadata"]))
    if question := record.get("question"):
        shown.question.CopyFrom(
            Question(
                prompt=question["prompt"],
                answer_schema=question["answer_schema"],
                asked_by=question.get("asked_by", ""),
                parts=[QuestionPart(**each) for each in question.get("parts", ())],
            )
        )
    if tree := record.get("workspace"):
        shown.workspace.digest = bytes.fromhex(tree["sha256"])
        shown.workspace.files, shown.workspace.size_bytes = tree["files"], tree["size"]
    _read_mark(version.request, record)
    if not version.whole:
        yield backup.ThreadPart(version=version)
        yield from _edits(record["edits"])
        return
    state = record["state"]
    version.retired_logs.update(state.get("retired_logs", {}))
    yield backup.ThreadPart(version=version)
    yield from (backup.ThreadPart(state=page) for page in _pages(state))


def _edits(found: list[Mapping[str, Any]]) -> Iterator[backup.ThreadPart]:
    part, size_bytes = backup.ThreadPart(), 0
    for each in found:
        edit = part.diff.edits.add()
        edit_from_json(each, edit)
        size_bytes += edit.ByteSize()
        if size_bytes > MESSAGE_BYTES:
            yield part
            part, size_bytes = backup.ThreadPart(), 0
    if size_bytes:
        yield part


def _pages(found: Mapping[str, Any]) -> Iterator[State]:
    page, size_bytes = State(), 0
    for name, value in found["slots"].items():
        page.slots[name].CopyFrom(value_from_json(value))
        size_bytes += page.slots[name].ByteSize()
        if size_bytes > MESSAGE_BYTES:
            yield page
            page, size_bytes = State(), 0
    for name, log in found["logs"].items():
        shown = page.logs[name]
        shown.first_index, shown.rewritten_version = log["first_index"], log["rewritten_version"]
        for index, value in enumerate(log["values"], log["first_index"]):
            if size_bytes > MESSAGE_BYTES:
                yield page
                page, size_bytes = State(), 0
                shown = page.logs[name]
                shown.first_index = index
            entry = shown.entries.add()
            entry.CopyFrom(value_from_json(value))
            size_bytes += entry.ByteSize()
    yield page


def _effect(record: Mapping[str, Any]) -> backup.BackupEffect:
    part = backup.BackupEffect(idempotency_key=record.get("idempotency_key", ""))
    each, effect = part.effect, part.effect.effect
    effect.key, effect.anchor, effect.name = record["key"], record.get("anchor", ""), record.get("name", "")
    effect.sort_key = from_base64(record.get("sort_key", ""))
    effect.keep_when_pruned = record.get("keep_when_pruned", False)
    each.state = EffectState.Value(f"EFFECT_STATE_{record['state'].upper()}")  # type: ignore[assignment]
    each.claim_token, each.attempts = record.get("claim_token", 0), record.get("attempts", 0)
    each.detail = record.get("detail", "")
    _read_time(each.begin_time, record["begin_time"])
    if "end_time" in record:
        _read_time(each.end_time, record["end_time"])
    if holder := record.get("holder"):
        each.holder.name, each.holder.incarnation = holder["name"], holder["incarnation"]
    if "value" in record:
        effect.value.CopyFrom(value_from_json(record["value"]))
    return part


def _kept(record: Mapping[str, Any], *, keep_all: bool) -> backup.BackupRecord:
    part = backup.BackupRecord()
    each = part.record
    each.key, each.revision = record["key"], record["revision"]
    _read_time(each.create_time, record["create_time"])
    _read_time(each.update_time, record["update_time"])
    each.value.CopyFrom(value_from_json(record["value"]))
    for key, value in write_attributes(record.get("attributes", {})).items():
        each.attributes[key].CopyFrom(value)
    if "ttl_s" in record and not keep_all:
        each.ttl.FromMicroseconds(round(record["ttl_s"] * 1e6))
    return part


def _object(each: Mapping[str, Any]) -> TreeObject:
    kind = TREE_OBJECT_KIND_DIRECTORY if each.get("directory") else TREE_OBJECT_KIND_CHUNK
    made = TreeObject(kind=kind, digest=bytes.fromhex(each["sha256"]), data=from_base64(each["base64"]))
    if size_bytes := each.get("frame_of_bytes"):
        made.frame_of_bytes = size_bytes
    return made


def _signal(record: Mapping[str, Any]) -> backup.BackupSignal:
    part = backup.BackupSignal()
    each = part.signal
    each.signal_id, each.name = record["signal_id"], record["name"]
    each.sender, each.wait_id = record.get("sender", ""), record.get("wait_id", "")
    each.parts.extend(record.get("parts", ()))
    _read_time(each.create_time, record["time"])
    if "payload" in record:
        each.payload.CopyFrom(value_from_json(record["payload"]))
    _read_mark(part.request, record)
    return part


def _end(record: Mapping[str, Any]) -> backup.BackupEnd:
    return backup.BackupEnd(
        last_version=record["last_version"],
        branches=[Branch(**each) for each in record["branches"]],
        tags=[Tag(name=name, version=version) for name, version in record["tags"].items()],
        versions=record["versions"],
        blobs=record["blobs"],
        effects=record["effects"],
        signals=record["signals"],
        records=record.get("records", 0),
        entries=record.get("entries", 0),
        objects=record.get("objects", 0),
        deleted_branches=record.get("deleted_branches", ()),
    )


def _read_mark(mark: backup.RequestMark, record: Mapping[str, Any]) -> None:
    found = record.get("request", {})
    mark.id_hash = bytes.fromhex(found.get("id_hash", ""))
    mark.fingerprint = bytes.fromhex(found.get("fingerprint", ""))


def _read_time(stamp: Timestamp, text: str) -> None:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    stamp.FromDatetime(found)

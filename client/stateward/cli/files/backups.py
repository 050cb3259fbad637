"""Turns threads into records, which `stateward export --versions` writes and `stateward import` reads.

A record is one line with a JSON object. All records of a thread are together, in this order. Unset fields are omitted.

    {"stateward_version": 1, "thread": "t", "kind": "thread", "export": id, "create_time": …, "update_time": …,
     "oldest_time": …, "options": {"labels", "ttl_s", "keep_last", "keep_for_s", "parent_thread", "agent"},
     "forked_from": {…}, "token_floor": n}
    {…, "kind": "blob", "sha256": …, "size": n, "type": …, "preview": …}   then {…, "kind": "data", "base64": …} until
                                                                        all of its bytes are there
    {…, "kind": "objects", "objects": [{"directory": true, "sha256": …, "base64": …}, …]}   of trees that versions name
    {…, "kind": "version", "version": 3, "parent_version": 2, "branch": "main", "time": …, "status": "running",
     "checkpoint_id", "status_detail", "step", "schema_version", "labels", "attributes", "metadata", "metrics",
     "wait_id", "question", "acked_signals", "edit_bytes", "request", "workspace": {"sha256", "files", "size"}, and
     "edits": [EDIT, …]     from its parent to it, or, if its parent was pruned or it began as a copy,
     "state": {"slots": {name: VALUE}, "logs": {name: {"first_index", "rewritten_version", "values"}},
               "retired_logs": {name: index}}}
    {…, "kind": "effect", "key": …, "state": "done", "anchor", "name", "sort_key", "keep_when_pruned", "value",
     "holder", "claim_token", "begin_time", "end_time", "detail", "attempts", "idempotency_key"}
    {…, "kind": "record", "key": …, "revision": n, "create_time", "update_time", "value", "attributes", "ttl_s"}
    {…, "kind": "signal", "signal_id", "name", "time", "payload", "sender", "wait_id", "parts", "request"}
    {…, "kind": "entry", "number": n, "metadata", "content"}   of a kind of entries that has no record of its own
    {…, "kind": "end", "last_version", "branches", "tags": {name: version}, "versions", "blobs", "effects", "signals",
     "records", "entries", "objects", "deleted_branches", "sha256": of all lines of the thread before this one, each
     with its newline; not checked if it is missing}

and the file ends with {"stateward_version": 1, "kind": "file_end", "threads": n}. `exporting.py` has EDIT and VALUE;
times are ISO 8601, other bytes in base64, SHA-256 in hex. "request" holds the two hashes by which the
daemon recognises a retry.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from stateward.attributes import read_attributes
from stateward.cli.files.exporting import FORMAT, KIND, MARK, edit_to_json, to_base64, value_to_json
from stateward.models import Status
from stateward.options import ThreadOptions
from stateward.transfer import read_parts
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.effect_pb2 import EffectState
from stateward.v1.record_pb2 import StoredRecord
from stateward.v1.signal_pb2 import Question
from stateward.v1.state_pb2 import State
from stateward.v1.workspace_pb2 import TREE_OBJECT_KIND_DIRECTORY, TreeObject

if TYPE_CHECKING:
    from stateward import Client

TOO_NEW = "the daemon sent an unknown kind of record; use a newer version of stateward"


def read_records(client: Client, name: str) -> Iterator[dict[str, Any]]:
    """Yields all records of a thread. Raises the client's errors, and ValueError for a part of a newer daemon."""
    open_version: dict[str, Any] | None = None
    for part in read_parts(client, name):
        kind = part.WhichOneof("part")
        if kind == "diff" and open_version is not None:
            open_version["edits"] += map(edit_to_json, part.diff.edits)
            continue
        if kind == "state" and open_version is not None:
            _add_state(open_version["state"], part.state)
            continue
        if open_version is not None:
            yield open_version
            open_version = None
        record = {MARK: FORMAT, "thread": name, **_record(part)}
        if kind == "version":
            open_version = record
        else:
            yield record


def _record(part: backup.ThreadPart) -> dict[str, Any]:
    match part.WhichOneof("part"):
        case "thread":
            return _thread_record(part.thread)
        case "blob":
            ref = part.blob.blob
            found = {KIND: "blob", "sha256": ref.sha256.hex(), "size": ref.size_bytes, "type": part.blob.media_type}
            return found | ({"preview": to_base64(ref.preview)} if ref.preview else {})
        case "blob_data":
            return {KIND: "data", "base64": to_base64(part.blob_data)}
        case "objects":
            return {KIND: "objects", "objects": [_object_record(each) for each in part.objects.objects]}
        case "version":
            return _version_record(part.version)
        case "effect":
            return _effect_record(part.effect)
        case "record":
            return _kept_record(part.record.record)
        case "signal":
            return _signal_record(part.signal)
        case "entry":
            each = part.entry
            return {KIND: "entry", "number": each.kind, "metadata": to_base64(each.metadata)} | _given(
                content=to_base64(each.content)
            )
        case "end":
            return _end_record(part.end)
    raise ValueError(TOO_NEW)


def _given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def _thread_record(thread: backup.BackupThread) -> dict[str, Any]:
    source = thread.forked_from
    return {
        KIND: "thread",
        "export": secrets.token_hex(16),
        "create_time": _time(thread.create_time),
        "update_time": _time(thread.update_time),
        "options": _options_record(ThreadOptions.from_proto(thread.options)),
        "token_floor": thread.token_floor,
        **_given(
            oldest_time=_time(thread.oldest_time) if thread.HasField("oldest_time") else None,
            forked_from=_given(thread=source.thread, uid=source.uid, version=source.version)
            if thread.HasField("forked_from")
            else None,
        ),
    }


def _options_record(options: ThreadOptions) -> dict[str, Any]:
    retention = options.retention
    return _given(
        labels=dict(options.labels),
        ttl_s=options.ttl.total_seconds() if options.ttl else None,
        keep_last=retention.keep_last if retention else None,
        keep_for_s=retention.keep_for.total_seconds() if retention and retention.keep_for else None,
        parent_thread=options.parent_thread,
        agent=options.agent,
    )


def _version_record(version: backup.BackupVersion) -> dict[str, Any]:
    each: Checkpoint = version.checkpoint
    record: dict[str, Any] = {
        KIND: "version",
        "version": each.version,
        "parent_version": each.parent_version,
        "branch": each.branch,
        "time": _time(each.create_time),
        "status": status_name(each.status),
        **_given(
            checkpoint_id=each.checkpoint_id,
            parent_checkpoint_id=each.parent_checkpoint_id,
            status_detail=each.status_detail,
            schema_version=each.schema_version,
            labels=dict(each.labels),
            attributes=read_attributes(each.attributes),
            metrics=dict(each.metrics),
            wait_id=each.wait_id,
            question=_question_record(each.question) if each.HasField("question") else None,
            acked_signals=list(version.acked_signals),
            edit_bytes=each.edit_bytes,
            request=_mark_record(version.request),
        ),
    }
    if each.HasField("step"):
        record["step"] = each.step
    if each.HasField("metadata"):
        record["metadata"] = value_to_json(each.metadata)
    if each.HasField("workspace"):
        tree = each.workspace
        record["workspace"] = {"sha256": tree.digest.hex(), "files": tree.files, "size": tree.size_bytes}
    if version.whole:
        record["state"] = {"slots": {}, "logs": {}, **_given(retired_logs=dict(version.retired_logs))}
    else:
        record["edits"] = []
    return record


def _object_record(each: TreeObject) -> dict[str, Any]:
    is_directory = each.kind == TREE_OBJECT_KIND_DIRECTORY
    facts = _given(directory=is_directory, frame_of_bytes=each.frame_of_bytes)
    return facts | {"sha256": each.digest.hex(), "base64": to_base64(each.data)}


def _question_record(question: Question) -> dict[str, Any]:
    parts = [
        {"name": each.name, "prompt": each.prompt, "answer_schema": each.answer_schema}
        | _given(asker=each.asker, wait_id=each.wait_id)
        for each in question.parts
    ]
    asked = {"prompt": question.prompt, "answer_schema": question.answer_schema}
    return asked | _given(parts=parts, asked_by=question.asked_by)


def _add_state(found: dict[str, Any], page: State) -> None:
    found["slots"] |= {name: value_to_json(value) for name, value in page.slots.items()}
    for name, log in page.logs.items():
        facts = {"first_index": log.first_index, "rewritten_version": log.rewritten_version, "values": []}
        found["logs"].setdefault(name, facts)["values"] += map(value_to_json, log.entries)


def _effect_record(part: backup.BackupEffect) -> dict[str, Any]:
    each, effect = part.effect, part.effect.effect
    record = {
        KIND: "effect",
        "key": effect.key,
        "state": EffectState.Name(each.state).removeprefix("EFFECT_STATE_").lower(),
        "begin_time": _time(each.begin_time),
        **_given(
            anchor=effect.anchor,
            name=effect.name,
            sort_key=to_base64(effect.sort_key),
            keep_when_pruned=effect.keep_when_pruned,
            holder=_given(name=each.holder.name, incarnation=each.holder.incarnation),
            claim_token=each.claim_token,
            end_time=_time(each.end_time) if each.HasField("end_time") else None,
            detail=each.detail,
            attempts=each.attempts,
            idempotency_key=part.idempotency_key,
        ),
    }
    return record | ({"value": value_to_json(effect.value)} if effect.HasField("value") else {})


def _kept_record(each: StoredRecord) -> dict[str, Any]:
    return {
        KIND: "record",
        "key": each.key,
        "revision": each.revision,
        "create_time": _time(each.create_time),
        "update_time": _time(each.update_time),
        "value": value_to_json(each.value),
        **_given(
            attributes=read_attributes(each.attributes),
            ttl_s=each.ttl.ToMicroseconds() / 1e6,
        ),
    }


def _signal_record(part: backup.BackupSignal) -> dict[str, Any]:
    each = part.signal
    record = {
        KIND: "signal",
        "signal_id": each.signal_id,
        "name": each.name,
        "time": _time(each.create_time),
        **_given(
            sender=each.sender,
            wait_id=each.wait_id,
            parts=list(each.parts),
            request=_mark_record(part.request),
        ),
    }
    return record | ({"payload": value_to_json(each.payload)} if each.HasField("payload") else {})


def _end_record(end: backup.BackupEnd) -> dict[str, Any]:
    branches = [
        {"name": each.name, "version": each.version}
        | _given(base_version=each.base_version, moved_version=each.moved_version)
        | _given(newest_version=each.newest_version, first_version=each.first_version)
        for each in end.branches
    ]
    return {
        KIND: "end",
        "last_version": end.last_version,
        "branches": branches,
        "tags": {tag.name: tag.version for tag in end.tags},
        "versions": end.versions,
        "blobs": end.blobs,
        "effects": end.effects,
        "signals": end.signals,
        **_given(records=end.records, entries=end.entries, objects=end.objects),
        **_given(deleted_branches=list(end.deleted_branches)),
    }


def _mark_record(mark: backup.RequestMark) -> dict[str, str]:
    return _given(id_hash=mark.id_hash.hex(), fingerprint=mark.fingerprint.hex())


def status_name(status: int) -> str | int:
    """Returns the name of a status, or its number if this version does not know it. The daemon accepts both."""
    try:
        return str(Status(status).name.lower())
    except ValueError:
        return int(status or 1)


def _time(stamp: Timestamp) -> str:
    micros = stamp.ToMicroseconds()
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()

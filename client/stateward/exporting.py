"""Threads as JSON without loss: a record for every version, of which the first of a thread has its options too.

    {"stateward_version": 1, "thread": "t", "uid": "…", "version": 3, "parent_version": 2, "branch": "main",
     "status": "running", "step": 3, …, "tags": ["good"], "edits": [EDIT, …], "options": {…}}

Its edits lead from its parent to it, or from the nearest older version of its branch where the parent was pruned.
`edit_to_json` and `edit_from_json` mirror each other, as `value_to_json` and `value_from_json` do:

    EDIT   {"set": slot, "value": VALUE}   {"delete": slot}   {"append": log, "values": [VALUE, …], "at": index}
           {"add": slot, "delta": n}
           {"replace": log, "index": n, "value": VALUE}   {"trim": log, "before" | "from" | "keep": n}
           {"delete_log": log}
    VALUE  {"json": any}   {"text": "…", "type": media type}   {"base64": "…", "type": media type}   {"number": n}
           {"json"} only where writing it compactly gives the stored bytes back; a blob is written as the value it holds
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateward.values import JSON, encode

if TYPE_CHECKING:
    from stateward import Checkpoint, Client, State, Thread, ThreadOptions
    from stateward.v1 import diff_pb2, state_pb2

FORMAT = 1
MARK = "stateward_version"
PAGE = 1000


def value_to_json(value: state_pb2.Value) -> dict[str, Any]:
    """A stored value; `value_from_json` gives the same bytes back."""
    if value.WhichOneof("content") == "number":
        return {"number": value.number}
    if value.WhichOneof("content") == "blob":
        raise ValueError("a blob is kept apart from the state and can be exported with its state only")
    try:
        text = value.data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value.data).decode(), "type": value.media_type}
    if value.media_type == JSON:
        try:
            parsed = json.loads(text)
            if encode(parsed, "").data == value.data:
                return {"json": parsed}
        except (TypeError, ValueError, RecursionError):
            pass
    return {"text": text, "type": value.media_type}


def value_from_json(found: Mapping[str, Any]) -> state_pb2.Value:
    """The stored value that a record says. ValueError, TypeError or KeyError where it says none."""
    from stateward.v1 import state_pb2  # noqa: PLC0415  reading runs needs no protobuf

    if "json" in found:
        return encode(found["json"], "json")
    if "number" in found:
        return state_pb2.Value(number=found["number"])
    data = found["text"].encode() if "text" in found else base64.b64decode(found["base64"], validate=True)
    return state_pb2.Value(media_type=found["type"], data=data)


def edit_to_json(edit: diff_pb2.Edit) -> dict[str, Any]:
    """An edit; a splice must have been resolved."""
    match edit.WhichOneof("edit"):
        case "set_slot":
            return {"set": edit.set_slot.slot, "value": value_to_json(edit.set_slot.value)}
        case "delete_slot":
            return {"delete": edit.delete_slot.slot}
        case "add_number":
            return {"add": edit.add_number.slot, "delta": edit.add_number.delta}
        case "append":
            found: dict[str, Any] = {"append": edit.append.log}
            found["values"] = list(map(value_to_json, edit.append.entries))
            return found | ({"at": edit.append.at_index} if edit.append.HasField("at_index") else {})
        case "replace_entry":
            replace = edit.replace_entry
            return {"replace": replace.log, "index": replace.index, "value": value_to_json(replace.value)}
        case "trim_log":
            kind = edit.trim_log.WhichOneof("trim") or "keep_last"
            return {"trim": edit.trim_log.log, kind.partition("_")[0]: getattr(edit.trim_log, kind)}
        case "delete_log":
            return {"delete_log": edit.delete_log.log}
    raise ValueError("the daemon sent a kind of edit that this program does not know; use a newer one")


def edit_from_json(found: Mapping[str, Any], edit: diff_pb2.Edit) -> None:
    """Fills in an edit. ValueError, TypeError or KeyError where the record says none."""
    if "set" in found:
        edit.set_slot.slot = found["set"]
        edit.set_slot.value.CopyFrom(value_from_json(found["value"]))
    elif "delete" in found:
        edit.delete_slot.slot = found["delete"]
    elif "add" in found:
        edit.add_number.slot, edit.add_number.delta = found["add"], found["delta"]
    elif "append" in found:
        edit.append.log = found["append"]
        edit.append.entries.extend(map(value_from_json, found["values"]))
        if "at" in found:
            edit.append.at_index = found["at"]
    elif "replace" in found:
        edit.replace_entry.log, edit.replace_entry.index = found["replace"], found["index"]
        edit.replace_entry.value.CopyFrom(value_from_json(found["value"]))
    elif "trim" in found:
        edit.trim_log.log = found["trim"]
        name = next(each for each in ("keep_last", "before_index", "from_index") if each.partition("_")[0] in found)
        setattr(edit.trim_log, name, found[name.partition("_")[0]])
    elif "delete_log" in found:
        edit.delete_log.log = found["delete_log"]
    else:
        raise ValueError(f"no edit that this program knows: {', '.join(found)}")


def read_versions(client: Client, name: str) -> Iterator[dict[str, Any]]:
    """Every retained version of a thread as a record, oldest first."""
    thread = client.thread(name)
    info = thread.get()
    checkpoints = sorted(thread.checkpoints(page_size=PAGE), key=lambda each: each.version)
    bases = {branch.name: branch.base_version for branch in info.branches}
    newest: dict[str, int] = {}  # by branch, of those that were told
    told: set[int] = set()
    for at, checkpoint in enumerate(checkpoints):
        version, parent = checkpoint.version, checkpoint.parent_version
        if parent and parent not in told:  # pruned
            parent = newest.get(checkpoint.branch) or bases.get(checkpoint.branch, 0)
            parent = parent if parent in told else 0
        record = _checkpoint_record(checkpoint, parent)
        tags = [tag.name for tag in info.tags if tag.version == version]
        if tags:
            record["tags"] = tags
        record["edits"] = read_edits(thread, parent, version)
        if not at:
            record["options"] = _options_record(info.options)
        yield record
        told.add(version)
        newest[checkpoint.branch] = version


def _checkpoint_record(each: Checkpoint, parent: int) -> dict[str, Any]:
    """What is known about a version, without what is unset."""
    record: dict[str, Any] = {
        MARK: FORMAT,
        "thread": each.thread,
        "uid": each.uid,
        "version": each.version,
        "parent_version": parent,
        "branch": each.branch,
        "time": each.create_time.isoformat(),
        "status": _status(each.status),
    }
    more = {
        "checkpoint_id": each.checkpoint_id,
        "status_detail": each.status_detail,
        "schema_version": each.schema_version,
        "labels": dict(each.labels),
        "metrics": dict(each.metrics),
        "wait_id": each.wait_id,
    }
    record |= {name: value for name, value in more.items() if value}
    if each.step is not None:
        record["step"] = each.step
    if each.metadata_value is not None:
        record["metadata"] = value_to_json(each.metadata_value)
    return record


def _status(status: Any) -> str | int:
    """Its name; its number where it is newer than this program, which the daemon takes back as well."""
    return str(status.name.lower()) if hasattr(status, "name") else int(status or 1)


def _options_record(options: ThreadOptions) -> dict[str, Any]:
    retention = options.retention
    found: dict[str, Any] = {
        "labels": dict(options.labels),
        "ttl_s": options.ttl.total_seconds() if options.ttl else None,
        "keep_last": retention.keep_last if retention else None,
        "keep_for_s": retention.keep_for.total_seconds() if retention and retention.keep_for else None,
        "parent_thread": options.parent_thread,
        "agent": options.agent,
    }
    return {name: value for name, value in found.items() if value}


def read_options(found: Mapping[str, Any]) -> tuple[ThreadOptions, dict[str, Any]]:
    """What a thread is made with, and what is set when all of its versions are there: TTL and retention remove."""
    from stateward import Retention, ThreadOptions  # noqa: PLC0415  reading runs needs no protobuf

    later: dict[str, Any] = {}
    if found.get("ttl_s"):
        later["ttl"] = timedelta(seconds=found["ttl_s"])
    if found.get("keep_last") or found.get("keep_for_s"):
        keep_for = timedelta(seconds=found["keep_for_s"]) if found.get("keep_for_s") else None
        later["retention"] = Retention(keep_last=found.get("keep_last"), keep_for=keep_for)
    options = ThreadOptions(
        labels=found.get("labels", {}), parent_thread=found.get("parent_thread", ""), agent=found.get("agent", "")
    )
    return options, later


def read_edits(thread: Thread, parent: int, version: int) -> list[dict[str, Any]]:
    """The edits between two versions. Splices become the slot's whole value: what they are applied to is not here."""
    edits = _stored_edits(thread, parent, version)
    for edit in edits:
        _fetch_blobs(thread, edit)
    spliced = {edit.splice_slot.slot for edit in edits if edit.HasField("splice_slot")}
    state = thread.hydrate(version, slots=spliced) if spliced else None
    found = []
    for edit in edits:
        if edit.HasField("splice_slot"):
            assert state is not None
            found.append({"set": edit.splice_slot.slot, "value": _slot_record(state, edit.splice_slot.slot)})
        else:
            found.append(edit_to_json(edit))
    return found


def _fetch_blobs(thread: Thread, edit: diff_pb2.Edit) -> None:
    """Puts what blobs hold in their place: a record stands alone."""
    from stateward._blobs import restored  # noqa: PLC0415

    kind = edit.WhichOneof("edit")
    values: list[state_pb2.Value] = list(edit.append.entries) if kind == "append" else []
    if kind in ("set_slot", "replace_entry"):
        values.append(getattr(edit, kind).value)
    for value in values:
        if value.WhichOneof("content") == "blob":
            value.CopyFrom(restored(value, thread.read_blob(value.blob.sha256)))


def _slot_record(state: State, name: str) -> dict[str, Any]:
    from stateward.v1 import state_pb2  # noqa: PLC0415

    raw = state.slots.raw(name)
    return value_to_json(state_pb2.Value(media_type=raw.media_type, data=raw.data))


def _stored_edits(thread: Thread, parent: int, version: int) -> list[diff_pb2.Edit]:
    """As `Thread.diff`, but undecoded: a value that is decoded and encoded again may have other bytes."""
    from stateward._operations import Call, Operation  # noqa: PLC0415
    from stateward.v1 import checkpoint_service_pb2 as service  # noqa: PLC0415

    ref = thread._ref
    request = service.DiffCheckpointsRequest(namespace=ref.namespace, thread=ref.thread)
    getattr(request, "from").version = parent
    request.to.version = version

    def read() -> Operation[list[diff_pb2.Edit]]:
        edits: list[diff_pb2.Edit] = []
        while True:
            page: service.DiffCheckpointsResponse = yield Call("DiffCheckpoints", request)
            edits += page.diff.edits
            if not page.next_page_token:
                return edits
            request.page_token = page.next_page_token

    return thread._run(read())

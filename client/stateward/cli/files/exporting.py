"""Converts values and edits to JSON and back without loss. `backups.py` describes the records that contain them.

`edit_to_json` and `edit_from_json` mirror each other, as `value_to_json` and `value_from_json` do:

    EDIT   {"set": slot, "value": VALUE}   {"delete": slot}   {"append": log, "values": [VALUE, …], "at": index}
           {"add": slot, "delta": n}   {"splice": slot, "base": SHA-256, "splices": [[offset, delete, base64], …]}
           {"replace": log, "index": n, "value": VALUE}   {"trim": log, "before" | "from" | "keep": n}
           {"delete_log": log}
    VALUE  {"json": any}   {"text": "…", "type": media type}   {"base64": "…", "type": media type}   {"number": n}
           {"blob": SHA-256, "size": bytes, "preview": base64, "type": media type}
           {"json"} is used only if writing it compactly gives the stored bytes back, and if the value is not deep
           (`depth.py`). SHA-256 is in hex; a splice whose "base" is empty was made by the daemon.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stateward.cli.show.depth import is_deep
from stateward.values import JSON, encode

if TYPE_CHECKING:
    from stateward.v1 import diff_pb2, state_pb2

# Every record of `stateward export --versions` has the mark, with its format.
MARK, FORMAT = "stateward_version", 1
KIND, FILE_END = "kind", "file_end"
# Kinds of records that a summary counts.
KINDS = ("version", "record", "effect", "signal", "blob")


def value_to_json(value: state_pb2.Value) -> dict[str, Any]:
    """Returns a stored value as JSON. `value_from_json` restores the same bytes."""
    if value.WhichOneof("content") == "number":
        return {"number": value.number}
    if value.WhichOneof("content") == "blob":
        blob = {"blob": value.blob.sha256.hex(), "size": value.blob.size_bytes, "type": value.media_type}
        return blob | ({"preview": to_base64(value.blob.preview)} if value.blob.preview else {})
    try:
        text = value.data.decode()
    except UnicodeDecodeError:
        return {"base64": to_base64(value.data), "type": value.media_type}
    if value.media_type == JSON:
        try:
            parsed = json.loads(text)
            if not is_deep(parsed) and encode(parsed, "").data == value.data:
                return {"json": parsed}
        except (TypeError, ValueError, RecursionError):
            pass
    return {"text": text, "type": value.media_type}


def value_from_json(found: Mapping[str, Any]) -> state_pb2.Value:
    """Returns the stored value. Raises ValueError, TypeError or KeyError if the JSON is not a value."""
    from stateward.v1 import state_pb2  # noqa: PLC0415  reading runs needs no protobuf

    if "json" in found:
        return encode(found["json"], "json")
    if "number" in found:
        return state_pb2.Value(number=found["number"])
    if "blob" in found:
        preview = from_base64(found.get("preview", ""))
        ref = state_pb2.BlobRef(sha256=bytes.fromhex(found["blob"]), size_bytes=found["size"], preview=preview)
        return state_pb2.Value(media_type=found["type"], blob=ref)
    data = found["text"].encode() if "text" in found else from_base64(found["base64"])
    return state_pb2.Value(media_type=found["type"], data=data)


def edit_to_json(edit: diff_pb2.Edit) -> dict[str, Any]:
    """Returns an edit as JSON. Raises ValueError if a newer daemon sent an unknown kind of edit."""
    match edit.WhichOneof("edit"):
        case "set_slot":
            return {"set": edit.set_slot.slot, "value": value_to_json(edit.set_slot.value)}
        case "delete_slot":
            return {"delete": edit.delete_slot.slot}
        case "add_number":
            return {"add": edit.add_number.slot, "delta": edit.add_number.delta}
        case "splice_slot":
            splice = edit.splice_slot
            splices = [[each.offset, each.delete, to_base64(each.insert)] for each in splice.splices]
            return {"splice": splice.slot, "base": splice.base_sha256.hex(), "splices": splices}
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
    raise ValueError("the daemon sent an unknown kind of edit; use a newer version of stateward")


def edit_from_json(found: Mapping[str, Any], edit: diff_pb2.Edit) -> None:
    """Fills in an edit. Raises ValueError, TypeError or KeyError if the JSON is not an edit."""
    if "set" in found:
        edit.set_slot.slot = found["set"]
        edit.set_slot.value.CopyFrom(value_from_json(found["value"]))
    elif "delete" in found:
        edit.delete_slot.slot = found["delete"]
    elif "add" in found:
        edit.add_number.slot, edit.add_number.delta = found["add"], found["delta"]
    elif "splice" in found:
        edit.splice_slot.slot, edit.splice_slot.base_sha256 = found["splice"], bytes.fromhex(found["base"])
        for offset, delete, insert in found["splices"]:
            edit.splice_slot.splices.add(offset=offset, delete=delete, insert=from_base64(insert))
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
        raise ValueError(f"unknown kind of edit: {', '.join(found)}")


def to_base64(data: bytes) -> str:
    """Returns bytes as text for JSON."""
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """Returns the bytes. Raises ValueError if the text is not base64."""
    return base64.b64decode(text, validate=True)

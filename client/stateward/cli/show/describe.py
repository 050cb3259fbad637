"""Formats what the daemon returns: as JSON for scripts, and as single lines for people."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from stateward.cli.show.decoding import readable, readable_in, without_pickles
from stateward.cli.show.depth import is_deep, write_flatly
from stateward.cli.show.output import clean, counted, is_terminal, shorten, size
from stateward.models import Access
from stateward.values import JSON, JSON5, Blob, Json5, MsgPack, RawValue

if TYPE_CHECKING:
    from stateward import Checkpoint, Log, State, ThreadInfo
    from stateward.signals import Question
    from stateward.v1.state_pb2 import Value


def thread_as_json(info: ThreadInfo) -> dict[str, Any]:
    """Returns the facts about a thread as JSON, for scripts."""
    return {
        "thread": info.name,
        "uid": info.uid,
        "version": info.version,
        "step": info.step,
        "status": status_word(info.status),
        "status_detail": info.status_detail,
        "labels": dict(info.labels),
        "metrics": dict(info.metrics),
        "create_time": info.create_time.isoformat(),
        "update_time": info.update_time.isoformat(),
        "retained_versions": info.retained_versions,
        "stored_bytes": info.stored_bytes,
        "records": info.records,
        "sequence": info.sequence,
        "archived_sequence": info.archived_sequence,
        "access": status_word(info.access),
        "owner_id": info.owner_id,
        "owner_epoch": info.owner_epoch,
        "orphan": None if info.orphan is None else asdict(info.orphan),
    }


def held_by(info: ThreadInfo, *, is_free: bool = False) -> str:
    """Says which sidecar writes a thread, and how far the archive lags behind. Empty without an archive. `is_free`: its
    last owner gave it up, and no sidecar has taken it since."""
    if info.orphan is not None:
        return f"an orphan of {info.orphan.thread}; it can only be read and forked"
    if info.access == Access.OWNED:
        entries = info.unarchived_entries
        behind = f"{counted(entries, 'entry', 'entries')} not archived yet" if entries else "all archived"
        return f"written by this sidecar (epoch {info.owner_epoch}), {behind}"
    if info.access == Access.REMOTE:
        if is_free:
            return f"a thread that no sidecar owns now; {info.owner_id} archived it last"
        return f"a copy of what sidecar {info.owner_id} archived"
    return ""


def status_word(status: Any) -> str:
    """Returns the name of a status (or of another enum) in lower case, or its number if this version does not know
    it."""
    return status.name.lower() if hasattr(status, "name") else str(status or "")


def checkpoint_as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the facts about a version as JSON, for scripts."""
    return {
        "namespace": checkpoint.namespace,
        "thread": checkpoint.thread,
        "uid": checkpoint.uid,
        "version": checkpoint.version,
        "parent_version": checkpoint.parent_version,
        "branch": checkpoint.branch,
        "checkpoint_id": checkpoint.checkpoint_id,
        "parent_checkpoint_id": checkpoint.parent_checkpoint_id,
        "digest": checkpoint.digest.hex(),
        "status": status_word(checkpoint.status),
        "status_detail": checkpoint.status_detail,
        "step": checkpoint.step,
        "schema_version": checkpoint.schema_version,
        "labels": dict(checkpoint.labels),
        "attributes": dict(checkpoint.attributes),
        "metadata": plain(metadata_of(checkpoint)),
        "metrics": dict(checkpoint.metrics),
        "create_time": checkpoint.create_time.isoformat(),
        "edit_bytes": checkpoint.edit_bytes,
        "stored_bytes": checkpoint.stored_bytes,
        "sequence": checkpoint.sequence,
        "durability": status_word(checkpoint.durability),
        "wait_id": checkpoint.wait_id,
        "question": question_as_json(checkpoint.question),
        "acknowledged_signals": checkpoint.acknowledged_signals,
    }


def question_text(question: Question) -> str:
    """Returns what a question asks as one line. Of several parts each has its name, by which it is answered."""
    if len(question.parts) < 2:
        return " ".join(question.prompt.split())
    return "; ".join(f"{part.name}: {' '.join(part.prompt.split())}" for part in question.parts)


def quoted(question: Question) -> str:
    """Returns the whole question in quotes on one line: its tail may be what the answer is about."""
    return repr(clean(question_text(question)))


def question_as_json(question: Question | None) -> dict[str, Any] | None:
    """Returns a question as JSON, for scripts."""
    if question is None:
        return None
    parts = [{"name": part.name, "prompt": part.prompt, "answer_schema": part.schema} for part in question.parts]
    return {
        "prompt": question.prompt, "answer_schema": question.schema, "asked_by": question.asked_by, "parts": parts,
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Converts a decoded value to values that JSON can hold, nested at most DEPTH_MAX levels deep."""
    value = readable(value)
    if is_deep(value):
        value = RawValue(JSON, write_flatly(value, _plain).encode())
    return _plain(value)


def for_screen(value: Any) -> Any:
    """Does the same for people: bytes are their type and size."""
    value = readable(value)
    if is_deep(value):
        value = RawValue(JSON, write_flatly(value, _plain).encode())
    return _plain(value, _sized)


def _encoded(media_type: str, data: bytes) -> dict[str, Any]:
    return {"media_type": media_type, "base64": base64.b64encode(data).decode()}


def _sized(media_type: str, data: bytes) -> str:
    return f"<{size(len(data))} of {media_type}>"


def _plain(value: Any, show: Callable[[str, bytes], Any] = _encoded) -> Any:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415  rarely needed and slow to import

    match value:
        case bytes():
            return show("application/octet-stream", value)
        case RawValue():
            return show(value.media_type, value.data)
        case Blob():
            return {"media_type": value.media_type, "sha256": value.sha256.hex(), "size_bytes": value.size_bytes}
        case MsgPack() | Json5():
            # May be deep, because `is_deep` does not look into these.
            return plain(value.value) if show is _encoded else for_screen(value.value)
        case float() if not math.isfinite(value):
            return show(JSON5, json.dumps(value).encode()) if show is _encoded else str(value)
        case Message():
            return MessageToDict(value)
        case dict():
            held = value if show is _encoded else without_pickles(value)
            return {str(key): _plain(each, show) for key, each in held.items()}
        case list() | tuple():
            return [_plain(each, show) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:  # a value of a codec that another module registers, or a msgpack timestamp
            return str(value)


def decoded(read: Callable[[], Any], stored: Value | None) -> Any:
    """Returns a value, as `readable` shows it; the stored bytes if they do not match their media type."""
    try:
        return readable(read())
    except ValueError:
        return None if stored is None else RawValue(stored.media_type, stored.data)


def metadata_of(checkpoint: Checkpoint) -> Any:
    """Returns the metadata of a version."""
    return decoded(lambda: checkpoint.metadata, checkpoint.metadata_value)


def slot_of(state: State, name: str) -> Any:
    """Returns the value of a slot, as `readable` shows it; its raw bytes if they do not match their media type."""
    try:
        return readable_in(state.checkpoint.thread if state.checkpoint else "", state.slots[name])
    except ValueError:
        return state.slots.raw(name)


def entry_of(log: Log, position: int) -> Any:
    """Returns an entry of a log, as `readable` shows it; its raw bytes if they do not match their media type."""
    try:
        return readable(log[position])
    except ValueError:
        return log.raw(position)


def summarize(entry: Any, width: int) -> str:
    """Returns a log entry on one line. A message shows its role, its text and its tool calls."""
    entry = readable(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
        return compact(entry, width)
    parts = [shorten(entry["role"], 20)]
    content = entry.get("content")
    if isinstance(content, list):  # parts, as in chat formats
        content = " ".join(
            part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else compact(part, width)
            for part in content
        )
    if content is not None:
        parts.append(shorten(" ".join(content.split()), width) if isinstance(content, str) else compact(content, width))
    calls = entry.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else call
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", function.get("args") or "")  # LangChain has args
            parts.append(
                f"{function['name']}({arguments if isinstance(arguments, str) else compact(arguments, width)})"
            )
        else:
            parts.append(compact(call, width))
    if len(parts) == 1:
        parts.append(compact({key: value for key, value in entry.items() if key != "role"}, width))
    return shorten("  ".join(filter(None, parts)), width)


def whole(value: Any) -> list[str]:
    """Returns a whole value as lines. A message shows its role, its text unchanged, and its other fields as JSON."""
    value = readable(value)
    rest, lines = value, list[str]()
    if isinstance(value, str):
        return value.splitlines()
    if isinstance(value, dict) and isinstance(value.get("role"), str):
        lines.append(value["role"])
        rest = {key: each for key, each in value.items() if key != "role"}
        if isinstance(value.get("content"), str):
            lines += rest.pop("content").splitlines()
    if rest or rest == value:
        lines += json.dumps(for_screen(rest), ensure_ascii=False, indent=2).splitlines()
    return lines


def compact(value: Any, width: int) -> str:
    """Returns a value as JSON on one line."""
    return shorten(json.dumps(for_screen(value), ensure_ascii=False), width if not is_terminal() else min(width, 500))


def pairs(values: Any) -> str:
    """Returns labels or metrics on one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()))

"""The danger: a backup file that leaves out a field of the contract: the parts of a question, or what a signal
answers. Nobody notices before the thread is restored.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stateward.cli.files.backups import _record
from stateward.cli.files.restores import parts_of
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.effect_pb2 import EffectState

# What the contract says that an import ignores, and what describes the place of the original.
IGNORED = {
    "Checkpoint": {
        "namespace", "thread", "uid", "digest", "stored_bytes", "sequence", "durability", "acknowledged_signals",
        "workspace_dropped",
    },
    "RecordedEffect": {"sequence"},
    "StoredRecord": {"expire_time", "value_bytes"},
    "Signal": {"sequence"},
    "Branch": {"version_digest", "save_time", "schema_version", "base_digest"},
    "Tag": {"version_digest"},
    "BlobRef": set(),
    "Effect": {"on_conflict"},
}  # fmt: skip
NUMBERS = itertools.count(3)


def fill(message: Message) -> Message:
    """Sets every field of a message that a backup has, each to another value."""
    ignored = IGNORED.get(message.DESCRIPTOR.name, set())
    oneofs = set[str]()
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if field.name in ignored or (oneof is not None and len(oneof.fields) > 1 and oneof.name in oneofs):
            continue
        if oneof is not None:
            oneofs.add(oneof.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fill_map(getattr(message, field.name), field)
        elif field.is_repeated:
            into = getattr(message, field.name)
            for _ in range(2):
                fill(into.add()) if field.message_type else into.append(value(field))
        elif field.message_type is not None:
            fill(getattr(message, field.name))
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, value(field))
    return message


def fill_map(into: Any, field: FieldDescriptor) -> None:
    held = field.message_type.fields_by_name["value"]
    if held.message_type is not None:
        fill(into["key"])
    else:
        into["key"] = value(held)


def value(field: FieldDescriptor) -> Any:
    number = next(NUMBERS)
    if field.enum_type is not None:
        return EffectState.Value("EFFECT_STATE_DONE") if field.enum_type.name == "EffectState" else 1
    if field.containing_type.name in ("Timestamp", "Duration") and field.name == "nanos":
        return 1000 * number
    by_type = {
        FieldDescriptor.TYPE_STRING: f"text {number}", FieldDescriptor.TYPE_BYTES: b"bytes %d" % number,
        FieldDescriptor.TYPE_BOOL: True, FieldDescriptor.TYPE_DOUBLE: number + 0.5,
    }  # fmt: skip
    return by_type.get(field.type, number)


@pytest.mark.parametrize("kind", [field.name for field in backup.ThreadPart.DESCRIPTOR.fields])
def test_every_field_comes_back(kind: str) -> None:
    """A part of a thread is the same after it was a line of the file."""
    part = backup.ThreadPart()
    field = backup.ThreadPart.DESCRIPTOR.fields_by_name[kind]
    if kind in ("state", "diff"):
        pytest.skip("they are parts of a version's line: test_export_round_trip.py")
    if field.message_type is None:
        setattr(part, kind, b"bytes")
    else:
        fill(getattr(part, kind))
    if kind == "version":
        part.version.whole = False
        part.version.retired_logs.clear()
    if kind == "thread":
        part.thread.options.ClearField("held_key")  # the file is not encrypted, so an import makes no held thread
    (came_back,) = parts_of(_record(part))
    assert came_back == part

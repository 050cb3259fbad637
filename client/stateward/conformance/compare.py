"""Compares what a client sent with what a scenario asks for.

Only the fields that a scenario is about are compared. A client is free in all others: page sizes, status, labels and so
on. Fields that the contract leaves to the client, such as `at_index`, may be missing; if they are set, they must be
right. A save on top of a version names its number, its digest and the uid of the thread, because a number alone may
mean another version. What a write expects and the lease under which it is made are compared in every request, also if
the scenario gives it no `options`; its request id is looked at elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import text_format
from google.protobuf.message import Message

from stateward.v1.write_pb2 import WriteOptions

# The fields of each request that are compared.
_COMPARED: dict[str, frozenset[str]] = {
    "HydrateRequest": frozenset(
        {"thread", "branch", "version", "projection", "page_token", "known_version", "known_digest"}
    ),
    "SaveRequest": frozenset({
        "thread", "options", "branch", "parent", "overwrite", "state", "diff", "on_mismatch", "guard", "ack_signals",
        "workspace",
    }),
    "AcquireLeaseRequest": frozenset({"thread", "options", "term", "take_over"}),
    "BeginEffectRequest": frozenset({"thread", "options", "anchor", "key", "retry_failed"}),
    "CompleteEffectRequest": frozenset({"thread", "options", "anchor", "key", "claim_token", "state", "value"}),
    "SendSignalRequest": frozenset({"thread", "options", "name", "payload", "wait_id"}),
    "GetRecordsRequest": frozenset({"thread", "keys", "without_values"}),
    "PutRecordsRequest": frozenset({"thread", "options", "writes"}),
    "ListRecordsRequest": frozenset({"thread", "prefix", "filters", "without_values", "page_token"}),
    "WatchRequest": frozenset({"thread", "after_sequence", "after_cursor", "slots", "logs", "labels"}),
    "OpenWriter": frozenset({"thread", "options", "branch"}),
    "ReadBlobRequest": frozenset({"thread", "blob"}),
    "StatBlobRequest": frozenset({"thread", "sha256"}),
    "ReadTreeRequest": frozenset({"thread", "branch", "version", "tree", "path", "depth", "page_token"}),
    "DiffTreesRequest": frozenset({"thread", "branch", "base", "target", "base_tree", "target_tree"}),
    "WriteOptions": frozenset({"expected_version", "expected_digest", "lease_token"}),
    "Receipt": frozenset({"uid", "sequence", "digest"}),  # the daemon looks at nothing else
}
# Fields that may be missing, or wrong if they are set.
_HINTS: dict[str, frozenset[str]] = {
    "SetSlot": frozenset({"expected_sha256"}),
    "Append": frozenset({"at_index"}),
    "WatchRequest": frozenset({"after_sequence"}),
}
# Fields that are compared only if the scenario sets them.
_IF_SET: dict[str, frozenset[str]] = {
    "HydrateRequest": frozenset({"include_signals"}),
    "SaveRequest": frozenset({"status", "wait_id"}),
    "WriteOptions": frozenset({"expected_uid"}),
}
FRAME_HINTS = frozenset({"expected_version", "expected_digest"})
"""Of the options of a writer's frame: they may be missing, or wrong if they are set."""
# Fields whose empty value means the same as another one.
_DEFAULTS = {"namespace": "default", "branch": "main"}
SHOWN_CHARS = 100


def difference(expected: Message, seen: Message, hints: frozenset[str] = frozenset()) -> str:
    """Returns the first difference, as a sentence; "" if the client sent what is expected."""
    return next(_differences(expected, seen, "", hints), "")


def _differences(expected: Message, seen: Message, path: str, hints: frozenset[str]) -> Iterator[str]:
    kind = expected.DESCRIPTOR.name
    compared = _COMPARED.get(kind)
    if compared is not None:
        compared |= {name for name in _IF_SET.get(kind, ()) if getattr(expected, name)}
    may_miss = _HINTS.get(kind, frozenset()) | hints
    for field in expected.DESCRIPTOR.fields:
        name = field.name
        if compared is not None and name not in compared:
            continue
        place = f"{path}.{name}" if path else name
        if field.message_type is WriteOptions.DESCRIPTOR:  # none are the same as empty ones
            yield from _differences(getattr(expected, name), getattr(seen, name), place, hints)
            continue
        if field.has_presence and name in may_miss and not seen.HasField(name):
            continue
        if field.is_repeated:
            yield from _lists(expected, seen, name, place)
        elif field.has_presence and expected.HasField(name) != seen.HasField(name):
            yield f"{place} is {_show(seen, name)}, not {_show(expected, name)}"
        elif field.message_type is not None:
            if expected.HasField(name):
                yield from _differences(getattr(expected, name), getattr(seen, name), place, frozenset())
        else:
            values = [getattr(each, name) or _DEFAULTS.get(name, "") for each in (expected, seen)]
            if values[0] != values[1] and not (name in may_miss and not getattr(seen, name)):
                yield f"{place} is {_show(seen, name)}, not {_show(expected, name)}"


def _lists(expected: Message, seen: Message, name: str, place: str) -> Iterator[str]:
    field = expected.DESCRIPTOR.fields_by_name[name]
    ours, theirs = getattr(expected, name), getattr(seen, name)
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map or field.message_type is None:
        if ours != theirs:
            yield f"{place} differs"
        return
    if len(ours) != len(theirs):
        yield f"{place} has {len(theirs)} items, not {len(ours)}"
        return
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        yield from _differences(one, other, f"{place}[{at}]", frozenset())


def _show(message: Message, name: str) -> str:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return "missing"
    value = getattr(message, name)
    shown = text_format.MessageToString(value, as_one_line=True) if isinstance(value, Message) else repr(value)
    return shown if len(shown) <= SHOWN_CHARS else shown[: SHOWN_CHARS - 1] + "…"

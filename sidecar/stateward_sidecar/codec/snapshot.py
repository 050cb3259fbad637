"""Turns a state into the bytes of ``stateward.storage.v1.Snapshot``, and back.

protobuf holds the interpreter while it parses or encodes a message: 150 ms for a value of 30 MB on a busy machine, in
which no call is answered. So this module takes a large snapshot apart by hand, some fields at a time, and other threads
run in between. A large value is copied and never parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from stateward.storage.v1.snapshot_pb2 import LogRun, NamedLog, NamedValue, Snapshot
from stateward_sidecar.codec.entries import (
    NO_RUNS,
    Entries,
    LooseRun,
    Run,
    Runs,
    SealedRun,
    Segment,
    Source,
    loose_run,
)
from stateward_sidecar.codec.state import LogState, StateTree, name_field, number_field, put_slot
from stateward_sidecar.codec.varints import frame, read_varint, varint
from stateward_sidecar.errors import Corrupt

# The most bytes that are parsed at once, and that are copied at once. Each takes a millisecond or two.
PARSED_BYTES, COPIED_BYTES = 1 << 20, 4 << 20
# Tags: of Snapshot, NamedValue and NamedLog.
_SLOTS, _LOGS, _VALUE, _ENTRY = 0x0A, 0x12, 0x12, 0x12
_LONG = 0x80
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def to_snapshot(tree: StateTree) -> bytes:
    """Serializes a tree, names ascending. Equal trees give equal bytes."""
    parts: list[bytes] = []
    for name in sorted(tree.slots):
        put_slot(parts, name, tree.slots[name])
    for name in sorted(tree.logs):
        log = tree.logs[name]
        head = name_field(name)
        tail = number_field(b"\x18", log.first_index) + number_field(b"\x20", log.rewritten_version)
        runs, runs_bytes = _put_runs(log.entries.runs)
        frames = log.entries.tail()
        parts += (b"\x12", varint(len(head) + sum(map(len, frames)) + len(tail) + runs_bytes), head)
        parts += frames
        parts.append(tail)
        parts += runs
    for name in sorted(tree.retired):
        record = name_field(name) + number_field(b"\x10", tree.retired[name])
        parts += (b"\x1a", varint(len(record)), record)
    return b"".join(parts)


def _put_runs(runs: Runs) -> tuple[list[bytes], int]:
    """Returns the fields ``NamedLog.runs``, and their length."""
    parts, size_bytes = list[bytes](), 0
    for run in runs.each:
        if isinstance(run, LooseRun):
            content = run.items
        else:
            segment = run.segment
            content = [
                LogRun(
                    segment=segment.digest, segment_count=segment.count, segment_bytes=segment.size_bytes,
                    skipped=run.skip, count=run.count, size_bytes=run.size_bytes, blobs=segment.blobs,
                ).SerializeToString()
            ]  # fmt: skip
        length = sum(map(len, content))
        head = b"\x2a" + varint(length)
        parts += (head, *content)
        size_bytes += len(head) + length
    return parts, size_bytes


def from_snapshot(data: bytes, source: Source | None = None) -> StateTree:
    """The reverse of ``to_snapshot``. ``source`` reads segments. Raises Corrupt if the bytes are not a snapshot."""
    slots, logs, retired, count = dict[str, bytes](), dict[str, LogState](), dict[str, int](), 0
    try:
        for span in _spans(data, 0, len(data)):
            if span.tag == _SLOTS:
                name, value = _read_slot(data, span)
                slots[name], count = value, count + 1
            elif span.tag == _LOGS:
                name, log = _read_log(data, span, source)
                logs[name], count = log, count + 1
            else:
                part = Snapshot.FromString(_cut(data, span.start, span.stop))
                slots.update((slot.name, slot.value.SerializeToString()) for slot in part.slots)
                logs.update(
                    (log.name, _log_of(log.first_index, _frames_of(log), _runs_of(log, source), log.rewritten_version))
                    for log in part.logs
                )
                retired.update((log.name, log.next_index) for log in part.retired_logs)
                count += len(part.slots) + len(part.logs) + len(part.retired_logs)
    except (DecodeError, IndexError) as error:
        raise Corrupt(f"a snapshot of {len(data)} bytes cannot be parsed: {error}") from error
    if len(slots) + len(logs) + len(retired) != count:
        raise Corrupt(f"a snapshot of {len(data)} bytes holds a name twice")
    return StateTree.of(slots, logs, retired)


class _Span(NamedTuple):
    """Some bytes of a message: one large field, or a row of small fields (tag 0), whose content begins at its start."""

    tag: int
    start: int
    content: int
    stop: int


def _cut(data: bytes, start: int, stop: int) -> bytes:
    """Returns a copy. Copies slices a few milliseconds at a time, and joins them beside other threads."""
    if stop - start <= COPIED_BYTES:
        return data[start:stop]
    return b"".join([data[at : min(at + COPIED_BYTES, stop)] for at in range(start, stop, COPIED_BYTES)])


def _spans(data: bytes, start: int, stop: int) -> Iterator[_Span]:
    """Yields all bytes of a message as spans, in their order. Raises DecodeError, IndexError."""
    if stop - start <= PARSED_BYTES:
        if start < stop:
            yield _Span(0, start, start, stop)
        return
    row = at = start
    while at < stop:
        field_start = at
        tag, size_bytes = data[at], data[at + 1]
        if size_bytes < _LONG and tag < _LONG and tag & 7 == _BYTES:  # most fields; the other branch is slow
            at += 2 + size_bytes
            content = at
        else:
            tag, at = read_varint(data, at)
            content, at = _skip(data, tag, at)
        if at > stop:
            raise DecodeError("a field is longer than its message")
        if tag & 7 == _BYTES and at - content > PARSED_BYTES:
            if row < field_start:
                yield _Span(0, row, row, field_start)
            yield _Span(tag, field_start, content, at)
            row = at
        elif at - row > PARSED_BYTES:
            yield _Span(0, row, row, at)
            row = at
    if row < stop:
        yield _Span(0, row, row, stop)


def _skip(data: bytes, tag: int, at: int) -> tuple[int, int]:
    """Returns where the content of a field begins and ends."""
    kind = tag & 7
    if kind == _BYTES:
        size_bytes, at = read_varint(data, at)
        return at, at + size_bytes
    if kind == _VARINT:
        return at, read_varint(data, at)[1]
    if kind in (_FIXED64, _FIXED32):
        return at, at + (8 if kind == _FIXED64 else 4)
    raise DecodeError(f"a field has the wire type {kind}")


def _read_slot(data: bytes, slot: _Span) -> tuple[str, bytes]:
    head, value = NamedValue(), None
    for span in _spans(data, slot.content, slot.stop):
        if span.tag == _VALUE:
            value = _cut(data, span.content, span.stop)
        else:
            head.MergeFromString(_cut(data, span.start, span.stop))
    return head.name, head.value.SerializeToString() if value is None else value


def _read_log(data: bytes, log: _Span, source: Source | None) -> tuple[str, LogState]:
    name, first_index, rewritten_version, items, runs = "", 0, 0, list[bytes](), list[Run]()
    for span in _spans(data, log.content, log.stop):
        field = _cut(data, span.start, span.stop)
        if span.tag == _ENTRY:  # the field has the bytes of a frame
            items.append(field)
            continue
        part = NamedLog.FromString(field)
        items += _frames_of(part)
        runs += _runs_of(part, source)
        name, first_index = part.name or name, part.first_index or first_index
        rewritten_version = part.rewritten_version or rewritten_version
    return name, _log_of(first_index, items, runs, rewritten_version)


def _frames_of(log: NamedLog | LogRun) -> list[bytes]:
    return [frame(value.SerializeToString()) for value in log.entries]


def _runs_of(log: NamedLog, source: Source | None) -> list[Run]:
    return [_run_of(each, source) for each in log.runs]


def _run_of(run: LogRun, source: Source | None) -> Run:
    if not run.segment:
        return loose_run(_frames_of(run))
    segment = Segment(run.segment, run.segment_count, run.segment_bytes, tuple(run.blobs), source)
    return SealedRun(segment, run.skipped, run.count, run.size_bytes)


def _log_of(first_index: int, items: list[bytes], runs: list[Run], rewritten_version: int) -> LogState:
    entries = Entries.of_frames(items, Runs(runs) if runs else NO_RUNS)
    return LogState(first_index, entries, rewritten_version)

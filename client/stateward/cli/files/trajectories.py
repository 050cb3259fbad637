"""Turns finished runs into JSON records for training and evaluation.

    {"thread": "booking-42", "uid": "…", "agent": "booking", "version": 20, "step": 20,
     "status": "completed", "status_detail": "", "outcome": VALUE or null,
     "labels": {…}, "metrics": {"cost_usd": 0.31, …}, "create_time": "…", "update_time": "…",
     "messages": [MESSAGE, …], "messages_missing": 0, "tool_calls": [CALL, …], "tool_calls_missing": 0,
     "tools": [{"name", "calls", "errors"}, …]}

`messages` and `tool_calls` are the complete logs of these names; under a framework, `messages` are those that its
adapter keeps (layouts.py), in the framework's form. Entries that a sliding window trimmed, or that went
with a log that was deleted, are read from earlier versions, unless those were pruned; `…_missing` counts the lost
entries. Entries that were cut off at the end of a log are left out. `outcome` is the value of a slot. Values that JSON
cannot hold, and deep values, become {"media_type", "base64"}.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from stateward.blobs import MARK
from stateward.changes import Append, ReplaceEntry, TrimLog
from stateward.cli.show import layouts
from stateward.cli.show.decoding import readable
from stateward.cli.show.describe import entry_of, slot_of
from stateward.cli.show.layouts import TOOL_CALLS
from stateward.cli.show.tool_calls import count_calls
from stateward.models import Status
from stateward.transfer import read_end
from stateward.v1 import state_pb2
from stateward.values import Blob, decode_leniently

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stateward import Client, State, Thread, ThreadInfo
    from stateward.models import ThreadFilters

FINISHED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
TYPED_CALL = "stateward.agent.v1.ToolCall"
OUTCOME_SLOTS = ("outcome", "result")


@dataclass(frozen=True)
class MetricRange:
    """Limits of metrics. A run without a limited metric does not fit."""

    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)

    def fits(self, metrics: Mapping[str, float]) -> bool:
        """Whether all limits are met."""
        return all(name in metrics and metrics[name] >= limit for name, limit in self.least.items()) and all(
            name in metrics and metrics[name] <= limit for name, limit in self.most.items()
        )


def find_runs(
    client: Client, filters: ThreadFilters, metrics: MetricRange | None = None, agent: str | None = None
) -> Iterator[ThreadInfo]:
    """Yields the threads that fit and are finished, or have the statuses in `filters`. Reads page by page.

    Skips threads without a version, which an effect or a lease created.
    """
    if not filters.get("statuses") and filters.get("status") is None:
        filters = {**filters, "statuses": FINISHED}
    for info in client.threads(**filters):
        if (
            info.version
            and (metrics is None or metrics.fits(info.metrics))
            and (agent is None or info.options.agent == agent)
        ):
            yield info


def read_trajectory(
    client: Client, info: ThreadInfo, plain: Callable[[Any], Any], outcome_slot: str | None = None
) -> dict[str, Any]:
    """Returns the record of a thread. `plain` converts a value to JSON.

    Raises ThreadNotFound or UidMismatch if the thread was deleted meanwhile, VersionNotFound if it has no version yet.
    """
    thread = client.thread(info.name)
    wanted = [outcome_slot] if outcome_slot else list(OUTCOME_SLOTS)
    state = thread.hydrate(slots=[*wanted, *layouts.SLOTS], logs=layouts.LOGS, must_exist=True)
    messages, messages_missing = all_messages(thread, state)
    tool_calls, tool_calls_missing = whole_log(thread, state, TOOL_CALLS)
    calls = count_calls(messages, tool_calls)
    checkpoint = state.checkpoint
    assert checkpoint is not None
    return {
        "thread": info.name,
        "uid": info.uid,
        "agent": info.options.agent,
        "version": state.version,
        "step": checkpoint.step,
        "status": _word(checkpoint.status),
        "status_detail": checkpoint.status_detail,
        "outcome": next((plain(slot_of(state, name)) for name in wanted if name in state.slots), None),
        "labels": dict(info.labels),
        "metrics": dict(checkpoint.metrics),
        "create_time": info.create_time.isoformat(),
        "update_time": info.update_time.isoformat(),
        "messages": [plain(entry) for entry in messages],
        "messages_missing": messages_missing,
        "tool_calls": [_call(entry, plain) for entry in tool_calls],
        "tool_calls_missing": tool_calls_missing,
        "tools": [{"name": name, "calls": count, "errors": calls.errors[name]} for name, count in calls.calls.items()],
    }


def all_messages(thread: Thread, state: State) -> tuple[list[Any], int]:
    """Returns all messages that the thread ever had, and the number of lost ones, as `whole_log` does. `state` has
    `layouts.LOGS` and `layouts.SLOTS` at least."""
    entries, missing = whole_log(thread, state, layouts.messages_log(thread.name, state))
    return layouts.messages_of(entries) or layouts.kept_in_slot(thread.name, state), missing


def _call(entry: Any, plain: Callable[[Any], Any]) -> Any:
    """Returns a call as JSON. Decodes the inline result of a typed call."""
    record = plain(entry)
    if isinstance(entry, Message) and entry.DESCRIPTOR.full_name == TYPED_CALL:
        result: Any = entry.result  # type: ignore[attr-defined]
        if result.WhichOneof("outcome") == "inline":
            record["result"]["inline"] = plain(decode_leniently(result.inline))
    return record


def whole_log(thread: Thread, state: State, name: str) -> tuple[list[Any], int]:
    """Returns all entries that the log ever had, each with its newest value, and the number of lost entries.

    `thread.log(name).trimmed()` does not suffice: it returns only entries that a window trimmed, as they were then, and
    fails if one of its versions is pruned.
    """
    entries = entries_of(state, name)
    first, following = _indexes(thread, state, name)
    if first:
        earlier = _earlier(thread, state.version, name)
        entries = {at: _read(thread, value) for at, value in earlier.items() if at < first} | entries
    return [entries[at] for at in sorted(entries)], following - len(entries)


def _indexes(thread: Thread, state: State, name: str) -> tuple[int, int]:
    """Returns the index of the log's first entry, and the one that its next entry gets. A log that was deleted has no
    entries, and goes on with the next index."""
    if name in state.logs:
        return state.logs[name].first_index, state.logs[name].next_index
    if not state.version:  # an effect, a lease or a record made the thread: no log has ever had an entry
        return 0, 0
    end = read_end(thread, name, state.version)
    return end, end


def entries_of(state: State, name: str) -> dict[int, Any]:
    """Returns the entries of a log in the state, by index. Empty if the log does not exist."""
    if name not in state.logs:
        return {}
    log = state.logs[name]
    return {log.first_index + at: entry_of(log, at) for at in range(len(log))}


def _earlier(thread: Thread, version: int, name: str) -> dict[int, Any]:
    """Returns the log's entries by index, read from all versions up to this one, with those trimmed at the start or
    deleted with the log."""
    entries: dict[int, Any] = {}
    following = 0
    with thread.history(at=version, logs=[name]) as line:
        for entry in line:
            checkpoint, state, changes = entry
            if entry.begins:
                state = state or thread.hydrate(checkpoint.version, logs=[name])
                first, following = _indexes(thread, state, name)
                kept = {place: value for place, value in entries.items() if place < first}
                entries = kept | entries_of(state, name)
                continue
            for change in changes:
                match change:
                    case Append():
                        following = following if change.at_index is None else change.at_index
                        entries |= dict(enumerate(map(readable, change.entries), following))
                        following += len(change.entries)
                    case ReplaceEntry():
                        entries[change.index] = readable(change.value)
                    case TrimLog(from_index=int(index)):
                        entries = {place: value for place, value in entries.items() if place < index}
                        following = min(following, index)
    return entries


def _read(thread: Thread, value: Any) -> Any:
    """Returns the value. Reads it from its blob if a save stored it as one, because changes contain only the
    reference."""
    if not isinstance(value, Blob) or not value.media_type.endswith(MARK):
        return value
    media_type = value.media_type.removesuffix(MARK)
    return readable(decode_leniently(state_pb2.Value(media_type=media_type, data=thread.blobs.read(value))))


def _word(status: Any) -> str:
    return status.name.lower() if hasattr(status, "name") else str(status or "")

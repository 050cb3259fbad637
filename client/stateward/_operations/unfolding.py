"""Lists of states: the daemon sends the first state of a page whole, and the others as edits of the one before.

`unfold` makes whole states of them again. They share their values, which nobody changes in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stateward._operations.effects import read_effects
from stateward._operations.known import LogPart
from stateward._operations.reading import hydrate_stored, parts_of, read_state
from stateward._operations.steps import Call, Operation, ThreadRef, read_pages
from stateward._operations.uploads import fetch_blobs
from stateward.effects import RecordedEffect
from stateward.errors import VersionPruned
from stateward.state import State
from stateward.v1 import checkpoint_pb2, diff_pb2, effect_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import effect_service_pb2 as service


@dataclass(frozen=True, slots=True)
class Stored:
    """A state as it is stored."""

    slots: dict[str, state_pb2.Value]
    logs: dict[str, LogPart]
    retired_logs: dict[str, int]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A version of a list. `state` and `effects` are None if the daemon left them out: they are too large."""

    checkpoint: checkpoint_pb2.Checkpoint
    state: Stored | None
    effects: Sequence[effect_pb2.RecordedEffect] | None


def unfold(page: checkpoints.ListCheckpointsResponse) -> Iterator[Shown]:
    """Yields the versions of a page with their states and effects."""
    state: Stored | None = None
    for checkpoint, content in zip(page.checkpoints, page.contents, strict=True):
        if content.HasField("state"):
            found = content.state
            state = Stored(dict(found.slots), parts_of(found.logs), dict(found.retired_logs), found.partial)
        elif content.state_omitted:
            state = None
        elif state is not None:
            state = _step(state, content)
        yield Shown(checkpoint, state, None if content.effects_omitted else content.effects)


def _step(state: Stored, content: checkpoints.CheckpointContent) -> Stored:
    """Returns the state after one step. The one before stays as it is."""
    slots, logs, versions = dict(state.slots), dict(state.logs), content.rewritten_versions
    for edit in content.diff.edits:
        kind = edit.WhichOneof("edit") or ""
        if kind not in _EDITS:
            raise ValueError("the daemon sent a kind of edit that this client does not know; hydrate instead")
        change = getattr(edit, kind)
        if hasattr(change, "slot"):
            _EDITS[kind](slots, change)
        else:
            _EDITS[kind](logs, change)
    for name, log in logs.items():
        before = state.logs.get(name)
        rewritten = versions.get(name, before.rewritten_version if before is not None else 0)
        if log.rewritten_version != rewritten:
            logs[name] = log._replace(rewritten_version=rewritten)
    return Stored(slots, logs, dict(content.retired_logs), state.partial)


def _set(slots: dict[str, state_pb2.Value], edit: diff_pb2.SetSlot) -> None:
    slots[edit.slot] = edit.value


def _splice(slots: dict[str, state_pb2.Value], edit: diff_pb2.SpliceSlot) -> None:
    value = slots[edit.slot]
    pieces, end = [], 0
    for splice in edit.splices:
        pieces += [value.data[end : splice.offset], splice.insert]
        end = splice.offset + splice.delete
    pieces.append(value.data[end:])
    slots[edit.slot] = state_pb2.Value(media_type=value.media_type, data=b"".join(pieces))


def _append(logs: dict[str, LogPart], edit: diff_pb2.Append) -> None:
    log = logs.get(edit.log)
    if log is None:
        logs[edit.log] = LogPart(list(edit.entries), edit.at_index, 0)
    else:
        logs[edit.log] = log._replace(entries=[*log.entries, *edit.entries])


def _replace(logs: dict[str, LogPart], edit: diff_pb2.ReplaceEntry) -> None:
    log = logs[edit.log]
    entries = list(log.entries)
    entries[edit.index - log.first_index] = edit.value
    logs[edit.log] = log._replace(entries=entries)


def _trim(logs: dict[str, LogPart], edit: diff_pb2.TrimLog) -> None:
    log = logs[edit.log]
    if edit.HasField("from_index"):
        logs[edit.log] = log._replace(entries=log.entries[: edit.from_index - log.first_index])
    else:
        kept = log.entries[edit.before_index - log.first_index :]
        logs[edit.log] = log._replace(entries=kept, first_index=edit.before_index)


_EDITS: dict[str, Callable[[Any, Any], object]] = {
    "set_slot": _set,
    "delete_slot": lambda slots, edit: slots.pop(edit.slot),
    "splice_slot": _splice,
    "append": _append,
    "replace_entry": _replace,
    "trim_log": _trim,
    "delete_log": lambda logs, edit: logs.pop(edit.log),
}


def read_states(ref: ThreadRef, request: checkpoints.ListCheckpointsRequest) -> Operation[list[State]]:
    """Reads the next page of states. Sets the request's page token to the page after it; empty = there is none."""
    page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
    request.page_token = page.next_page_token
    states: list[State] = []
    for shown in unfold(page):
        try:
            states.append((yield from _read_shown(ref, request, shown)))
        except VersionPruned:  # in the meantime, so it is no longer part of the list
            continue
    return states


def _read_shown(ref: ThreadRef, request: checkpoints.ListCheckpointsRequest, shown: Shown) -> Operation[State]:
    message, stored, asked = shown.checkpoint, shown.state, request.projection
    whole = partial(hydrate_stored, ref, message.version, effects=request.include_effects)
    if stored is None:
        logs = {log.log: log.last if log.HasField("last") else None for log in asked.logs}
        part: dict[str, Any] = {"slots": asked.slots, "logs": logs} if request.HasField("projection") else {}
        state = yield from whole(**part)
    else:
        state = read_state(
            message, stored.slots, stored.logs, stored.retired_logs, asked=asked, partial=stored.partial, pinned=True
        )
        state._keep_out(ref.ephemeral)
        yield from fetch_blobs(ref, state)
        if request.include_effects:
            state.effects = yield from _read_effects(ref, shown)
    if ref.migrations is not None:
        state = yield from ref.migrations._bring_up(ref, state, whole)
    return state


def _read_effects(ref: ThreadRef, shown: Shown) -> Operation[tuple[RecordedEffect, ...]]:
    if shown.effects is not None or not shown.checkpoint.checkpoint_id:
        return tuple(map(RecordedEffect.from_proto, shown.effects or ()))
    request = ref.about(service.ListEffectsRequest, anchor=shown.checkpoint.checkpoint_id)
    return tuple((yield from read_pages(read_effects, request)))

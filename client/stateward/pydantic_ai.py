"""Conversations of Pydantic AI in Stateward. Needs the extra `pydantic-ai`."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai import DeferredToolResults, ToolDenied
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_core import PydanticSerializationError

from stateward._answering import Answered, Decision, find_answers
from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward._keeping import children_of, find_unwritable, keep_readable, kept
from stateward._naming import is_orphans, name_for
from stateward._settling import settle
from stateward._telling import COMPLETED, RUNNING, YES_OR_NO, Told, call_of, waiting
from stateward._walking import ATOMS, Walk, run
from stateward.changes import Append, Change, SetSlot, TrimLog
from stateward.durations import Duration
from stateward.errors import StatewardError, ThreadNotFound, UidMismatch, VersionMismatch
from stateward.models import Checkpoint, Status
from stateward.options import Retention
from stateward.state import State
from stateward.values import RawValue

__all__ = ["StatewardConversationStore"]

RECORD, ENTRIES = "record", "entries"
SCOPE_LABEL, HEAD_LABEL = "scope", "head"
OUTPUT_TAKEN = "Final result processed."
# How many entry ids are remembered with their conversations.
PLACES_MAX = 10_000
# How many records a list reads at a time.
READS = 16
# So many bytes of entries are written at a time: a request may have 64 MiB.
PIECE_BYTES = 16 << 20
# As `ModelMessagesTypeAdapter`, which turns NaN and infinities to null. Only the outermost type's settings count.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", defer_build=True)
_RECORDS = TypeAdapter(list[ConversationRecord], config=_CONFIG)
_MESSAGES = TypeAdapter(list[ModelMessage], config=_CONFIG)
# pydantic reads and writes no lone surrogates. A value that has them is stored with "\ue000d800" for "\ud800", and
# says so.
ESCAPED = "escaped"
_ESCAPED = re.compile("[\ud800-\udfff\ue000]")
_ESCAPE = re.compile("\ue000([0-9a-f]{4})")


class StatewardConversationStore(Connected, ConversationStore):
    """Keeps each conversation as a thread of Stateward: its record in a slot, its entries in a log.

    A save sends the new entries and the record. The store's `revision` check and Stateward's compare-and-swap on
    versions are one: of two writers, exactly one saves, and the other gets ConversationConflict. A fork copies the
    entries that it keeps, so each conversation is whole by itself, and `delete` removes its messages with its key.
    More than 16 MiB of entries are written in several versions, and the record with the last one: until then nobody
    sees them.

    `ttl` says how long after its last save a conversation is deleted, None = never. `retention` says which versions are
    kept, None = all; the newest one has all messages. Both are used when the first save makes the thread.

    `client` is an AsyncClient that you keep; without it the store makes one from `target`, `namespace` and the further
    options of `stateward.AsyncClient`, and `close` closes it. Use a namespace in which only this store makes threads.
    """

    def __init__(
        self,
        *,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._places: OrderedDict[str, str] = OrderedDict()
        self._given: dict[str, Answered] = {}  # by thread: the answers that a run was given

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Returns the record of a conversation; None if there is no such conversation."""
        return await self._read_named(name_for(conversation_id))

    async def _read_named(self, name: str) -> ConversationRecord | None:
        return self._record(await self._client.thread(name).hydrate(slots=[RECORD]))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Returns the records, newest first. Reads those of `scope` only, which the daemon finds by an index."""
        labels = None if scope is None else {SCOPE_LABEL: name_for(scope)}
        names = [info.name async for info in self._client.threads(labels=labels) if not is_orphans(info.name)]
        found: list[ConversationRecord] = []
        for start in range(0, len(names), READS):
            read = await asyncio.gather(*map(self._read_named, names[start : start + READS]))
            found += (record for record in read if record is not None)
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Writes a record and its new entries, both or neither. Raises ConversationConflict.

        Raises TypeError or ValueError for a value that is no JSON, with its place. A call that is cancelled comes to
        its end first: when CancelledError comes, the write is done, or never will be.
        """
        await settle(self._write(record, new_entries, expected_revision))

    async def _write(
        self, record: ConversationRecord, new_entries: Sequence[ConversationEntry], expected_revision: str | None
    ) -> None:
        encoded, values = _encode(_RECORDS, record, "record"), [_to_value(entry) for entry in new_entries]
        thread = self._client.thread(name_for(record.conversation_id))
        state = await thread.hydrate(slots=[RECORD])
        stored = self._record(state)
        if (stored.revision if stored is not None else None) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        added = await self._missing_entries(thread, record, stored, {entry.id for entry in new_entries})
        added = [keep_readable(value, "entry") for value in (*added, *values)]
        edits: list[Change] = [SetSlot(RECORD, keep_readable(encoded, "record", around=1))]
        scope = {} if record.scope is None else {SCOPE_LABEL: name_for(record.scope)}
        create = replace(self._made_with, labels=scope)
        labels = {} if record.head_id is None else {HEAD_LABEL: name_for(record.head_id)}
        used = self._used(thread.name, record, state)
        if used is not None:
            edits += used.edits
        told, acks = _status_of(record, new_entries, state), [] if used is None else [used.signal]
        parent, made = state.checkpoint or 0, list[Checkpoint]()
        try:
            before: list[Change] = await _remains(thread) if stored is None and state.checkpoint is not None else []
            *first, last = _pieces(added)
            for piece in first:  # the record comes last: until then nobody sees a new conversation, or new entries
                parent = await thread.apply([*before, Append(ENTRIES, piece)], parent=parent, create=create, **RUNNING)
                before = []
                made.append(parent)
            appended = [Append(ENTRIES, last)] if last else []
            await thread.apply(
                [*before, *appended, *edits], parent=parent, create=create, labels=labels, ack=acks, **told
            )
        except BaseException as error:
            if stored is None and made:
                with suppress(StatewardError):  # somebody else has the thread by now, or the daemon is away
                    await thread.delete(expected_version=made[-1])
            if isinstance(error, VersionMismatch | ThreadNotFound | UidMismatch):
                raise ConversationConflict(record.conversation_id) from None
            raise
        if used is not None:
            self._given.pop(thread.name, None)
        self._remember(record)

    async def deferred_results(self, conversation_id: str) -> DeferredToolResults | None:
        """Returns what somebody has answered to the deferred calls of a conversation; None = answers are missing, or
        nothing is deferred.

            results = await store.deferred_results("trip-3")
            if results is not None:
                conversation = await store.load("trip-3")
                await store.save(await agent.run(conversation=conversation, deferred_tool_results=results))

        A call that needs an approval is approved, or denied with the reason; another deferred call gets the answer as
        its result. The save of the run acknowledges the answer. If the run fails before, this returns it again.
        """
        name = name_for(conversation_id)
        found = await settle(find_answers(self._client.thread(name), [RECORD]))
        record = self._record(found.state) if found is not None else None
        requests = record.deferred_tool_requests if record is not None else None
        if found is None or requests is None:
            return None
        results, unasked = DeferredToolResults(), Decision(value=False)  # of more calls than a question has parts
        for call in requests.approvals:
            decision = found.decisions.get(name_for(call.tool_call_id), unasked)
            denied = ToolDenied(decision.message) if decision.message else ToolDenied()
            results.approvals[call.tool_call_id] = True if decision.value is True else denied
        for call in requests.calls:
            results.calls[call.tool_call_id] = found.decisions.get(name_for(call.tool_call_id), unasked).value
        self._given[name] = found
        return results

    def _used(self, name: str, record: ConversationRecord, state: State) -> Answered | None:
        """The answers that a save of a record has used: the run was given them, and the record asks something else."""
        given, asks = self._given.get(name), record.deferred_tool_requests
        if given is None or state.checkpoint is None or state.checkpoint.wait_id != given.signal.wait_id:
            return None
        calls = [] if asks is None else [*asks.approvals, *asks.calls]
        return given if given.decisions.keys().isdisjoint(name_for(call.tool_call_id) for call in calls) else None

    async def _missing_entries(
        self, thread: AsyncThread, record: ConversationRecord, stored: ConversationRecord | None, new_ids: set[str]
    ) -> list[Any]:
        """The entries that a fork takes from its source. Raises ConversationConflict if the head is nowhere."""
        head = record.head_id
        if head is None or head in new_ids or (stored is not None and head in (stored.head_id, *stored.branches)):
            return []
        if head in await _entries_of(thread):
            return []
        if stored is None and record.forked_from is not None:
            entries = await _entries_of(self._client.thread(name_for(record.forked_from)))
            if head in entries:
                return _line(entries, head)
        raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Removes a conversation with all of its messages and its key. Raises ConversationConflict."""
        await settle(self._delete(conversation_id, expected_revision))

    async def _delete(self, conversation_id: str, expected_revision: str) -> None:
        thread = self._client.thread(name_for(conversation_id))
        state = await thread.hydrate(slots=[RECORD])
        record = self._record(state)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        try:
            await thread.delete(expected_version=state.checkpoint)
        except (VersionMismatch, ThreadNotFound, UidMismatch):
            raise ConversationConflict(conversation_id) from None

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Returns the entries up to `head_id`, or the last `limit` of them. Raises LookupError."""
        if head_id is None:
            return []
        entries = await self._find(head_id)
        line = _line(entries, head_id)
        return [_to_entry(value) for value in (line if limit is None else line[len(line) - min(limit, len(line)) :])]

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Returns an entry. Raises LookupError if no conversation of this namespace has it."""
        return _to_entry((await self._find(entry_id))[entry_id])

    async def _find(self, entry_id: str) -> dict[str, Any]:
        """The entries of a conversation that has this one. An entry does not say to which conversation it belongs."""
        place = self._places.get(entry_id)
        if place is not None and entry_id in (entries := await _entries_of(self._client.thread(place))):
            return entries
        async for checkpoint in self._client.checkpoints(labels={HEAD_LABEL: name_for(entry_id)}):
            if is_orphans(checkpoint.thread):
                continue
            if entry_id in (entries := await _entries_of(self._client.thread(checkpoint.thread))):
                return entries
        raise LookupError(f"no conversation ends with the entry {entry_id!r}, or ever did")

    def _record(self, state: State) -> ConversationRecord | None:
        if RECORD not in state.slots:
            return None
        record: ConversationRecord = _decode(_RECORDS, kept(state.slots[RECORD]))
        self._remember(record)
        return record

    def _remember(self, record: ConversationRecord) -> None:
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._places[entry_id] = name_for(record.conversation_id)
                self._places.move_to_end(entry_id)
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)


def _status_of(record: ConversationRecord, new_entries: Sequence[ConversationEntry], state: State) -> Told:
    """What a conversation tells: deferred calls wait, and a run is over if its last message asks for no call."""
    if (asked := record.deferred_tool_requests) is not None and (asked.calls or asked.approvals):
        calls = [(each, YES_OR_NO) for each in asked.approvals] + [(each, None) for each in asked.calls]
        return waiting((each.tool_call_id, call_of(each.tool_name, each.args), schema) for each, schema in calls)
    if not new_entries:  # the messages are those of the version before
        before = state.checkpoint.status if state.checkpoint is not None else None
        return COMPLETED if before == Status.COMPLETED else RUNNING
    last = new_entries[-1].message
    if isinstance(last, ModelResponse):
        return COMPLETED if last.state == "complete" and not last.tool_calls else RUNNING
    # The result of a tool that ends a run, such as one for structured output.
    return COMPLETED if any(getattr(each, "content", "") == OUTPUT_TAKEN for each in last.parts) else RUNNING


async def _remains(thread: AsyncThread) -> list[Change]:
    """Edits that remove the entries of a conversation whose record was never written."""
    state = await thread.hydrate(slots=[], logs={ENTRIES: 1})
    return [TrimLog(ENTRIES, keep_last=0)] if ENTRIES in state.logs else []


def _pieces(added: list[RawValue]) -> Iterator[tuple[RawValue, ...]]:
    """Yields entries in pieces that one write may have, at least one."""
    piece, piece_bytes = list[RawValue](), 0
    for value in added:
        if piece and piece_bytes + len(value.data) > PIECE_BYTES:
            yield tuple(piece)
            piece, piece_bytes = [], 0
        piece.append(value)
        piece_bytes += len(value.data)
    yield tuple(piece)


async def _entries_of(thread: AsyncThread) -> dict[str, Any]:
    """All entries of a conversation as they are stored, by id, also those of branches that it left."""
    state = await thread.hydrate(logs=[ENTRIES])
    return {value["id"]: value for value in map(kept, state.logs[ENTRIES])}


def _line(entries: dict[str, Any], head: str) -> list[Any]:
    """The entries from the first one to `head`."""
    line, at = list[Any](), head
    while at is not None:
        line.append(entries[at])
        at = entries[at]["parent_id"]
    return line[::-1]


def _to_value(entry: ConversationEntry) -> Any:
    message = _encode(_MESSAGES, entry.message, "message")
    return {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind, "message": message}


def _to_entry(value: Any) -> ConversationEntry:
    message = _decode(_MESSAGES, value["message"])
    return ConversationEntry(id=value["id"], parent_id=value["parent_id"], kind=value["kind"], message=message)


def _encode(adapter: TypeAdapter[Any], value: Any, path: str) -> dict[str, Any]:
    """Returns a message or a record as JSON. Raises TypeError or ValueError, with the place, if JSON cannot hold it."""
    try:
        plain = run(_map_texts(value, _escape, path))
    except RecursionError as error:
        raise TypeError(f"{find_unwritable(value, path)}: {error}") from error
    try:
        (made,) = adapter.dump_python([plain], mode="json", warnings=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise TypeError(f"{find_unwritable(value, path)}: {error}") from error
    return made if plain is value else {**made, ESCAPED: True}


def _decode(adapter: TypeAdapter[Any], made: dict[str, Any]) -> Any:
    """The reverse."""
    plain = {name: value for name, value in made.items() if name != ESCAPED}
    (value,) = adapter.validate_json(json.dumps([plain]))
    return run(_map_texts(value, _unescape, "")) if ESCAPED in made else value


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"\ue000{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _map_texts(value: Any, change: Callable[[str], str], path: str) -> Walk[Any]:
    """Returns a value with all of its texts changed; the same object if none changes.

    Raises ValueError if two keys of a dict are one in JSON.
    """
    if isinstance(value, str):
        return _changed(value, change)
    if isinstance(value, dict) and len(set(map(str, value))) < len(value):
        raise ValueError(f"{path}: two of its keys are one in JSON")
    parts, keys = list[tuple[str, Any, Any]](), dict[Any, Any]()
    for part, child in children_of(value):
        if type(child) in ATOMS:
            parts.append((part, child, _changed(child, change) if type(child) is str else child))
        else:
            parts.append((part, child, (yield _map_texts(child, change, path + part))))
    for key in value if isinstance(value, dict) else ():
        keys[key] = _changed(key, change) if type(key) is str else (yield _map_texts(key, change, path))
    if all(made is child for _, child, made in parts) and all(made is key for key, made in keys.items()):
        return value
    found = [made for _, _, made in parts]
    if isinstance(value, dict):
        return dict(zip(keys.values(), found, strict=True))
    if isinstance(value, (list, tuple)):
        return type(value)(found) if type(value) in (list, tuple) else found
    copied = copy.copy(value)
    for part, child, made in parts:
        if made is not child:
            object.__setattr__(copied, part.removeprefix("."), made)
    return copied


def _changed(text: str, change: Callable[[str], str]) -> str:
    made = change(text)
    return text if made == text else made

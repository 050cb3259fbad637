"""Conversations of Pydantic AI in Stateward. Needs the extra `pydantic-ai`."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward.changes import EntriesAppended, SlotSet
from stateward.errors import ThreadNotFound, VersionMismatch
from stateward.options import ThreadOptions
from stateward.state import State

__all__ = ["StatewardConversationStore"]

RECORD, ENTRIES = "record", "entries"
SCOPE_LABEL, HEAD_LABEL = "scope", "head"
# How many entry ids are remembered with their conversations.
PLACES_MAX = 10_000
# How many records a list reads at a time.
READS = 16
_RECORDS = TypeAdapter(ConversationRecord)


class StatewardConversationStore(Connected, ConversationStore):
    """Keeps each conversation as a thread of Stateward: its record in a slot, its entries in a log.

    A save sends the new entries and the record. The store's `revision` check and Stateward's compare-and-swap on
    versions are one: of two writers, exactly one saves, and the other gets ConversationConflict. A fork copies the
    entries that it keeps, so each conversation is whole by itself, and `delete` removes its messages with its key.

    `client` is an AsyncClient that you keep; without it the store makes one from `target`, `namespace` and the further
    options of `stateward.AsyncClient`, and `close` closes it. Use a namespace in which only this store makes threads.
    """

    def __init__(
        self,
        *,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options)
        self._places: OrderedDict[str, str] = OrderedDict()

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Returns the record of a conversation; None if there is no such conversation."""
        return self._record(await self._client.thread(conversation_id).hydrate(slots=[RECORD]))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Returns the records, newest first. Reads those of `scope` only, which the daemon finds by an index."""
        labels = None if scope is None else {SCOPE_LABEL: scope}
        names = [info.name async for info in self._client.threads(labels=labels)]
        found: list[ConversationRecord] = []
        for start in range(0, len(names), READS):
            read = await asyncio.gather(*map(self.read_record, names[start : start + READS]))
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
        """Writes a record and its new entries, both or neither. Raises ConversationConflict."""
        thread = self._client.thread(record.conversation_id)
        state = await thread.hydrate(slots=[RECORD])
        stored = self._record(state)
        if (stored.revision if stored is not None else None) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        added = await self._missing_entries(thread, record, stored, {entry.id for entry in new_entries})
        added += map(_to_value, new_entries)
        edits = [SlotSet(RECORD, json.loads(_RECORDS.dump_json(record)))]
        create = ThreadOptions(labels={} if record.scope is None else {SCOPE_LABEL: record.scope})
        labels = {} if record.head_id is None else {HEAD_LABEL: record.head_id}
        try:
            appended = [EntriesAppended(ENTRIES, tuple(added))] if added else []
            await thread.apply([*appended, *edits], parent=state.version, create=create, labels=labels)
        except VersionMismatch:
            raise ConversationConflict(record.conversation_id) from None
        self._remember(record)

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
            entries = await _entries_of(self._client.thread(record.forked_from))
            if head in entries:
                return _line(entries, head)
        raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Removes a conversation with all of its messages and its key. Raises ConversationConflict."""
        thread = self._client.thread(conversation_id)
        state = await thread.hydrate(slots=[RECORD])
        record = self._record(state)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        try:
            await thread.delete(expected_version=state.version)
        except (VersionMismatch, ThreadNotFound):
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
        async for checkpoint in self._client.checkpoints(labels={HEAD_LABEL: entry_id}):
            if entry_id in (entries := await _entries_of(self._client.thread(checkpoint.thread))):
                return entries
        raise LookupError(f"no conversation ends with the entry {entry_id!r}, or ever did")

    def _record(self, state: State) -> ConversationRecord | None:
        if RECORD not in state.slots:
            return None
        record = _RECORDS.validate_json(json.dumps(state.slots[RECORD]))
        self._remember(record)
        return record

    def _remember(self, record: ConversationRecord) -> None:
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._places[entry_id] = record.conversation_id
                self._places.move_to_end(entry_id)
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)


async def _entries_of(thread: AsyncThread) -> dict[str, Any]:
    """All entries of a conversation as they are stored, by id, also those of branches that it left."""
    state = await thread.hydrate(logs=[ENTRIES])
    return {value["id"]: value for value in state.logs[ENTRIES]}


def _line(entries: dict[str, Any], head: str) -> list[Any]:
    """The entries from the first one to `head`."""
    line, at = list[Any](), head
    while at is not None:
        line.append(entries[at])
        at = entries[at]["parent_id"]
    return line[::-1]


def _to_value(entry: ConversationEntry) -> Any:
    (message,) = json.loads(ModelMessagesTypeAdapter.dump_json([entry.message]))
    return {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind, "message": message}


def _to_entry(value: Any) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_json(json.dumps([value["message"]]))
    return ConversationEntry(id=value["id"], parent_id=value["parent_id"], kind=value["kind"], message=message)

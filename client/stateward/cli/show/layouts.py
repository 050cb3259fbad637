"""Where each framework's adapter keeps the messages of a thread, and what it keeps for the framework alone.

    stateward, Microsoft's histories   log "messages"
    LangGraph, LangGraph.js            log "channel/messages", beside the slot "checkpoint"
    OpenAI Agents SDK                  log "items", and no slot
    Pydantic AI                        log "entries", beside the slot "record"; a message is the field of that name
    Google ADK                         log "events" of the threads "adk/sessions/…"
    Strands Agents                     in the slot "data" of the threads "strands/…": a list under "messages"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.show.decoding import STRANDS, readable_in
from stateward.cli.show.output import counted, say

if TYPE_CHECKING:
    from stateward import State
    from stateward.effects import RecordedEffect

MESSAGES, TOOL_CALLS = "messages", "tool_calls"
CHANNEL, ITEMS, ENTRIES, EVENTS = "channel/messages", "items", "entries", "events"
CHECKPOINT, RECORD, DATA = "checkpoint", "record", "data"
LOGS = MESSAGES, TOOL_CALLS, CHANNEL, ITEMS, ENTRIES, EVENTS
SLOTS = CHECKPOINT, RECORD, DATA
"""Everything by which a layout is known, and where messages are."""
_EDGES = "channel/branch:to:", "channel/join:"
_ABOUT = "; about"
"""Ends the media type of a pending write before whose bytes names stand."""
_QUESTIONS = "__interrupt__", "__resume__"
_WRITE = re.compile(r'\["[^"]+", -?[0-9]+\]')  # the task, and where in its writes

InternalOption = Annotated[
    bool, typer.Option("--internal", help="Also what the framework keeps for itself. --json always has it.")
]


def is_langgraph(state: State) -> bool:
    """Whether one of the savers for LangGraph wrote the state."""
    return CHECKPOINT in state.slots and state.slots.raw(CHECKPOINT).media_type.startswith("application/x-langgraph")


def is_internal(name: str, state: State) -> bool:
    """Whether a slot has nothing of the user, but what a framework needs to go on: LangGraph's numbers of versions, and
    which node runs next."""
    return is_langgraph(state) and (name == CHECKPOINT or name.startswith(_EDGES))


def is_write(effect: RecordedEffect) -> bool:
    """Whether an effect is a pending write of LangGraph. The version that it led to says the same."""
    return _WRITE.fullmatch(effect.key) is not None


def is_internal_effect(effect: RecordedEffect) -> bool:
    """Whether an effect is a pending write that has nothing of the user, or a question, which stands beside it."""
    return is_write(effect) and (f"channel/{effect.name}".startswith(_EDGES) or effect.name in _QUESTIONS)


def signs_in(effect: RecordedEffect) -> list[str]:
    """Returns the channels by which LangGraph knows its next nodes, which a task wrote together with this effect."""
    stored = effect.stored_value
    if stored is None or not is_write(effect) or not stored.media_type.endswith(_ABOUT):
        return []
    about = json.loads(stored.data[4 : 4 + int.from_bytes(stored.data[:4], "big")])
    return [channel for _, channel in about.get("signs", ())]


def say_hidden(count: int, what: str) -> None:
    """Says how many slots or effects a command has left out."""
    if count:
        say(f"({counted(count, what)} of the framework's own; --internal shows {'it' if count == 1 else 'them'})")


def messages_log(thread: str, state: State) -> str:
    """Returns the log that has the messages. `state` has LOGS and SLOTS at least."""
    if is_langgraph(state):
        return CHANNEL
    if MESSAGES in state.logs:
        return MESSAGES
    if thread.startswith("adk/sessions/") and EVENTS in state.logs:
        return EVENTS
    if RECORD in state.slots and ENTRIES in state.logs:
        return ENTRIES
    if ITEMS in state.logs and not any(name in state.slots for name in SLOTS):
        return ITEMS
    return MESSAGES


def messages_of(entries: Iterable[Any]) -> list[Any]:
    """Returns the messages of the entries of such a log."""
    return [
        each["message"] if isinstance(each, dict) and isinstance(each.get("message"), dict) and "parent_id" in each
        else each for each in entries
    ]  # fmt: skip


def kept_in_slot(thread: str, state: State) -> list[Any]:
    """Returns the messages that the adapter for Strands keeps in a slot; none for other threads."""
    if not thread.startswith(STRANDS) or DATA not in state.slots:
        return []
    return _find(readable_in(thread, state.slots[DATA]), 4)


def _find(value: Any, levels: int) -> list[Any]:
    """Returns the list under the nearest key "messages"."""
    if not isinstance(value, dict) or not levels:
        return []
    if isinstance(found := value.get(MESSAGES), list):
        return found
    return next((found for each in value.values() if (found := _find(each, levels - 1))), [])

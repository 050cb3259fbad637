"""Counts the tools that agents called, and the calls that failed.

Calls are found in the logs "messages" and "tool_calls", in the usual shapes, and in the names of effects:

    {"role": "assistant", "tool_calls": [{"id", "function": {"name"}}]}       OpenAI; {"name", "args"} as in LangChain
    {"role" | "type": "tool", "tool_call_id" | "id", "status": "error"}       their results
    {"type": "function_call", "name", "call_id"}                              OpenAI, responses
    {"content": [{"type": "tool_use", "id", "name"}]}                         Anthropic
    {"content": [{"type": "tool_result", "tool_use_id", "is_error": true}]}   their results
    {"name" | "tool": "search", "error": "…"}                                 an entry of "tool_calls"
    stateward.agent.v1.ToolCall                                               the same, in the typed schema

A call failed if its result has such a status, an "error", "is_error", or a text that begins with the word Error. One
call often appears in two of these places. For each thread and tool only the place with the most calls counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from stateward.values import Json5, MsgPack

MESSAGES, TOOL_CALLS = "messages", "tool_calls"
FAILED_WORDS = {"error", "failed", "failure"}
FAILED_TEXT = re.compile(r"[\s\[<(*#`]*(?:(?:Error|ERROR)\b|error:|Traceback \(most recent call last\))")
RESULT_ROLES = ("tool", "function")
RESULT_TYPES = ("tool", "tool_result", "function_call_output")


@dataclass
class Calls:
    """Number of calls by name of the tool, in the order of the first calls."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def merge(self, other: Calls) -> None:
        """Merges counts of calls that may be the same: takes the larger number for each tool."""
        self.calls |= other.calls
        self.errors |= other.errors
        self.last = self.last or other.last


def count_calls(messages: Iterable[Any], tool_calls: Iterable[Any]) -> Calls:
    """Counts the calls in the entries of both logs."""
    found = _in_messages(_objects(messages))
    found.merge(_in_calls(_objects(tool_calls)))
    return found


def _objects(entries: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yields the entries that are objects; other entries cannot describe a call."""
    for entry in entries:
        found = entry.value if isinstance(entry, (Json5, MsgPack)) else entry
        if isinstance(found, Message):
            found = MessageToDict(found, preserving_proto_field_name=True)
        if isinstance(found, dict):
            yield found


def _in_messages(messages: Iterable[dict[str, Any]]) -> Calls:
    found, names = Calls(), dict[str, str]()
    for message in messages:
        for name, call_id in _called(message):
            found.calls[name] += 1
            found.last = names[call_id] = name
        for name, call_id in _failed(message):
            if name := names.get(call_id, "") or name:
                found.errors[name] += 1
    return found


def _in_calls(entries: Iterable[dict[str, Any]]) -> Calls:
    found = Calls()
    for entry in entries:
        if name := _name(entry):
            found.calls[name] += 1
            found.errors[name] += _says_error(entry) or _begins_with_error(entry)
            found.last = name
    return found


def _called(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields name and id of each call that a message makes."""
    listed = [*_dicts(message.get("tool_calls")), *_dicts([message.get("function_call")])]
    parts = [part for part in _dicts(message.get("content")) if part.get("type") in ("tool_use", "tool_call")]
    if message.get("type") in ("function_call", "tool_call"):
        parts.append(message)
    for call in (*listed, *parts):
        if name := _name(call):
            yield name, str(call.get("id") or call.get("call_id") or "")


def _failed(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields name (empty if missing) and id of each call that failed according to a message."""
    results = [part for part in _dicts(message.get("content")) if part.get("type") == "tool_result"]
    if message.get("role") in RESULT_ROLES or message.get("type") in RESULT_TYPES:
        results.append(message)
    for result in results:
        if _says_error(result) or _begins_with_error(result):
            names = ("tool_use_id", "tool_call_id", "call_id", "id")
            call_id = next((result[name] for name in names if result.get(name)), "")
            yield str(result.get("name") or ""), str(call_id or "")


def _name(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else call.get("name") or call.get("tool")
    return name if isinstance(name, str) else ""


def _says_error(entry: Mapping[str, Any]) -> bool:
    status, result = entry.get("status"), entry.get("result")
    word = status.lower() if isinstance(status, str) else ""
    # In a ToolCall the result holds the error, and the status is the name of an enum member.
    has_failed = word.endswith("_failed") or (isinstance(result, dict) and result.get("error"))
    return bool(entry.get("is_error") or entry.get("error") or word in FAILED_WORDS or has_failed)


def _begins_with_error(result: Mapping[str, Any]) -> bool:
    """Whether the text of a result begins with an error: many tools report errors only this way."""
    content = next((result[name] for name in ("content", "output", "result") if result.get(name)), "")
    if isinstance(content, list):
        content = next((part.get("text") for part in _dicts(content)), "")
    return isinstance(content, str) and bool(FAILED_TEXT.match(content))


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

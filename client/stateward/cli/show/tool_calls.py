"""Counts the tools that agents called, and the calls that failed.

Calls are found in messages and in the log "tool_calls", in the usual shapes, and in the names of effects:

    {"role": "assistant", "tool_calls": [{"id", "function": {"name"}}]}       OpenAI; {"name", "args"} as in LangChain
    {"role" | "type": "tool", "tool_call_id" | "id", "status": "error"}       their results
    {"type": "function_call", "name", "call_id"}                              OpenAI, responses
    {"content": [{"type": "tool_use", "id", "name"}]}                         Anthropic
    {"content": [{"type": "tool_result", "tool_use_id", "is_error": true}]}   their results
    {"content": [{"toolUse": {"name", "toolUseId"}}]}, {"toolResult": …}      Strands Agents
    {"contents": [{"type": "function_call", "name", "call_id"}]}              Microsoft Agent Framework
    {"content": {"parts": [{"functionCall": {"name", "id"}}]}}                Google ADK
    {"parts": [{"part_kind": "tool-call", "tool_name", "tool_call_id"}]}      Pydantic AI
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
    for each in messages:
        message = _usual(each)
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


def _usual(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message of one of the frameworks in a usual shape; any other as it is."""
    content = message.get("content")
    parts = _dicts(content.get("parts") if isinstance(content, dict) else message.get("parts"))
    found = [made for part in parts for made in (*_of_adk(part), *_of_pydantic(part))]
    found += [made for part in _dicts(content) for made in _of_strands(part)]
    found += [made for part in _dicts(message.get("contents")) for made in _of_microsoft(part)]
    return {"content": found} if found else message


def _of_adk(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    call = part.get("function_call") or part.get("functionCall")
    result = part.get("function_response") or part.get("functionResponse")
    if isinstance(call, dict):
        yield _use(call.get("name"), call.get("id"))
    if isinstance(result, dict):
        answer = result.get("response")
        error = isinstance(answer, dict) and (answer.get("error") or answer.get("isError"))
        yield {**_result(result.get("id"), answer, error=error), "name": result.get("name")}


def _of_pydantic(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part.get("part_kind")
    if kind in ("tool-call", "builtin-tool-call"):
        yield _use(part.get("tool_name"), part.get("tool_call_id"))
    if kind in ("tool-return", "retry-prompt") and part.get("tool_name"):
        error = kind == "retry-prompt" or part.get("outcome") == "failed"
        yield _result(part.get("tool_call_id"), part.get("content"), error=error)


def _of_strands(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    call, result = part.get("toolUse"), part.get("toolResult")
    if isinstance(call, dict):
        yield _use(call.get("name"), call.get("toolUseId"))
    if isinstance(result, dict):
        yield _result(result.get("toolUseId"), result.get("content"), error=result.get("status") == "error")


def _of_microsoft(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if part.get("type") == "function_call":
        yield _use(part.get("name"), part.get("call_id"))
    if part.get("type") == "function_result":
        yield _result(part.get("call_id"), part.get("result"), error=part.get("exception"))


def _use(name: Any, call_id: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "id": call_id}


def _result(call_id: Any, content: Any, *, error: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": bool(error)}


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

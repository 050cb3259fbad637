"""Logs whose entries are messages of one type."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar

from stateward import values
from stateward._state.log import Log
from stateward.agent._fields import checked, enum_number, stamp
from stateward.agent.v1.agent_pb2 import (
    Alternative,
    ContentPart,
    Decision,
    Fact,
    Message,
    Role,
    ToolCall,
    ToolCallStatus,
    ToolResult,
)
from stateward.state import State

E = TypeVar("E", Message, Decision, Fact, ToolCall)

RESULTS = "agent/results"
OPEN = (
    ToolCallStatus.TOOL_CALL_STATUS_UNSPECIFIED,
    ToolCallStatus.TOOL_CALL_STATUS_PENDING,
    ToolCallStatus.TOOL_CALL_STATUS_BEGUN,
)


class Entries(Generic[E]):
    """The entries of a log, oldest first. Raises TypeError if an entry has another type."""

    _log: str
    _kind: type[E]

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def log(self) -> Log:
        """The log itself, for its indexes and for trimming."""
        return self._state.logs[self._log]

    def __iter__(self) -> Iterator[E]:
        return (self[position] for position in range(len(self)))

    def __len__(self) -> int:
        return len(self.log)

    def __getitem__(self, position: int) -> E:
        return checked(self.log[position], self._kind, f"logs.{self._log}[{position}]")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    def append(self, entry: E) -> E:
        """Adds an entry at the end."""
        self.log.append(checked(entry, self._kind, f"logs.{self._log}"))
        return entry


class Messages(Entries[Message]):
    """The conversation."""

    _log, _kind = "messages", Message

    def add(
        self,
        role: str | int,
        *parts: str | ContentPart,
        tool_calls: Iterable[ToolCall | str] = (),
        answers: ToolCall | str = "",
        name: str = "",
        time: datetime | None = None,
    ) -> Message:
        """Adds a message with the `tool_calls` that it makes. `answers` is the call that a tool's message answers.

        `time` None = now.
        """
        return self.append(
            Message(
                role=enum_number(Role, "ROLE", role),
                parts=[ContentPart(text=part) if isinstance(part, str) else part for part in parts],
                tool_call_ids=map(_id_of, tool_calls),
                tool_call_id=_id_of(answers),
                name=name,
                create_time=stamp(time),
            )
        )


class Decisions(Entries[Decision]):
    """The decisions, with their reasons."""

    _log, _kind = "decisions", Decision

    def add(
        self,
        text: str,
        *,
        reason: str = "",
        alternatives: Iterable[str | Alternative] = (),
        time: datetime | None = None,
    ) -> Decision:
        """Records a decision; `time` None = now."""
        others = [Alternative(text=each) if isinstance(each, str) else each for each in alternatives]
        return self.append(Decision(text=text, reason=reason, alternatives=others, create_time=stamp(time)))


class Facts(Entries[Fact]):
    """The facts that the agent believes, with their sources."""

    _log, _kind = "facts", Fact

    def add(
        self, text: str, *, source: str = "", confidence: float | None = None, time: datetime | None = None
    ) -> Fact:
        """Records a fact; `confidence` is 0 to 1, `time` None = now."""
        if confidence is not None and not 0 <= confidence <= 1:
            raise ValueError(f"confidence is 0 to 1, not {confidence}")
        return self.append(Fact(text=text, source=source, confidence=confidence, create_time=stamp(time)))


class ToolCalls(Entries[ToolCall]):
    """The tool calls. Record and save a call before you make it, so that the agent knows of it after a restart."""

    _log, _kind = "tool_calls", ToolCall

    def begin(
        self,
        name: str,
        arguments: Any = None,
        *,
        id: str = "",  # noqa: A002
        idempotency_key: str | None = None,
        time: datetime | None = None,
    ) -> ToolCall:
        """Records a call that is about to be made; save before you make it. `id` empty = a random id. The id is also
        the idempotency key if no other key is given. `time` None = now."""
        id_ = id or os.urandom(8).hex()
        return self.append(
            ToolCall(
                id=id_,
                name=name,
                arguments_json="" if arguments is None else json.dumps(arguments, ensure_ascii=False, allow_nan=False),
                idempotency_key=id_ if idempotency_key is None else idempotency_key,
                status=ToolCallStatus.TOOL_CALL_STATUS_BEGUN,
                begin_time=stamp(time),
            )
        )

    def finish(self, call: ToolCall | str, result: Any = None, *, time: datetime | None = None) -> ToolCall:
        """Records the result of a call, which is any value that a state can hold. A Blob gets its own slot, and the
        call names that slot. Raises KeyError if the call does not exist. `time` None = now."""
        found = self.find(_id_of(call))
        outcome = ToolResult(create_time=stamp(time))
        if isinstance(result, values.Blob):
            outcome.slot = f"{RESULTS}/{found.id}"
            self._state.slots[outcome.slot] = result
        elif result is not None:
            outcome.inline.CopyFrom(values.encode(result, f"logs.{self._log}: result of {found.id}"))
        return _end(found, ToolCallStatus.TOOL_CALL_STATUS_DONE, outcome)

    def fail(self, call: ToolCall | str, error: str, *, time: datetime | None = None) -> ToolCall:
        """Records that a call failed. Raises KeyError if the call does not exist. `time` None = now."""
        outcome = ToolResult(error=error, create_time=stamp(time))
        return _end(self.find(_id_of(call)), ToolCallStatus.TOOL_CALL_STATUS_FAILED, outcome)

    def result(self, call: ToolCall | str) -> Any:
        """Returns the result of a call; None = no result, or the call has not ended. Raises RuntimeError, with the
        recorded error, if the call failed, and KeyError if it does not exist."""
        found = self.find(_id_of(call))
        match found.result.WhichOneof("outcome"):
            case "inline":
                return values.decode(found.result.inline, f"logs.{self._log}: result of {found.id}")
            case "slot":
                return self._state.slots[found.result.slot]
            case "error":
                raise RuntimeError(f"tool {found.name!r} failed: {found.result.error}")
        return None

    def find(self, id_: str) -> ToolCall:
        """Returns the newest call with this id. Raises KeyError if there is none."""
        for position in reversed(range(len(self))):
            if self[position].id == id_:
                return self[position]
        raise KeyError(f"tool call {id_!r}")

    def unfinished(self) -> list[ToolCall]:
        """Returns the calls whose outcome is unknown, oldest first. In a partial state only the entries that were read
        are searched: hydrate the whole log `tool_calls` to find all of them."""
        return [call for call in self if call.status in OPEN]


def _id_of(call: ToolCall | str) -> str:
    return call if isinstance(call, str) else call.id


def _end(call: ToolCall, status: ToolCallStatus, outcome: ToolResult) -> ToolCall:
    call.status = status
    call.result.CopyFrom(outcome)
    return call

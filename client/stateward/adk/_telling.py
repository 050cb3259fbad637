"""What the events of a session tell about the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event
from google.genai.types import FunctionCall, FunctionResponse, Part

from stateward._answering import Decision
from stateward._telling import COMPLETED, RUNNING, Told, call_of, failed, waiting

USER = "user"
_CONFIRMATION = "adk_request_confirmation"


def status_after(events: Sequence[Event]) -> Told:
    """What the last event tells, with those since the user's last message.

    Calls that run longer than the agent, confirmations among them, wait until the user's next message, which brings
    their results. A final response is the end if the agent stands alone: inside of another agent or a workflow others
    may follow, and a session service does not see them.
    """
    last = events[-1]
    if last.author == USER:
        return RUNNING
    if asked := calls_asked(events):
        return waiting((name, _prompt(call.name, call.args or {}), None) for name, call in asked.items())
    if last.error_code:
        return failed(f"{last.error_code}: {last.error_message}" if last.error_message else str(last.error_code))
    path = last.node_info.path
    return COMPLETED if last.is_final_response() and path and "/" not in path else RUNNING


def calls_asked(events: Sequence[Event]) -> dict[str, FunctionCall]:
    """The calls that wait for a result from outside, by their ids."""
    found = dict[str, FunctionCall]()
    for event in reversed(events):
        if event.author == USER:
            break
        for call in event.get_function_calls() if event.long_running_tool_ids else ():
            if call.id and call.id in (event.long_running_tool_ids or ()):
                found[call.id] = call
    return dict(reversed(found.items()))


def answer_of(call: FunctionCall, decision: Decision) -> Part:
    """The part of a user's message that gives a call its result."""
    value = decision.value
    if call.name == _CONFIRMATION:
        payload = decision.note if isinstance(value, bool) else value
        response: dict[str, Any] = {"confirmed": value is not False, "payload": payload}
    else:
        response = value if isinstance(value, dict) else {"result": value}
    return Part(function_response=FunctionResponse(id=call.id, name=call.name, response=response))


def _prompt(name: Any, arguments: dict[str, Any]) -> str:
    if name != _CONFIRMATION:
        return call_of(name, arguments)
    original = arguments.get("originalFunctionCall") or {}
    hint = (arguments.get("toolConfirmation") or {}).get("hint") or ""
    called = call_of(original.get("name"), original.get("args") or {})
    return f"{called}: {hint}" if hint else called

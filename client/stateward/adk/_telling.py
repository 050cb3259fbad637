"""What the events of a session tell about the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event

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
    if asked := _asked(events):
        return waiting(asked.items())
    if last.error_code:
        return failed(f"{last.error_code}: {last.error_message}" if last.error_message else str(last.error_code))
    path = last.node_info.path
    return COMPLETED if last.is_final_response() and path and "/" not in path else RUNNING


def _asked(events: Sequence[Event]) -> dict[str, str]:
    found = dict[str, str]()
    for event in reversed(events):
        if event.author == USER:
            break
        for call in event.get_function_calls() if event.long_running_tool_ids else ():
            if call.id and call.id in (event.long_running_tool_ids or ()):
                found[call.id] = _prompt(call.name, call.args or {})
    return dict(reversed(found.items()))


def _prompt(name: Any, arguments: dict[str, Any]) -> str:
    if name != _CONFIRMATION:
        return call_of(name, arguments)
    original = arguments.get("originalFunctionCall") or {}
    hint = (arguments.get("toolConfirmation") or {}).get("hint") or ""
    called = call_of(original.get("name"), original.get("args") or {})
    return f"{called}: {hint}" if hint else called

"""The danger: a tool that fails all the time, and a table that says it never did."""

from __future__ import annotations

from typing import Any

import pytest

from stateward.insight import count_calls


def called(call_id: str = "c1") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": "search"}}]}


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "id": "c1", "error": True},
        {"role": "tool", "id": "c1", "content": "Error: no such city"},
        {"role": "tool", "tool_call_id": "c1", "content": "error: no"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "[ERROR] timed out"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Traceback (most recent call last):\n  File"},
        {"role": "function", "name": "search", "content": "Error executing search"},
        {"type": "function_call_output", "call_id": "c1", "output": "Error: 404"},
        {"type": "tool_result", "id": "c1", "is_error": True},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "Error: x"}]},
    ],
)
def test_results_that_say_an_error(result: dict[str, Any]) -> None:
    """However a result says that it is one, and by whatever name it has the call's id."""
    found = count_calls([called(), result], [])
    assert (found.calls["search"], found.errors["search"]) == (1, 1)


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "c1", "content": "Errors and how to avoid them"},
        {"role": "tool", "tool_call_id": "c1", "content": "found 3; Error: none"},
        {"role": "tool", "tool_call_id": "c1", "content": '{"error": null}', "error": None},
        {"role": "assistant", "id": "c1", "content": "Error: I was wrong"},
        {"role": "user", "content": "Error: why?"},
    ],
)
def test_what_is_no_failure(result: dict[str, Any]) -> None:
    """A text that only speaks of errors, and what no tool has said, count for nothing."""
    assert count_calls([called(), result], []).errors["search"] == 0


def test_entries_of_the_log_of_calls() -> None:
    """In the log "tool_calls" the same words count."""
    entries = [
        {"name": "a", "error": True},
        {"name": "b", "result": "Error: x"},
        {"name": "c", "result": {"rows": 1}},
        {"name": "d", "output": "fine"},
    ]
    assert +count_calls([], entries).errors == {"a": 1, "b": 1}

"""The danger: values of frameworks appear as base64 on the screen, or a command runs the code that they name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward.cli.show.decoding import readable, readable_in
from stateward.cli.show.describe import compact, plain, summarize, whole
from stateward.cli.show.layouts import messages_of
from stateward.cli.show.msgpack import unpack
from stateward.cli.show.tool_calls import count_calls
from stateward.values import RawValue

msgpack = pytest.importorskip("msgpack", reason="the package msgpack is not installed")
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20), max_leaves=40,
)  # fmt: skip


def none(code: int, data: bytes, depth: int) -> Any:
    raise ValueError(f"extension {code} of {len(data)} bytes at {depth}")


@given(TREES)
def test_messagepack_is_read_as_the_package_reads_it(value: Any) -> None:
    """Texts, numbers, bytes, lists and maps of every width."""
    assert unpack(msgpack.packb(value), none) == value


@given(st.binary(max_size=200))
def test_garbage_is_no_trap(data: bytes) -> None:
    """Whatever the bytes are, a value of LangGraph is shown, and never as base64."""
    for kind in ("msgpack", "json", "null", "msgpack; about", "pickle"):
        assert "base64" not in compact(RawValue(f"application/x-langgraph; type={kind}", data), 200)


def test_sizes_that_lie_and_depth_cost_nothing() -> None:
    """A list of four billion items in five bytes, and a thousand lists inside each other, are refused at once."""
    lists = [bytes([code]) + b"\xff" * 4 for code in (0xDD, 0xDF, 0xC9)]
    for data in (*lists, b"\x91" * 1000 + b"\x90"):
        with pytest.raises(ValueError, match=r"early|deep"):
            unpack(data, none)


def test_objects_are_shown_without_their_classes() -> None:
    """LangGraph's serializer names classes; none of them is imported, and texts and numbers are there."""
    jsonplus = pytest.importorskip("langgraph.checkpoint.serde.jsonplus")
    messages = pytest.importorskip("langchain_core.messages")
    order = dataclasses.make_dataclass("Order", [("city", str), ("price", int)], namespace={"__module__": "shop"})
    value = {
        "order": order("Rome", 3), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "id": uuid.UUID(int=7),
        "tags": {"a"}, "photo": b"\0" * 3000, "said": [messages.HumanMessage("Hi", id="1")],
    }  # fmt: skip
    stored = RawValue("application/x-langgraph; type=msgpack", jsonplus.JsonPlusSerializer().dumps_typed(value)[1])
    shown = readable(stored)
    assert shown["order"] == {"type": "shop.Order", "city": "Rome", "price": 3}
    assert shown["at"] == "2026-01-02T00:00:00+00:00"
    assert shown["id"] == uuid.UUID(int=7).hex
    assert shown["tags"] == ["a"]
    assert shown["said"] == [{"role": "user", "content": "Hi", "id": "1"}]
    assert '"<2.93 KiB of application/octet-stream>"' in compact(stored, 2000)
    assert "shop" not in sys.modules


def test_what_nobody_can_read_has_a_type_and_a_size() -> None:
    """A pickle, bytes in JSON and pickles of Microsoft's framework; scripts still get the bytes of the first two."""
    pickle = RawValue("application/x-langgraph; type=pickle", b"x" * 2000)
    assert compact({"a": [pickle]}, 200) == '{"a": ["<1.95 KiB of application/x-langgraph; type=pickle>"]}'
    assert "base64" in plain(pickle)
    kept = {"executor": {"__pickled__": "A" * 4000, "__type__": "shop:Order"}}
    assert compact(kept, 200) == '{"executor": {"type": "shop.Order", "size_bytes": 3000}}'
    assert "AAAA" not in "".join(whole(kept))


def test_values_of_langgraph_js() -> None:
    """JSON in which objects are constructors; messages look as those of Python do."""
    data = b"""{"said": [{"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "AIMessage"], "kwargs":
        {"content": "Hi", "tool_calls": [{"name": "search", "args": {}, "id": "c"}]}}], "none": {"lc": 2,
        "type": "undefined"}, "set": {"lc": 2, "type": "constructor", "id": ["Set"], "args": [[1, 2]]}}"""
    shown = readable(RawValue("application/x-langgraph-js; type=json", data))
    calls = [{"name": "search", "args": {}, "id": "c"}]
    assert shown == {
        "said": [{"role": "assistant", "content": "Hi", "tool_calls": calls}], "none": None, "set": [1, 2]
    }  # fmt: skip
    assert summarize(shown["said"][0], 80) == "assistant  Hi  search()"
    calls[0]["args"] = {"city": "Rome", "most": 1200}
    shown["said"][0]["tool_calls"] = calls
    assert summarize(shown["said"][0], 80) == 'assistant  Hi  search({"city": "Rome", "most": 1200})'
    assert summarize(shown["said"][0], 40) == 'assistant  Hi  search({"city": "Rome", …'


@pytest.mark.parametrize("levels", [90, 400, 900])
def test_deep_objects_are_shown_without_their_classes(levels: int) -> None:
    """Those of LangGraph.js, however deep they are."""
    data = b'{"lc": 1, "type": "constructor", "id": ["shop", "Order"], "kwargs": {"city": "Rome"}}'
    found = readable(RawValue("application/x-langgraph-js; type=json", b"[" * levels + data + b"]" * levels))
    for _ in range(levels):
        (found,) = found
    assert found == {"type": "shop.Order", "city": "Rome"}


FORMS: dict[str, list[Any]] = {
    "Strands": [
        {"role": "assistant", "content": [{"toolUse": {"name": "search", "toolUseId": "1", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "status": "error", "content": []}}]},
    ],
    "Microsoft": [
        {"role": "assistant", "contents": [{"type": "function_call", "name": "search", "call_id": "1"}]},
        {"role": "tool", "contents": [{"type": "function_result", "call_id": "1", "exception": "full"}]},
    ],
    "ADK": [
        {"author": "a", "content": {"parts": [{"functionCall": {"name": "search", "id": "1"}}]}},
        {"content": {"parts": [{"functionResponse": {"name": "search", "id": "1", "response": {"error": "full"}}}]}},
    ],
    "Pydantic AI": messages_of([
        {"id": "a", "parent_id": None, "message": {
            "parts": [{"part_kind": "tool-call", "tool_name": "search", "tool_call_id": "1"}]}},
        {"id": "b", "parent_id": "a", "message": {
            "parts": [{"part_kind": "retry-prompt", "tool_name": "search", "tool_call_id": "1", "content": "full"}]}},
    ]),
    "OpenAI": [
        {"type": "function_call", "name": "search", "call_id": "1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "Error: full"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_calls_of_tools_in_every_form(form: str) -> None:
    """Each framework's messages tell the calls, and which of them failed."""
    found = count_calls(FORMS[form], [])
    assert (dict(found.calls), +found.errors) == ({"search": 1}, {"search": 1})


def test_a_snapshot_of_strands_is_json() -> None:
    """Its bytes are shown as what they hold, in threads of the adapter only."""
    assert readable_in("strands/a", b'{"a": 1}') == {"a": 1}
    assert readable_in("mine", b'{"a": 1}') == b'{"a": 1}'
    assert readable_in("strands/a", b"\xff") == b"\xff"

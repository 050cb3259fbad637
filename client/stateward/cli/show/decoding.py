"""Shows what frameworks keep, without their classes and without running code: structure, texts and numbers.

A reader is registered for a media type, and returns plain values. An object becomes {"type": its name, …} with what it
holds. A message of LangChain becomes {"role", "content", "tool_calls", …}, as in chat formats. What nobody can read
here, such as a pickle, stays a RawValue, which the commands show as its type and size.

    application/x-langgraph        LangGraph: MessagePack, whose extensions hold names of classes and their arguments
    application/x-langgraph-js     LangGraph.js: JSON, in which {"lc": 1, "type": "constructor"} is an object
    application/octet-stream       Strands Agents: JSON, only in threads of this adapter
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time, timedelta
from typing import Any

from stateward._walking import ATOMS, Walk, run
from stateward.cli.show.msgpack import unpack
from stateward.values import RawValue

STRANDS = "strands/"
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_MESSAGE_FIELDS = "content", "name", "tool_calls", "tool_call_id", "status", "id"
_LISTS = {"builtins.set", "builtins.frozenset", "collections.deque", "builtins.tuple"}
_TEXTS = {"uuid.UUID", "decimal.Decimal", "zoneinfo.ZoneInfo"}
_PICKLED = "__pickled__", "__type__"


def readable(value: Any) -> Any:
    """Returns a value as its reader shows it; the same value if there is no reader, or its bytes do not fit."""
    if not isinstance(value, RawValue):
        return value
    media_type, _, parameters = value.media_type.partition(";")
    reader = _READERS.get(media_type.strip().lower())
    try:
        return value if reader is None else reader(parameters, value)
    except (ValueError, OverflowError, RecursionError, IndexError, KeyError, TypeError):
        return value


def readable_in(thread: str, value: Any) -> Any:
    """Does the same for a value of this thread: the adapter for Strands keeps its JSON as bytes."""
    if isinstance(value, bytes) and thread.startswith(STRANDS):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return readable(value)


def without_pickles(value: dict[Any, Any]) -> dict[Any, Any]:
    """Returns an object; of a pickle that Microsoft's Agent Framework keeps as text, only its type and size."""
    if all(isinstance(value.get(name), str) for name in _PICKLED):
        return {"type": value["__type__"].replace(":", "."), "size_bytes": len(value["__pickled__"]) * 3 // 4}
    return value


# -- LangGraph --------------------------------------------------------------------------------------------------------


def _langgraph(parameters: str, value: RawValue) -> Any:
    kind, _, about = parameters.strip().removeprefix("type=").partition(";")
    data = value.data
    if about:  # names before the bytes of a pending write
        data = data[4 + int.from_bytes(data[:4], "big") :]
    match kind:
        case "null":
            return None
        case "bytes" | "bytearray":
            return RawValue("application/octet-stream", data)
        case "msgpack":
            return unpack(data, _extension)
        case "json":
            return run(_object_of(json.loads(data)))
    return value


def _extension(code: int, data: bytes, depth: int) -> Any:
    found = unpack(data, _extension, depth)
    if code == 6:  # an array of numpy: type, shape, order, bytes
        return {"type": "numpy.ndarray", "dtype": str(found[0]), "shape": found[1]}
    if code == 7:  # a whole value of a channel that is stored as changes
        return found
    if not isinstance(found, list) or len(found) < 3 or code not in range(6):
        return {"type": f"extension {code}", "size_bytes": len(data)}
    name, held = f"{found[0]}.{found[1]}", found[2]
    if (shown := _time(name, held)) is not None:
        return shown
    if code == 3 or name in _TEXTS:  # made from one text, such as a time
        return held
    if name in _LISTS:
        return held
    if code == 1 and name.startswith("pathlib.") and isinstance(held, list):
        return "/".join(map(str, held)).replace("//", "/")
    return _made(name, held)


def _time(name: str, held: Any) -> str | None:
    """A date, a time or a duration as text, as the question about it has it; None = it is something else."""
    if name == "datetime.date" and isinstance(held, list):
        return date(*held).isoformat()
    if name == "datetime.timedelta" and isinstance(held, list):
        return str(timedelta(*held))
    if name == "datetime.time" and isinstance(held, dict) and not held.get("tzinfo"):
        return time(*(held[part] for part in ("hour", "minute", "second", "microsecond"))).isoformat()
    return None


def _made(name: str, held: Any) -> Any:
    """An object with the name of its class, and what it was made from."""
    if not isinstance(held, dict):
        return {"type": name, "value": held}
    if name.startswith("langchain_core.messages.") and "content" in held:
        return _message(name, held)
    return {"type": name, **{key if key != "type" else "type_": each for key, each in held.items()}}


def _message(name: str, held: dict[str, Any]) -> dict[str, Any]:
    kind = str(held.get("type") or name.rpartition(".")[2].removesuffix("Chunk").removesuffix("Message")).lower()
    role = str(held.get("role") or "") if kind == "chat" else _ROLES.get(kind, kind)
    found: dict[str, Any] = {"role": role}
    for field in _MESSAGE_FIELDS:
        if held.get(field) or field == "content":
            found[field] = held[field]
    calls = (held.get("additional_kwargs") or {}).get("tool_calls")
    if calls and "tool_calls" not in found:
        found["tool_calls"] = calls
    if found.get("status") == "success":
        del found["status"]
    return found


# -- LangGraph.js -----------------------------------------------------------------------------------------------------


def _langgraph_js(parameters: str, value: RawValue) -> Any:
    kind = parameters.strip().removeprefix("type=").partition(";")[0]
    return run(_object_of(json.loads(value.data))) if kind == "json" else value


def _object_of(value: Any) -> Walk[Any]:
    if isinstance(value, list):
        items = []
        for each in value:  # a comprehension cannot yield
            items.append(each if type(each) in ATOMS else (yield _object_of(each)))  # noqa: PERF401
        return items
    if not isinstance(value, dict):
        return value
    name = value.get("id")
    if value.get("lc") in (1, 2) and value.get("type") == "undefined":
        return None
    if value.get("lc") in (1, 2) and value.get("type") == "constructor" and isinstance(name, list):
        held = yield _object_of(value.get("kwargs") or value.get("args") or {})
        name = ".".join(map(str, name))
        if name.split(".")[-1] in ("Set", "Map") and isinstance(held, list):
            return held[0] if len(held) == 1 else held
        return _made(name, held)
    made = {}
    for key, each in value.items():
        made[key] = each if type(each) in ATOMS else (yield _object_of(each))
    return made


_READERS: dict[str, Callable[[str, RawValue], Any]] = {
    "application/x-langgraph": _langgraph,
    "application/x-langgraph-js": _langgraph_js,
}

"""What adapters tell about the work of their frameworks: status and question, as options of a save."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypedDict
from uuid import UUID

from stateward._naming import name_for
from stateward._walking import ATOMS, Walk, run
from stateward.models import Status
from stateward.signals import Question, QuestionPart

DETAIL_BYTES_MAX, PROMPT_BYTES_MAX, PARTS_MAX = 4096, 8000, 100
TEXT_BYTES_MAX = 60_000
YES_OR_NO = {"type": "boolean"}
"""Schema of the answer to a call that needs an approval."""


class Told(TypedDict, total=False):
    """Options of a save."""

    status: Status
    status_detail: str
    wait_id: str
    question: Question


RUNNING: Told = {"status": Status.RUNNING}
COMPLETED: Told = {"status": Status.COMPLETED}


def failed(detail: str) -> Told:
    """The work has failed."""
    return {"status": Status.FAILED, "status_detail": cut(detail, DETAIL_BYTES_MAX)}


def waiting(asked: Iterable[tuple[str, str, Any]]) -> Told:
    """The work waits for answers: each is asked under a name, with a prompt and a schema of the answer or None. What is
    asked again has the same wait id. Of more parts than a question may have, the first are asked."""
    found = {name: (prompt, schema) for name, prompt, schema in asked}
    room = min(PROMPT_BYTES_MAX, TEXT_BYTES_MAX // max(1, min(len(found), PARTS_MAX)))
    parts = [
        QuestionPart(name_for(name), cut(prompt, room), schema)
        for name, (prompt, schema) in list(found.items())[:PARTS_MAX]
    ]
    only = parts[0].schema if len(parts) == 1 else None
    question = Question("\n".join(each.prompt for each in parts), only, parts=tuple(parts))
    return {"status": Status.WAITING, "wait_id": name_of(*(each.name for each in parts)), "question": question}


def name_of(*facts: Any) -> str:
    """A wait id that is the same whenever the same is asked, so an answer fits after a restart."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def call_of(name: Any, arguments: Any) -> str:
    """A call of a tool as a person reads it."""
    return f"{name}({arguments if isinstance(arguments, str) else prompt_of(arguments)})"


def prompt_of(value: Any) -> str:
    """Returns a value as the text that a person is asked."""
    if isinstance(value, str):
        return value
    try:
        plain = run(_plain(value))
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    except Exception:  # noqa: BLE001  a program's object may do anything; the write must not fail
        return f"<{type(value).__name__}>"


def _plain(value: Any) -> Walk[Any]:
    """A value as JSON has it, with amounts and dates as a person reads them, and as the commands show them."""
    match value:
        case Enum():
            return (yield _plain(value.value))
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return (yield from _plain_dict(value.items()))
        case list() | tuple() | deque():
            return (yield from _plain_list(value))
        case set() | frozenset():
            return sorted((yield from _plain_list(value)), key=_order)
        case date() | time():  # a datetime, too
            return value.isoformat()
        case Decimal() | timedelta() | UUID() | PurePath() | tzinfo():
            return str(value)
    if callable(dump := getattr(value, "model_dump", None)):  # a message, or another model of pydantic
        return dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return (yield from _plain_dict((each.name, getattr(value, each.name)) for each in fields(value)))
    return f"<{type(value).__name__}>"


def _plain_dict(items: Iterable[tuple[Any, Any]]) -> Walk[dict[Any, Any]]:
    found = {}
    for key, each in items:
        name = key if key is None or isinstance(key, str | int | float) else str((yield _plain(key)))
        found[name] = each if type(each) in ATOMS else (yield _plain(each))
    return found


def _plain_list(values: Iterable[Any]) -> Walk[list[Any]]:
    found = []
    for each in values:
        found.append(each if type(each) in ATOMS else (yield _plain(each)))  # noqa: PERF401  a comprehension cannot yield
    return found


def _order(plain: Any) -> Any:
    is_number = isinstance(plain, int | float)
    return not is_number, plain if is_number else 0, str(plain)


def cut(text: str, bytes_max: int) -> str:
    """Returns the text, or its beginning and an ellipsis. Lone surrogates become question marks."""
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "…"

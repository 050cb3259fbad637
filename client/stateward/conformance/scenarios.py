"""The golden exchanges: files of the message Scenario in text format, one for each scenario."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from google.protobuf import text_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2  # noqa: F401  the files have its messages in Any

from stateward.conformance.v1.scenario_pb2 import Scenario, Turn

SUFFIX = ".textproto"
THREAD = "conformance/"
"""Before the name of a scenario: the name of its thread."""
UID = "0123456789abcdef0123456789abcdef"
"""The uid of every thread, unless a scenario says another one."""


def _root() -> Traversable:
    return files("stateward.conformance") / "scenarios"


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all scenarios, such as `advance/split-values`, by procedure."""
    folders = sorted((each for each in _root().iterdir() if each.is_dir()), key=lambda folder: folder.name)
    return tuple(
        f"{folder.name}/{name.removesuffix(SUFFIX)}"
        for folder in folders
        for name in sorted(file.name for file in folder.iterdir())
        if name.endswith(SUFFIX)
    )


def source(name: str) -> str:
    """Returns the text of a scenario's file. Raises KeyError if there is none of this name."""
    if name not in names():
        raise KeyError(name)
    return (_root() / f"{name}{SUFFIX}").read_text("utf-8")


def load(name: str) -> Scenario:
    """Returns a scenario. Raises KeyError if there is none of this name."""
    scenario = text_format.Parse(source(name), Scenario())
    for turn in scenario.turns:
        for answer in _answers(turn):
            if "receipt" in answer.DESCRIPTOR.fields_by_name and answer.HasField("receipt"):
                answer.receipt.uid = answer.receipt.uid or UID  # type: ignore[attr-defined]
    return scenario


def _answers(turn: Turn) -> Iterator[Message]:
    """The answers of the daemon in a turn, without streams that have no receipts."""
    calls = {field.name for field in turn.DESCRIPTOR.oneofs_by_name["call"].fields}
    for field, value in turn.ListFields():
        if field.name not in calls and isinstance(value, Message):
            yield value
    if turn.HasField("write"):
        yield turn.write.opened
        yield from (frame.answer.saved.save for frame in turn.write.frames)

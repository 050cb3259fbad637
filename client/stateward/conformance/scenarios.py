"""The golden exchanges: files of the message Scenario in text format, one for each scenario."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from google.protobuf import text_format

from stateward.conformance.v1.scenario_pb2 import Scenario

SUFFIX = ".textproto"
THREAD = "conformance/"
"""Before the name of a scenario: the name of its thread."""


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
    return text_format.Parse(source(name), Scenario())

"""How LangGraph's names lie in Stateward's: threads, checkpoint namespaces, checkpoint ids, channels and runs.

LangGraph's own savers take any text of any length. A text that is no name of Stateward becomes one (see `_naming`). If
the name has only the digest of the text, the text is stored beside what it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from stateward._naming import NAME_BYTES_MAX, name_for, text_of
from stateward.v1 import checkpoint_pb2

MAIN, _ESCAPE = "main", "ns/"
CHANNEL = "channel/"
NAMES_MAX = 1000
"""How many names of channels are remembered: a graph writes the same ones at every step."""
_CHANNEL_BYTES_MAX = NAME_BYTES_MAX - len(CHANNEL)


def thread_of(thread_id: Any) -> str:
    """Returns the thread of a thread id."""
    return name_for(str(thread_id))


def branch_of(checkpoint_ns: str) -> str:
    """Returns the branch of a checkpoint namespace. The root's is main."""
    if not checkpoint_ns:
        return MAIN
    is_taken = checkpoint_ns == MAIN or checkpoint_ns.startswith(_ESCAPE)
    return name_for(_ESCAPE + checkpoint_ns if is_taken else checkpoint_ns)


def namespace_of(branch: str) -> str | None:
    """The reverse of `branch_of`; None = the branch has only the digest of its namespace."""
    if branch == MAIN:
        return ""
    text = text_of(branch)
    return None if text is None else text.removeprefix(_ESCAPE)


def by_id(checkpoint_id: str | None) -> checkpoint_pb2.VersionRef | None:
    """Returns a reference to the version of a checkpoint; None = the newest one."""
    return checkpoint_pb2.VersionRef(checkpoint_id=name_for(checkpoint_id)) if checkpoint_id else None


@lru_cache(NAMES_MAX)
def channel_name(channel: str) -> str:
    """Returns the name of a channel. That of its slot or log is CHANNEL and this name."""
    return name_for(channel, _CHANNEL_BYTES_MAX)


@lru_cache(NAMES_MAX)
def effect_name(channel: str) -> str:
    """Returns the name of the effect that has a write to a channel."""
    return name_for(channel)


def channels_of(names: Iterable[str], known: Iterable[str]) -> Mapping[str, str]:
    """Returns channels by their names. `known`: the channels of the checkpoint, for names that have only a digest."""
    found = {name: text_of(name) for name in names}
    if None in found.values():
        digests = {channel_name(each): each for each in known}
        found = {name: digests.get(name, name) if text is None else text for name, text in found.items()}
    return {name: str(text) for name, text in found.items()}

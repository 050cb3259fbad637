"""Questions about many runs: which tools agents used, and where runs failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateward.cli.tool_calls import MESSAGES, TOOL_CALLS, Calls, count_calls
from stateward.cli.trajectories import entries_of, whole_log
from stateward.effects import EffectState
from stateward.errors import FeatureUnavailable, ThreadNotFound
from stateward.models import Status

if TYPE_CHECKING:
    from datetime import datetime

    from stateward import Client, Thread, ThreadInfo
    from stateward._operations.threads import ThreadFilters

PAGE_MAX = 1000
# Of a run that failed: the tool it called last stands near the end.
LAST_MESSAGES = 20


@dataclass(frozen=True)
class ToolUse:
    """How a tool was used in the threads that were looked at."""

    name: str
    calls: int
    errors: int
    """Calls whose result says that they failed."""
    threads: int
    """In how many threads it was called."""
    last_thread: str
    """The most recently changed one of them."""
    last_error_thread: str
    """The most recently changed one in which it failed; empty = it never did."""


@dataclass(frozen=True)
class Failure:
    """A version that says that the run failed, the newest such version of its thread."""

    thread: str
    version: int
    branch: str
    step: int | None
    status_detail: str
    time: datetime
    tool: str
    """The tool that was called last before it; empty = none is known."""
    is_overcome: bool
    """True where the thread has another status by now."""


def tools_used(client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters) -> list[ToolUse]:
    """Tools by how often they were called in the threads that are named, or in those that fit; the most used first.

    Reads the logs "messages" and "tool_calls" of each thread, with what was trimmed, and the names of its effects.
    """
    total = Calls()
    threads: Counter[str] = Counter()
    last: dict[str, str] = {}
    last_error: dict[str, str] = {}
    for info in _chosen(client, names, agent, filters):
        thread = client.thread(info.name)
        try:
            state = thread.hydrate(logs=[MESSAGES, TOOL_CALLS])
            calls = count_calls(*(whole_log(thread, state, log)[0] for log in (MESSAGES, TOOL_CALLS)))
        except ThreadNotFound:
            continue  # deleted meanwhile
        calls.merge(_recorded(thread))
        total.calls += calls.calls
        total.errors += calls.errors
        for name in calls.calls:  # the most recently changed thread comes first
            threads[name] += 1
            last.setdefault(name, info.name)
            if calls.errors[name]:
                last_error.setdefault(name, info.name)
    found = [
        ToolUse(name, count, total.errors[name], threads[name], last[name], last_error.get(name, ""))
        for name, count in total.calls.items()
    ]
    return sorted(found, key=lambda each: (-each.calls, each.name))


def failures(client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters) -> list[Failure]:
    """Where runs failed last, the newest first; without names of the threads that are failed now.

    Of a thread that is named also a failure that was overcome.
    """
    found: list[Failure] = []
    names = list(names)
    if not names:
        filters = {**filters, "status": Status.FAILED}
    for info in _chosen(client, names, agent, filters):
        thread = client.thread(info.name)
        try:
            failed = next(iter(thread.checkpoints(statuses=[Status.FAILED], page_size=1)), None)
            if failed is None:
                continue
            state = thread.hydrate(failed.version, logs=dict.fromkeys((MESSAGES, TOOL_CALLS), LAST_MESSAGES))
        except ThreadNotFound:
            continue  # deleted meanwhile
        tool = count_calls(entries_of(state, MESSAGES).values(), entries_of(state, TOOL_CALLS).values()).last
        found.append(
            Failure(
                thread=failed.thread,
                version=failed.version,
                branch=failed.branch,
                step=failed.step,
                status_detail=failed.status_detail,
                time=failed.create_time,
                tool=tool,
                is_overcome=info.status != Status.FAILED,
            )
        )
    return sorted(found, key=lambda each: each.time, reverse=True)


def _chosen(client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters) -> Iterator[ThreadInfo]:
    """The threads that are named, or those that fit, the most recently changed first. Filters by agent here: no index
    has it."""
    infos = [client.thread(name).info() for name in names]
    if not infos:
        wanted: ThreadFilters = {"page_size": PAGE_MAX, **filters}
        listed = client.threads(**wanted)
        infos = sorted(listed, key=lambda each: each.update_time, reverse=True)
    return (info for info in infos if agent is None or info.options.agent == agent)


def _recorded(thread: Thread) -> Calls:
    """The effects that have a name."""
    found = Calls()
    with suppress(FeatureUnavailable, ThreadNotFound):
        for each in thread.effects(values=False):
            if each.name:
                found.calls[each.name] += 1
                found.errors[each.name] += each.state == EffectState.FAILED
    return found

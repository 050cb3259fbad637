"""Reads many runs and reports which tools agents used, and where runs failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stateward.cli.files.trajectories import all_messages, entries_of, whole_log
from stateward.cli.show import layouts
from stateward.cli.show.layouts import TOOL_CALLS
from stateward.cli.show.one_by_one import Failures, read_again
from stateward.cli.show.told import read_told
from stateward.cli.show.tool_calls import Calls, count_calls
from stateward.effects import EffectState
from stateward.errors import VersionNotFound, VersionPruned
from stateward.models import Status
from stateward.salvage import list_effects

if TYPE_CHECKING:
    from datetime import datetime

    from stateward import Client, Thread, ThreadInfo
    from stateward.events import Event
    from stateward.models import ThreadFilters

PAGE_MAX = 1000
# Of a failed run only these are read: its last tool call is near the end.
LAST_MESSAGES = 20


@dataclass(frozen=True)
class ToolUse:
    """How a tool was used in the chosen threads."""

    name: str
    calls: int
    errors: int
    """Number of calls whose result says that they failed."""
    threads: int
    """Number of threads in which it was called."""
    last_thread: str
    """The most recently changed of these threads."""
    last_error_thread: str
    """The most recently changed thread in which it failed; empty = it never failed."""


@dataclass(frozen=True)
class Failure:
    """The newest version of a thread with the status FAILED."""

    thread: str
    version: int
    branch: str
    step: int | None
    status_detail: str
    time: datetime
    tool: str
    """The last tool that was called before the failure; empty = not known."""
    is_overcome: bool
    """True if the thread has another status now."""


def tools_used(
    client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters, missed: Failures | None = None
) -> list[ToolUse]:
    """Returns the tools that were called in the named threads, or in those that fit; the most used first.

    Reads messages and the log "tool_calls" of each thread with their trimmed entries, and the names of its effects.
    Threads that cannot be read are added to `missed`.
    """
    missed, names = Failures() if missed is None else missed, list(names)
    total = Calls()
    threads: Counter[str] = Counter()
    last: dict[str, str] = {}
    last_error: dict[str, str] = {}
    for info in _chosen(client, names, agent, filters, missed):
        calls = None
        with missed.unless_removed(info.name, is_named=bool(names)):
            calls = read_again(client, info.name, partial(_calls, client.thread(info.name)))
        if calls is None:
            continue
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


def _calls(thread: Thread) -> Calls:
    """Returns the calls of a thread. Raises ThreadNotFound."""
    state = thread.hydrate(slots=layouts.SLOTS, logs=layouts.LOGS)
    if not state.version:
        thread.info()  # it may have been removed, or have effects and no version
    calls = count_calls(all_messages(thread, state)[0], whole_log(thread, state, TOOL_CALLS)[0])
    calls.merge(_recorded(thread, are_claimed=layouts.is_langgraph(state)))
    return calls


def failures(
    client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters, missed: Failures | None = None
) -> list[Failure]:
    """Returns the last failure of each thread, newest first. Without names, of all threads that fit and are failed now.

    A named thread is included even if it continued after its failure. Threads that cannot be read are added to
    `missed`.
    """
    missed = Failures() if missed is None else missed
    found: list[Failure] = []
    names = list(names)
    if not names:
        filters = {**filters, "status": Status.FAILED}
    for info in _chosen(client, names, agent, filters, missed):
        with missed.unless_removed(info.name, is_named=bool(names)):
            failure = read_again(client, info.name, partial(_last_failure, client.thread(info.name), info))
            found += [] if failure is None else [failure]
    return sorted(found, key=lambda each: each.time, reverse=True)


def _last_failure(thread: Thread, info: ThreadInfo) -> Failure | None:
    failed = next(iter(thread.checkpoints.list(statuses=[Status.FAILED], page_size=1)), None)
    detail, time = ("", None) if failed is None else (failed.status_detail, failed.create_time)
    if info.status != Status.FAILED and (event := _told_failure(thread)) is not None:
        # It was told of a version that was saved before, and that may be gone.
        with suppress(VersionNotFound, VersionPruned):
            if event.told is not None and (failed is None or failed.sequence < event.sequence):
                failed = thread.checkpoints.get(event.told.version)
                detail, time = event.told.status_detail, event.time
    if failed is None or time is None:
        return None
    state = thread.hydrate(failed.version, slots=layouts.SLOTS, logs=dict.fromkeys(layouts.LOGS, LAST_MESSAGES))
    log = layouts.messages_log(thread.name, state)
    messages = layouts.messages_of(entries_of(state, log).values()) or layouts.kept_in_slot(thread.name, state)
    return Failure(
        thread=failed.thread,
        version=failed.version,
        branch=failed.branch,
        step=failed.step,
        status_detail=detail,
        time=time,
        tool=count_calls(messages, entries_of(state, TOOL_CALLS).values()).last,
        is_overcome=info.status != Status.FAILED,
    )


def _told_failure(thread: Thread) -> Event | None:
    """Returns the event of the last failure that was told after its version was saved, as LangGraph's are."""
    told = read_told(thread, list_effects(thread, values=False).items)
    failed = [
        each for events in told.values() for each in events
        if each.told is not None and each.told.status == int(Status.FAILED)
    ]  # fmt: skip
    return max(failed, key=lambda each: each.sequence, default=None)


def _chosen(
    client: Client, names: Iterable[str], agent: str | None, filters: ThreadFilters, missed: Failures
) -> Iterator[ThreadInfo]:
    """Returns the named threads, or those that fit, the most recently changed first.

    Filters by agent here, because no index of the daemon has the agent.
    """
    infos: list[ThreadInfo] = []
    names = list(names)
    for name in names:
        with nullcontext() if len(names) == 1 else missed.beside(name):
            infos.append(client.thread(name).info())
    if not names:
        wanted: ThreadFilters = {"page_size": PAGE_MAX, **filters}
        listed = missed.listed(client.threads(**wanted))
        infos = sorted(listed, key=lambda each: each.update_time, reverse=True)
    return (info for info in infos if agent is None or info.options.agent == agent)


def _recorded(thread: Thread, *, are_claimed: bool) -> Calls:
    """Counts the effects that have a name. `are_claimed`: only those that somebody began, because a framework records
    other things as effects, too."""
    found = Calls()
    for each in thread.effects.list(values=False):
        if each.name and (each.attempts or not are_claimed):
            found.calls[each.name] += 1
            found.errors[each.name] += each.state == EffectState.FAILED
    return found

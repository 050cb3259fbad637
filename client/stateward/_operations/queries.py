"""Operations that answer questions about many threads, and the one that ends a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from stateward import insight
from stateward._operations import listing, reading, saving, threads, windows
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Call, Operation, ThreadRef, timestamp
from stateward._operations.threads import ThreadFilters
from stateward.errors import FeatureUnavailable, ThreadNotFound, VersionNotFound, VersionPruned
from stateward.insight import Failure, ToolUse
from stateward.models import Checkpoint, Status, ThreadInfo, ThreadOptions, choice_number, read_member
from stateward.state import State
from stateward.v1 import effect_service_pb2 as effects
from stateward.v1 import thread_service_pb2 as pb

PAGE_MAX = 1000
# Of a run that failed: the tool it called last stands near the end.
LAST_MESSAGES = 20

Refer = Callable[[str], ThreadRef]


def count_threads(
    namespace: str,
    updated_since: datetime | timedelta | None,
    updated_after: datetime | None,
    updated_before: datetime | None,
) -> Operation[dict[Status | int, int]]:
    """How many threads have each status; those that none has are left out."""
    request = pb.CountThreadsRequest(
        namespace=namespace,
        updated_after=timestamp(threads.since(updated_since, updated_after)),
        updated_before=timestamp(updated_before),
    )
    response: pb.CountThreadsResponse = yield Call("CountThreads", request)
    return {read_member(Status, each.status) or Status.RUNNING: each.count for each in response.counts}


def finish(ref: ThreadRef, state: State, ttl: timedelta | None, options: SaveOptions) -> Operation[Checkpoint]:
    """Saves the last version of a run, unless it is there already, then sets the TTL, which runs from that save."""
    status = options.get("status") or Status.COMPLETED
    options = {**options, "status": status}
    last = state.checkpoint
    if last is not None:  # what lists and exports find the run by
        options = {"step": last.step, "metrics": last.metrics, **options}
    is_there = last is not None and last.status == choice_number(Status, status) and not state.collect().diff.edits
    if last is None or not is_there:
        if ttl is not None and not state.version and options.get("create") is None:
            options["create"] = ThreadOptions(ttl=ttl)
        last = yield from saving.save(ref, state, options)
    if ttl is not None:  # afterwards: an agent that dies in between must not find its unfinished thread gone
        yield from threads.update_options(ref, {"ttl": ttl})
    return last


def tools_used(
    refer: Refer, namespace: str, names: Iterable[str], agent: str | None, filters: ThreadFilters
) -> Operation[list[ToolUse]]:
    """Tools by how often they were called, the most used first."""
    tally = insight.Tally()
    for info in (yield from _chosen(namespace, names, agent, filters)):
        ref = refer(info.name)
        try:
            state = yield from reading.hydrate_stored(ref, logs=insight.LOGS)
            messages = yield from _whole_log(ref, state, insight.MESSAGES)
            tool_calls = yield from _whole_log(ref, state, insight.TOOL_CALLS)
        except ThreadNotFound:
            continue  # deleted meanwhile
        tally.add(info, insight.count_calls(messages, tool_calls), (yield from _effects_of(ref)))
    return tally.result()


def failures(
    refer: Refer, namespace: str, names: Iterable[str], agent: str | None, filters: ThreadFilters
) -> Operation[list[Failure]]:
    """Where runs failed last, the newest first. Of threads that are named also a failure that was overcome."""
    found: list[Failure] = []
    named = list(names)
    if not named and not filters.get("statuses") and filters.get("status") is None:
        filters = {**filters, "status": Status.FAILED}
    for info in (yield from _chosen(namespace, named, agent, filters)):
        request = reading.list_checkpoints(namespace, info.name, statuses=[Status.FAILED], page_size=1)
        versions: list[Checkpoint] = []
        try:
            while not versions:
                versions = yield from reading.read_checkpoints(request)
                if not request.page_token:
                    break
            if versions:
                state = yield from reading.hydrate_stored(
                    refer(info.name), versions[0].version, logs=dict.fromkeys(insight.LOGS, LAST_MESSAGES)
                )
                found.append(
                    Failure.of(versions[0], insight.last_call(state), is_overcome=info.status != Status.FAILED)
                )
        except ThreadNotFound:
            continue
    return sorted(found, key=lambda each: each.time, reverse=True)


def _chosen(
    namespace: str, names: Iterable[str], agent: str | None, filters: ThreadFilters
) -> Operation[list[ThreadInfo]]:
    """The threads that are named, or those that fit. Which agent runs there is looked at here: no index has it."""
    infos: list[ThreadInfo] = []
    for name in names:
        infos += [(yield from threads.get_thread(ThreadRef(namespace, name, "main")))]
    if not infos:
        request = threads.list_threads(namespace, **filters)
        request.page_size = request.page_size or PAGE_MAX
        infos = yield from listing.read_all(request)
        infos.sort(key=lambda each: each.update_time, reverse=True)
    return [info for info in infos if agent is None or info.options.agent == agent]


def _whole_log(ref: ThreadRef, state: State, log: str) -> Operation[list[Any]]:
    """A log's entries, with those that a sliding window trimmed, unless versions that hold these were pruned."""
    entries: list[Any] = []
    if log in state.logs and state.logs[log].first_index:
        with suppress(VersionNotFound, VersionPruned, ValueError):  # ValueError: not what its media type says
            entries = yield from windows.trimmed(ref, log)
    return [*entries, *insight.entries_of(state, log)]


def _effects_of(ref: ThreadRef) -> Operation[list[tuple[str, bool]]]:
    """Name of each effect, and whether it failed."""
    request = effects.ListEffectsRequest(
        namespace=ref.namespace, thread=ref.thread, all_anchors=True, without_values=True, page_size=PAGE_MAX
    )
    found: list[tuple[str, bool]] = []
    while True:
        try:
            page: effects.ListEffectsResponse = yield Call("ListEffects", request)
        except (FeatureUnavailable, ThreadNotFound):
            return found
        found += [(each.effect.name, each.state == insight.EFFECT_FAILED) for each in page.effects if each.effect.name]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token

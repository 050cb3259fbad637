"""Waits until an entry reaches a durability level.

The entry is identified by its digest, on a line that has a number on this disk. A thread is not looked up by its name a
second time, because after a takeover another line has the name. The loop looks in memory and at entries that were
written a moment ago. Another thread looks for all other entries, because that may wait for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, NewerFormat, VersionPruned, kept_until_upgrade
from stateward_sidecar.spans import span
from stateward_sidecar.store.journal.lines import Written
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.thread import Thread

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

T = TypeVar("T")
# How long an answer waits for the archive without a deadline, and how long before a deadline it is sent.
WAIT_MAX_S = 30.0
MARGIN_S, MARGIN_SHARE = 0.5, 0.1


class _Request(Protocol):
    namespace: str
    thread: str


def written(request: _Request, receipt: Receipt) -> Written:
    """Returns the entry that a receipt is about."""
    return Written(request.namespace, request.thread, receipt.sequence, receipt.uid, receipt.digest)


async def archived(
    store: Store, archive: Archive, entry: Written, context: grpc.aio.ServicerContext | None
) -> tuple[Durability, int]:
    """After a commit, waits until the entry is archived, or the deadline is near.

    Returns the level reached, and the sequence up to which the line is archived. Raises Fenced if a takeover left the
    entry out of history, and NewerFormat if nobody here can tell.
    """
    line = store.lines.find_hot(entry)
    if line is None:
        try:
            async with asyncio.timeout(timeout_s(context)):
                line = await _aside(archive, entry, store.read, store.lines.find, entry)
        except (HistoryElsewhere, VersionPruned, TimeoutError):
            line = None
    if line is None:  # deleted in the meantime
        return DURABILITY_COMMITTED, 0
    return await await_archived(archive, line, entry.sequence, context)


async def await_archived(
    archive: Archive, line: Thread, sequence: int, context: grpc.aio.ServicerContext | None
) -> tuple[Durability, int]:
    """Waits like ``archived``, for a sequence of a line."""
    future: Future[None] | None = None
    try:
        async with asyncio.timeout(timeout_s(context)):
            if archive.in_memory(line) is None:
                await _aside(archive, line.number, archive.line, line)
            future = archive.wait(line, sequence)
            if future is not None:
                with span("archive"):
                    await asyncio.wrap_future(future)
    except NewerFormat as error:  # like Fenced: this entry may never become history
        raise kept_until_upgrade(error, sequence) from None
    except (TimeoutError, Corrupt):  # too late, or HEAD was set back: the level reached is COMMITTED
        if future is not None:
            archive.desk.waiters.drop(line.number, future)
        return DURABILITY_COMMITTED, (archive.in_memory(line) or line).archived_sequence
    except asyncio.CancelledError:  # the caller left; while the bucket is away, its waiter would be kept for hours
        if future is not None:
            archive.desk.waiters.drop(line.number, future)
        raise
    return DURABILITY_ARCHIVED, max((archive.in_memory(line) or line).archived_sequence, sequence)


def timeout_s(context: grpc.aio.ServicerContext | None) -> float:
    """Returns how long an answer may wait for the archive. ``context``: None = a stream, which has no deadline."""
    remaining = context.time_remaining() if context is not None else None
    return WAIT_MAX_S if remaining is None else max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0)


async def _aside(archive: Archive, name: Hashable, verb: Callable[..., T], *arguments: Any) -> T:
    """Runs a verb that may wait for a disk, where it delays neither the loop nor the agents' threads."""
    return await asyncio.wrap_future(archive.lanes.call(("level", name), verb, *arguments))

"""Waiting until what was written has a level.

What is waited for is an entry, told by its digest, on a line that has a number on this disk. No thread is looked up by
its name a second time: after a takeover another line has the name.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, VersionPruned
from stateward_sidecar.store.lines import Written
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import Thread

# How long an answer waits for the archive where its caller gave no deadline, and how much before a deadline it comes.
WAIT_MAX_S = 30.0
MARGIN_S, MARGIN_SHARE = 0.5, 0.1


class _Request(Protocol):
    namespace: str
    thread: str


class _Answer(Protocol):
    uid: str
    digest: bytes


def written(request: _Request, answer: _Answer, sequence: int) -> Written:
    """The entry that an answer is about."""
    return Written(request.namespace, request.thread, sequence, answer.uid, answer.digest)


async def archived(
    store: Store, archive: Archive, entry: Written, context: grpc.aio.ServicerContext
) -> tuple[Durability, int]:
    """After a commit: waits until the entry is archived, or the deadline is near. Returns the level reached, and up to
    where the line is archived. Raises Fenced where the entry is no history.
    """
    try:
        line = store.read(store.lines.find, entry)
    except (HistoryElsewhere, VersionPruned):
        line = None
    if line is None:  # deleted since
        return DURABILITY_COMMITTED, 0
    return await await_archived(archive, line, entry.sequence, context)


async def await_archived(
    archive: Archive, line: Thread, sequence: int, context: grpc.aio.ServicerContext
) -> tuple[Durability, int]:
    """The same for a place of a line."""
    future = archive.wait(line, sequence)
    if future is not None:
        remaining = context.time_remaining()
        timeout = WAIT_MAX_S
        if remaining is not None:
            timeout = max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(future)
        except (TimeoutError, Corrupt):  # late, or HEAD was found to be set back: committed it is
            archive.desk.waiters.drop(line.number, future)
            return DURABILITY_COMMITTED, archive.line(line).archived_sequence
    return DURABILITY_ARCHIVED, max(archive.line(line).archived_sequence, sequence)

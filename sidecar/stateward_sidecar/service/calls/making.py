"""The thread of an upload: found, or made without a version, for a first save that names what is uploaded."""

from __future__ import annotations

import asyncio

import grpc.aio

from stateward.v1.blob_service_pb2 import BlobBegin
from stateward.v1.workspace_service_pb2 import ObjectsBegin
from stateward_sidecar.errors import UidMismatch, Unclaimed
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.store.thread.thread import Thread

# Approximate space of an entry and a row, with the pages that they touch.
ENTRY_BYTES = 16384
Begin = BlobBegin | ObjectsBegin


async def thread_of(calls: Calls, begin: Begin, context: grpc.aio.ServicerContext) -> Thread:
    """Returns the thread of an upload. Makes the thread if the request says so."""
    options, ownership = begin.options, calls.ownership
    must_exist = bool(options.expected_uid) or not options.HasField("create")
    await ownership.hold(begin.namespace, begin.thread, must_exist=must_exist, claims=False)
    try:
        return await _made(calls, begin, context, must_exist=must_exist)
    except Unclaimed:  # all that the write checks is right: a write that must fail leaves nothing in the archive
        is_claimed = await ownership.hold(begin.namespace, begin.thread, must_exist=must_exist)
    try:
        return await _made(calls, begin, context, must_exist=must_exist)
    except (Exception, asyncio.CancelledError):
        if is_claimed:
            ownership.give_back(begin.namespace, begin.thread)
        raise


async def _made(calls: Calls, begin: Begin, context: grpc.aio.ServicerContext, *, must_exist: bool) -> Thread:
    blobs = calls.store.blobs
    try:
        thread = await calls.read(blobs.find_thread, begin)
    except UidMismatch:  # another creation has the name on this disk
        await calls.ownership.hold_now(begin.namespace, begin.thread, must_exist=must_exist)
        thread = await calls.read(blobs.find_thread, begin)
    if thread is None:
        await calls.write(blobs.make_thread(begin), context, size_bytes=ENTRY_BYTES)
        begin.options.ClearField("create")  # if it is missing now, it was deleted
        thread = await calls.read(blobs.find_thread, begin)
    assert thread is not None
    return thread

"""ThreadService."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward.v1.thread_service_pb2 import (
    ATTACH_MODE_READ_ONLY,
    ATTACH_MODE_TAKE_OVER,
    AttachMode,
    AttachRequest,
    AttachResponse,
    CountThreadsRequest,
    CountThreadsResponse,
    DeleteBranchRequest,
    DeleteBranchResponse,
    DeleteTagRequest,
    DeleteTagResponse,
    DeleteThreadRequest,
    DeleteThreadResponse,
    DetachRequest,
    DetachResponse,
    ForkThreadRequest,
    ForkThreadResponse,
    GetThreadRequest,
    GetThreadResponse,
    ListThreadsRequest,
    ListThreadsResponse,
    MoveBranchRequest,
    MoveBranchResponse,
    PruneThreadRequest,
    PruneThreadResponse,
    ReadDigestsRequest,
    ReadDigestsResponse,
    SetTagRequest,
    SetTagResponse,
    UpdateThreadRequest,
    UpdateThreadResponse,
    WaitDurableRequest,
    WaitDurableResponse,
    WatchRequest,
    WatchResponse,
)
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Fenced,
    InvalidField,
    Locked,
    NotOwner,
    QueueFull,
    ThreadNotFound,
    UidMismatch,
    VersionNotFound,
)
from stateward_sidecar.security import DELETED
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.evidence import note_call
from stateward_sidecar.service.calls.feed import Feed, follow
from stateward_sidecar.service.calls.method import hide, reading_of
from stateward_sidecar.service.calls.ownership import ROUNDS, await_archived, session_key, written
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.check import check_watched
from stateward_sidecar.service.checks.checkparts import check_labels
from stateward_sidecar.store.check.proof import Prover
from stateward_sidecar.store.items.leases import view_lease
from stateward_sidecar.store.journal.admitting import other_creation
from stateward_sidecar.store.journal.finding import Written, check_history
from stateward_sidecar.store.journal.journal import LOCAL
from stateward_sidecar.store.journal.views import describe_thread, view_thread
from stateward_sidecar.store.thread.thread import MAIN, Thread
from stateward_sidecar.store.thread.threads import check_new, is_orphans

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

# Approximate space of a small entry, with the pages that it touches.
SMALL_WRITE_BYTES = 16384
WAIT_S_MAX = 3600.0
# The pause between two checks whether a thread is free.
ATTACH_POLL_S = 0.5
# The same for the name of a copy that another call is making.
NAME_POLL_S = 0.05


class ThreadService:
    """Lists, forks, prunes, deletes, changes and watches threads."""

    def __init__(self, calls: Calls, feed: Feed) -> None:
        self._calls = calls
        self._ownership = calls.ownership
        self._store = calls.store
        self._prover = Prover(calls.store.context)
        self._feed = feed

    async def get_thread(self, request: GetThreadRequest, context: grpc.aio.ServicerContext) -> GetThreadResponse:
        check.check_place(request)

        def get() -> GetThreadResponse:
            with self._store.context.engine.read() as txn:
                thread = self._store.threads.get(txn, request.namespace, request.thread)
            return describe_thread(thread, view_lease(self._store.context, thread.number, thread.head))

        answer = await self._ownership.read(request.namespace, request.thread, lambda: self._calls.read(get))
        hide(answer.thread, reading_of(request.namespace))
        return answer

    async def list_threads(self, request: ListThreadsRequest, context: grpc.aio.ServicerContext) -> ListThreadsResponse:
        check.check_namespace(request)
        check_labels(request.labels, "labels")
        check.check_statuses(request.statuses)
        for field in ("updated_after", "updated_before"):
            if request.HasField(field):
                check.check_time(getattr(request, field), field)
        request.page_size = check.check_page(request.page_size)
        may_read = reading_of(request.namespace)
        answer = await self._calls.scan_visible(self._store.lister.threads, request, "threads", may_read)
        for each in answer.threads:
            hide(each, may_read)
        return answer

    async def count_threads(
        self, request: CountThreadsRequest, context: grpc.aio.ServicerContext
    ) -> CountThreadsResponse:
        check.check_namespace(request)
        for field in ("updated_after", "updated_before"):
            if request.HasField(field):
                check.check_time(getattr(request, field), field)
        return await self._calls.scan(self._store.lister.count_threads, request, reading_of(request.namespace))

    async def fork_thread(self, request: ForkThreadRequest, context: grpc.aio.ServicerContext) -> ForkThreadResponse:
        check.check_write(request)
        if not request.new_thread or request.new_thread == check.ALL_THREADS:
            raise InvalidField("new_thread", 'is required, and must not be "-"')
        check_name(request.new_thread, "new_thread")
        check_new(request.new_thread, "new_thread")
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.all_versions and (request.HasField("version") or request.branch):
            raise InvalidField("all_versions", "leaves no choice: leave version and branch out")
        is_archived = self._ownership.asks_for_archived(request.options.durability)

        async def fork() -> ForkThreadResponse:
            while True:
                try:
                    return await self._calls.work(self._store.forker.fork, request)
                except QueueFull:  # waits here and not on a worker that others need
                    if self._ownership.gate.is_ended:
                        raise
                    await asyncio.sleep(NAME_POLL_S)

        async def fork_readable() -> ForkThreadResponse:
            return await self._ownership.read(request.namespace, request.thread, fork)

        if await self._is_known(request.namespace, request.new_thread):
            answer = await fork_readable()  # THREAD_EXISTS, or a retry
        else:
            answer = await self._ownership.write(request.namespace, request.new_thread, fork_readable)
        if is_archived:
            await self._ownership.reach_of(request.namespace, request.new_thread, answer.receipt, context)
        hide(answer.thread, reading_of(request.namespace))
        return answer

    async def _is_known(self, namespace: str, name: str) -> bool:
        """Whether the archive has a thread of this name. Does not take the thread."""
        archive = self._ownership.archive
        if archive is None:
            return False
        try:
            await self._ownership.block((namespace, name), archive.know, namespace, name, session_key())
        except ThreadNotFound:
            return False
        return True

    async def prune_thread(self, request: PruneThreadRequest, context: grpc.aio.ServicerContext) -> PruneThreadResponse:
        check.check_write(request)
        what = request.WhichOneof("what")
        if what is None:
            raise InvalidField("what", "is required: set versions, older_than or keep_latest_per_branch")
        if what == "versions":
            check.check_named(request.versions)
        if request.move_heads and what != "versions":
            raise InvalidField("move_heads", "goes with versions only: no rule removes heads")
        if what == "older_than":
            check.check_duration(request.older_than, "older_than")
        if what == "keep_latest_per_branch" and request.keep_latest_per_branch < 1:
            raise InvalidField("keep_latest_per_branch", f"{request.keep_latest_per_branch} is less than 1")
        if request.HasField("plan"):
            check.check_plan(request)

        async def prune() -> PruneThreadResponse:
            name = request.namespace, request.thread
            # Also for a dry run: unarchived versions are never pruned, so the real call archives them first.
            if (archive := self._ownership.archive) is not None:
                await self._ownership.block(name, archive.flush, *name)
            return await self._calls.work(self._store.pruner.prune, request)

        return await self._ownership.write_one(request, prune, context)

    async def delete_thread(
        self, request: DeleteThreadRequest, context: grpc.aio.ServicerContext
    ) -> DeleteThreadResponse:
        check.check_write(request)
        check.check_expected_sequence(request)
        if request.options.durability == DURABILITY_ARCHIVED:
            self._ownership.asks_for_archived(request.options.durability)
        archive = self._ownership.archive
        if archive is not None and not request.local_only:
            answer = await self._delete_everywhere(request, archive, context)
        else:
            answer = await self._delete_here(request, context)
        answer.everywhere = archive is None or not request.local_only
        if answer.receipt.uid:
            uid = answer.receipt.uid
            note_call(DELETED, "a thread was deleted", "DeleteThread", context, uid=uid, everywhere=answer.everywhere)
            is_there = archive is not None and answer.everywhere
            answer.receipt.durability = DURABILITY_ARCHIVED if is_there else DURABILITY_COMMITTED
        if reading_of(request.namespace) is not None:
            answer.ClearField("forks")  # they may be threads that the caller may not see
        return answer

    async def _delete_here(
        self, request: DeleteThreadRequest, context: grpc.aio.ServicerContext
    ) -> DeleteThreadResponse:
        while True:
            try:
                return await self._calls.write(self._store.deleter.delete(request), context, frees_space=True)
            except Locked as error:
                try:
                    found = await self._calls.look(self._store.deleter.find_locked, request, error)
                except UidMismatch:
                    if request.allow_missing:
                        return DeleteThreadResponse(receipt=Receipt())
                    raise
            if found is None:  # deleted or opened meanwhile
                continue
            is_copy = self._ownership.archive is not None and not is_orphans(request.thread)
            run = self._store.deleter.delete_locked(found, LOCAL if is_copy else "request")
            with self._store.context.keystore.held.ending(found.uid) as is_ours:
                if is_ours and await self._calls.write(run, context, frees_space=True):
                    return DeleteThreadResponse(receipt=Receipt(uid=found.uid.hex()))
            await asyncio.sleep(NAME_POLL_S)  # it was opened, or another call deletes it

    async def _delete_everywhere(
        self, request: DeleteThreadRequest, archive: Archive, context: grpc.aio.ServicerContext
    ) -> DeleteThreadResponse:
        """Deletes a thread in the archive, then here. Starts over if a save made the thread in between."""
        name = request.namespace, request.thread
        for _ in range(ROUNDS):
            ended = await self._ownership.block(name, archive.delete, request)
            verb = self._store.deleter.delete_ended(request, ended)
            try:
                answer = await self._calls.write(verb, context, frees_space=True)
            except Locked:
                if ended:  # it was locked meanwhile, or there is another thread of the name by now
                    if (found := await self._calls.look(self._store.deleter.find_ended, ended)) is not None:
                        run = self._store.deleter.delete_locked(found, "request")
                        with self._store.context.keystore.held.ending(ended) as is_ours:
                            if is_ours:  # else a call has opened it, and finds the tombstone
                                await self._calls.write(run, context, frees_space=True)
                    return DeleteThreadResponse(receipt=Receipt(uid=ended.hex()))
                if not is_orphans(request.thread):
                    continue
                return await self._delete_here(request, context)
            if answer is not None:
                return answer
        raise ArchiveUnavailable(f"other calls keep making thread {request.thread!r} again; try again")

    async def update_thread(
        self, request: UpdateThreadRequest, context: grpc.aio.ServicerContext
    ) -> UpdateThreadResponse:
        check.check_write(request)
        check.check_mask(request.update_mask.paths)
        check.check_options(request.update, "update")

        write = partial(self._calls.write, self._store.settings.update(request), context, size_bytes=SMALL_WRITE_BYTES)
        answer = await self._ownership.write_one(request, write, context)
        hide(answer.thread, reading_of(request.namespace))
        return answer

    async def set_tag(self, request: SetTagRequest, context: grpc.aio.ServicerContext) -> SetTagResponse:
        check.check_write(request)
        check.check_tag(request.tag)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.HasField("expected_tagged_version") and request.expected_tagged_version < 0:
            raise InvalidField("expected_tagged_version", f"{request.expected_tagged_version} is negative")
        if request.expected_tagged_digest:
            digest, version = request.expected_tagged_digest, request.expected_tagged_version
            check.check_digest(digest, "expected_tagged_digest", version, "expected_tagged_version")

        write = partial(self._calls.write, self._store.settings.set_tag(request), context, size_bytes=SMALL_WRITE_BYTES)
        return await self._ownership.write_one(request, write, context)

    async def delete_tag(self, request: DeleteTagRequest, context: grpc.aio.ServicerContext) -> DeleteTagResponse:
        check.check_write(request)
        check.check_tag(request.tag)
        if request.HasField("expected_tagged_version") and request.expected_tagged_version < 1:
            raise InvalidField("expected_tagged_version", f"{request.expected_tagged_version} is less than 1")
        if request.expected_tagged_digest:
            digest, version = request.expected_tagged_digest, request.expected_tagged_version
            check.check_digest(digest, "expected_tagged_digest", version, "expected_tagged_version")

        write = partial(self._calls.write, self._store.settings.delete_tag(request), context, frees_space=True)
        return await self._ownership.write_one(request, write, context)

    async def move_branch(self, request: MoveBranchRequest, context: grpc.aio.ServicerContext) -> MoveBranchResponse:
        check.check_write(request)
        check.check_ref(request.version, "version")

        write = partial(self._calls.write, self._store.mover.move(request), context, size_bytes=SMALL_WRITE_BYTES)
        return await self._ownership.write_one(request, write, context)

    async def delete_branch(
        self, request: DeleteBranchRequest, context: grpc.aio.ServicerContext
    ) -> DeleteBranchResponse:
        check.check_write(request)
        if request.branch in ("", MAIN):
            raise InvalidField("branch", "is required, and main cannot be deleted")

        write = partial(self._calls.write, self._store.mover.delete(request), context, frees_space=True)
        return await self._ownership.write_one(request, write, context)

    async def watch(self, request: WatchRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[WatchResponse]:
        check.check_place(request, all_allowed=True)
        check_labels(request.labels, "labels")
        check_watched(request)
        if request.HasField("after_sequence"):
            if request.after_sequence < 0:
                raise InvalidField("after_sequence", f"{request.after_sequence} is negative")
            if request.thread == check.ALL_THREADS:
                raise InvalidField("after_sequence", "counts in one thread; use after_cursor with all threads")
        async for answer in follow(self._calls, self._feed, request):
            yield answer

    async def wait_durable(self, request: WaitDurableRequest, context: grpc.aio.ServicerContext) -> WaitDurableResponse:
        check.check_place(request)
        check.check_durability(request.durability)
        check.check_written(request)
        entry = written(request, request.receipt)
        wanted = self._ownership.asks_for_archived(request.durability)

        async def find() -> Thread:
            return await self._calls.read(self._find_line, entry)

        line = await self._ownership.read(request.namespace, request.thread, find)
        receipt = Receipt(
            uid=line.identity.uid_text, sequence=entry.sequence, digest=entry.digest, durability=DURABILITY_COMMITTED
        )
        answer = WaitDurableResponse(receipt=receipt, newest_sequence=line.head.tip_sequence)
        receipt = answer.receipt
        if self._ownership.archive is not None:
            receipt.archived_sequence = line.archived_sequence
        if wanted:
            receipt.durability, receipt.archived_sequence = await await_archived(
                self._ownership.need(), line, entry.sequence, context
            )
        elif entry.sequence <= receipt.archived_sequence:
            receipt.durability = DURABILITY_ARCHIVED
        return answer

    async def read_digests(self, request: ReadDigestsRequest, context: grpc.aio.ServicerContext) -> ReadDigestsResponse:
        check.check_place(request)
        check.check_after(request)
        sequence, digest = request.after_sequence, request.after_digest
        entry = Written(request.namespace, request.thread, sequence, request.uid, digest)

        def prove() -> ReadDigestsResponse:
            with self._store.context.engine.read() as txn:
                line = self._store.threads.get(txn, request.namespace, request.thread)
            if request.uid not in ("", line.identity.uid_text):
                raise other_creation(line.identity, request.uid, "the entry is gone")
            if sequence and self._find_line(entry).number != line.number:
                raise VersionNotFound(
                    f"entry {sequence} is in an orphan of thread {request.thread!r}, and not in its history",
                    thread=request.thread, sequence=sequence,
                )  # fmt: skip
            return self._prover.prove(line, sequence, digest)

        return await self._ownership.read(request.namespace, request.thread, lambda: self._calls.scan(prove))

    def _find_line(self, entry: Written) -> Thread:
        """Returns the line that has the entry. Raises Fenced if the entry is not in the thread's history, and
        others.
        """
        line = self._store.lines.find(entry)
        if line is not None:
            if line.name != entry.thread:
                check_history(line, entry.sequence)
            return line
        with self._store.context.engine.read() as txn:
            thread = self._store.threads.get(txn, entry.namespace, entry.thread)
        if entry.uid not in ("", thread.identity.uid_text):
            raise other_creation(thread.identity, entry.uid, "the entry is gone")
        tip = thread.head.tip_sequence
        text = f"no journal entry {entry.sequence}; its newest is {tip}"
        if entry.sequence <= tip:
            text = f"another journal entry {entry.sequence} than the one with this digest"
        raise VersionNotFound(f"thread {entry.thread!r} has {text}", thread=entry.thread, sequence=entry.sequence)

    async def attach(self, request: AttachRequest, context: grpc.aio.ServicerContext) -> AttachResponse:
        check.check_place(request)
        if request.mode not in AttachMode.values():
            raise InvalidField("mode", f"{request.mode} is unknown")
        wait_s = 0.0
        if request.HasField("wait"):
            check.check_duration(request.wait, "wait")
            wait_s = request.wait.ToMicroseconds() / 1e6
            if wait_s > WAIT_S_MAX:
                raise InvalidField("wait", f"is longer than {WAIT_S_MAX:g} s")
        archive, name, key = self._ownership.need(), (request.namespace, request.thread), session_key()

        def take() -> None:
            if request.mode == ATTACH_MODE_READ_ONLY:
                archive.know(*name, key)
            else:
                is_taken = request.mode == ATTACH_MODE_TAKE_OVER
                archive.own(*name, take_over=is_taken, must_exist=True, session_key=key)

        end = time.monotonic() + wait_s
        while True:
            try:
                await self._ownership.block(name, take)
                self._ownership.ask(*name)
                break
            except (NotOwner, Fenced):  # a pause here occupies no worker
                left = end - time.monotonic()
                if left <= 0 or self._ownership.gate.is_ended:
                    raise
                await asyncio.sleep(min(ATTACH_POLL_S, left))
        return AttachResponse(thread=await self._view(request.namespace, request.thread))

    async def detach(self, request: DetachRequest, context: grpc.aio.ServicerContext) -> DetachResponse:
        check.check_place(request)
        archive, name = self._ownership.need(), (request.namespace, request.thread)
        await self._ownership.block(name, archive.detach, *name, session_key())
        self._ownership.ask(*name)
        return DetachResponse(thread=await self._view(request.namespace, request.thread))

    async def _view(self, namespace: str, name: str) -> ThreadMessage:
        def view() -> ThreadMessage:
            with self._store.context.engine.read() as txn:
                return view_thread(self._store.threads.get(txn, namespace, name))

        found = await self._calls.read(view)
        hide(found, reading_of(namespace))
        return found

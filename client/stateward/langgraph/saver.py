"""A LangGraph checkpointer: the checkpoints of graphs as versions of threads."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import both_clients
from stateward._naming import is_orphans, name_for, text_of
from stateward._operations.steps import Operation, ThreadRef
from stateward._settling import settle
from stateward._sync.client import Client
from stateward._sync.thread import Thread
from stateward.durations import Duration
from stateward.langgraph import _lists as lists
from stateward.langgraph import _operations as operations
from stateward.langgraph import _threads as whole
from stateward.langgraph._answers import ANSWERS
from stateward.langgraph._bases import Bases, Creations
from stateward.langgraph._joining import Joining, Writes
from stateward.langgraph._names import MAIN, branch_of, by_id, channels_of, thread_of
from stateward.langgraph._operations import Found, Put
from stateward.langgraph._telling import Told, told_by
from stateward.langgraph._types import AllowedType, Guarded, Placed, dump
from stateward.models import ThreadInfo
from stateward.options import Retention, ThreadOptions
from stateward.v1 import checkpoint_pb2
from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest

CACHE_BYTES = 64 << 20
REFS_MAX = 1000
"""How many references to branches of threads are kept: every call needs one."""
# Size of the first page, largest page, and bytes of values above which pages stop growing. Small first: most callers
# want few.
FIRST_PAGE, PAGE_MAX, GROWING_BYTES = 10, 200, 16 << 20


class StatewardSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of LangGraph graphs in Stateward.

    Every LangGraph thread is a thread of `namespace`, every checkpoint namespace a branch, and every checkpoint a
    version, of which only what changed is sent and stored. Both kinds of methods work, from any number of threads and
    event loops. Use it as `with` or `async with`, or call `close` or `aclose` at the end. An asyncio call that writes
    and is cancelled ends its write first: when CancelledError comes, the write is done, or never will be.

    `target` and the further options are those of `stateward.Client`. Without a target the saver looks for the daemon
    where the commands do. `target` may also be a client, such as that of `stateward.open()`, which you keep open. The
    daemon encrypts all values, and metadata too.

    Values may have the types that LangGraph lists as safe: plain data, messages, documents, dates, sets and its own.
    The saver refuses a value of any other type with TypeNotAllowed, when it is written and when it is read, unless you
    name the type in `allowed_types`: the class, or the names of its module and the class. A graph that is compiled with
    LANGGRAPH_STRICT_MSGPACK adds the types of its state by itself. `serde` replaces the serializer, and with it these
    rules: LangGraph's JsonPlusSerializer imports and calls whatever a value names, unless it has a list.

    `ttl` says how long after its last checkpoint a thread is deleted, None = never. `retention` says which checkpoints
    of each namespace are kept, None = all; the newest one stays always. Both are used when the first checkpoint makes
    the thread, and `Thread.update_options` changes them. A graph with delta channels needs its old checkpoints, so a
    saver with `retention` refuses it with ValueError.

    With `write_ownership` a checkpoint whose parent is no
    longer the newest raises VersionMismatch; without it such a checkpoint is a fork, as in LangGraph's own savers.
    `cache_bytes` limits what is remembered of the newest checkpoints, which spares reading them before the next one.
    """

    def __init__(
        self,
        target: str | Client | AsyncClient | None = None,
        *,
        namespace: str = "default",
        allowed_types: Iterable[AllowedType] = (),
        serde: SerializerProtocol | None = None,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        write_ownership: bool = False,
        cache_bytes: int = CACHE_BYTES,
        **options: Any,
    ) -> None:
        if serde is not None and (allowed_types := tuple(allowed_types)):
            raise ValueError("allowed_types is for the saver's own serializer; the one in serde= has a list of its own")
        super().__init__(serde=Guarded(allowed_types) if serde is None else serde)
        self._blocking, self._aio = both_clients(target, namespace, options)
        # The writes of a step and the next checkpoint come at once: they travel on one stream, and share a commit.
        self._aio._session.settings = replace(self._aio._session.settings, streams_beside=0)
        self._made_with = ThreadOptions(ttl=ttl, retention=retention)  # the threads that it makes
        self._write_ownership = write_ownership
        self._bases, self._creations = Bases(cache_bytes), Creations()
        self._find_ref = lru_cache(REFS_MAX)(self._blocking._session.refer)
        self._joinings: WeakKeyDictionary[asyncio.AbstractEventLoop, Joining] = WeakKeyDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes the connection of the blocking methods. Closing again does nothing."""
        self._blocking.close()

    async def aclose(self) -> None:
        """Closes both connections. Closing again does nothing.

        What is being written on this event loop is written first; this takes `retry_timeout` at most.
        """
        self._blocking.close()
        try:
            await self._joining().finish()
        finally:
            await self._aio.close()

    def thread(self, thread_id: str) -> Thread:
        """Returns a handle on the Stateward thread of a LangGraph thread, for `resume_command` and whatever else only
        Stateward has."""
        return self._blocking.thread(thread_of(thread_id))

    def athread(self, thread_id: str) -> AsyncThread:
        """As `thread`, for `aresume_command`."""
        return self._aio.thread(thread_of(thread_id))

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint that `config` names, or the newest one of its namespace; None = there is none."""
        ref = self._ref(config)
        found = self._blocking._session.run(
            operations.get(ref, self.serde, by_id(get_checkpoint_id(config)), self._bases.newest(ref), self._creations)
        )
        return self._tuple(ref, config, found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        ref = self._ref(config)
        found = await self._aio._session.run(
            operations.get(ref, self.serde, by_id(get_checkpoint_id(config)), self._bases.newest(ref), self._creations)
        )
        return self._tuple(ref, config, found)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Writes a checkpoint, whose parent is the one that `config` names. Durable when this returns.

        Raises UidMismatch if the thread was deleted since the parent was read or written here.
        """
        ref, wanted = self._ref(config), _wanted(config, checkpoint, metadata, new_versions)
        self._blocking._session.run(self._put(ref, wanted))
        return _config(wanted.thread_id, wanted.checkpoint_ns, wanted.checkpoint_id)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        ref, wanted = self._ref(config), _wanted(config, checkpoint, metadata, new_versions)
        with self._joining().under_way(ref):
            await settle(self._aput(ref, wanted))
        return _config(wanted.thread_id, wanted.checkpoint_ns, wanted.checkpoint_id)

    async def _aput(self, ref: ThreadRef, wanted: Put) -> None:
        with self._joining().saving(ref, name_for(wanted.parent_id)) as written:
            await self._aio._session.run(self._put(ref, wanted, written))

    def _joining(self) -> Joining:
        """What waits on this event loop for the checkpoint that follows."""
        loop = asyncio.get_running_loop()
        found = self._joinings.get(loop)
        if found is None:
            run, creations, made_with = self._aio._session.run, self._creations, self._made_with
            found = Joining(lambda written: run(operations.put_together(creations, written, made_with)))
            self._joinings[loop] = found
        return found

    def _put(self, ref: ThreadRef, wanted: Put, written: Sequence[Writes] = ()) -> Operation[None]:
        if self._made_with.retention is not None and wanted.metadata.get(operations.DELTA_COUNTERS):
            raise ValueError("retention removes checkpoints that this graph's delta channels are made from; give none")
        create, owns = self._made_with, self._write_ownership
        return operations.put(
            ref, self.serde, self._bases, self._creations, wanted, create, owns=owns, written=written
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Writes what a task wrote, for the checkpoint that `config` names. A write that is there already stays; those
        to special channels, such as errors and interrupts, are replaced.

        Raises UidMismatch if the thread was deleted since the checkpoint was read or written here.
        """
        if writes:
            self._blocking._session.run(self._put_writes(self._make(config, writes, task_id, task_path)))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        if not writes:
            return
        made = self._make(config, writes, task_id, task_path)
        with self._joining().under_way(made.writes.ref, made.writes.anchor):
            await self._aput_writes(made)

    async def _aput_writes(self, made: _Made) -> None:
        try:
            if made.told is None and await self._joining().wait(made.writes):
                return
        except asyncio.CancelledError:
            if not made.writes.is_over:  # what a task has done is not lost
                await settle(self._aio._session.run(self._put_writes(made)))
            raise
        await settle(self._aio._session.run(self._put_writes(made)))

    def _make(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> _Made:
        """What a task wrote, as it is stored."""
        checkpoint_id, ref, ancestors = config["configurable"]["checkpoint_id"], self._ref(config), _ancestors(config)
        told = told_by(writes, checkpoint_id, task_id) if ref.branch == MAIN else None
        _, uid = operations.expected_uid(ref, self._creations, checkpoint_id, ancestors)
        taken = ANSWERS.take(uid, ref.branch, task_id, writes, told)
        made, thread_id = list[tuple[int, str, tuple[str, bytes]]](), str(config["configurable"]["thread_id"])
        for index, (channel, value) in enumerate(taken.writes):
            with Placed(thread_id, f"what a task writes to channel {channel!r}"):
                made.append((WRITES_IDX_MAP.get(channel, index), channel, dump(self.serde, value)))
        effects = operations.to_effects(checkpoint_id, made, task_id, task_path)
        return _Made(Writes(ref, name_for(checkpoint_id), uid, effects), checkpoint_id, ancestors, taken.told)

    def _put_writes(self, made: _Made) -> Operation[None]:
        return operations.put_writes(
            made.writes.ref, self._creations, made.checkpoint_id, made.writes.effects, self._made_with,
            ancestors=made.ancestors, told=made.told,
        )  # fmt: skip

    # -- lists --------------------------------------------------------------------------------------------------------

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the name that LangGraph gives
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Lists checkpoints, newest first: of a namespace, of a thread, or with `config` None of all threads.

        `filter` takes those whose metadata has all of these values, `before` those older than a checkpoint. Orphans are
        no threads of LangGraph, and are left out.
        """
        run = self._blocking._session.run
        names = [self._name(config)] if config else self._names_of(self._blocking.threads())
        for name in names:
            listing = _Listing(self.serde, self._named(name), config, filter, before, limit)
            while not listing.is_over:
                for found in run(listing.next_page()):
                    yield self._made(found, config)
            limit = listing.left

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the name that LangGraph gives
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        run = self._aio._session.run
        names = [self._name(config)] if config else self._names_of([info async for info in self._aio.threads()])
        for name in names:
            listing = _Listing(self.serde, self._named(name), config, filter, before, limit)
            while not listing.is_over:
                for found in await run(listing.next_page()):
                    yield self._made(found, config)
            limit = listing.left

    # -- whole threads ------------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Removes a thread with all its namespaces. The daemon destroys its key."""
        self._blocking._session.run(whole.delete_thread(self._forget(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`. What is being written to the thread on this event loop is written before."""
        await settle(self._aprune(thread_id, "delete"))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints and writes of a thread to a new thread, with a key of its own."""
        self._blocking._session.run(whole.copy_thread(self._refer(source_thread_id), thread_of(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        operation = whole.copy_thread(self._refer(source_thread_id), thread_of(target_thread_id))
        await settle(self._aio._session.run(operation))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes checkpoints: all but the newest of each namespace ("keep_latest"), or all ("delete").

        Of a graph with delta channels those that the newest needs stay, too.
        """
        for thread_id in thread_ids:
            self._blocking._session.run(self._prune(thread_id, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        for thread_id in thread_ids:
            await settle(self._aprune(thread_id, strategy))

    async def _aprune(self, thread_id: str, strategy: str) -> None:
        if strategy == "delete":
            await self._joining().finish(thread_of(thread_id))
        await self._aio._session.run(self._prune(thread_id, strategy))

    def _prune(self, thread_id: str, strategy: str) -> Operation[None]:
        if strategy == "keep_latest":
            return whole.keep_latest(self._refer(thread_id), self.serde)
        if strategy == "delete":
            return whole.delete_thread(self._forget(thread_id))
        raise ValueError(f"strategy is keep_latest or delete, not {strategy!r}")

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes all checkpoints and writes of these runs, in all threads. Orphans stay."""
        for run_id in run_ids:
            for ref in self._blocking._session.run(whole.delete_run(self._named("-"), run_id)):
                self._bases.forget(ref)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        for run_id in run_ids:
            await settle(self._adelete_run(run_id))

    async def _adelete_run(self, run_id: str) -> None:
        for ref in await self._aio._session.run(whole.delete_run(self._named("-"), run_id)):
            self._bases.forget(ref)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns for each channel its nearest value among a checkpoint's ancestors, and the writes since."""
        found = self._blocking._session.run(self._history(config, channels))
        return {channel: self._delta(each) for channel, each in found.items()}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        found = await self._aio._session.run(self._history(config, channels))
        return {channel: self._delta(each) for channel, each in found.items()}

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Operation[dict[str, operations.History]]:
        return operations.channel_history(self._ref(config), self.serde, get_checkpoint_id(config), channels)

    def _delta(self, found: operations.History) -> DeltaChannelHistory:
        made = DeltaChannelHistory(writes=[self._write(each) for each in found.writes])
        if found.seed is not None:
            made["seed"] = self.serde.loads_typed((found.seed.kind, found.seed.data))
        return made

    # -- parts --------------------------------------------------------------------------------------------------------

    def get_next_version(self, current: str | float | None, channel: None = None) -> str:
        """Returns the next version of a channel. Its end is random, so that two forks have different versions."""
        number = int(str(current).split(".")[0]) + 1 if current else 1
        return f"{number:032}.{secrets.randbits(53):016}"

    def _names_of(self, threads: Iterable[ThreadInfo]) -> Sequence[str]:
        return [info.name for info in threads if not is_orphans(info.name)]

    def _refer(self, thread_id: str, branch: str = MAIN) -> ThreadRef:
        return self._named(thread_of(thread_id), branch)

    def _named(self, thread: str, branch: str = MAIN) -> ThreadRef:
        return self._blocking._session.refer(thread, branch)

    def _name(self, config: RunnableConfig) -> str:
        return thread_of(config["configurable"]["thread_id"])

    def _ref(self, config: RunnableConfig) -> ThreadRef:
        place = config["configurable"]
        return self._find_ref(thread_of(place["thread_id"]), branch_of(place.get("checkpoint_ns", "")))

    def _forget(self, thread_id: str) -> ThreadRef:
        ref = self._refer(thread_id)
        self._bases.forget_thread(ref.thread)
        return ref

    def _tuple(self, ref: ThreadRef, config: RunnableConfig, found: Found | None) -> CheckpointTuple | None:
        if found is None:
            if not get_checkpoint_id(config):
                self._bases.forget(ref)
            return None
        if get_checkpoint_id(config):
            return self._made(found, config, own=config)
        self._bases.keep(ref, found.checkpoint_id, found.base)
        return self._made(found, config)

    def _made(self, found: Found, asked: RunnableConfig | None, own: RunnableConfig | None = None) -> CheckpointTuple:
        """`asked`: a config that names the thread; None = all threads were asked for."""
        metadata, parent_id = operations.about(self.serde, found.message)
        thread_id, namespace = operations.place_of(self.serde, found.message)
        if asked is not None:
            thread_id = str(asked["configurable"]["thread_id"])
        channels = channels_of(found.channels, found.rest["channel_versions"])
        values = {
            channels[name]: self.serde.loads_typed((each.kind, each.data)) for name, each in found.channels.items()
        }
        made: Any = {**found.rest, "channel_values": values}
        parent = _config(thread_id, namespace, parent_id) if parent_id else None
        writes = [self._write(each) for each in found.writes]
        ANSWERS.note(found.message.uid, found.message.branch, writes)
        own = own or _config(thread_id, namespace, found.checkpoint_id)
        return CheckpointTuple(own, made, metadata, parent, writes)  # type: ignore[arg-type]

    def _write(self, found: operations.Written) -> PendingWrite:
        return found.task_id, found.channel, self.serde.loads_typed(found.value)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a task wrote, as it is stored, and what that tells."""

    writes: Writes
    checkpoint_id: str
    ancestors: Sequence[str]
    told: Told | None


class _Listing:
    """A list of one thread, newest first: which page comes next, and how many checkpoints are left to be listed."""

    def __init__(
        self,
        serde: SerializerProtocol,
        ref: ThreadRef,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        left: int | None,
    ) -> None:
        place = config["configurable"] if config is not None else {}
        self._serde, self._ref, self._wanted, self.left = serde, ref, wanted or {}, left
        self._only = get_checkpoint_id(config) if config is not None else None
        self._older = get_checkpoint_id(before) if before is not None else None
        self._branch = branch_of(place["checkpoint_ns"]) if "checkpoint_ns" in place else ""
        self._request: ListCheckpointsRequest | None = None
        self._is_found = False  # whether the only checkpoint was looked for
        self._size = FIRST_PAGE if self.left is None or self._wanted else max(1, min(self.left, FIRST_PAGE))

    @property
    def is_over(self) -> bool:
        ended = self._request is not None and not self._request.page_token
        return ended or self._is_found or (self.left is not None and self.left <= 0)

    def next_page(self) -> Operation[list[Found]]:
        ref = replace(self._ref, branch=self._branch or self._ref.branch)
        if self._only:
            self._is_found = True
            only, is_listed = self._only, self._is_listed
            return (yield from lists.find_one(ref, self._serde, only, is_listed, all_branches=not self._branch))
        if self._request is None:
            self._request = yield from lists.begin_list(ref, self._older, all_branches=not self._branch)
        self._request.page_size = self._size
        found = yield from lists.list_found(self._ref, self._serde, self._request, self._is_listed)
        if sum(each.base.size_bytes for each in found) < GROWING_BYTES:
            self._size = min(2 * self._size, PAGE_MAX)
        if self.left is not None:
            found = found[: self.left]
            self.left -= len(found)
        return found

    def _is_listed(self, message: checkpoint_pb2.Checkpoint) -> bool:
        name = message.checkpoint_id
        if not name:
            return False
        if self._older and (text_of(name) or name) >= self._older:
            return False
        metadata = operations.about(self._serde, message)[0] if self._wanted else {}
        return all(key in metadata and metadata[key] == value for key, value in self._wanted.items())


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    place = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}
    return {"configurable": place}


def _wanted(
    config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
) -> Put:
    rest: dict[str, Any] = dict(checkpoint)
    values = rest.pop("channel_values")
    place, about = config["configurable"], dict(get_checkpoint_metadata(config, metadata))
    return Put(
        place.get("checkpoint_id") or "", rest, values, new_versions, about, _ancestors(config),
        thread_id=str(place["thread_id"]), checkpoint_ns=place.get("checkpoint_ns") or "",
    )  # fmt: skip


def _ancestors(config: RunnableConfig) -> list[str]:
    """The checkpoints of the graphs around a subgraph."""
    return list((config["configurable"].get("checkpoint_map") or {}).values())

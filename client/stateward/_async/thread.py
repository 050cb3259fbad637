"""The handle on a thread: everything that an asyncio client does with one thread."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from stateward import values
from stateward._async.autosave import AsyncAutosave, AsyncBeforeStep
from stateward._async.leases import AsyncHeldLease
from stateward._async.logs import AsyncThreadLog
from stateward._async.writer import AsyncWriter
from stateward._io.aio.background import Lock
from stateward._io.aio.session import AsyncSession
from stateward._io.aio.stream import AsyncStream
from stateward._io.aio.tools import Decorator, Tool, tools_of
from stateward._operations import (
    before,
    caching,
    effects,
    handoff,
    merging,
    migrating,
    ownership,
    reading,
    recording,
    saving,
    signals,
    threads,
    uploads,
)
from stateward._operations import windows as sliding
from stateward._operations.before import TERM_S, Check
from stateward._operations.caching import CacheOptions, CachePlan
from stateward._operations.cadence import EVERY_MIN_S, Cadence, check_sigterm
from stateward._operations.effects import EffectOptions, Plan
from stateward._operations.leases import WAIT_MAX_S
from stateward._operations.merging import ANY
from stateward._operations.reading import CheckpointFilters
from stateward._operations.saving import PreparedSave, SaveOptions
from stateward._operations.signals import LOOK_AGAIN_S, SignalOptions
from stateward._operations.steps import Operation, ThreadRef, projection
from stateward._operations.streams import HistoryReader, WatchReader
from stateward._operations.threads import OptionChanges
from stateward._operations.timelimit import limited
from stateward._operations.tools import Tools, bind_arguments
from stateward.blobs import Blob, Content
from stateward.changes import Change
from stateward.durations import Duration, seconds
from stateward.effects import Effect, RecordedEffect
from stateward.errors import DeadlineExceeded, Fenced, ServerUnavailable
from stateward.events import Event, HistoryEntry
from stateward.handoff import Handoff
from stateward.models import (
    Checkpoint,
    Durability,
    DurableResult,
    PruneResult,
    Status,
    Tag,
    ThreadInfo,
    ThreadOptions,
)
from stateward.signals import ANSWER, APPROVE, REJECT, Signal
from stateward.state import State
from stateward.window import Window

R = TypeVar("R")
T = TypeVar("T")


class AsyncThread:
    """A handle on one branch of a thread. Holds no state of its own."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, branch={self._ref.branch!r})"

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._ref.thread

    # -- reading and saving -------------------------------------------------------------------------------------------

    async def hydrate(
        self,
        version: int | None = None,
        *,
        tag: str | None = None,
        checkpoint_id: str | None = None,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
        must_exist: bool = False,
    ) -> State:
        """Reads the branch's head, or another version, whole or in part.

        `slots` and `logs` choose what is read, `logs={"messages": 15}` the last so many entries; giving one of them
        leaves the other out, and the state is `partial`. A thread or branch that does not exist is the empty state at
        version 0; `must_exist` makes that ThreadNotFound or VersionNotFound.
        """
        return await self._run(
            reading.hydrate(
                self._ref,
                version,
                tag=tag,
                checkpoint_id=checkpoint_id,
                slots=slots,
                logs=logs,
                must_exist=must_exist,
            )
        )

    async def save(self, state: State, *, windows: Sequence[Window] = (), **options: Unpack[SaveOptions]) -> Checkpoint:
        """Writes what changed in `state` as a new version, if its version is still the branch's head.

        The state then continues from the new version. VersionMismatch leaves it as it was. NotArchivedYet says that
        the version is saved, but less durably than asked.

        The save trims the logs of `windows` first. What a summariser raises is raised after the save.
        """
        return await self._run(sliding.save(self._ref, state, windows, options))

    def prepare(self, state: State, **options: Unpack[SaveOptions]) -> PreparedSave:
        """The same as `save`, to be made together with others by the client's `save_all`."""
        return PreparedSave(self._ref, state, options)

    async def update(
        self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Hydrates, calls `fn(state)` to change it, and saves; from the start again when somebody saved in between.

        `fn` may so be called several times. VersionMismatch after `attempts` tries.
        """
        return await self._run(saving.update(self._ref, fn, attempts, options))

    async def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log on top of whatever is the head, without reading it: never a VersionMismatch.

        The thread's status and the question that it may ask stay as they are, unless `status` says otherwise or `ack`
        names signals; so it is with `increment`, `set_slot` and boards.
        """
        return await self._run(saving.append(self._ref, log, entries, options))

    async def write_blob(self, source: Any, *, media_type: str = values.OCTETS) -> Blob:
        """Writes bytes that are too large for the state, and returns what names them: put it into a slot or a log.

        `source` is bytes, a path, a file opened for reading bytes, or an iterator of bytes. A thread that does not
        exist is made. The same bytes are kept once. What no saved version names goes after a day.
        """
        return await self._run(uploads.write_blob(self._ref, Content.of(source), media_type, ThreadOptions()))

    async def read_blob(self, blob: Blob | bytes, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of a blob (or of what has this SHA-256), from `offset` on; `length` None = to the end."""
        request = uploads.read_request(self._ref, uploads.digest_of(blob), offset, length)
        data: bytes = await self._run(uploads.read_blob(request))
        return data

    def branch(self, name: str, at: int | None = None) -> AsyncThread:
        """A handle on another branch. One that does not exist yet starts from version `at` with its first save."""
        return AsyncThread(self._session, replace(self._ref, branch=name, at=at))

    def history(
        self,
        from_version: int = 0,
        version: int | None = None,
        newest_first: bool = False,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
    ) -> AsyncStream[HistoryEntry]:
        """`version` (None = the head) and its ancestors back to `from_version`: (checkpoint, state, changes) of each.

        Only the first has its state, the others what they changed against their parent.
        """
        reader = HistoryReader(
            self._ref,
            from_version=from_version,
            version=version,
            newest_first=newest_first,
            projection=projection(slots, logs),
        )
        return self._session.open(reader)

    def checkpoints(
        self, *, branch: str = "", before: int | None = None, **filters: Unpack[CheckpointFilters]
    ) -> AsyncIterator[Checkpoint]:
        """Versions of the thread (below `before`), newest first, read page by page; of all branches unless one is
        named."""
        request = reading.list_checkpoints(
            self._ref.namespace, self._ref.thread, branch=branch, before=before, **filters
        )
        return self._session.read_list(reading.read_checkpoints, request)

    async def info(self) -> ThreadInfo:
        """Status, settings, branches and sizes of the thread. Raises ThreadNotFound if the thread does not exist."""
        return await self._run(threads.get_thread(self._ref))

    async def checkpoint(
        self, version: int | None = None, *, tag: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        """What is known about a version, without its state; without arguments about the branch's head."""
        return await self._run(reading.get_checkpoint(self._ref, version, tag, checkpoint_id))

    async def diff(self, a: int, b: int | None = None) -> list[Change]:
        """The edits that lead from version `a` (0 = the empty state) to `b` (None = the head)."""
        return await self._run(reading.diff(self._ref, a, b))

    async def fork(
        self, new_thread: str, version: int | None = None, *, whole: bool = False, create: ThreadOptions | None = None
    ) -> AsyncThread:
        """Copies one version (None = the head), or the whole thread, to a new one; returns a handle on that."""
        info = await self._run(threads.fork(self._ref, new_thread, version, whole, create))
        return AsyncThread(self._session, self._session.refer(info.name, migrations=self._ref.migrations or False))

    async def tag(self, name: str, version: int | None = None, *, expected: int | None = None) -> Tag:
        """Makes or moves a tag (None = to the head). `expected` is what it must name now, 0 = must not exist."""
        return await self._run(threads.set_tag(self._ref, name, version, expected))

    async def delete_tag(self, name: str) -> Tag:
        """Removes a tag and returns what it named."""
        return await self._run(threads.delete_tag(self._ref, name))

    async def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: Duration | None = None,
        keep_latest_per_branch: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes versions now: these, those older, or all but the newest of each branch. Give exactly one."""
        return await self._run(threads.prune(self._ref, versions, older_than, keep_latest_per_branch, dry_run))

    async def update_options(self, **changes: Unpack[OptionChanges]) -> ThreadInfo:
        """Changes what is given; None clears it."""
        return await self._run(threads.update_options(self._ref, changes))

    async def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: int | None = None,
        durability: Durability | str | None = None,
        local_only: bool = False,
    ) -> bool:
        """Removes the thread for good. False if there was none, which without `missing_ok` is ThreadNotFound.

        With an archive it goes there too, which must be reached; `local_only` removes what is on this disk and leaves
        the archive alone, so that the thread can be had again from there.
        """
        return await self._run(threads.delete(self._ref, missing_ok, expected_version, durability, local_only))

    def watch(
        self,
        *,
        after_sequence: int | None = None,
        after_cursor: str = "",
        include_diff: bool = False,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
    ) -> AsyncStream[Event]:
        """Events of the thread: from now on, after a sequence (0 = from the beginning) or after a cursor.

        ThreadNotFound if there is no such thread; its deletion is the last event. `slots` and `logs` choose: only
        versions that change one of them, and with `include_diff` only those changes; what else happens is told as well.

        The blocking watch has begun when this returns, the asyncio one with `async with` (or the first step of `async
        for`). It goes on after a restart of the daemon without gap or duplicate. Close it, or use it with `with`.
        """
        reader = WatchReader(
            self._ref,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            slots=slots,
            logs=logs,
        )
        return self._session.watch(reader)

    # -- writing beside others, and logs ------------------------------------------------------------------------------

    async def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds to the number in a slot, on top of whatever is the head: no increment of anybody is ever lost.

        A missing slot is made with 0. EditConflict where it holds something else than a number (`Number(3)` is one, an
        int is JSON), or would leave 64 bits. ValueError for a slot that is `ephemeral`. To know the sum, hydrate.
        """
        return await self._run(merging.increment(self._ref, slot, delta, options))

    async def set_slot(
        self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Sets one slot on top of whatever is the head, without reading it.

        `expected` is the value that it must have now, or ABSENT; EditConflict where it has another one. Values are
        compared as they are stored: for what another kind of client wrote, give `state.slots.raw(slot)`. ValueError for
        a slot that the client keeps to itself (`ephemeral`).
        """
        return await self._run(merging.set_slot(self._ref, slot, value, expected, options))

    def log(self, name: str) -> AsyncThreadLog:
        """A handle on one log, which need not exist: reads it page by page, follows it, or folds its entries."""
        return AsyncThreadLog(self._session, self._ref, name)

    # -- the archive --------------------------------------------------------------------------------------------------

    async def wait_durable(self, what: Checkpoint | int, durability: Durability | str | None = None) -> DurableResult:
        """Waits until a version, or a place in the journal, has reached a level, for up to the client's deadline.

        Fenced where another sidecar took the thread, and this version is kept in an orphan only. A place alone cannot
        tell that: another entry may stand there now.
        """
        return await self._run(threads.wait_durable(self._ref, what, durability))

    async def wait_archived(self, what: Checkpoint | int, *, timeout: Duration | None = None) -> DurableResult:  # noqa: ASYNC109  as in the blocking twin
        """Waits until a version, or a place in the journal, is in the archive, with all before it.

        Fenced as for `wait_durable`. NotArchivedYet after `timeout` seconds; None = the client's deadline. Then wait
        again.
        """
        return await self._run(threads.wait_archived(self._ref, what, timeout))

    async def attach(self, *, take_over: bool = False, read_only: bool = False, wait: Duration = 0.0) -> ThreadInfo:
        """Makes this sidecar the owner of a thread that is in the archive; NotOwner where another one holds it.

        Writes do that by themselves where the thread is free: detached, or not changed for the lease time. `wait` waits
        so many seconds for that, at most an hour. `take_over` does not ask: for who knows that the other machine is
        dead. `read_only` takes a copy of what is archived, whoever holds it. NoArchive where the daemon has none.
        """
        wait_s = seconds(wait, "wait", most=WAIT_MAX_S)
        return await self._run(ownership.attach(self._ref, take_over=take_over, read_only=read_only, wait_s=wait_s))

    async def detach(self) -> ThreadInfo:
        """Archives what is committed, then gives the thread up, so that any sidecar may take it at once."""
        return await self._run(ownership.detach(self._ref))

    # -- tools --------------------------------------------------------------------------------------------------------

    @overload  # asyncio
    async def effect(self, key: str, fn: Callable[..., Awaitable[R]], **options: Unpack[EffectOptions]) -> R: ...
    @overload  # asyncio
    async def effect(self, key: str, fn: Callable[..., R], **options: Unpack[EffectOptions]) -> R: ...
    async def effect(self, key: str, fn: Tool[R], **options: Unpack[EffectOptions]) -> R:
        """Calls `fn` and keeps its result; whoever asks for this key again gets that, after any crash too.

        `fn` is given the idempotency key, the same for all attempts, where it has a parameter `idempotency_key`, or one
        required parameter of any name; otherwise it is called without arguments.

        If it raises, that is recorded: later calls raise EffectFailed. If nobody saw its call end, `check` finds out
        what happened, else it is called again where it is `idempotent`, else EffectUncertain is raised. While somebody
        else is at it this waits, at most `wait` seconds; then EffectInProgress. ClaimLost where the claim was taken
        while `fn` worked: its result is in the error.

        After KeyboardInterrupt and SystemExit nobody knows what `fn` did: the claim stays until its term ends, or this
        agent is started again under the same `holder`.
        """
        plan = effects.plan(key, fn, options)
        result: R = await self._run(self._effect(plan, tools_of(self._session)))
        return result

    @overload  # asyncio
    async def cached(
        self, tool: str, args: Any, fn: Callable[..., Awaitable[R]], **options: Unpack[CacheOptions]
    ) -> R: ...
    @overload  # asyncio
    async def cached(self, tool: str, args: Any, fn: Callable[..., R], **options: Unpack[CacheOptions]) -> R: ...
    async def cached(self, tool: str, args: Any, fn: Tool[R], **options: Unpack[CacheOptions]) -> R:
        """The result of a tool that only reads, kept under its name and the hash of `args`: `fn` is called once.

        `args` is whatever JSON can say: a mapping is given to `fn` by name, a list by position, anything else alone; a
        `fn` without parameters is called without. Errors are not kept. Concurrent calls read once.
        """
        plan = caching.plan_read(tool, args, fn, options)
        result: R = await self._run(self._cached(plan, tools_of(self._session)))
        return result

    def effectful(self, key: Callable[..., str], **options: Unpack[EffectOptions]) -> Decorator:
        """`effect` as a decorator: `@thread.effectful(lambda order: f"pay:{order}")`; `key` gets what the call gets.

        The function is given the idempotency key where it has a parameter of that name.
        """

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            return self._effect(effects.plan_call(key, fn, args, kwargs, options), tools)

        return Decorator(self._session, start)

    def memoized(self, tool: str = "", **options: Unpack[CacheOptions]) -> Decorator:
        """`cached` as a decorator; `tool` is the function's name unless it is given. Defaults count as given."""

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            call, bound = bind_arguments(fn, args, kwargs)
            return self._cached(CachePlan(tool or fn.__name__, bound, call, options), tools)

        return Decorator(self._session, start)

    def effects(
        self, anchor: str | None = None, *, names: Iterable[str] = (), key: str = "", values: bool = True
    ) -> AsyncIterator[RecordedEffect]:
        """What tools did, in the order of sort keys; None = of all anchors. Read page by page."""
        request = recording.list_effects(self._ref, anchor, names, key, values)
        found: AsyncIterator[RecordedEffect] = self._session.read_list(recording.read_effects, request)
        return found

    async def put_effects(
        self,
        effects: Iterable[Effect],
        *,
        durability: Durability | str | None = None,
        create: ThreadOptions | None = None,
    ) -> int:
        """Records results without claims, all or none, at most 1,000; how many were not there before.

        ClaimLost where somebody is at one of them. `save(state, effects=…)` records them together with a version.
        """
        return await self._run(recording.put_effects(self._ref, effects, durability, create))

    def _effect(self, plan: Plan, tools: Tools) -> Operation[Any]:
        return effects.effect(self._ref, self._session.identity.to_proto(), plan, tools)

    def _cached(self, plan: CachePlan, tools: Tools) -> Operation[Any]:
        return caching.cached(self._ref, self._session.identity.to_proto(), plan, tools)

    # -- questions and signals ----------------------------------------------------------------------------------------

    async def ask(
        self,
        state: State,
        prompt: str,
        schema: Any = None,
        *,
        reason: str = "",
        **options: Unpack[SaveOptions],
    ) -> str:
        """Saves the state as WAITING for the answer to a question; returns its `wait_id`, which is random unless given.

        The agent may end then: with an archive the thread is given up, and any machine may go on. `schema` is a JSON
        schema that the answer must fit. The other options are those of `save`; with `durability="archived"` the
        question is where others find it when this returns. Once the answer is there, `hydrate` gives it as
        `state.answer`, and the next save of that state acknowledges it.
        """
        asked: str = await self._run(signals.ask(self._ref, state, prompt, schema, reason, options))
        return asked

    async def answer(self, value: Any, **options: Unpack[SignalOptions]) -> Signal:
        """Answers the question that the thread asks now, or the one with this `wait_id`.

        Raises StaleAnswer if the thread does not ask that question any more, or has an answer to it. Raises
        AnswerRefused, and sends nothing, if the value does not fit the question's JSON schema. The package jsonschema
        checks that (`pip install 'stateward[schema]'`); without it the answer is sent with the warning
        SchemaNotChecked.
        """
        return await self._run(signals.answer(self._ref, ANSWER, value, **options))

    async def approve(self, note: str | None = None, **options: Unpack[SignalOptions]) -> Signal:
        """Says yes to the question, as `answer` does. The note is the signal's payload."""
        return await self._run(signals.answer(self._ref, APPROVE, note, **options))

    async def reject(self, reason: str | None = None, **options: Unpack[SignalOptions]) -> Signal:
        """Says no to the question, whatever form the answer should have. The reason is the signal's payload."""
        return await self._run(signals.answer(self._ref, REJECT, reason, **options))

    async def send(self, name: str, payload: Any = None, **options: Unpack[SignalOptions]) -> Signal:
        """Sends a message to the thread's agent. The payload has at most 64 KiB.

        The message stays until a save acknowledges it. A lease keeps nobody from sending. With a `wait_id` the thread
        must wait for exactly that, else StaleAnswer. Raises QuotaExceeded if 1,024 messages wait already. With an
        archive the daemon attaches a free thread; raises NotOwner if another sidecar holds the thread.
        """
        return await self._run(signals.send(self._ref, name, payload, **options))

    async def signals(self) -> list[Signal]:
        """The signals that no save has acknowledged yet, oldest first. `hydrate` gives the same as `state.signals`."""
        found: list[Signal] = await self._run(signals.list_signals(self._ref))
        return found

    async def wait_for_answer(
        self,
        wait_id: str | None = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  as in the blocking twin
        every: Duration = LOOK_AGAIN_S,
    ) -> Signal:
        """Waits for the answer to a question (None = the one that the thread asks now): for agents that stay.

        Then hydrate, or acknowledge the answer with `save(state, ack=[answer])`: a state that was read before does not
        have it. Raises TimeoutError after `timeout`, and StaleAnswer if the thread does not wait for the answer any
        more. A watch tells of the answer; if the answer reached the archive through another sidecar, the next look
        finds it, `every` so often.
        """
        timeout_s = None if timeout is None else seconds(timeout, "timeout")
        every_s = seconds(every, "every", least=EVERY_MIN_S)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        wait_id = wait_id or await self._find_asked(end, timeout_s)
        while True:
            for_s = every_s if end is None else min(every_s, end - time.monotonic())
            found = await self._wait_for(wait_id, time.monotonic() + max(for_s, 0.001))
            if found is not None:
                return found
            if end is not None and time.monotonic() >= end:
                raise signals.no_answer(self._ref, wait_id, timeout_s)

    async def _find_asked(self, end: float | None, timeout_s: float | None) -> str:
        asked = signals.find_asked(self._ref)
        if end is None:
            return str(await self._run(asked))
        try:
            return str(await self._run(self._until(end, asked)))
        except (DeadlineExceeded, ServerUnavailable):
            if time.monotonic() < end:
                raise
            raise signals.no_answer(self._ref, None, timeout_s) from None

    async def _wait_for(self, wait_id: str, end: float) -> Signal | None:
        stream = self._session.open(signals.AnswerReader(self._ref, wait_id), until=end)
        try:
            await stream.begin()
            found: Signal | None = await self._run(self._until(end, signals.find_answer(self._ref, wait_id)))
            return found if found is not None else await anext(stream, None)
        except Fenced:
            return None
        except (DeadlineExceeded, ServerUnavailable):
            if time.monotonic() < end:
                raise
            return None
        finally:
            await stream.close()

    def _until(self, end: float, operation: Operation[T]) -> Operation[T]:
        """The same operation, with calls that end about at some time of the monotonic clock."""
        deadline_s = self._session.settings.call_timeout_s
        return limited(operation, lambda: min(deadline_s, max(end - time.monotonic(), signals.LOOK_S_MIN)))

    # -- leases and writers -------------------------------------------------------------------------------------------

    def lease(
        self,
        *,
        term: Duration = 30.0,
        wait: Duration = 0.0,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> AsyncHeldLease:
        """The right to write the thread, to be used with `with`. Nobody else can save to it meanwhile (LeaseHeld).

        Saves through this handle, and handles on other branches made from it, carry its token; with any other handle
        say `save(…, lease=lease)`. `wait` waits so many seconds for it, at most an hour, also where the thread is on
        another machine (else NotOwner); `take_over` takes it from a holder that is known to be dead. It is renewed in
        the background, and free `term` seconds after the last renewal, or at once for a client of the same `holder`
        name in a new process.
        """
        return AsyncHeldLease(
            self._session, self._ref, term=term, wait=wait, take_over=take_over, create=create, binds=True
        )

    def writer(
        self,
        *,
        term: Duration = 30.0,
        wait: Duration = 0.0,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> AsyncWriter:
        """A writer, to be used with `with`: it takes the thread's lease and saves over one stream.

        While it lives, nobody else can save to the thread (LeaseHeld). Saves of this handle by other means are made
        under its lease, and refused once it is lost: `autosave`, `before` with a state, `window.save`, `ask`,
        `hand_over`, which gives the lease back, and others, also on other branches. So are `effect` and `put_effects`.
        Before a save by other means, `flush` what was sent. Another handle has no token: give its saves `lease=writer`.

        `wait` waits so many seconds for the lease, at most an hour, also where the thread is on another machine (else
        NotOwner); `take_over` takes it from a holder that is known to be dead. `term` is for how long, in seconds, the
        lease outlives a stream that broke: a client of the same `holder` name in a new process takes it at once.
        """
        return AsyncWriter(self._session, self._ref, term=term, wait=wait, take_over=take_over, create=create)

    # -- saving by itself ---------------------------------------------------------------------------------------------

    def autosave(
        self,
        state: State,
        *,
        every: Duration | None = 60.0,
        after_each_step: bool = True,
        windows: Iterable[Window] = (),
        on_sigterm: bool = False,
        sigterm_status: Status | str = Status.PAUSED,
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[SaveOptions],
    ) -> AsyncAutosave:
        """Saves a state while an agent works on it: `with thread.autosave(state) as auto: …; auto.step(step=7)`.

        `auto.step()` says that the state is whole; it saves, or with `after_each_step=False` only where `every`
        has passed since the last save. Between steps nobody but the agent knows when the state is whole: a
        timer saves there once changes are made `with auto.changing():` (read what you edit inside of it). Nothing is
        saved where nothing changed. At the end of the block what is left is saved; after an exception only what the
        last step had left whole. A save in the background that fails is tried again, and raised at the next step if
        that does not help; VersionMismatch is never tried again.

        `on_sigterm` (main thread only) makes the final save after SIGTERM, with `sigterm_status`, at the next step, at
        the end of the block, or between two changes; then the former handler gets the signal. A second SIGTERM reaches
        that handler at once. A final save that fails is logged to `stateward`, or to stderr if logging is not set up.

        `windows` trim logs before each save; `options` are those of every save. Where others must be kept from the
        thread meanwhile, use `thread.lease()` with autosave: a `thread.writer()` of one's own holds it off too
        (LeaseHeld).
        """
        check_sigterm(sigterm_status)
        cadence = Cadence(
            self._ref,
            state,
            every=every,
            after_each_step=after_each_step,
            windows=tuple(windows),
            options=options,
            clock=clock,
        )
        return AsyncAutosave(self._session, self._ref, cadence, sigterm_status if on_sigterm else None)

    def before(
        self,
        name: str,
        state: State | None = None,
        *,
        key: str = "",
        check: Check | None = None,
        term: Duration = TERM_S,
        lock: Any = None,
        **options: Unpack[SaveOptions],
    ) -> AsyncBeforeStep:
        """Saves the state (if given) and claims a risky step, which is recorded as done at the end of the block:
        `with thread.before("charge card", state) as risky: risky.result = risky.result if risky.done else charge()`.

        The version has the label `before` with the step's name. A step that was done before has `risky.done`, and its
        result: leave it out then. One that was begun and not seen to end is EffectUncertain, unless `check(idempotency
        key)` finds out: it returns the result, or NOT_HAPPENED. Somebody else at it is EffectInProgress. An exception
        in the block leaves it uncertain, unless `risky.nothing_happened` is set; so does a result that cannot be
        recorded, which is raised. `key` (empty = the name) names this occurrence in the thread: a step that comes again
        needs one of its own, such as f"charge {order}". The claim of a process that died is free after `term` seconds,
        and at once for a client with the same `holder`.
        """
        save = partial(before.save_before, self._ref, state, name, options)
        return AsyncBeforeStep(self._session, self._ref, (name, key, term), save, check, lock or Lock())

    # -- handing over -------------------------------------------------------------------------------------------------

    async def hand_over(
        self,
        to: str,
        summary: str,
        *,
        pending_steps: Iterable[Any] = (),
        dependencies: Iterable[Any] = (),
        data: Any = None,
        sender: str | None = None,
        state: State | None = None,
        **options: Unpack[SaveOptions],
    ) -> Handoff:
        """Leaves the thread to another agent, which gets it from `client.take_handoff`.

        One save as WAITING, with what the other agent must know in the slot "handoff". With `state` the save also holds
        what changed in the state, compare-and-swap; without, the slot goes on top of whatever is the head. Then gives
        back the lease of this handle, if it holds one. `sender` is the client's `holder` unless it is given. If an
        agent on another machine is to take the thread, say `durability="archived"`: this then returns when it can.
        """
        name = sender if sender is not None else self._session.identity.name or ""
        return await self._run(
            handoff.hand_over(self._ref, to, summary, pending_steps, dependencies, data, name, state, options)
        )

    # -- schemas ------------------------------------------------------------------------------------------------------

    async def migrate(self) -> Checkpoint | None:
        """Saves the head as a new version of the current schema; None if it has that already.

        Status, step, metrics, metadata and labels stay, and so does the old version. The label
        "stateward/migrated-from" is added; on a head with 64 labels it takes the place of the last one in alphabetical
        order. "trimmed:…" is left out. Needs the handle's `migrations`, as hydrate does, which migrates in memory only.

        Where others save all the time it takes the thread's lease for a moment: what is only added waits for that.
        LeaseHeld where somebody else holds it. NoMigrationPath or MigrationFailed leave the thread as it was. It is a
        new version like any other: the TTL of a finished thread begins anew.
        """
        made: Checkpoint | None = await self._run(migrating.migrate_here(self._ref))
        return made

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, state: State, *, ttl: Duration | None = None, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Saves the last version of a run, as COMPLETED unless `status` says otherwise, and gives the thread a TTL.

        Step and metrics are those of the version before, unless they are given. The thread is deleted `ttl` after this
        save; None leaves its TTL as it is. Finishing again, after a crash in between, saves no second version where
        nothing changed.
        """
        checkpoint: Checkpoint = await self._run(saving.finish(self._ref, state, ttl, options))
        return checkpoint

    async def _run(self, operation: Operation[T]) -> T:
        return await self._session.run(operation)


class AsyncTakenThread(AsyncThread):
    """What `AsyncClient.take_handoff` returns: the handle on a thread that was handed over."""

    def __init__(self, session: AsyncSession, ref: ThreadRef, handoff: Handoff) -> None:
        super().__init__(session, ref)
        self.handoff = handoff
        """What the sender left: summary, pending steps, data."""

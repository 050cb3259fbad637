"""The handle on a thread: everything that an asyncio client does with one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack

from stateward._async.autosave import AsyncAutosave, AsyncBeforeStep
from stateward._async.blobs import AsyncBlobs
from stateward._async.checkpoints import AsyncCheckpoints
from stateward._async.effects import AsyncEffects
from stateward._async.leases import AsyncHeldLease
from stateward._async.logs import AsyncThreadLog
from stateward._async.owning import AsyncThreadArchive
from stateward._async.records import AsyncRecords
from stateward._async.refs import AsyncBranches, AsyncTags
from stateward._async.signals import AsyncSignals
from stateward._async.trees import AsyncTrees
from stateward._async.workspaces import AsyncWorkspace
from stateward._async.writer import AsyncWriter
from stateward._frames import ends_at_the_caller
from stateward._io.aio.background import Lock
from stateward._io.aio.session import AsyncSession
from stateward._io.aio.stream import AsyncStream
from stateward._operations import (
    applying,
    before,
    handoff,
    merging,
    migrating,
    reading,
    saving,
    signals,
    threads,
    updating,
)
from stateward._operations import windows as sliding
from stateward._operations.before import Check
from stateward._operations.cadence import EVERY_MIN_S, Cadence, check_sigterm
from stateward._operations.effects import TERM_S
from stateward._operations.merging import ANY
from stateward._operations.saving import PreparedSave, SaveOptions
from stateward._operations.signals import LOOK_AGAIN_S, SignalOptions
from stateward._operations.steps import Operation, ThreadRef, limited, projection
from stateward._operations.streams import HistoryReader, WatchReader
from stateward._operations.threads import OptionChanges
from stateward.arguments import text, whole_number
from stateward.changes import Change
from stateward.durations import Duration, seconds
from stateward.errors import DeadlineExceeded, Fenced, ServerUnavailable
from stateward.events import Event, HistoryEntry
from stateward.handoff import Handoff
from stateward.models import At, Checkpoint, Durability, PruneResult, Status, ThreadInfo
from stateward.options import ThreadOptions
from stateward.signals import ANSWER, APPROVE, REJECT, Question, Signal
from stateward.state import State
from stateward.window import Window
from stateward.workspaces import Rules

R = TypeVar("R")
T = TypeVar("T")


@ends_at_the_caller
class AsyncThread:
    """A handle on one branch of a thread. A handle holds no state, and the thread need not exist.

    A handle that has read or saved a state works on this creation of the thread. If the thread is deleted by somebody
    else, everything that the handle writes afterwards raises UidMismatch: a late write neither brings the thread
    back nor reaches the next thread of its name. The next `hydrate` finds out what is there now. A handle that only
    knows the name writes to whatever thread has the name.
    """

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, branch={self._ref.branch!r})"

    @property
    def name(self) -> str:
        """The name of the thread."""
        return self._ref.thread

    # -- reading and saving -------------------------------------------------------------------------------------------

    async def hydrate(
        self,
        at: At | None = None,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
        must_exist: bool = False,
        since: State | None = None,
        effects: bool = False,
    ) -> State:
        """Reads the head of the branch, or another version, and returns it as a State.

        `at` names another version than the head: a number, a Checkpoint, the name of a tag, or a CheckpointId, which is
        looked up in this branch.

        `slots` and `logs` choose parts of the state: `logs={"messages": 15}` reads the last 15 entries of that log. If
        only one of the two is given, nothing of the other kind is read. The state is then `partial`.

        If the thread or the branch does not exist, the state is empty and has version 0. With `must_exist` the call
        raises ThreadNotFound or VersionNotFound instead.

        `since` is a state of this thread that you have. Then only what changed since its version is sent, if that is
        less, and the rest is taken from it, without its unsaved changes. Use it to look at a thread again and again.

        `effects` also reads the effects of the version, in the same call: those whose anchor is its checkpoint id. They
        are in `state.effects`.
        """
        return await self._run(
            reading.hydrate(
                self._ref,
                at,
                slots=slots,
                logs=logs,
                must_exist=must_exist,
                since=since,
                effects=effects,
            )
        )

    async def save(self, state: State, *, windows: Sequence[Window] = (), **options: Unpack[SaveOptions]) -> Checkpoint:
        """Saves what changed in `state` as a new version, if the state was read from the head of the branch.

        The state then continues from the new version. `windows` trim their logs first; an error of a summariser is
        raised after the save. Raises VersionMismatch if somebody else saved in between, and leaves the state unchanged.
        Raises NotArchivedYet if the version is saved, but less durably than `durability` asks.
        """
        return await self._run(sliding.save(self._ref, state, windows, options))

    def prepare(self, state: State, **options: Unpack[SaveOptions]) -> PreparedSave:
        """Returns a save that `client.save_all` makes together with saves of other branches or threads.

        Takes the options of `save`.
        """
        return PreparedSave(self._ref, state, options)

    async def update(
        self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Hydrates, calls `fn(state)` to change the state, and saves it.

        Starts again if somebody else saved in between, so `fn` may be called several times. Raises VersionMismatch
        after `attempts` attempts.

        A thread that waits goes on waiting: its question and an answer that is there stay, so that anybody may update
        it. The agent that asked goes on from the question if `fn` reads a `state.answer` that is there, if `ack` names
        the answer that `wait_for_answer` returned, or if `status` is given.
        """
        return await self._run(updating.update(self._ref, fn, attempts, options))

    async def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log without reading the thread. Never raises VersionMismatch.

        The status of the thread and its open question stay as they are, unless `status` says otherwise or `ack` names
        signals. The same holds for `increment`, `set_slot` and boards.
        """
        return await self._run(saving.append(self._ref, log, entries, options))

    async def apply(
        self, edits: Iterable[Change], *, parent: Checkpoint | int | None = None, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Saves a version from edits, which are applied in order, all or none.

        The edits are those of `stateward.changes`, so what `diff` returns can be applied. `parent` is the version that
        they start from: the head of the branch, or 0 if the branch does not exist. Raises VersionMismatch if the head
        is another version.

        Give the Checkpoint, and not its number: after the loss of a machine, or after the thread was deleted and made
        again, another version may have the same number, and only the digest tells them apart. A number alone is for a
        person who has just seen it. The same holds for every method that takes either.

        Without `parent` the edits go on top of any head, and only SetSlot, DeleteSlot, AddNumber
        and Append are allowed. An append without entries is left out.

        With `parent` the options mean what they mean for `save`: the status is RUNNING unless it is given, and an open
        question ends. Its answer waits until `ack` names it. Without `parent` status and question stay as they are.

        Raises EditConflict if an edit does not fit the state: `error.edit` is its index. Raises InvalidField if an edit
        is wrong in any state: `error.field` names the place, such as `diff.edits[3].set_slot.slot`. Raises TypeError or
        ValueError, naming the place, if a value cannot be stored.
        """
        return await self._run(applying.apply(self._ref, edits, parent, options))

    def branch(self, name: str, at: Checkpoint | int | None = None) -> AsyncThread:
        """Returns a handle on another branch.

        If the branch does not exist, the first save creates it from version `at` (None = the empty state). Give a
        Checkpoint rather than a number: another version may have the same number, see `apply`.
        """
        text(name, "the name of a branch")
        if at is not None and not isinstance(at, Checkpoint):
            whole_number(at, "at")
        version, digest = (at.version, at.digest) if isinstance(at, Checkpoint) else (at, b"")
        return AsyncThread(self._session, replace(self._ref, branch=name, at=version, at_digest=digest))

    def history(
        self,
        oldest: At | None = None,
        at: At | None = None,
        newest_first: bool = False,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
        effects: bool = False,
    ) -> AsyncStream[HistoryEntry]:
        """Streams version `at` (None = the head) and its ancestors back to `oldest`.

        Each item is (checkpoint, state, changes). Only the first item has a state; the others have the changes against
        their parents. If versions were pruned meanwhile, an item may begin anew: `item.begins` is True, and the item
        has a state and no changes. `slots` and `logs` choose parts of the state, as in `hydrate`. With `effects`,
        `item.effects` are the effects of the version.
        """
        reader = HistoryReader(
            self._ref,
            oldest=oldest,
            at=at,
            newest_first=newest_first,
            projection=projection(slots, logs),
            effects=effects,
        )
        return self._session.open(reader)

    async def info(self) -> ThreadInfo:
        """Status, settings, branches and sizes of the thread. Raises ThreadNotFound if the thread does not exist."""
        return await self._run(threads.get_thread(self._ref))

    async def diff(self, a: At, b: At | None = None) -> list[Change]:
        """Returns the edits between version `a` (0 = the empty state) and version `b` (None = the head)."""
        return await self._run(reading.diff(self._ref, a, b))

    async def fork(
        self,
        new_thread: str,
        at: At | None = None,
        *,
        all_versions: bool = False,
        create: ThreadOptions | None = None,
    ) -> AsyncThread:
        """Copies a version (None = the head), or with `all_versions` all, to a new thread. Returns a handle on it.

        Results of effects are copied if their anchor is the checkpoint id of a copied version. Records are copied with
        `all_versions`; they keep their revisions.
        """
        info = await self._run(threads.fork(self._ref, new_thread, at, all_versions, create))
        return AsyncThread(self._session, self._session.refer(info.name, migrations=self._ref.migrations or False))

    async def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: Duration | None = None,
        keep_latest_per_branch: int | None = None,
        move_heads: bool = False,
        dry_run: bool = False,
        expected_version: Checkpoint | ThreadInfo | int | None = None,
        expected_uid: str = "",
        plan: PruneResult | None = None,
    ) -> PruneResult:
        """Removes versions now.

        Exactly one argument says which: `versions` names them, `older_than` is their least age, and
        `keep_latest_per_branch` is how many of each branch stay. `move_heads` allows `versions` to name heads: such a
        branch moves to its newest earlier version that is left, and is deleted if there is none. Raises LeaseHeld if a
        head would move while somebody else holds the thread's lease. `dry_run` only returns what would be removed.
        `expected_version` is the version that must be the head of main now, or the ThreadInfo that has it, and
        `expected_uid`, from `ThreadInfo.uid`, the uid that the thread must have.

        A person agrees to what a dry run shows. Give the result of the dry run as `plan`, with the same arguments: the
        call then removes none but its versions. A version that the rule names only since then stays. Raises
        UidMismatch if the thread was deleted or made anew, and VersionMismatch if the versions are other ones, or if
        other heads would move.
        """
        return await self._run(
            threads.prune(
                self._ref,
                versions,
                older_than,
                keep_latest_per_branch,
                dry_run,
                move_heads,
                expected_version,
                expected_uid,
                plan,
            )
        )

    async def update_options(self, **changes: Unpack[OptionChanges]) -> ThreadInfo:
        """Changes the given options of the thread. None clears an option."""
        return await self._run(threads.update_options(self._ref, changes))

    async def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: Checkpoint | ThreadInfo | int | None = None,
        expected_uid: str = "",
        unchanged_since: ThreadInfo | None = None,
        durability: Durability | str | None = None,
        local_only: bool = False,
    ) -> bool:
        """Removes the thread for good. Returns False if it did not exist. Then nothing of it is left in the archive.

        Raises ThreadNotFound if the thread does not exist, unless `missing_ok`. Deletes the creation of the thread that
        is there when the call begins, however often the call is repeated. `expected_version` is the version that must
        be the head of main now, or the ThreadInfo that has it. With `expected_uid`, from `ThreadInfo.uid`, raises
        UidMismatch if the thread has another uid or does not exist; with `missing_ok` it returns False.
        `unchanged_since` is the thread as `info` or a list showed it: raises VersionMismatch if anything was written to
        it since, a record or another branch included. With an archive the thread is removed there too, so the call
        needs the archive; `local_only` removes the copy on this disk only, and the thread can be fetched from the
        archive again.
        """
        return await self._run(
            threads.delete(
                self._ref, missing_ok, expected_version, durability, local_only, expected_uid, unchanged_since
            )
        )

    def watch(
        self,
        *,
        after_sequence: int | None = None,
        after_cursor: str = "",
        include_diff: bool = False,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
        records: bool = False,
    ) -> AsyncStream[Event]:
        """Streams the events of the thread: from now on, after a sequence (0 = from the beginning), or after a cursor.

        `slots` and `logs` select the versions that change one of them; `include_diff` then gives only those changes.
        Events of other kinds are always included, except those of records: `records` asks for them. The deletion of the
        thread is the last event. Raises ThreadNotFound if the thread does not exist.

        A blocking watch begins when this method returns, an asyncio watch when the stream is entered or first read. It
        continues after a restart of the daemon without gap or duplicate. Close the stream, or use it as a context
        manager.
        """
        reader = WatchReader(
            self._ref,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            slots=slots,
            logs=logs,
            records=records,
        )
        return self._session.watch(reader)

    # -- writing beside others -------------------------------------------------------------------------------

    async def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> int:
        """Adds to the number in a slot without reading the thread, and returns the sum.

        No increment is lost, and each returns a sum of its own: with `delta=1`, numbers without a gap. A missing slot
        starts at 0. Raises EditConflict if the slot holds anything but a number (`Number(3)` is one, an int is JSON),
        or if the sum does not fit into 64 bits. Raises ValueError if the slot is `ephemeral`.
        """
        return await self._run(merging.increment(self._ref, slot, delta, options))

    async def set_slot(
        self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Sets one slot without reading the thread.

        `expected` is the value that the slot must have now; ABSENT = the slot must not exist. Raises EditConflict if
        the slot has another value. Stored bytes are compared, so take `state.slots.raw(slot)` for a value that a client
        in another language wrote. Raises ValueError if the slot is `ephemeral`.
        """
        return await self._run(merging.set_slot(self._ref, slot, value, expected, options))

    # -- groups of methods --------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> AsyncCheckpoints:
        """The versions of the thread: `list`, `get` one without its state, and `states`."""
        return AsyncCheckpoints(self._session, self._ref)

    @property
    def branches(self) -> AsyncBranches:
        """The branches of the thread: `list`, `move` their heads, `delete`."""
        return AsyncBranches(self._session, self._ref)

    @property
    def tags(self) -> AsyncTags:
        """Names of versions: `set`, `list`, `delete`."""
        return AsyncTags(self._session, self._ref)

    @property
    def signals(self) -> AsyncSignals:
        """Messages to the agent of the thread: `send`, `list`."""
        return AsyncSignals(self._session, self._ref)

    @property
    def effects(self) -> AsyncEffects:
        """Calls of tools that are made once: `run`, `cached`, `list`, `put`, `delete`, and the decorators `wrap` and
        `memoized`."""
        return AsyncEffects(self._session, self._ref)

    @property
    def records(self) -> AsyncRecords:
        """The records of this thread: small values with keys, beside its versions.

        Writes are guarded by the leases of this handle.
        """
        return AsyncRecords(self._session, self._ref)

    @property
    def blobs(self) -> AsyncBlobs:
        """Bytes that are too large for the state: `write`, `read`."""
        return AsyncBlobs(self._session, self._ref)

    @property
    def trees(self) -> AsyncTrees:
        """The files that versions name: `list`, `read`, `diff`, `fork_into`."""
        return AsyncTrees(self._session, self._ref)

    @property
    def archive(self) -> AsyncThreadArchive:
        """The thread in the archive: `attach` it to this sidecar, `detach` it, `wait` until a version is archived."""
        return AsyncThreadArchive(self._session, self._ref)

    def log(self, name: str) -> AsyncThreadLog:
        """Returns a handle on one log, which need not exist. It reads and follows the log, and folds its entries."""
        return AsyncThreadLog(self._session, self._ref, name)

    # -- questions and signals ----------------------------------------------------------------------------------------

    async def ask(
        self,
        state: State,
        prompt: str,
        schema: Any = None,
        *,
        reason: str = "",
        asked_by: str | None = None,
        **options: Unpack[SaveOptions],
    ) -> str:
        """Saves the state as WAITING for the answer to a question. Returns the `wait_id`, which is random unless it is
        given.

        The question that is open already stays the same question, with its `wait_id`, and so with an answer that is on
        its way. Raises UnreadAnswer, and saves nothing, if the state has an answer that the program has not read.
        `asked_by` is the client's `holder` by default.

        The agent may exit then. With an archive the daemon gives the thread up, and the agent may continue on any
        machine. `schema` is a JSON schema that the answer must fit; raises ValueError if it is none. The other options
        are those of `save`. With `durability="archived"` other machines find the question when this call returns. Once
        the answer is there, `hydrate` returns it as `state.answer`, and the next save of that state acknowledges it.
        """
        name = asked_by if asked_by is not None else self._session.identity.name or ""
        return await self._run(signals.ask(self._ref, state, Question(prompt, schema, asked_by=name), reason, options))

    async def answer(self, value: Any, **options: Unpack[SignalOptions]) -> Signal:
        """Answers the question that the thread asks now, or the one with this `wait_id`.

        Raises StaleAnswer if the thread does not ask that question any more, or has an answer to it. Raises
        AnswerRefused, and sends nothing, if the value does not fit the question's JSON schema. The package jsonschema
        checks that (the extra `schema`); without it the answer is sent with the warning
        SchemaNotChecked.
        """
        return await self._run(signals.answer(self._ref, ANSWER, value, **options))

    async def approve(self, note: str | None = None, **options: Unpack[SignalOptions]) -> Signal:
        """Says yes to the question, as `answer` does. The note is the signal's payload."""
        return await self._run(signals.answer(self._ref, APPROVE, note, **options))

    async def reject(self, reason: str | None = None, **options: Unpack[SignalOptions]) -> Signal:
        """Says no to the question, whatever form the answer should have. The reason is the signal's payload."""
        return await self._run(signals.answer(self._ref, REJECT, reason, **options))

    async def wait_for_answer(
        self,
        wait_id: str | None = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  as in the blocking twin
        every: Duration = LOOK_AGAIN_S,
    ) -> Signal:
        """Waits for the answer to a question; None = the open question of the thread.

        It is for agents that do not exit meanwhile. Then hydrate, or acknowledge the answer with `save(state,
        ack=[answer])`: a state that was read before does not have it.

        Raises TimeoutError after `timeout` (None = waits for ever). Raises StaleAnswer if the thread no longer waits
        for this answer. A watch brings the answer at once. An answer that reached the archive through another sidecar
        is found at the next look at the thread; `every` is how often the client looks.
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
        """Limits the calls of an operation, so that they end at about `end`, a time of the monotonic clock."""
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
        """Returns a lease on the thread, to be used as a context manager. Only its holder can save; others get
        LeaseHeld.

        This handle, and handles on other branches made from it, save with the lease's token. For another handle give
        `save(…, lease=lease)`. The lease is renewed in the background. It ends `term` after the last renewal, or at
        once for a new process with the same `holder`.

        `wait` is how long to wait until the lease is free and the thread is on this machine, at most an hour. After it
        the call raises LeaseHeld, or NotOwner if the thread is on another machine. `take_over` takes the lease from a
        holder that is known to be dead.
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
        """Returns a writer, to be used as a context manager: it takes the thread's lease and saves over one stream.

        Meanwhile nobody else can save to the thread (LeaseHeld). Other saves, effects and appends through this handle,
        or through handles on other branches made from it, use the writer's lease, and fail once it is lost. `hand_over`
        gives the lease back. Call `flush` before you save by other means. For another handle give `save(…,
        lease=writer)`.

        `term` is how long the lease outlives a stream that broke; a new process with the same `holder` takes it at
        once. `wait` is how long to wait until the lease is free and the thread is on this machine, at most an hour.
        After it the call raises LeaseHeld, or NotOwner if the thread is on another machine. `take_over` takes the lease
        from a holder that is known to be dead.
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

        `auto.step()` says that the state is whole, and saves it; with `after_each_step=False` it saves only if the last
        save was `every` ago. Between steps a timer saves too, but only if the agent makes its changes in `with
        auto.changing():` blocks, because the state is known to be whole outside of these. Read what you edit inside the
        block. A state that did not change is not saved.

        The end of the block saves the rest. After an exception it saves only a state that is as the last step left it.
        A save in the background that fails is retried, and the next step raises its error if that does not help.
        VersionMismatch is never retried.

        `on_sigterm` (main thread only) makes the final save after SIGTERM, with `sigterm_status`: at the next step, at
        the end of the block, or between two changes. Then the former handler gets the signal. A second SIGTERM reaches
        that handler at once. A final save that fails is logged to `stateward`, or written to stderr if logging is not
        set up.

        `windows` trim logs before each save, and `options` are those of every save. To keep others from saving to the
        thread, use `thread.lease()` with autosave. A separate `thread.writer()` keeps autosave from saving, too
        (LeaseHeld).
        """
        check_sigterm(sigterm_status)
        cadence = Cadence(
            self._ref,
            state,
            every=every,
            after_each_step=after_each_step,
            windows=sliding.check_windows(windows),
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
        wait: Duration | None = None,
        lock: Any = None,
        **options: Unpack[SaveOptions],
    ) -> AsyncBeforeStep:
        """Saves the state, if it is given, and claims a risky step. The end of the block records the step as done:
        `with thread.before("charge card", state) as risky: risky.result = risky.result if risky.done else charge()`.

        `risky.done` is true if the step was done before; `risky.result` then has its result, so skip the step. If a
        process died during the step, `check(idempotency_key)` finds out what happened: it returns the result, or
        NOT_HAPPENED. Raises EffectUncertain if there is no `check`, and EffectInProgress if another caller holds the
        claim for longer than `wait`; None = 30 s, or 5 s more than `term` if that is longer.

        An exception in the block leaves the step uncertain, unless `risky.nothing_happened` is set. A result that
        cannot be stored also leaves it uncertain, and the error is raised.

        `key` names this step in the thread; by default it is `name`. A step that is repeated needs a key for each time,
        such as f"charge {order}". The saved version has the label `before` with the step's name. The client
        renews the claim until the block ends. The claim of a process that died is free after `term`, and at once for a
        client with the same `holder`.
        """
        save = partial(before.save_before, self._ref, state, name, options)
        plan = before.plan_step(name, key, term, wait)
        return AsyncBeforeStep(self._session, self._ref, plan, save, check, lock or Lock())

    # -- files --------------------------------------------------------------------------------------------------------

    def workspace(self, root: str | os.PathLike[str], rules: Rules | None = None) -> AsyncWorkspace:
        """Returns the workspace of a directory: its files are saved with versions of this thread, as in
        `thread.save(state, workspace=thread.workspace("/app").snapshot())`.

        `rules` say which files belong to it; None = `Rules()`. Raises WorkspaceRefused for `/`, the home directory, and
        a directory with the daemon's data. Needs a Unix system, and the extra `workspace`.
        """
        return AsyncWorkspace(self._session, self._ref, root, rules)

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

        Saves the thread as WAITING, with what the other agent must know in the slot "handoff". With `state` the save
        includes what changed in it, and can raise VersionMismatch. Without it the slot is set on top of the head. The
        lease of this handle is then given back, if it holds one. `sender` is the client's `holder` by default. If an
        agent on another machine is to take the thread, give `durability="archived"`: the call then returns when the
        thread can be taken there. `to` only routes: it names who is meant to look for the work. Whoever names the
        thread in `take_handoff` gets it as well.
        """
        name = sender if sender is not None else self._session.identity.name or ""
        for what, given in {"to": to, "summary": summary, "sender": name}.items():
            text(given, what)
        return await self._run(
            handoff.hand_over(self._ref, to, summary, pending_steps, dependencies, data, name, state, options)
        )

    # -- schemas ------------------------------------------------------------------------------------------------------

    async def migrate(self) -> Checkpoint | None:
        """Saves the head as a new version of the current schema. Returns None if the head has that schema already.

        The new version keeps status, step, metrics, metadata, attributes and labels. It gets the label
        "stateward/migrated-from", which replaces the alphabetically last label of a head with 64 labels; labels that
        begin with "trimmed:" are left out. The old version stays. The TTL of a finished thread starts again. The handle
        needs `migrations`; with them `hydrate` migrates too, but only in memory.

        If others save all the time, the call takes the thread's lease for a moment; appends wait for that. Raises
        LeaseHeld if another holder has the lease. Raises NoMigrationPath or MigrationFailed, and leaves the thread
        unchanged, if the state cannot be migrated.
        """
        return await self._run(migrating.migrate_here(self._ref))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, state: State, *, ttl: Duration | None = None, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Saves the last version of a run, as COMPLETED unless `status` is given, and sets the TTL of the thread.

        Step and metrics are those of the version before, unless they are given. The daemon deletes the thread `ttl`
        after this save; None leaves the TTL unchanged. If nothing changed since, calling `finish` again, for example
        after a crash, saves no second version.
        """
        return await self._run(saving.finish(self._ref, state, ttl, options))

    async def _run(self, operation: Operation[T]) -> T:
        return await self._session.run(operation)


@ends_at_the_caller
class AsyncTakenThread(AsyncThread):
    """What `AsyncClient.take_handoff` returns: the handle on a thread that was handed over."""

    def __init__(self, session: AsyncSession, ref: ThreadRef, handoff: Handoff) -> None:
        super().__init__(session, ref)
        self.handoff = handoff
        """What the sender left: summary, pending steps, data."""

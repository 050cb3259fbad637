"""The state of an agent in the client: slots, logs, and the changes that are not saved yet.

Values stay encoded until they are read. `_collect` returns the changes and changes nothing itself. `_rebase` moves the
state to the version that a save made. While a save is under way, the gate is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateward._frames import at_the_caller, hide_frames
from stateward._state.gate import Gate
from stateward._state.log import Log, entries_of
from stateward._state.slots import MissingSlot as MissingSlot  # noqa: PLC0414  a public name of it
from stateward._state.slots import Slots, suggest
from stateward._state.unsaved import Unsaved
from stateward.blobs import BlobAccess, StateBlobs, is_made
from stateward.effects import RecordedEffect
from stateward.models import Checkpoint, Status
from stateward.signals import Question, Signal, answer_in
from stateward.v1 import diff_pb2, state_pb2


@dataclass(frozen=True)
class Origin:
    """The branch that a state was read from."""

    namespace: str
    thread: str
    branch: str


class Logs(Mapping[str, Log]):
    """Named logs. Reading a missing name returns an empty log, which is stored once it has entries."""

    def __init__(
        self,
        stored: dict[str, Log] | None = None,
        *,
        partial: bool = False,
        asked: Collection[str] = (),
        retired: Mapping[str, int] | None = None,
        numbered: bool = True,
        gate: Gate | None = None,
    ) -> None:
        self._logs = stored or {}
        self._stored = set(self._logs)
        self._partial = partial
        self._asked = asked  # a partial state's hydrate asked for these: one that is missing does not exist
        self._retired = retired or {}  # the index with which a deleted log goes on
        self._numbered = numbered  # whether these are all deleted logs
        self._gate = gate or Gate()
        for log in self._logs.values():
            log._gate = self._gate

    def __getitem__(self, name: str) -> Log:
        try:
            if name not in self._logs:
                if not isinstance(name, str):
                    raise TypeError(f"the name of a log is a text, not {name!r:.100}")
                is_known = not self._partial or name in self._asked
                self._logs[name] = Log(
                    name, first_index=self._retired.get(name, 0), numbered=self._numbered and is_known,
                    readable=is_known, gate=self._gate,
                )  # fmt: skip
                self._logs[name]._is_rewritten = name in self._retired  # the save that makes it again says so
            return self._logs[name]
        except Exception as error:
            hide_frames(error)
            raise

    def __setitem__(self, name: str, entries: Iterable[Any]) -> None:
        """Makes a log hold these entries. The next save compares all of them with the stored ones and sends those that
        differ."""
        try:
            if entries is not self[name]:  # `logs[name] += …` assigns the log itself
                self[name]._assign(list(entries_of(name, entries)))
        except Exception as error:
            hide_frames(error)
            raise

    @at_the_caller
    def __delitem__(self, name: str) -> None:
        """Removes a log. A later log of the same name continues the indexes."""
        if name not in self:
            raise KeyError(name)
        self._gate.require_open()
        gone = self._logs.pop(name)
        if name in self._stored or gone._stored_next:  # also of a log that was deleted by an earlier save
            heir = Log(name, first_index=gone._stored_next, numbered=gone._numbered, gate=self._gate)
            heir._replaces, heir._is_rewritten = name in self._stored, gone._is_rewritten
            self._logs[name] = heir

    def __contains__(self, name: object) -> bool:
        log = self._logs.get(name) if isinstance(name, str) else None
        return log is not None and (len(log) > 0 or (name in self._stored and not log._replaces))

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._logs if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Logs({', '.join(f'{name}: {len(self[name])}' for name in self)})"

    def _find_retired(self) -> dict[str, int] | None:
        """Returns the logs that are deleted in the version of this state, each with the index with which it goes on.
        None = not known."""
        if not self._numbered or self._partial:
            return None
        retired = {name: index for name, index in self._retired.items() if name not in self._stored}
        heirs = [log for log in self._logs.values() if log.name not in self._stored and log._stored_next]
        return retired | {log.name: log._stored_next for log in heirs}

    def _rebase(self, unsaved: Unsaved, *, knows_deleted: bool) -> None:
        """``knows_deleted``: the save was made on the version that this state was read from."""
        for each in unsaved.logs.values():
            log, deleted = each.log, each.log._replaces and not each.added
            log._rebase(each)
            if deleted:
                self._stored.discard(log.name)
            elif log._stored:
                self._stored.add(log.name)
        self._numbered &= knows_deleted


_ATTRIBUTES = frozenset(
    (
        "slots", "logs", "checkpoint", "partial", "origin", "pinned", "owner_id", "signals", "effects",
        "schema_version", "scratch", "saving",
    )
)  # fmt: skip
"""What may be assigned. Anything else would be lost with the process, and is meant for a slot."""


class State:
    """The state of a thread at one version, to be read, changed and saved.

    `slots` are named values that are replaced; `logs` are named sequences that mostly grow. `version` 0 is the empty
    state of a thread (or branch) that does not exist yet. A `partial` state was hydrated without some slots or entries;
    a save does not touch those.

    **When a value is decoded.** A hydrated state keeps the stored bytes. It decodes a slot or an entry when you first
    read it, and returns the same object until the next save. If the bytes cannot be decoded, that read raises
    ValueError; `raw` returns the bytes.

    **What a save stores.** Values that you set or append are stored as they are when you save. Values that you read may
    be edited in place, and the save stores the edits, too: `state.logs["messages"][3]["content"] = "…"`,
    `state.slots["plan"]["done"] = 1`. Both hold until the next successful save. After it, editing an object that you
    still have changes nothing in the state: read the value again, which returns a new object, and edit that.

    **What a save leaves out.** Data that only this process needs is not saved: `scratch` is a dict beside the state,
    and `Client(ephemeral=("scratch/", "cache"))` names slots that stay in this process, by prefix or name. A hydrated
    state has neither.

    Only one thread or task at a time may use a state. While one task saves a state, another task may read it, append to
    logs and set slots; the next save sends these changes. Other changes raise RuntimeError then, and edits in place may
    be lost.
    """

    def __init__(
        self,
        *,
        slots: dict[str, state_pb2.Value] | None = None,
        logs: dict[str, Log] | None = None,
        checkpoint: Checkpoint | None = None,
        partial: bool = False,
        asked_slots: Collection[str] = (),
        asked_logs: Collection[str] = (),
        retired_logs: Mapping[str, int] | None = None,
        origin: Origin | None = None,
        pinned: bool = False,
    ) -> None:
        """Makes an empty state, for a thread that does not exist yet. Other states come from `hydrate`."""
        self._gate = Gate()
        self.slots = Slots(slots, partial=partial, asked=asked_slots, gate=self._gate)
        is_known = checkpoint is None or retired_logs is not None
        self.logs = Logs(
            logs, partial=partial, asked=asked_logs, retired=retired_logs, numbered=is_known, gate=self._gate
        )
        self.checkpoint = checkpoint
        self.partial = partial
        self.origin = origin
        self.pinned = pinned
        """Whether the caller asked for this version, which may be older than the head of its branch."""
        self.owner_id = ""
        """The --owner-id of another sidecar that writes the thread; the state is what that sidecar has archived.
        Empty = none."""
        self.signals: tuple[Signal, ...] = ()
        """The signals that waited for the agent when the head was hydrated, oldest first. `save(state,
        ack=state.signals)` acknowledges all of them and empties this tuple."""
        self.effects: tuple[RecordedEffect, ...] = ()
        """The effects of the version, in order, if `hydrate(effects=True)` asked for them: those whose anchor is its
        checkpoint id. They stay as they were read; a save does not change them."""
        self._is_answer_read = False  # whether the program has read `answer`
        self.schema_version = checkpoint.schema_version if checkpoint else 0
        """The schema of the content: that of the version, until a migration changes it. The next save stores it, unless
        the caller gives another."""
        self.scratch: dict[str, Any] = {}
        """Any objects that belong to the state in this process only, such as open connections. They are never sent."""

    @property
    def status(self) -> Status | int | None:
        """Status of the work at the version; None = there is no version yet."""
        return self.checkpoint.status if self.checkpoint else None

    @property
    def waiting(self) -> bool:
        """Whether the version waits: for the answer to a question, or for whatever its `checkpoint.wait_id` names."""
        return self.status == Status.WAITING

    @property
    def question(self) -> Question | None:
        """The question that the version asks; None = none."""
        return self.checkpoint.question if self.checkpoint and self.waiting else None

    @property
    def answer(self) -> Signal | None:
        """The answer to the question that the thread asks; None = no question, or no answer when it was hydrated.

        Use the answer before you save: the save acknowledges it, in the version that holds your reaction. If the save
        fails, the answer stays, and the next `hydrate` finds it again. A save with the same `wait_id` keeps the
        question open, and the answer with it.
        """
        self._is_answer_read = True
        return self._waiting_answer

    @property
    def _waiting_answer(self) -> Signal | None:
        """The same, for the client itself: reading this does not mean that the program has read `answer`."""
        head = self.checkpoint
        if head is None or head.status != Status.WAITING or not head.wait_id:
            return None
        return answer_in(self.signals, head.wait_id)

    @property
    def version(self) -> int:
        """The version that this state continues from; 0 = none yet."""
        return self.checkpoint.version if self.checkpoint else 0

    @property
    def digest(self) -> bytes:
        """History digest of that version, 16 bytes; empty = none yet."""
        return self.checkpoint.digest if self.checkpoint else b""

    @property
    def saving(self) -> bool:
        """True while a save of this state is under way."""
        return self._gate.closed

    @saving.setter
    def saving(self, saving: bool) -> None:
        self._gate.closed = saving

    if not TYPE_CHECKING:  # a type checker refuses the assignment itself, unless it sees this method

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                if not name.startswith("_") and name not in _ATTRIBUTES:
                    raise AttributeError(
                        f"a state has no attribute {name!r}, and would not save it; use {suggest(name)}"
                    )
                super().__setattr__(name, value)
            except Exception as error:
                hide_frames(error)
                raise

    def __repr__(self) -> str:
        return f"State(version={self.version}, {self.slots!r}, {self.logs!r})"

    def _collect(self, diff: diff_pb2.Diff | None = None, blob_threshold: int = 0) -> Unsaved:
        """Returns what changed since `version`, and adds the edits to `diff` (None = a new diff). Values with more than
        `blob_threshold` bytes become blobs; 0 = none.

        Changes nothing in the state. Raises TypeError or ValueError, with the place, for a value that cannot be stored.
        """
        unsaved = Unsaved(diff_pb2.Diff() if diff is None else diff, blob_threshold=blob_threshold)
        self.slots._collect(unsaved)
        for name in sorted(self.logs._logs):
            unsaved.logs[name] = self.logs._logs[name]._collect(unsaved.diff, unsaved.take)
        return unsaved

    def _keep_out(self, ephemeral: tuple[str, ...]) -> None:
        """Never saves slots of these names, or below these prefixes (which end in "/"). Values that others stored under
        such a name are not visible, and stay as they are."""
        self.slots._keep_out(ephemeral)

    def _whole(self, unsaved: Unsaved) -> state_pb2.State:
        """Returns the whole state with its changes. Raises ValueError for a partial state: saving it as the whole would
        delete the rest."""
        if self.partial:
            raise ValueError("overwrite needs the whole state, and this one is partial; hydrate all of it")
        kept = [name for name in self.slots if not self.slots._is_ephemeral(name)]
        slots = {name: unsaved.slots.get(name) or self.slots._stored[name] for name in kept}
        logs = {name: each.log._whole(each) for name, each in unsaved.logs.items() if name in self.logs}
        return state_pb2.State(slots=slots, logs=logs)

    def _read_blobs_through(self, access: BlobAccess | None) -> None:
        """Reads the blobs of this state through `access`, unless another access was given before."""
        if self._gate.blobs is None and access is not None:
            self._gate.blobs = StateBlobs(access)

    def _blobs_to_fetch(self) -> list[state_pb2.BlobRef]:
        """Returns the blobs of large values that must be fetched before, because reading them would be awaited."""
        blobs = self._gate.blobs
        if blobs is None or not blobs.access.is_async:
            return []
        return [value.blob for value in self._stored_values() if is_made(value)]

    def _keep_blobs(self, fetched: Mapping[bytes, bytes]) -> None:
        """Keeps the bytes of such blobs as long as this state names the blobs."""
        blobs = self._gate.blobs
        if blobs is not None and blobs.access.is_async and (fetched or blobs.fetched):
            named = {ref.sha256 for ref in self._blobs_to_fetch()}
            blobs.fetched = {key: data for key, data in {**blobs.fetched, **fetched}.items() if key in named}

    def _stored_values(self) -> Iterator[state_pb2.Value]:
        yield from self.slots._stored.values()
        for log in self.logs._logs.values():
            yield from log._stored

    def _acknowledge(self, ids: Collection[str]) -> None:
        """Removes the signals that a save acknowledged."""
        self.signals = tuple(each for each in self.signals if each.id not in ids)

    def _logs_without_numbers(self) -> list[Log]:
        """Returns the logs whose indexes the daemon must tell before the changes can be collected."""
        return [log for log in self.logs._logs.values() if log._needs_numbers()]

    def _rebase(self, unsaved: Unsaved, checkpoint: Checkpoint, origin: Origin, *, whole: bool) -> None:
        """Moves to the version that was made from `unsaved`. Later changes stay unsaved."""
        self.slots._rebase(unsaved)
        # A new branch may begin at a version of which this state knows nothing.
        is_base = self.checkpoint is not None or not checkpoint.parent_version
        self.logs._rebase(unsaved, knows_deleted=is_base and not whole)
        if whole:  # the logs that it replaced may have had other indexes
            for log in self.logs._logs.values():
                log._numbered = False
        self.checkpoint, self.origin, self.pinned, self.owner_id = checkpoint, origin, False, ""
        self.schema_version = checkpoint.schema_version

"""The state of an agent in the client's hands: slots, logs, and what changed in them since they were read.

Values stay encoded until they are looked at. `collect` says what changed without changing anything; `rebase` moves the
state onto the version that a save made. While the save is under way the gate is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stateward._state.collected import Collected, Gate
from stateward._state.log import Log
from stateward._state.slots import Slots
from stateward.blobs import BlobAccess, StateBlobs, is_made
from stateward.models import Checkpoint, Status
from stateward.signals import Signal, answer_in
from stateward.v1 import diff_pb2, state_pb2


@dataclass(frozen=True)
class Origin:
    """Where a state was read."""

    namespace: str
    thread: str
    branch: str


class Logs(Mapping[str, Log]):
    """Named logs. A missing name gives an empty log, which is stored once something is appended to it."""

    def __init__(
        self,
        stored: dict[str, Log] | None = None,
        *,
        partial: bool = False,
        asked: Collection[str] = (),
        numbered: bool = True,
        gate: Gate | None = None,
    ) -> None:
        self._logs = stored or {}
        self._stored = set(self._logs)
        self._partial = partial
        self._asked = asked  # of a partial state: what is not there although it was asked for does not exist
        self._numbered = numbered  # whether a log made from here on begins at index 0 for sure
        self._gate = gate or Gate()
        for log in self._logs.values():
            log._gate = self._gate

    def __getitem__(self, name: str) -> Log:
        if name not in self._logs:
            is_known = not self._partial or name in self._asked
            self._logs[name] = Log(name, numbered=self._numbered, readable=is_known, gate=self._gate)
        return self._logs[name]

    def __setitem__(self, name: str, entries: Iterable[Any]) -> None:
        """Makes a log hold these entries. A save compares them all with what is stored and sends what differs."""
        if entries is not self[name]:  # `logs[name] += …` ends up here with the log itself
            self[name]._assign(list(entries))

    def __delitem__(self, name: str) -> None:
        """Removes a log. One of the same name made later continues its indexes."""
        if name not in self:
            raise KeyError(name)
        self._gate.require_open()
        gone = self._logs.pop(name)
        if name in self._stored:
            heir = Log(name, first_index=gone._stored_next, numbered=gone._numbered, gate=self._gate)
            heir._replaces = True
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

    def _rebase(self, collected: Collected) -> None:
        for each in collected.logs.values():
            log, deleted = each.log, each.log._replaces and not each.added
            log._rebase(each)
            if deleted:
                self._stored.discard(log.name)
            elif log._stored:
                self._stored.add(log.name)
        self._numbered = False  # a log deleted by an earlier version is not seen from here


class State:
    """The state of a thread at one version, to be read, changed and saved.

    `slots` are named values that are replaced, `logs` named sequences that mostly grow. `version` 0 is the empty state
    of a thread (or branch) that does not exist yet. `partial` states were hydrated in part; what they leave out is not
    touched by a save.

    **What a save finds.** What you set or append is stored as it is when you save. What you read may be edited in
    place, and a save finds that too: `state.logs["messages"][3]["content"] = "…"`, `state.slots["plan"]["done"] = 1`.
    Both hold until the next successful save. From then on objects that you still have are yours alone, and editing
    them changes nothing here: read the value again to edit it (that gives a fresh object).

    **What a save leaves out.** Facts are saved, and what only this process needs is not: `scratch` is a dict beside the
    state, and `Client(ephemeral=("scratch/", "cache"))` declares slots that stay here, by prefix or name. A hydrated
    state has neither.

    A state belongs to one thread of control. While a task saves it, another one may read it, append to logs and set
    slots, which the next save then sends; other changes raise RuntimeError, and edits in place may go unnoticed.
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
        origin: Origin | None = None,
        pinned: bool = False,
    ) -> None:
        """Users get states from `hydrate`; `State()` is an empty one for a thread that does not exist yet."""
        self._gate = Gate()
        self.slots = Slots(slots, partial=partial, asked=asked_slots, gate=self._gate)
        self.logs = Logs(logs, partial=partial, asked=asked_logs, numbered=checkpoint is None, gate=self._gate)
        self.checkpoint = checkpoint
        self.partial = partial
        self.origin = origin
        self.pinned = pinned
        """True where a version was asked for, which need not be the head of its branch."""
        self.owner_id = ""
        """Set where another sidecar, of this --owner-id, writes the thread: this is what it had archived."""
        self.signals: tuple[Signal, ...] = ()
        """The signals that waited for the agent when the head was hydrated, oldest first. `save(state,
        ack=state.signals)` acknowledges them all, and removes them from here."""
        self._is_answer_read = False  # whether somebody looked at `answer`
        self.schema_version = checkpoint.schema_version if checkpoint else 0
        """The shape of its content: that of its version, until a migration changes it. The next save says the same,
        unless it is told another."""
        self.scratch: dict[str, Any] = {}
        """What goes with the state in this process only: open connections, caches. Anything; it is never sent."""

    @property
    def answer(self) -> Signal | None:
        """The answer to the question that the thread asks, if it was there when the state was hydrated; else None.

        A save of this state that goes on from the question acknowledges the answer, in the version that holds what you
        made of it. So use the answer before you save. A save that fails leaves the answer, and the next `hydrate` finds
        it again. A save that says the same `wait_id` keeps the question open, and the answer with it.
        """
        self._is_answer_read = True
        return self._waiting_answer

    @property
    def _waiting_answer(self) -> Signal | None:
        """The same, for the client itself: its own look says nothing about what the agent has read."""
        head = self.checkpoint
        if head is None or head.status != Status.WAITING or not head.wait_id:
            return None
        return answer_in(self.signals, head.wait_id)

    @property
    def version(self) -> int:
        """The version this state continues from; 0 = none yet."""
        return self.checkpoint.version if self.checkpoint else 0

    @property
    def digest(self) -> bytes:
        """History digest of that version; empty = none yet."""
        return self.checkpoint.digest if self.checkpoint else b""

    @property
    def saving(self) -> bool:
        """True while a save of this state is under way."""
        return self._gate.closed

    @saving.setter
    def saving(self, saving: bool) -> None:
        self._gate.closed = saving

    def __repr__(self) -> str:
        return f"State(version={self.version}, {self.slots!r}, {self.logs!r})"

    def collect(self, diff: diff_pb2.Diff | None = None, blob_threshold: int = 0) -> Collected:
        """What changed since `version`, its edits added to `diff` (None = a new one). Values with more than
        `blob_threshold` bytes become blobs; 0 = none.

        Changes nothing in the state. TypeError or ValueError names what cannot be stored.
        """
        collected = Collected(diff_pb2.Diff() if diff is None else diff, blob_threshold=blob_threshold)
        self.slots._collect(collected)
        for name in sorted(self.logs._logs):
            self.logs._logs[name]._collect(collected)
        return collected

    def keep_out(self, ephemeral: tuple[str, ...]) -> None:
        """Slots of these names, and below these prefixes (which end in "/"), are never saved. What somebody else
        stored under such a name is not seen, and stays as it is."""
        self.slots._keep_out(ephemeral)

    def whole(self, collected: Collected) -> state_pb2.State:
        """The whole state, as `collected`; ValueError for a partial one, which would delete what it leaves out."""
        if self.partial:
            raise ValueError("overwrite needs the whole state, and this one is partial")
        kept = [name for name in self.slots if not self.slots._is_ephemeral(name)]
        slots = {name: collected.slots.get(name) or self.slots._stored[name] for name in kept}
        logs = {name: each.log._collect_whole(each) for name, each in collected.logs.items() if name in self.logs}
        return state_pb2.State(slots=slots, logs=logs)

    def read_blobs_through(self, access: BlobAccess | None) -> None:
        """Says how the blobs of this state are read, if nothing said it before."""
        if self._gate.blobs is None and access is not None:
            self._gate.blobs = StateBlobs(access)

    def blobs_to_fetch(self) -> list[state_pb2.BlobRef]:
        """The blobs that must be here before the values they were made of can be read without waiting."""
        blobs = self._gate.blobs
        if blobs is None or not blobs.access.is_async:
            return []
        return [value.blob for value in self._stored_values() if is_made(value)]

    def keep_blobs(self, fetched: Mapping[bytes, bytes]) -> None:
        """Keeps bytes of such blobs as long as this state names them."""
        blobs = self._gate.blobs
        if blobs is not None and blobs.access.is_async and (fetched or blobs.fetched):
            named = {ref.sha256 for ref in self.blobs_to_fetch()}
            blobs.fetched = {key: data for key, data in {**blobs.fetched, **fetched}.items() if key in named}

    def _stored_values(self) -> Iterator[state_pb2.Value]:
        yield from self.slots._stored.values()
        for log in self.logs._logs.values():
            yield from log._stored

    def acknowledge(self, ids: Collection[str]) -> None:
        """A save was done with these signals."""
        self.signals = tuple(each for each in self.signals if each.id not in ids)

    def logs_without_numbers(self) -> list[Log]:
        """Logs whose indexes must be learnt from the daemon before the changes can be said."""
        return [log for log in self.logs._logs.values() if log._needs_numbers()]

    def rebase(self, collected: Collected, checkpoint: Checkpoint, origin: Origin, *, whole: bool) -> None:
        """Moves onto the version that was made from `collected`; what was changed since then stays a change."""
        self.slots._rebase(collected)
        self.logs._rebase(collected)
        if whole:  # the stored logs may have begun elsewhere
            for log in self.logs._logs.values():
                log._numbered = False
        self.checkpoint, self.origin, self.pinned, self.owner_id = checkpoint, origin, False, ""
        self.schema_version = checkpoint.schema_version

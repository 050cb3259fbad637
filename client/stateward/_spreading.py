"""Large values that are saved whole each time, spread over a log: a write sends the pieces that changed.

Some frameworks give the bytes of their whole state at each step. Most of them are those of the step before: lists grow
at their end. So the value is cut into pieces, which are the entries of a log, and the slot says which log has them:

    slot   JSON {"log", "pieces", "type"}, a line feed, and the first bytes of the value; has a media type of its own
    log    pieces of 64 KiB, the last one shorter

A write cuts the log where the first changed piece was, and appends the rest. The first bytes are in the slot, because
times and ids often stand there. If more than 16 MiB changed, the pieces go to the other one of two logs in several
versions, and the slot names this log in the last one. So a value is there whole, or as it was before.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from stateward import values
from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._telling import RUNNING
from stateward.changes import Append, Change, SetSlot, TrimLog
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch
from stateward.models import Checkpoint
from stateward.options import ThreadOptions
from stateward.state import State
from stateward.v1.state_pb2 import Value
from stateward.values import RawValue

HEAD_BYTES, PIECE_BYTES = 4 << 10, 64 << 10
# So many bytes are written at a time.
TOGETHER_BYTES = 16 << 20
MEDIA_TYPE = "application/vnd.stateward.spread"
# Of so many threads it is remembered what their logs have.
KNOWN_MAX = 100
_DIGEST_BYTES = 16


class Spread(NamedTuple):
    """The log of a value, and the digests of its pieces."""

    log: str
    digests: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Known:
    """A version, the values that are spread in it, and the logs that it has."""

    version: Checkpoint | int
    spreads: Mapping[str, Spread]
    logs: frozenset[str]


class Spreader:
    """Writes and reads values of threads. Those are spread that the client would make blobs, which are stored whole."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._known: OrderedDict[str, Known] = OrderedDict()

    def is_large(self, data: bytes) -> bool:
        """Whether a value is spread."""
        most_bytes = self._client._session.blob_policy.threshold_bytes
        return len(data) > max(most_bytes, HEAD_BYTES) > HEAD_BYTES

    async def apply(
        self,
        thread: AsyncThread,
        slots: Mapping[str, RawValue],
        edits: Sequence[Change] = (),
        *,
        parent: Checkpoint | int | None = None,
        create: ThreadOptions,
        piece_labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Checkpoint:
        """Sets slots of a thread, and applies further edits. Raises VersionMismatch if ``parent`` is given and is not
        the head. ``options`` are those of `AsyncThread.apply`; versions before the last one have ``piece_labels``."""
        if thread.name not in self._known and not any(self.is_large(value.data) for value in slots.values()):
            plain = [SetSlot(name, value) for name, value in slots.items()]
            return await thread.apply([*plain, *edits], parent=parent, create=create, **options)
        while True:
            remembered = self._known.pop(thread.name, None)
            known = remembered or await self._look(thread.name, slots)
            plan = self._plan(known, slots)
            version = known.version if parent is None else parent
            try:
                for changes in plan.before:
                    version = await thread.apply(
                        changes, parent=version, create=create, labels=piece_labels or {}, **RUNNING
                    )
                made = await thread.apply([*plan.edits, *edits], parent=version, create=create, **options)
            except (VersionMismatch, ThreadNotFound, UidMismatch) as error:
                # Somebody else wrote meanwhile. But what the caller has seen must still be there.
                if parent is not None or (remembered is None and not isinstance(error, VersionMismatch)):
                    raise
                continue
            self._remember(thread.name, Known(made, plan.spreads, known.logs | plan.logs))
            return made

    def read(self, thread: str, state: State, names: Iterable[str]) -> dict[str, RawValue]:
        """Returns the values that are spread in a state, by slot. ``state`` has the slots and the logs of `logs_of`.
        Remembers for the next write of ``thread`` what they have. Raises ValueError if pieces are missing."""
        found, spreads = dict[str, RawValue](), dict[str, Spread]()
        for name in names:
            place = _place_of(state.slots.get(name))
            if place is None:
                continue
            pieces: list[bytes] = list(state.logs[place.log]) if place.log in state.logs else []
            if len(pieces) != place.pieces:
                raise ValueError(f"{name}: {len(pieces)} pieces of it are there, not {place.pieces}")
            found[name] = RawValue(place.media_type, b"".join((place.head, *pieces)))
            spreads[name] = Spread(place.log, [_digest(piece) for piece in pieces])
        self.forget(thread)
        if spreads and state.checkpoint is not None:
            logs = frozenset(log for log in logs_of(names) if log in state.logs)
            self._remember(thread, Known(state.checkpoint, spreads, logs))
        return found

    def forget(self, name: str) -> None:
        """Forgets what the logs of a thread have."""
        self._known.pop(name, None)

    def _remember(self, name: str, known: Known) -> None:
        self._known[name] = known
        self._known.move_to_end(name)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def _look(self, name: str, slots: Iterable[str]) -> Known:
        """Reads what the head of a thread has, with a handle that knows the thread by its name only."""
        slots = list(slots)
        state = await self._client.thread(name).hydrate(slots=slots, logs=logs_of(slots))
        self.read(name, state, slots)
        known = self._known.pop(name, None)
        logs = frozenset(log for log in logs_of(slots) if log in state.logs)
        return Known(state.checkpoint or 0, {} if known is None else known.spreads, logs)

    def _plan(self, known: Known, slots: Mapping[str, RawValue]) -> _Plan:
        plan = _Plan([], [], dict(known.spreads), set())
        for name, value in slots.items():
            old = known.spreads.get(name)
            if self.is_large(value.data):
                plan.spread(known, name, value)
            else:
                plan.edits.append(SetSlot(name, value))
                plan.spreads.pop(name, None)
                if old is not None:
                    plan.edits.append(TrimLog(old.log, from_index=0))
        return plan


class _Plan(NamedTuple):
    """The edits of versions before the last one, those of the last one, and what is there afterwards."""

    before: list[list[Change]]
    edits: list[Change]
    spreads: dict[str, Spread]
    logs: set[str]

    def spread(self, known: Known, name: str, value: RawValue) -> None:
        """Adds a value that is spread."""
        data, old = memoryview(value.data), known.spreads.get(name)
        pieces = [bytes(data[at : at + PIECE_BYTES]) for at in range(HEAD_BYTES, len(data), PIECE_BYTES)]
        digests = [_digest(piece) for piece in pieces]
        same = _count_same(old.digests, digests) if old is not None else 0
        if old is not None and (len(pieces) - same) * PIECE_BYTES <= TOGETHER_BYTES:
            log, added = old.log, pieces[same:]
            if same < len(old.digests):
                self.edits.append(TrimLog(log, from_index=same))
        else:
            one, other = _logs_of(name)
            log, added = other if old is not None and old.log == one else one, pieces
            step = TOGETHER_BYTES // PIECE_BYTES
            if log in known.logs:  # what an earlier value left, or a write that was cut off
                self.before.append([TrimLog(log, from_index=0)])
            while len(added) > step:
                self.before.append([Append(log, tuple(added[:step]))])
                added = added[step:]
            if old is not None:
                self.edits.append(TrimLog(old.log, from_index=0))
        if added:
            self.edits.append(Append(log, tuple(added)))
        place = {"log": log, "pieces": len(pieces), "type": value.media_type}
        head = json.dumps(place).encode() + b"\n" + data[:HEAD_BYTES]
        self.edits.append(SetSlot(name, RawValue(MEDIA_TYPE, head)))
        self.spreads[name] = Spread(log, digests)
        self.logs.add(log)


class _Place(NamedTuple):
    media_type: str
    log: str
    pieces: int
    head: bytes


def decoded(value: RawValue, path: str) -> Any:
    """Returns the Python form of a value. Raises ValueError, with `path`, if its bytes do not fit its media type."""
    return values.decode(Value(media_type=value.media_type, data=value.data), path)


def is_spread(state: State, names: Iterable[str]) -> bool:
    """Whether one of these slots has a value whose rest is in a log."""
    return any(_place_of(state.slots.get(name)) is not None for name in names)


def logs_of(names: Iterable[str]) -> list[str]:
    """Returns the logs that values of these slots may be spread over."""
    return [log for name in names for log in _logs_of(name)]


def _place_of(value: Any) -> _Place | None:
    if not isinstance(value, RawValue) or value.media_type != MEDIA_TYPE:
        return None
    line, _, head = value.data.partition(b"\n")
    place = json.loads(line)
    return _Place(place["type"], place["log"], place["pieces"], head)


def _logs_of(name: str) -> tuple[str, str]:
    return f"{name}.1", f"{name}.2"


def _digest(piece: bytes) -> bytes:
    return sha256(piece).digest()[:_DIGEST_BYTES]


def _count_same(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    same = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return next(same, min(len(one), len(other)))

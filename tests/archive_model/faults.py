"""What can happen between a sidecar and its bucket, and around a commit, said in advance: one plan for each operation.

A fault strikes at the n-th request of the operation, at the n-th that writes a HEAD, or at its n-th commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.archive_model.turns import Death, Turns

from stateward_sidecar.bucket.base import REPLACED_BYTES_MAX, Bucket, BucketUnavailable, Object
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.bucket.objectstore import UPLOAD_RETRIES

T = TypeVar("T")
REQUEST_S = 30.0
# The client of an object store repeats a refused upload of more than 1 MiB, and nothing else. A slice, of 5 MiB, has
# 3,000 bytes here.
UPLOAD_BYTES = 600

REFUSED = "refused"  # no effect, an error; the next attempt is answered
LOST = "lost"  # the effect, and no answer
LATE = "late"  # no answer, and the effect some time later
AWAY = "away"  # no effect, and nothing is answered until the operation ends
LOST_AWAY = "lost, then away"
LATE_AWAY = "late, then away"
DIES_BEFORE = "dies before"  # the process, between the request and its effect
DIES_AFTER = "dies after"
DIES_LATE = "dies, and the request arrives later"
FLIPPED = "flipped"  # one bit of what is read
CUT = "cut"  # the end of what is read is missing
MEANWHILE = "meanwhile"  # nothing is wrong with the request; something else happens before it
HELD = "held"  # nothing is wrong with it, and it takes until the machine lets it go on: others overtake
READ_HELD = "read held"  # the same for what reads
HELD_AFTER = "held after"  # the effect, and the answer takes as long
GATHERS = "gathers"  # the commit takes long to begin: what others of the process write goes into the same transaction
APPLIED = "applied"  # the transaction is made, and takes long to be committed: memory does not say yet what it holds
HOLDS = (HELD, READ_HELD, HELD_AFTER, GATHERS, APPLIED)
DAMAGE = (FLIPPED, CUT)
OF_READS = (*DAMAGE, READ_HELD)  # all others strike writes
DEATHS = (DIES_BEFORE, DIES_AFTER, DIES_LATE)
KINDS = (
    REFUSED, LOST, LATE, AWAY, LOST_AWAY, LATE_AWAY, DIES_BEFORE, DIES_AFTER, DIES_LATE, FLIPPED, CUT, MEANWHILE, HELD,
    HELD_AFTER,
)  # fmt: skip
COMMIT_KINDS = (HELD, HELD_AFTER, HELD_AFTER, GATHERS, APPLIED, MEANWHILE, DIES_BEFORE, DIES_AFTER)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens at one request."""

    kind: str
    at: int
    at_head: bool = False  # counts only requests that write a HEAD
    meanwhile: int = 0  # what happens, for MEANWHILE
    at_commit: bool = False  # counts commits

    def __str__(self) -> str:
        where = "commit" if self.at_commit else "HEAD write" if self.at_head else "request"
        return f"{self.kind} at {where} {self.at}"


@dataclass(slots=True)
class Op:
    """One operation: its plan, and how far it is. What an operation sets going belongs to it."""

    plan: tuple[Fault, ...] = ()
    takes_over: bool = False
    sweeps: bool = False  # deletes what nobody asked it to delete
    was_away: bool = False  # the bucket, when it began, or while it waited: for another call of its process
    requests: int = 0
    head_writes: int = 0
    commits: int = 0
    is_away: bool = False
    struck: list[Fault] = field(default_factory=list)
    asks: Callable[[], None] = lambda: None  # a deletion has the name for itself, and looks at the archive next

    def at_request(self, *, is_write: bool, is_head: bool) -> Fault | None:
        """The fault of the next request."""
        number, head_number = self.requests, self.head_writes
        self.requests += 1
        self.head_writes += is_head
        for fault in self.plan:
            if fault.at_commit or (fault.kind in OF_READS) == is_write:
                continue
            if fault.at == (head_number if fault.at_head else number) and (is_head or not fault.at_head):
                self.struck.append(fault)
                return fault
        return None

    def at_commit(self) -> Fault | None:
        """The fault of the next commit."""
        number, self.commits = self.commits, self.commits + 1
        for fault in self.plan:
            if fault.at_commit and fault.at == number:
                self.struck.append(fault)
                return fault
        return None


@dataclass(slots=True)
class Witness:
    """Who looks on. ``before`` comes before a HEAD write, ``head`` after one had its effect, with who sent it."""

    before: Callable[[], None]
    head: Callable[[str, bytes, Op], None]
    meanwhile: Callable[[int], None]


@dataclass(slots=True)
class Net:
    """The bucket, and requests that are still under way to it."""

    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    under_way: list[Callable[[], object]] = field(default_factory=list)
    refuses_every: int = 0  # 503 for each request whose number is a multiple; 0 = for none
    requests: int = 0
    # How fast bytes of objects other than HEADs and keys reach the bucket; 0 = at once. No request has longer than
    # REQUEST_S, as a client of HTTP says.
    bytes_a_s: float = 0.0
    pass_time: Callable[[float], None] = lambda _: None
    # HEADs that sidecars of the next format wrote, and how such sidecars read them.
    of_next_format: dict[bytes, bytes] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)  # keys of writes that came, or may come, after their time

    def arrive(self) -> None:
        """All that is under way arrives now, the oldest first; nobody hears the answers."""
        arriving, self.under_way[:] = list(self.under_way), []
        for request in arriving:
            try:
                request()
            except Exception:  # noqa: BLE001  (a conditional write that came too late)
                continue


class Refused(BucketUnavailable):
    """503 of a bucket that is busy."""


class FaultyBucket(Bucket):
    """The way of one sidecar to the bucket."""

    def __init__(self, net: Net, witness: Witness, turns: Turns | None = None) -> None:
        self._net = net
        self._inner = net.bucket
        self._turns = turns or Turns()
        self.witness = witness
        self.is_dead = False
        # Set if the sidecar is of the next format: turns a HEAD into one that only its kind can read.
        self.raise_format: Callable[[str, bytes], bytes] | None = None

    @property
    def op(self) -> Op:
        """What runs now."""
        call = self._turns.current
        return call.op if call is not None else Op()

    # -- requests -------------------------------------------------------------------------------------------------

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        fault, found = self._do(key, lambda: self._inner.get(key, most_bytes), is_write=False)
        data = found.data
        if self.raise_format is not None:
            data = self._net.of_next_format.get(data, data)
        return Object(_spoilt(fault, data), found.etag)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return _spoilt(*self._do(key, lambda: self._inner.get_range(key, offset, length), is_write=False))

    def put(self, key: str, data: bytes) -> None:
        for left in range(UPLOAD_RETRIES if len(data) > UPLOAD_BYTES else 0, -1, -1):
            self._carry(key, data)
            try:
                self._do(key, lambda: self._inner.put(key, data), is_write=True)
            except Refused:
                if not left:
                    raise
            else:
                return

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def create(self, key: str, data: bytes) -> str:
        sent = self._sent(key, data)
        return self._do(key, lambda: self._inner.create(key, sent), is_write=True, body=data)[1]

    def replace(self, key: str, data: bytes, etag: str) -> str:
        sent = self._sent(key, data)
        return self._do(key, lambda: self._inner.replace(key, sent, etag), is_write=True, body=data)[1]

    def _sent(self, key: str, data: bytes) -> bytes:
        """What a sidecar of the next format really writes."""
        if self.raise_format is None or not key.endswith("/HEAD"):
            return data
        known = next((new for new, old in self._net.of_next_format.items() if old == data), None)
        if known is None:  # else it is sent again
            known = self.raise_format(key, data)
            self._net.of_next_format[known] = data
        return known

    def delete(self, key: str) -> None:
        self._do(key, lambda: self._inner.delete(key), is_write=True)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        return self._inner.list(prefix)

    def close(self) -> None:
        """The bucket stays."""

    def _carry(self, key: str, data: bytes) -> None:
        """Takes the time that a new object needs."""
        seconds = len(data) / self._net.bytes_a_s if self._net.bytes_a_s else 0.0
        if seconds and not self.is_dead:
            self._net.pass_time(min(seconds, REQUEST_S))
        if seconds > REQUEST_S:
            raise BucketUnavailable(f"{key}: the request took longer than {REQUEST_S:g} s", is_unclear=True)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _do(self, key: str, effect: Callable[[], T], *, is_write: bool, body: bytes = b"") -> tuple[Fault | None, T]:
        if self.is_dead:
            raise Death
        self._net.requests += 1
        if self._net.refuses_every and not self._net.requests % self._net.refuses_every:
            raise Refused(f"{key}: 503")
        is_head, op, witness = is_write and key.endswith("/HEAD"), self.op, self.witness
        fault = op.at_request(is_write=is_write, is_head=is_head)
        if is_head:
            witness.before()

        def watched() -> T:
            result = effect()
            if is_head:
                witness.head(key, body, op)
            return result

        return fault, self._strike(op, fault.kind if fault is not None else "", fault, key, watched, is_write=is_write)

    def _strike(
        self, op: Op, kind: str, fault: Fault | None, key: str, effect: Callable[[], T], *, is_write: bool
    ) -> T:
        if kind == MEANWHILE:
            assert fault is not None
            self.witness.meanwhile(fault.meanwhile)
        if kind in (HELD, READ_HELD):
            self._turns.hold()
        if op.is_away or kind in (REFUSED, AWAY):
            op.is_away = op.is_away or kind == AWAY
            raise BucketUnavailable(f"{key}: {kind or 'away'}")
        if kind == DIES_BEFORE:
            self._turns.die()
        if kind in (LATE, LATE_AWAY, DIES_LATE) and is_write:
            self._net.under_way.append(effect)
            self._net.late.add(key)
            if kind == DIES_LATE:
                self._turns.die()
            op.is_away = kind == LATE_AWAY
            raise BucketUnavailable(f"{key}: {kind}", is_unclear=True)
        if kind == DIES_LATE:
            self._turns.die()
        result = effect()
        if kind == DIES_AFTER:
            self._turns.die()
        if kind == HELD_AFTER:
            self._turns.hold()
        if kind in (LOST, LOST_AWAY, LATE, LATE_AWAY):
            op.is_away = kind in (LOST_AWAY, LATE_AWAY)
            raise BucketUnavailable(f"{key}: {kind}", is_unclear=is_write)
        return result


def _spoilt(fault: Fault | None, data: bytes) -> bytes:
    if fault is not None and fault.kind == FLIPPED and data:
        at = len(data) * 2 // 3
        return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
    if fault is not None and fault.kind == CUT:
        return data[: len(data) // 2]
    return data

"""What can happen between a sidecar and its bucket, said in advance: one plan for each operation.

A fault strikes at the n-th request of the operation, or at the n-th that writes a HEAD. Time is a number that the
machine moves; a retrying bucket sleeps in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from stateward_sidecar.bucket.base import Bucket, Object
from stateward_sidecar.bucket.errors import BucketUnavailable
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.clock import Clock

T = TypeVar("T")

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
DAMAGE = (FLIPPED, CUT)
DEATHS = (DIES_BEFORE, DIES_AFTER, DIES_LATE)
KINDS = (
    REFUSED, LOST, LATE, AWAY, LOST_AWAY, LATE_AWAY, DIES_BEFORE, DIES_AFTER, DIES_LATE, FLIPPED, CUT, MEANWHILE,
)  # fmt: skip


class Death(BaseException):
    """The process ends here. Nothing catches it: no clean-up is a promise."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens at one request."""

    kind: str
    at: int
    at_head: bool  # counts only requests that write a HEAD
    meanwhile: int = 0  # what happens, for MEANWHILE

    def __str__(self) -> str:
        return f"{self.kind} at {'HEAD write' if self.at_head else 'request'} {self.at}"


class FakeClock(Clock):
    """Time that stands still until somebody moves it. All machines age alike; their wall clocks may be wrong."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.skew_s = 0.0

    def now_us(self) -> int:
        return int((self.now_s + self.skew_s + 1.7e9) * 1e6)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Waiting costs nothing."""
        self.now_s += seconds


class SkewedClock(FakeClock):
    """One machine's clock: the common time, with a wall clock of its own."""

    def __init__(self, common: FakeClock) -> None:
        super().__init__()
        self._common = common

    def now_us(self) -> int:
        return self._common.now_us() + int(self.skew_s * 1e6)

    def monotonic(self) -> float:
        return self._common.now_s


@dataclass(slots=True)
class Witness:
    """Who looks on. ``before`` comes before a HEAD write, ``head`` after one had its effect, with who sent it."""

    before: Callable[[], None]
    head: Callable[[str, bytes], None]
    meanwhile: Callable[[int], None]


@dataclass(slots=True)
class Net:
    """The bucket, and requests that are still under way to it."""

    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    under_way: list[Callable[[], object]] = field(default_factory=list)

    def arrive(self) -> None:
        """All that is under way arrives now, the oldest first; nobody hears the answers."""
        arriving, self.under_way[:] = list(self.under_way), []
        for request in arriving:
            try:
                request()
            except Exception:  # noqa: BLE001  (a conditional write that came too late)
                continue


class FaultyBucket(Bucket):
    """The way of one sidecar to the bucket."""

    def __init__(self, net: Net, witness: Witness) -> None:
        self._net = net
        self._inner = net.bucket
        self.witness = witness
        self._plan: tuple[Fault, ...] = ()
        self._requests = self._head_writes = 0
        self._is_away = False
        self.struck: list[Fault] = []
        self.log: list[str] = []

    def arm(self, plan: tuple[Fault, ...]) -> None:
        """The plan of one operation; () = the network is fine."""
        self._plan, self._requests, self._head_writes, self._is_away = plan, 0, 0, False
        self.struck = []
        self.log = []

    # -- requests -------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Object:
        fault = self._next(key, is_write=False)
        found = self._do(fault, key, lambda: self._inner.get(key), is_write=False)
        return Object(_spoilt(fault, found.data), found.etag)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        fault = self._next(key, is_write=False)
        return _spoilt(fault, self._do(fault, key, lambda: self._inner.get_range(key, offset, length), is_write=False))

    def put(self, key: str, data: bytes) -> None:
        self._write(key, lambda: self._inner.put(key, data), b"")

    def create(self, key: str, data: bytes) -> str:
        return self._write(key, lambda: self._inner.create(key, data), data)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        return self._write(key, lambda: self._inner.replace(key, data, etag), data)

    def delete(self, key: str) -> None:
        self._write(key, lambda: self._inner.delete(key), b"")

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        return self._inner.list(prefix)

    def close(self) -> None:
        """The bucket stays."""

    # -- faults ---------------------------------------------------------------------------------------------------

    def _write(self, key: str, effect: Callable[[], T], body: bytes) -> T:
        is_head = key.endswith("/HEAD")
        fault = self._next(key, is_write=True)
        witness = self.witness
        if is_head:
            witness.before()

        def watched() -> T:
            result = effect()
            if is_head:
                witness.head(key, body)
            return result

        return self._do(fault, key, watched, is_write=True)

    def _next(self, key: str, *, is_write: bool) -> Fault | None:
        is_head = is_write and key.endswith("/HEAD")
        number, head_number = self._requests, self._head_writes
        self._requests += 1
        self._head_writes += is_head
        self.log.append(f"{'write' if is_write else 'read'} {key.rpartition('/')[2]}")
        for fault in self._plan:
            if fault.at == (head_number if fault.at_head else number) and (is_head or not fault.at_head):
                if (fault.kind in DAMAGE) == is_write:
                    continue
                self.struck.append(fault)
                return fault
        return None

    def _do(self, fault: Fault | None, key: str, effect: Callable[[], T], *, is_write: bool) -> T:
        kind = fault.kind if fault is not None else ""
        if kind == MEANWHILE:
            assert fault is not None
            self.witness.meanwhile(fault.meanwhile)
        if self._is_away or kind in (REFUSED, AWAY):
            self._is_away = self._is_away or kind == AWAY
            raise BucketUnavailable(f"{key}: {kind or 'away'}")
        if kind == DIES_BEFORE:
            raise Death
        if kind in (LATE, LATE_AWAY, DIES_LATE) and is_write:
            self._net.under_way.append(effect)
            if kind == DIES_LATE:
                raise Death
            self._is_away = kind == LATE_AWAY
            raise BucketUnavailable(f"{key}: {kind}", is_unclear=True)
        if kind == DIES_LATE:
            raise Death
        result = effect()
        if kind == DIES_AFTER:
            raise Death
        if kind in (LOST, LOST_AWAY, LATE, LATE_AWAY):
            self._is_away = kind in (LOST_AWAY, LATE_AWAY)
            raise BucketUnavailable(f"{key}: {kind}", is_unclear=is_write)
        return result


def _spoilt(fault: Fault | None, data: bytes) -> bytes:
    if fault is not None and fault.kind == FLIPPED and data:
        at = len(data) * 2 // 3
        return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
    if fault is not None and fault.kind == CUT:
        return data[: len(data) // 2]
    return data

"""Processes and disks of a history: how operations are begun, held and ended, and what may be said when."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from hashlib import shake_128
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine
from tests.archive_model.blobbook import BlobBook
from tests.archive_model.faults import DAMAGE, HOLDS, MEANWHILE, Fault, FaultyBucket, Net, Op, Witness
from tests.archive_model.naming import Naming
from tests.archive_model.payments import Payments
from tests.archive_model.process import Waits
from tests.archive_model.recordbook import RecordBook, Request
from tests.archive_model.sidecar import PromisedDisk, Sidecar
from tests.archive_model.truth import Sent, Truth
from tests.archive_model.turns import Death, Place, Turns
from tests.daemon import small
from tests.daemon.clocks import FakeClock
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.record_service_pb2 import DeleteRecordsResponse, PutRecordsResponse
from stateward.v1.signal_service_pb2 import SendSignalRequest, SendSignalResponse
from stateward.v1.thread_service_pb2 import DeleteBranchRequest, MoveBranchRequest
from stateward_sidecar.archive.objects import heads
from stateward_sidecar.archive.objects.spares import SURE_S
from stateward_sidecar.archive.requests.places import place_of
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    BlobNotFound,
    ClaimLost,
    Corrupt,
    DiskFull,
    Fenced,
    InvalidField,
    KeyUnavailable,
    NewerFormat,
    NotOwner,
    RecordConflict,
    ShuttingDown,
    StatewardError,
    ThreadExists,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES

T = TypeVar("T")
SIDECARS = 2
TOTALS = Counter[str]()  # of all examples
LAWFUL = (
    BlobNotFound, ClaimLost, Fenced, NotOwner, RecordConflict, ThreadExists, ThreadNotFound, UidMismatch,
    VersionMismatch, VersionNotFound, VersionPruned,
)  # fmt: skip


class Stage(RuleBasedStateMachine):
    """Two sidecars, one bucket, one truth."""

    def begin(
        self, *, one_host: bool = False, window: int = REQUEST_WINDOW_ENTRIES, keeps_records: bool = False
    ) -> None:  # fmt: skip
        """``one_host``: both daemons have the default owner id of one machine. ``window``: so many entries answer
        retries; where it is short, a machine may write a thread of which it has the newest part only.
        ``keeps_records``: agents put a record beside each save."""
        self.turns, self.time, self.net, self.truth = Turns(), FakeClock(), Net(), Truth()
        self.net.pass_time = self.time.sleep
        small.shrink(Waits(self.turns, self.time), window, has_segments=True)
        self.window = window
        home = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.home = Path(tempfile.mkdtemp(prefix="archive-model-", dir=home))
        self.numbers = itertools.count(1)
        self.disks: list[PromisedDisk] = []
        self.copies: list[PromisedDisk] = []
        self.backups: list[tuple[dict[str, bytes], dict[str, Sent]]] = []
        self.era, self.era_began_s = 0, 0.0  # how often the bucket was set back, and when it was last
        self.one_host, self.keeps_records = one_host, keeps_records
        self.requests: list[tuple[SaveRequest, dict[bytes, list[SaveResponse]]]] = []
        self.sent: dict[bytes, SaveRequest] = {}  # by the hash of its id
        self.moves: list[MoveBranchRequest | DeleteBranchRequest] = []
        self.moved: dict[bytes, dict[bytes, int]] = {}  # by the hash of a request's id: digest → sequence
        # What the client of a thread and branch believes: uid, version, digest.
        self.beliefs: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.orphans: dict[tuple[int, int], tuple[str, int]] = {}  # name and era, by disk and number
        self.digests: dict[tuple[bytes, int, bytes], bytes] = {}  # by uid, sequence and row: what was looked at
        self.payments, self.naming, self.blobs = Payments(), Naming(), BlobBook()
        self.records = RecordBook()
        self.puts: list[tuple[Request, dict[bytes, list[PutRecordsResponse | DeleteRecordsResponse]]]] = []
        self.signals: list[tuple[SendSignalRequest, dict[bytes, list[SendSignalResponse]]]] = []
        self.revisions: dict[tuple[str, str], int] = {}  # what clients believe, by thread and key
        self.namespace: NamespaceKeys | None = None  # also when no disk has its keys any more
        self.steps: list[str] = []
        self.failures: list[BaseException] = []
        self.next_start: tuple[Fault, ...] = ()  # the plan of a start after a death
        self.is_broken = False  # found something: what comes after it means nothing
        self.sidecars: list[Sidecar] = []
        for number in range(SIDECARS):
            self.sidecars.append(self.new_sidecar(number, self.owner(number)))
        TOTALS["archive histories tried"] += 1

    def owner(self, number: int) -> str:
        """The owner id that a sidecar is started with."""
        return "host" if self.one_host else f"owner-{number}"

    def quiet(self) -> tuple[int, int]:
        """Changes whenever anything else happens."""
        return self.turns.stops, TOTALS["archive operations"]

    def mark(self, size: int) -> str:
        """A content that hardly compresses, and that nobody else has."""
        number = f"{next(self.numbers)}:"
        return number + shake_128(number.encode()).hexdigest(size // 2)

    # -- operations -----------------------------------------------------------------------------------------------

    def act(
        self, number: int, what: str, verb: Callable[[Sidecar], T], plan: tuple[Fault, ...] = (), *,
        takes_over: bool = False, sweeps: bool = False,
    ) -> T | None:  # fmt: skip
        """Runs a verb under a plan, until it is over or held.

        None: it is held, or was refused in a way that is right, or the process died and is back.
        """
        sidecar = self.sidecars[number]
        if sidecar.is_dead:
            return None  # in the middle of something else; it starts again afterwards
        self.steps.append(f"{number}: {what} [{', '.join(map(str, plan))}]")
        TOTALS["archive operations"] += 1
        op = Op(plan, takes_over=takes_over, sweeps=sweeps, was_away=sidecar.wire.away_s > 0)
        call = self.guarded(lambda: self.turns.begin(what, sidecar, lambda: self.watched(sidecar, verb), op))
        if call.place is not Place.IS_OVER:
            self.steps.append(f"   {call}")
        return call.result if call.error is None else None

    def watched(self, sidecar: Sidecar, verb: Callable[[Sidecar], T]) -> T:
        """Runs a verb, and looks at its error."""
        raise NotImplementedError

    def guarded(self, step: Callable[[], T]) -> T:
        """Does something, and looks at everything afterwards."""
        try:
            result = step()
            self.take_in()
        except BaseException:
            self.is_broken = True
            raise
        return result

    def go_on(self, which: int) -> None:
        """Lets a call go on that is held."""
        held = self.turns.held
        if held:
            call = held[which % len(held)]
            self.steps.append(f"   {call.what} goes on")
            self.guarded(lambda: self.turns.let_go(call))

    def take_in(self) -> None:
        """Looks at what ended meanwhile, and at all disks."""
        if self.failures:
            raise self.failures[0]
        over, self.turns.over[:] = list(self.turns.over), []
        for call in over:
            if isinstance(call.error, StatewardError):
                self.check_error(call.process, call.op, call.error)
            elif call.error is not None and not isinstance(call.error, Death):
                raise call.error
        for sidecar in self.sidecars:
            errors, sidecar.errors[:] = list(sidecar.errors), []
            for op, error in errors:
                self.check_error(sidecar, op, error)
        if self.turns.current is None:
            for number, sidecar in enumerate(self.sidecars):
                if sidecar.is_dead:
                    TOTALS["archive crashes"] += 1
                    plan, self.next_start = self.next_start, ()
                    self.restart(number, plan)
        self.look()

    def look(self) -> None:
        """Takes in what is on the disks, and checks it."""
        raise NotImplementedError

    def check_error(self, sidecar: Sidecar, op: Op, error: StatewardError) -> None:
        """What may be said when."""
        self.steps.append(f"   → {type(error).__name__}: {error.message}")
        calls = [call for call in self.turns.under_way if call.process is sidecar]
        kinds = {fault.kind for each in (op, *(call.op for call in calls)) for fault in each.struck}
        TOTALS[f"archive answers {type(error).__name__}"] += 1
        if isinstance(error, NewerFormat):
            assert not sidecar.disk.is_newer, f"a sidecar of the next format does not know it: {error.message}"
            assert self.net.of_next_format, f"NEWER_FORMAT, and nobody wrote one: {error.message}"
        elif isinstance(error, Corrupt):
            is_right = kinds & set(DAMAGE) or self.may_be_lost(sidecar, error, is_exact=not kinds & {MEANWHILE, *HOLDS})
            assert is_right, f"CORRUPT, and nothing was damaged: {error.message}"
        elif isinstance(error, ArchiveUnavailable):
            # An earlier write of its own had landed after all; a deletion found that the thread was taken; or data that
            # were copied wait for a lease before what they hold is theirs; or a save came before what was fetched.
            texts = ("shipping again", "was taken by another", "if it stays idle", "was made on this disk while")
            again = any(text in error.message for text in texts)
            # What a call does between its tries, a sign of life say, may make each of its tries the n-th request.
            again |= bool(self.net.refuses_every) and error.message.endswith(": 503")
            assert kinds or again or op.was_away, f"ARCHIVE_UNAVAILABLE, and the bucket answered: {error.message}"
        elif isinstance(error, DiskFull):
            assert sidecar.is_full, f"DISK_FULL, and there is room: {error.message}"
        elif isinstance(error, KeyUnavailable):
            assert kinds & {MEANWHILE, *DAMAGE} or self.era, f"KEY_UNAVAILABLE: {error.message}"
        else:
            is_stopping = isinstance(error, ShuttingDown) and sidecar.archive.state.is_stopping.is_set()
            lacks_blob = isinstance(error, InvalidField) and "write it first" in error.message
            assert is_stopping or lacks_blob or isinstance(error, LAWFUL), f"{type(error).__name__}: {error.message}"

    def may_be_lost(self, sidecar: Sidecar, error: Corrupt, *, is_exact: bool) -> bool:
        raise NotImplementedError

    # -- processes ------------------------------------------------------------------------------------------------

    def new_disk(self, owner_id: str) -> PromisedDisk:
        number = next(self.numbers)
        disk = PromisedDisk(number, self.home / f"disk-{number}", owner_id, number)
        self.disks.append(disk)
        return disk

    def new_sidecar(self, number: int, owner_id: str) -> Sidecar:
        return self.start(number, self.new_disk(owner_id))

    def start(self, number: int, disk: PromisedDisk, plan: tuple[Fault, ...] = ()) -> Sidecar:
        """``plan``: of what it does by itself when it starts."""

        def seen(look: Callable[..., None]) -> Callable[..., None]:
            """The daemon must not swallow what is found in the middle of its calls."""

            def watched(*what: Any) -> None:
                try:
                    look(*what)
                except BaseException as error:
                    self.failures.append(error)
                    raise

            return watched

        meanwhile = seen(lambda what: self.meanwhile(number, what))
        witness = Witness(seen(self.look), seen(lambda *head: self.see_head(disk, *head)), meanwhile)
        bucket = FaultyBucket(self.net, witness, self.turns)
        bucket.raise_format = self.raise_format if disk.is_newer else None
        every, self.net.refuses_every = self.net.refuses_every, 0  # a first start needs an answer, else it ends
        try:
            return Sidecar(disk, bucket, self.time, number, self.turns, meanwhile, Op(plan))
        finally:
            self.net.refuses_every = every

    def raise_format(self, key: str, data: bytes) -> bytes:
        """A HEAD as the next format has it."""
        place = place_of(key)
        for each in self.sidecars:
            self.namespace = each.store.context.keystore.namespace(NAMESPACE) or self.namespace
        assert place is not None
        assert self.namespace is not None
        head = heads.open_head(self.namespace, place, data)
        head.min_reader = head.min_writer = heads.FORMAT + 1
        return heads.seal_head(self.namespace, place, head)

    def see_head(self, disk: PromisedDisk, key: str, data: bytes, op: Op) -> None:
        raise NotImplementedError

    def meanwhile(self, number: int, what: int) -> None:
        raise NotImplementedError

    def upgrade(self, number: int) -> None:
        """A version of the next format takes the place of the one on a disk. None ever goes back."""
        self.steps.append(f"{number}: disk {self.sidecars[number].disk.number} gets the next format")
        self.sidecars[number].disk.is_newer = True
        self.restart(number)

    def restart(self, number: int, plan: tuple[Fault, ...] = ()) -> None:
        """The process ended; it starts again on its disk."""
        sidecar = self.sidecars[number]
        sidecar.crash()
        self.sidecars[number] = self.start(number, sidecar.disk, plan)
        self.check_outbox(self.sidecars[number])

    def check_outbox(self, sidecar: Sidecar) -> None:
        raise NotImplementedError

    # -- disks ----------------------------------------------------------------------------------------------------

    def lose_disk(self, number: int) -> None:
        """The machine is gone; another one starts with nothing, under the same name."""
        sidecar = self.sidecars[number]
        self.steps.append(f"{number}: disk {sidecar.disk.number} is lost")
        sidecar.crash()
        sidecar.disk.promised.clear()
        self.sidecars[number] = self.start(number, self.new_disk(sidecar.disk.owner_id))

    def keep_copy(self, number: int) -> None:
        """Somebody copies a disk at one moment."""
        sidecar = self.sidecars[number]
        copy = PromisedDisk(
            next(self.numbers), self.home / f"copy-{len(self.copies)}", sidecar.disk.owner_id, sidecar.disk.origin
        )
        sidecar.copy_disk(copy.path)
        copy.promised = list(sidecar.disk.promised)
        copy.is_newer = sidecar.disk.is_newer
        self.copies.append(copy)
        self.steps.append(f"{number}: disk {sidecar.disk.number} is copied")

    def use_copy(self, number: int, owner_id: str) -> None:
        """The newest copy takes the place of a disk: an older one of its own, or a clone of the other's."""
        copy, sidecar = self.copies[-1], self.sidecars[number]
        disk = self.new_disk(owner_id)
        shutil.copytree(copy.path, disk.path)
        disk.promised, disk.was_set_back, disk.origin = list(copy.promised), True, copy.origin
        disk.is_newer = copy.is_newer
        sidecar.crash()
        sidecar.disk.promised.clear()
        self.steps.append(f"{number}: goes on with the copy as disk {disk.number}")
        self.sidecars[number] = self.start(number, disk)
        self.look()

    # -- the bucket -----------------------------------------------------------------------------------------------

    def back_up(self) -> None:
        """Somebody copies the bucket at one moment."""
        self.steps.append("the bucket is copied")
        self.backups.append((dict(self.net.bucket.objects), dict(self.truth.heads)))

    def set_back(self) -> None:
        """The bucket's copy takes its place, with nothing on its way: what was archived since is gone, and who has a
        copy must notice."""
        objects, heads = self.backups[-1]
        self.steps.append("the bucket is set back")
        self.time.sleep(SURE_S + 1)  # the copy is older
        self.net.under_way.clear()
        for sidecar in self.sidecars:
            sidecar.wire.waiting.clear()
        self.net.bucket.objects.clear()
        self.net.bucket.objects.update(objects)
        self.era, self.era_began_s = self.era + 1, self.time.now_s
        self.truth.set_back(heads)
        for disk in (*self.disks, *self.copies):
            disk.promised.clear()
        self.payments.paid.clear()

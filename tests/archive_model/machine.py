"""Sidecars and truth side by side: how operations are run, what is looked at after each, what must hold at the end.

The rules are in test_archive_model.py.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import currently_in_test_context, note
from hypothesis.stateful import RuleBasedStateMachine
from tests.archive_model import small
from tests.archive_model.faults import DAMAGE, MEANWHILE, Death, FakeClock, Fault, FaultyBucket, Net, Witness
from tests.archive_model.payments import Payments
from tests.archive_model.sidecar import LEASE_S, NAMESPACE, Disk, Sidecar
from tests.archive_model.truth import EMPTY, State, Truth, Version

from stateward.v1.checkpoint_pb2 import STATUS_RUNNING, Status, VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.effect_service_pb2 import ListEffectsRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ACCESS_ORPHAN, ACCESS_OWNED
from stateward_sidecar.archive.heads import open_head
from stateward_sidecar.archive.places import place_of
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    Fenced,
    KeyUnavailable,
    NotOwner,
    StatewardError,
    ThreadExists,
    ThreadNotFound,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread import Thread, rows

T = TypeVar("T")
SIDECARS = 2
TOTALS = Counter[str]()  # of all examples


class Machine(RuleBasedStateMachine):
    """Two sidecars, one bucket, one truth."""

    def begin(self) -> None:
        small.shrink()
        home = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.home = Path(tempfile.mkdtemp(prefix="archive-model-", dir=home))
        self.time, self.net, self.truth = FakeClock(), Net(), Truth()
        self.numbers = itertools.count(1)
        self.disks: list[Disk] = []
        self.copies: list[Disk] = []
        self.requests: list[tuple[SaveRequest, dict[bytes, list[SaveResponse]]]] = []
        # What the client of a thread and branch believes: uid, version, digest.
        self.beliefs: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.orphans: dict[tuple[int, int], str] = {}
        self.payments = Payments()
        self.steps: list[str] = []
        self.is_broken = False  # found something: what comes after it means nothing
        self.busy: Sidecar | None = None
        self.sidecars = [self.new_sidecar(number, f"owner-{number}") for number in range(SIDECARS)]
        TOTALS["archive histories tried"] += 1

    def new_disk(self, owner_id: str) -> Disk:
        number = next(self.numbers)
        disk = Disk(number, self.home / f"disk-{number}", owner_id)
        self.disks.append(disk)
        return disk

    def new_sidecar(self, number: int, owner_id: str) -> Sidecar:
        return self.start(number, self.new_disk(owner_id))

    def start(self, number: int, disk: Disk) -> Sidecar:
        bucket = FaultyBucket(self.net, Witness(lambda: None, lambda *_: None, lambda _: None))
        sidecar = Sidecar(disk, bucket, self.time, number)
        bucket.witness = Witness(
            lambda: self.look(sidecar), lambda key, data: self.see_head(sidecar, disk, key, data),
            lambda what: self.meanwhile(sidecar, what),
        )  # fmt: skip
        return sidecar

    # -- operations -----------------------------------------------------------------------------------------------

    def act(self, number: int, what: str, verb: Callable[[Sidecar], T], plan: tuple[Fault, ...] = ()) -> T | None:
        """Runs a verb under a plan. None: it was refused in a way that is right, or the process died and is back."""
        self.steps.append(f"{number}: {what} [{', '.join(map(str, plan))}]")
        TOTALS["archive operations"] += 1
        try:
            result = self.run_verb(number, verb, plan)
            sidecar = self.sidecars[number]
            sidecar.bucket.arm(())
            self.look(sidecar)
            self.check_promises()
        except BaseException:
            self.is_broken = True
            raise
        return result

    def run_verb(self, number: int, verb: Callable[[Sidecar], T], plan: tuple[Fault, ...]) -> T | None:
        sidecar = self.sidecars[number]
        sidecar.bucket.arm(plan)
        outer, self.busy = self.busy, sidecar
        try:
            return verb(sidecar)
        except Death:
            TOTALS["archive crashes"] += 1
            self.restart(number)
        except StatewardError as error:
            self.check_error(sidecar, error)
        finally:
            self.busy = outer
            TOTALS["archive faults"] += len(sidecar.bucket.struck)
        return None

    def check_error(self, sidecar: Sidecar, error: StatewardError) -> None:
        """What may be said when."""
        self.steps.append(f"   → {type(error).__name__}: {error.message}")
        kinds = {fault.kind for fault in sidecar.bucket.struck}
        TOTALS[f"archive answers {type(error).__name__}"] += 1
        if isinstance(error, Corrupt):
            assert kinds & set(DAMAGE), f"CORRUPT, and nothing was damaged: {error.message}"
        elif isinstance(error, ArchiveUnavailable):
            # An earlier write of its own had landed after all; or a deletion found that the thread was taken.
            again = any(text in error.message for text in ("shipping again", "was taken by another"))
            assert kinds or again, f"ARCHIVE_UNAVAILABLE, and the bucket answered: {error.message}"
        elif isinstance(error, KeyUnavailable):
            assert kinds & {MEANWHILE, *DAMAGE}, f"KEY_UNAVAILABLE: {error.message}"
        else:
            assert isinstance(
                error,
                Fenced | NotOwner | ThreadExists | ThreadNotFound | VersionMismatch | VersionNotFound | VersionPruned,
            ), f"{type(error).__name__}: {error.message}"

    def restart(self, number: int) -> None:
        """The process ended; it starts again on its disk."""
        sidecar = self.sidecars[number]
        sidecar.crash()
        self.sidecars[number] = self.start(number, sidecar.disk)
        self.check_outbox(self.sidecars[number])

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
        copy = Disk(next(self.numbers), self.home / f"copy-{len(self.copies)}", sidecar.disk.owner_id)
        sidecar.copy_disk(copy.path)
        copy.promised = list(sidecar.disk.promised)
        self.copies.append(copy)
        self.steps.append(f"{number}: disk {sidecar.disk.number} is copied")

    def use_copy(self, number: int, owner_id: str) -> None:
        """The newest copy takes the place of a disk: an older one of its own, or a clone of the other's."""
        copy, sidecar = self.copies[-1], self.sidecars[number]
        disk = self.new_disk(owner_id)
        shutil.copytree(copy.path, disk.path)
        disk.promised, disk.was_set_back = list(copy.promised), True
        sidecar.crash()
        sidecar.disk.promised.clear()
        self.steps.append(f"{number}: goes on with the copy as disk {disk.number}")
        self.sidecars[number] = self.start(number, disk)
        self.look(self.sidecars[number])

    # -- looking --------------------------------------------------------------------------------------------------

    def journals(self, sidecar: Sidecar) -> list[tuple[Thread, dict[int, bytes]]]:
        """All threads on a disk with their journals, sequence → digest."""
        found = []
        threads = sidecar.threads()
        with sidecar.store.context.engine.read() as txn:
            for thread in threads:
                line = {}
                for key, record in rows(txn, thread.identity.keys.all_of(b"J")):
                    header = unpack(record, layout.tail_number(key)).header
                    self.truth.see_entry(thread.identity.uid, header)
                    line[header.sequence] = bytes(header.digest)
                found.append((thread, line))
        return found

    def look(self, sidecar: Sidecar) -> None:
        """Takes in what is on a disk; checks orphans and what waiters were told."""
        assert not sidecar.fatal, sidecar.fatal
        for thread, line in self.journals(sidecar):
            if thread.access == ACCESS_ORPHAN:
                self.check_orphan(sidecar, thread, line)
        for item in list(sidecar.waiting):
            future, uid, sequence, digest = item
            if future.done():
                sidecar.waiting.remove(item)
                self.told(future.exception(), uid, sequence, digest)

    def told(self, error: BaseException | None, uid: bytes, sequence: int, digest: bytes) -> None:
        """A waiter heard that its entry is archived, or that it never will be."""
        if error is None:
            self.truth.promise_archived(uid, sequence, digest)
            TOTALS["archive answers ARCHIVED"] += 1
        elif isinstance(error, Fenced):
            assert digest not in self.truth.history(uid).values(), "FENCED was answered of an entry that is history"
        else:
            assert isinstance(error, ThreadNotFound), error

    def check_orphan(self, sidecar: Sidecar, thread: Thread, line: dict[int, bytes]) -> None:
        """What is set aside is no history, and what is history is not called lost."""
        row, uid = thread.archive, thread.identity.uid
        assert row is not None
        if uid in self.truth.deleted:
            return
        history = self.truth.history(uid)
        key = sidecar.disk.number, thread.number
        if key not in self.orphans:
            self.orphans[key] = thread.name
            self.steps.append(f"   disk {key[0]}: orphan {thread.name}, common {row.common_sequence}")
            TOTALS["archive orphans"] += 1
            others = self.truth.writers[uid] - {sidecar.disk.number}
            assert others or sidecar.disk.was_set_back, "a thread that nobody else ever had was set aside"
        for sequence, digest in line.items():
            is_history = history.get(sequence) == digest
            if sequence > row.common_sequence:
                assert not is_history, f"entry {sequence} is history, and orphan {thread.name} calls it lost"
            else:
                assert is_history, f"entry {sequence} is no history, and orphan {thread.name} says so"

    def see_head(self, sidecar: Sidecar, disk: Disk, key: str, data: bytes) -> None:
        """A HEAD had its effect."""
        place = place_of(key)
        assert place is not None
        reader = self.sidecars[0] if hasattr(self, "sidecars") else sidecar
        namespace = next(
            keys for each in (*self.sidecars, reader)
            if (keys := each.store.context.keystore.namespace(NAMESPACE)) is not None
        )  # fmt: skip
        head = open_head(namespace, place, data)
        self.steps.append(
            f"   HEAD {head.write_id.hex()[:4]} by disk {disk.number}: epoch {head.epoch} tip {head.tip_sequence}"
            f"{' detached' if head.detached else ''}{' deleted' if head.deleted else ''}"
        )
        self.truth.see_head(key, head, disk.number)

    def key_of(self, sidecar: Sidecar, name: str) -> str:
        """The key of a thread's HEAD."""
        namespace = sidecar.store.context.keystore.namespace(NAMESPACE)
        return sidecar.archive.desk.place(namespace, name).head if namespace is not None else ""

    # -- promises -------------------------------------------------------------------------------------------------

    def check_promises(self) -> None:
        """What was answered COMMITTED is history, or on the disk that answered."""
        for sidecar in self.sidecars:
            here: dict[bytes, set[bytes]] = {}
            for thread, line in self.journals(sidecar):
                here.setdefault(thread.identity.uid, set()).update(line.values())
            for uid, sequence, digest in sidecar.disk.promised:
                if uid in self.truth.deleted or self.truth.history(uid).get(sequence) == digest:
                    continue
                assert digest in here.get(uid, ()), f"entry {sequence} was answered COMMITTED, and is gone"

    def check_outbox(self, sidecar: Sidecar) -> None:
        """After a start, everything of ours that is not archived will be shipped without anybody asking."""
        outbox = sidecar.outbox()
        for thread in sidecar.threads():
            if thread.access == ACCESS_OWNED and thread.identity.uid not in self.truth.deleted:
                tip = thread.head
                if self.truth.history(thread.identity.uid).get(tip.tip_sequence) != tip.tip_digest:
                    assert thread.number in outbox, f"nobody will ship thread {thread.name!r}"

    # -- saving ---------------------------------------------------------------------------------------------------

    def request(self, name: str, branch: str, *, conditional: bool, size: int, status: Status.ValueType) -> SaveRequest:
        """The next save of a client."""
        mark = f"{next(self.numbers)}:" + "x" * size
        diff = Diff(
            edits=[
                Edit(append=Append(log="log", entries=[Value(media_type="text/plain", data=mark.encode())])),
                Edit(set_slot=SetSlot(slot="slot", value=Value(media_type="text/plain", data=mark[:8].encode()))),
            ]
        )
        request = SaveRequest(
            thread=name, branch=branch, diff=diff, status=status, request_id=str(uuid.UUID(int=next(self.numbers)))
        )
        if conditional:
            version, digest = self.beliefs.get((name, branch), (0, b""))
            request.expected_version = version
            if digest:
                request.expected_digest = digest
        return request

    def save(
        self, sidecar: Sidecar, request: SaveRequest, *, archived: bool = False, held: bool = False
    ) -> SaveResponse | None:
        """Sends a save, and compares the answer with the truth."""
        before: list[Thread | None] = []
        heads: list[bytes] = []

        def see(thread: Thread | None) -> None:
            before.append(thread)
            branch = thread.branches.get(request.branch or "main") if thread is not None else None
            heads.append(bytes(branch.digest) if branch is not None else b"")

        sent = SaveRequest()
        sent.CopyFrom(request)
        try:
            answer = (sidecar.save_held if held else sidecar.save)(sent, see)
        except VersionMismatch:
            if request.HasField("expected_version"):
                assert heads[-1] != request.expected_digest, (
                    "a save was refused as conflict on the version that is there"
                )
            raise
        if answer is None:
            return None
        thread = sidecar.find(request.thread)
        assert thread is not None
        uid = thread.identity.uid
        lines = {item.number: line for item, line in self.journals(sidecar)}
        line = lines[thread.number]
        digest = bytes(answer.digest)
        self.check_answer(request, answer, uid, digest, line)
        if not answer.replayed:
            parent = heads[-1]
            state = self.truth.versions[parent].state if parent else EMPTY
            version = Version(answer.version, request.branch or "main", _after(state, request), parent)
            self.truth.versions[digest] = version
        self.beliefs[request.thread, request.branch or "main"] = answer.version, digest
        if digest in line.values():
            sidecar.disk.promised.append((uid, answer.sequence, digest))
        if archived:
            self.wait_archived(sidecar, thread, uid, answer.sequence, digest)
        return answer

    def check_answer(
        self, request: SaveRequest, answer: SaveResponse, uid: bytes, digest: bytes, line: dict[int, bytes]
    ) -> None:
        """A retry is answered as before where the first answer is history here; else the save happens anew."""
        known = next((answers for old, answers in self.requests if old.request_id == request.request_id), None)
        if known is None:
            known = {}
            self.requests.append((request, known))
        earlier = [old for old in known.get(uid, ()) if line.get(old.sequence) == old.digest]
        if answer.replayed:
            assert digest in {bytes(old.digest) for old in known.get(uid, ())} or digest not in self.truth.versions, (
                "a retry was answered with what it never made"
            )
        else:
            # On a copied disk the same save at the same instant makes the very same version, for the first time there.
            earlier = [old for old in earlier if old.sequence != answer.sequence]
            assert not earlier, "a request that was answered before was applied again"
        for old in earlier:
            assert (old.version, old.sequence, old.digest) == (answer.version, answer.sequence, answer.digest)
        known.setdefault(uid, []).append(answer)

    def wait_archived(self, sidecar: Sidecar, thread: Thread, uid: bytes, sequence: int, digest: bytes) -> None:
        """An answer ARCHIVED, now or when a ship tells so."""
        future = sidecar.archive.wait(thread, sequence)
        if future is None:
            self.truth.promise_archived(uid, sequence, digest)
            return
        sidecar.waiting.append((future, uid, sequence, digest))
        sidecar.ship(thread.number)

    def pay(self, sidecar: Sidecar, name: str, key: str, *, restarted: bool, finishes: bool) -> None:
        """A tool call with a claim that has to be archived."""

        def archive(sequence: int) -> bool:
            thread, line = next(each for each in self.journals(sidecar) if each[0].name == name)
            uid, digest = thread.identity.uid, line.get(sequence, b"")
            before = len(sidecar.waiting)
            self.wait_archived(sidecar, thread, uid, sequence, digest)
            if len(sidecar.waiting) == before:
                return True
            future = sidecar.waiting[-1][0]
            return future.done() and future.exception() is None

        self.payments.pay(sidecar, name, key, restarted=restarted, finishes=finishes, archive=archive)
        self.journals(sidecar)

    def see_fork(self, sidecar: Sidecar, source: str, name: str) -> None:
        """A copy of a head: a thread of its own with one version, with the state that it was made of."""
        original, copy = sidecar.find(source), sidecar.find(name)
        assert original is not None
        assert copy is not None
        answer = sidecar.hydrate(HydrateRequest(namespace=NAMESPACE, thread=name))
        states = [version.state for version in self.truth.versions.values()]
        assert _state(answer) in states, "a copy has a state that was never saved"
        digest = bytes(answer.checkpoint.digest)
        self.truth.versions[digest] = Version(answer.checkpoint.version, "main", _state(answer), b"")
        sidecar.disk.promised.append((copy.identity.uid, answer.checkpoint.sequence, digest))

    # -- reading --------------------------------------------------------------------------------------------------

    def hydrate(self, sidecar: Sidecar, name: str, branch: str, version: int = 0) -> HydrateResponse | None:
        """Reads a state; it is what was saved under its digest, and the newest of history where this sidecar does not
        hold the thread."""
        request = HydrateRequest(namespace=NAMESPACE, thread=name, branch=branch)
        if version:
            request.version.CopyFrom(VersionRef(version=version))
        key = self.key_of(sidecar, name)
        is_held = sidecar.archive.holds(NAMESPACE, name) is not None
        quiet = MEANWHILE not in {fault.kind for fault in sidecar.bucket._plan}
        head = self.truth.head(key)
        try:
            answer = sidecar.hydrate(request)
        except ThreadNotFound:
            assert head is None or not quiet or is_held, "a thread that is archived was not found"
            raise
        digest = bytes(answer.checkpoint.digest)
        known = self.truth.versions[digest]
        assert (known.version, known.state) == (answer.checkpoint.version, _state(answer)), (
            "a state is not what was saved"
        )
        if not version:
            self.beliefs[name, branch] = answer.checkpoint.version, digest
            is_held = is_held or sidecar.archive.holds(NAMESPACE, name) is not None
            if head is not None and quiet and not is_held:
                expected = self.truth.branch_head(self.truth.line(bytes(head.tip_digest)), branch)
                assert digest == expected, "a reader got something else than the newest archived version"
        return answer

    # -- between two requests of an operation ---------------------------------------------------------------------

    def meanwhile(self, sidecar: Sidecar, what: int) -> None:
        """Something that another process does, or another call of this one."""
        number = self.sidecars.index(sidecar)
        other = (number + 1) % SIDECARS
        name = "ab"[what // 8 % 2]
        choice = what % 8
        plan, struck, state = sidecar.bucket._plan, sidecar.bucket.struck, (
            sidecar.bucket._requests, sidecar.bucket._head_writes, sidecar.bucket._is_away
        )  # fmt: skip
        self.steps.append(f"   meanwhile {choice} on {name}:")
        if choice in (0, 1):
            request = self.request(name, "main", conditional=False, size=20, status=STATUS_RUNNING)
            try:
                self.save(sidecar, request, held=True)
            except StatewardError as error:
                self.check_error(sidecar, error)
        elif choice == 2:
            self.net.arrive()
        elif other != (self.sidecars.index(self.busy) if self.busy is not None else -1):
            if choice in (3, 4):
                self.take_over(other, name)
            elif choice == 5:
                self.take_over(other, name)
                request = self.request(name, "main", conditional=False, size=20, status=STATUS_RUNNING)
                self.act(other, f"save {name}", lambda it: self.save(it, request, archived=True))
            elif choice == 6:
                self.time.sleep(LEASE_S + 1)
                request = self.request(name, "main", conditional=False, size=20, status=STATUS_RUNNING)
                self.act(other, f"save {name}", lambda it: self.save(it, request))
            else:
                self.act(other, "ship", self.ship_all)
        bucket = sidecar.bucket
        bucket._plan, bucket.struck = plan, struck
        bucket._requests, bucket._head_writes, bucket._is_away = state

    def take_over(self, number: int, name: str, plan: tuple[Fault, ...] = ()) -> None:
        self.act(
            number, f"take over {name}",
            lambda it: it.archive.own(NAMESPACE, name, take_over=True, must_exist=True), plan,
        )  # fmt: skip

    def ship_all(self, sidecar: Sidecar) -> None:
        """Everything that waits to be shipped, as the schedule would."""
        for number in sorted(sidecar.outbox()):
            sidecar.ship(number)

    # -- the end --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The network heals, everybody ships: what was answered is history or set aside, and anybody can read it."""
        self.net.arrive()
        for _ in range(3):
            for number in range(SIDECARS):
                self.steps.append(f"{number}: settle")
                for thread in self.sidecars[number].threads():
                    if thread.access == ACCESS_OWNED:
                        self.act_quietly(number, thread.number)
        for sidecar in self.sidecars:
            self.look(sidecar)
            for thread in sidecar.threads():
                if thread.access == ACCESS_OWNED and not (thread.archive and thread.archive.rolled_back):
                    tip, uid = thread.head, thread.identity.uid
                    if uid not in self.truth.deleted:
                        history = self.truth.history(uid)
                        assert history.get(tip.tip_sequence) == tip.tip_digest, f"{thread.name!r} cannot be shipped"
                if thread.access == ACCESS_ORPHAN and thread.identity.uid not in self.truth.deleted:
                    self.read_orphan(sidecar, thread)
        self.check_promises()
        self.check_fresh()

    def act_quietly(self, number: int, thread_number: int) -> None:
        """A ship that may be told to come again, once."""
        sidecar = self.sidecars[number]
        sidecar.bucket.arm(())
        try:
            sidecar.ship(thread_number)
        except ArchiveUnavailable as error:
            self.check_error(sidecar, error)
        self.look(sidecar)
        self.check_promises()

    def read_orphan(self, sidecar: Sidecar, thread: Thread) -> None:
        for branch, head in list(thread.branches.items()):
            answer = sidecar.hydrate(HydrateRequest(namespace=NAMESPACE, thread=thread.name, branch=branch))
            digest = bytes(answer.checkpoint.digest)
            assert digest == head.digest
            assert self.truth.versions[digest].state == _state(answer)

    def check_fresh(self) -> None:
        """A machine that was never there before reads all that was archived: heads, tags, every version."""
        fresh = self.new_sidecar(SIDECARS, "fresh")
        try:
            for name in ("a", "b", "fork"):
                head = self.truth.head(self.key_of(self.sidecars[0], name) or self.key_of(self.sidecars[1], name))
                if head is not None:
                    self.check_history(fresh, name, bytes(head.tip_digest), bytes(head.uid))
        finally:
            fresh.crash()
            shutil.rmtree(fresh.disk.path)

    def check_history(self, fresh: Sidecar, name: str, tip: bytes, uid: bytes) -> None:
        line = self.truth.line(tip)
        branches = {version.branch for digest in line.values() if (version := self.truth.versions.get(digest))}
        for branch in sorted(branches):
            answer = fresh.hydrate(HydrateRequest(namespace=NAMESPACE, thread=name, branch=branch))
            digest = bytes(answer.checkpoint.digest)
            assert digest == self.truth.branch_head(line, branch)
            assert self.truth.versions[digest].state == _state(answer)
        fresh.archive.know(NAMESPACE, name)
        thread = fresh.find(name)
        assert thread is not None
        assert thread.tags == self.truth.tags_of(line)
        fresh.archive.complete(NAMESPACE, name)
        effects = fresh.store.effects.list(ListEffectsRequest(namespace=NAMESPACE, thread=name, all_anchors=True))
        assert self.payments.keys_of(uid) <= {each.effect.key for each in effects.effects}, "a payment is not known"
        for digest in line.values():
            version = self.truth.versions.get(digest)
            if version is None:
                continue
            try:
                answer = fresh.hydrate(
                    HydrateRequest(namespace=NAMESPACE, thread=name, version=VersionRef(version=version.version))
                )
            except VersionPruned:
                assert version.version in self.truth.pruned[uid], f"version {version.version} was never pruned"
                continue
            assert bytes(answer.checkpoint.digest) == digest
            assert _state(answer) == version.state
        TOTALS["archive versions read by fresh machines"] += len(line)

    def teardown(self) -> None:
        if not hasattr(self, "sidecars"):
            return
        try:
            if not self.is_broken:
                self.settle()
        finally:
            if currently_in_test_context():
                note("\n".join(self.steps))
            for sidecar in self.sidecars:
                sidecar.crash()
            shutil.rmtree(self.home)


def _after(state: State, request: SaveRequest) -> State:
    entries, slot = state
    for edit in request.diff.edits:
        if edit.HasField("append"):
            entries = (*entries, *(value.data.decode() for value in edit.append.entries))
        else:
            slot = edit.set_slot.value.data.decode()
    return entries, slot


def _state(answer: HydrateResponse) -> State:
    state = answer.state
    entries = tuple(value.data.decode() for value in state.logs["log"].entries) if "log" in state.logs else ()
    return entries, state.slots["slot"].data.decode() if "slot" in state.slots else ""

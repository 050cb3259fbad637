"""What clients ask of two sidecars, compared with the truth; what others do in the middle of it; and the end.

The rules are in steps.py, meetings.py and test_archive_model.py; what readers are shown is in reading.py.
"""

from __future__ import annotations

import re
import shutil
import uuid
from contextlib import suppress

from hypothesis import currently_in_test_context, note
from tests.archive_model.blobbook import named
from tests.archive_model.faults import Fault
from tests.archive_model.looking import after, state_of
from tests.archive_model.recordcalls import RecordCalls
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.stage import SIDECARS, TOTALS
from tests.archive_model.truth import EMPTY, Version
from tests.daemon.driven import LEASE_S, NAMESPACE

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, WORK_STATUS_RUNNING, VersionRef, WorkStatus
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ListCheckpointsRequest, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.effect_service_pb2 import ListEffectsRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Corrupt, ThreadNotFound, VersionMismatch, VersionPruned
from stateward_sidecar.store.journal.requests import hash_request

# Longer than any call waits.
PATIENCE_S = 60.0


class ArchiveMachine(RecordCalls):
    """Two sidecars, one bucket, one truth."""

    # -- saving ---------------------------------------------------------------------------------------------------

    def request(
        self, name: str, branch: str, *, conditional: bool, size: int, status: WorkStatus.ValueType
    ) -> SaveRequest:
        """The next save of a client. What it brings hardly compresses: so machines differ in where they make packs and
        snapshots."""
        mark = self.mark(size)
        diff = Diff(
            edits=[
                Edit(append=Append(log="log", entries=[Value(media_type="text/plain", data=mark.encode())])),
                Edit(set_slot=SetSlot(slot="slot", value=Value(media_type="text/plain", data=mark[:8].encode()))),
            ]
        )
        request = SaveRequest(
            thread=name, branch=branch, diff=diff, status=status,
            options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers))))
        )
        if conditional:
            version, digest = self.beliefs.get((name, branch), (0, b""))
            request.options.expected_version = version
            if digest:
                request.options.expected_digest = digest
        self.sent[hash_request(request.options.request_id)] = request
        return request

    def save(self, sidecar: Sidecar, request: SaveRequest, *, archived: bool = False) -> SaveResponse:
        """Sends a save, and compares the answer with the truth."""
        name, branch = request.thread, request.branch or "main"
        sent = SaveRequest()
        sent.CopyFrom(request)
        if archived:
            sent.options.durability = DURABILITY_ARCHIVED
        before, stops = self.digest_here(sidecar, name, branch), self.turns.stops
        deleted, era = len(sidecar.disk.deleted), self.era
        try:
            answer = sidecar.save(sent)
        except VersionMismatch:
            is_there = before == self.digest_here(sidecar, name, branch) == request.options.expected_digest
            assert not request.options.expected_digest or not is_there or stops != self.turns.stops, (
                "a save was refused as conflict on the version that is there"
            )
            raise
        self.look()
        assert request.options.expected_uid in ("", answer.receipt.uid), "a late save reached another thread"
        digest, answered_uid = bytes(answer.receipt.digest), bytes.fromhex(answer.receipt.uid)
        if digest not in self.truth.versions:  # nobody ever saw it
            gone = answered_uid in sidecar.disk.deleted[deleted:] or answered_uid in self.truth.deleted
            assert gone, "a save was answered that is on no disk"
            return answer  # its thread went with the same transaction
        self.check_answer(request, answer, answered_uid)
        self.beliefs[name, branch] = answer.version, digest
        if era == self.era and answered_uid not in sidecar.disk.deleted[deleted:]:  # else it may have gone meanwhile
            sidecar.disk.promised.append((answered_uid, answer.receipt.sequence, digest))
        if archived and answer.receipt.durability == DURABILITY_ARCHIVED:
            self.truth.promise_archived(answered_uid, answer.receipt.sequence, digest)
        return answer

    def digest_here(self, sidecar: Sidecar, name: str, branch: str) -> bytes:
        """The digest of a branch's head on a disk."""
        thread = sidecar.find(name)
        head = thread.branches.get(branch) if thread is not None else None
        return bytes(head.digest) if head is not None else b""

    def check_answer(self, request: SaveRequest, answer: SaveResponse, answered_uid: bytes) -> None:
        """An answer is what the request makes. A retry is answered as before where the first answer is history of what
        was answered now; else the save happens anew."""
        digest = bytes(answer.receipt.digest)
        version, line = self.truth.versions[digest], self.truth.line(digest)
        parent = self.truth.versions[version.parent].state if version.parent else EMPTY
        assert version.version == answer.version, "an answer names another version than was made"
        if parent is not None:
            assert version.state == after(parent, request), "an answer names a version that this save did not make"
        known = next(
            (answers for old, answers in self.requests if old.options.request_id == request.options.request_id), None
        )
        if known is None:
            known = {}
            self.requests.append((request, known))
        earlier = [old for old in known.get(answered_uid, ()) if line.get(old.receipt.sequence) == old.receipt.digest]
        # What came so long after it that nobody has to know it is made anew: now, or by a call without an answer yet.
        near = [old for old in earlier if old.receipt.sequence >= answer.receipt.sequence - self.window]
        if answer.receipt.replayed:
            answers = [(old.version, old.receipt.sequence, old.receipt.digest) for old in earlier]
            is_known = (answer.version, answer.receipt.sequence, answer.receipt.digest) in answers
            assert is_known or not near, "a retry was answered with what the request never made"
        else:
            # On a copied disk the same save at the same instant makes the very same version, for the first time there.
            near = [old for old in near if old.receipt.sequence != answer.receipt.sequence]
            assert not near, "a request that was answered before was applied again"
        known.setdefault(answered_uid, []).append(answer)

    def wait_durable(self, sidecar: Sidecar, name: str, saved: SaveResponse) -> None:
        """Asks whether a save that was answered before is archived."""
        answer = sidecar.wait_durable(name, saved)
        if answer.receipt.durability == DURABILITY_ARCHIVED:
            self.truth.promise_archived(
                bytes.fromhex(saved.receipt.uid), saved.receipt.sequence, bytes(saved.receipt.digest)
            )

    def delete_one(self, sidecar: Sidecar, name: str, *, is_again: bool) -> None:
        """Deletes a thread everywhere. Once that is answered, nobody who has bucket and key file can read it, nor any
        other thread of the name that had begun when the deletion looked at the archive, and that is dead."""
        is_alive, begun = self.is_alive(sidecar, name), self.keys_of(self.key_of_any(name))
        if self.turns.current is not None:
            self.turns.current.op.asks = lambda: begun.update(self.keys_of(self.key_of_any(name)))
        answer = sidecar.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=name, allow_missing=is_again))
        uid = bytes.fromhex(answer.receipt.uid)
        assert not uid or uid in self.truth.deleted or self.era, "deleted here, and not in the archive"
        if uid:
            self.truth.deleted.add(uid)
        assert not is_alive() or self.is_disturbed(sidecar), "a deletion was answered, and the archive has the thread"
        # A thread that began after that is another one, whose deletion elsewhere may be half done, and not answered.
        dead = self.keys_of(self.key_of_any(name), dead=True)
        self.check_destroyed({each for each in dead if each in begun or each[1] == uid})

    def call_tool(self, sidecar: Sidecar, name: str, key: str, *, restarted: bool, finishes: bool) -> None:
        """A tool call with a claim that has to be archived."""
        era = self.era
        self.payments.pay(sidecar, name, key, restarted=restarted, finishes=finishes, is_still=lambda: era == self.era)

    def sweep_here(self, sidecar: Sidecar) -> None:
        """A sweep writes only to threads that are this machine's, from where HEAD has them."""
        before = {thread.number: thread.head.tip_sequence for thread in sidecar.threads()}
        quiet = self.quiet()
        sidecar.sweep()
        self.look()
        if quiet != self.quiet() or self.is_disturbed(sidecar):
            return
        for thread in sidecar.threads():
            tip, sent = thread.head, self.truth.heads.get(self.key_of(sidecar, thread.name))
            if tip.tip_sequence <= before.get(thread.number, 0):
                continue
            assert thread.access != THREAD_ACCESS_ORPHAN, "a sweep wrote to what is set aside"
            if sent is None or not sent.head.tip_sequence or sent.head.deleted:
                continue
            is_of_it = self.truth.line(bytes(tip.tip_digest)).get(sent.head.tip_sequence) == sent.head.tip_digest
            assert is_of_it, "a sweep wrote to a thread that another machine has"

    def see_fork(self, sidecar: Sidecar, source: str, name: str) -> None:
        """A copy of a head: a thread of its own with one version, with the state that it was made of."""
        copy = sidecar.find(name)
        if copy is None:
            return  # it was deleted before its maker looked
        answer = sidecar.hydrate(HydrateRequest(namespace=NAMESPACE, thread=name, version=VersionRef(version=1)))
        self.look()
        states = [version.state for version in self.truth.versions.values()]
        assert state_of(answer) in states, "a copy has a state that was never saved"
        digest = bytes(answer.checkpoint.digest)
        self.truth.versions[digest] = Version(answer.checkpoint.version, "main", state_of(answer), b"")
        sidecar.disk.promised.append((copy.identity.uid, answer.checkpoint.sequence, digest))

    # -- between two requests or commits of an operation ----------------------------------------------------------

    def meanwhile(self, number: int, what: int) -> None:
        """Something that another process does, or another call of this one, or this one by itself."""
        other, name = (number + 1) % SIDECARS, "ab"[what // 12 % 2]
        choice = what % 12 if what < 24 else what // 2
        name = "ab"[what % 2] if what >= 24 else name
        self.steps.append(f"   meanwhile {choice} on {name}:")
        request = self.request(name, "main", conditional=False, size=20, status=WORK_STATUS_RUNNING)
        if choice in (0, 1):
            self.act(number, f"save {name}", lambda it: self.save(it, request))
        elif choice == 2:
            self.net.arrive()
        elif choice in (3, 4):
            self.take_over(other, name)
        elif choice == 5:
            self.take_over(other, name)
            self.act(other, f"save {name}", lambda it: self.save(it, request, archived=True))
        elif choice == 6:
            self.time.sleep(LEASE_S + 1)
            self.act(other, f"save {name}", lambda it: self.save(it, request))
        elif choice == 7:
            self.act(other, "ship", self.ship_all)
        elif choice == 8:
            self.act(number, "write rows", lambda it: it.write_rows())
        elif choice == 9:
            self.act(number, f"hydrate {name}", lambda it: self.hydrate(it, name, "main"))
        elif choice == 10:
            self.act(number, "forget", lambda it: it.forget())
        elif choice == 11:
            self.act(number, "tidy", lambda it: it.tidy())
        else:
            if choice == 13:
                self.take_over(other, name)
            put = self.put_request(name, ("a", "b"), size=20)
            self.act(other if choice == 13 else number, f"put {name}", lambda it: self.put(it, put))

    def take_over(self, number: int, name: str, plan: tuple[Fault, ...] = ()) -> None:
        self.act(
            number, f"take over {name}",
            lambda it: it.archive.own(NAMESPACE, name, take_over=True, must_exist=True), plan, takes_over=True,
        )  # fmt: skip

    def ship_all(self, sidecar: Sidecar) -> None:
        """Everything that waits to be shipped, as the schedule would."""
        for number in sorted(sidecar.outbox()):
            sidecar.ship(number)

    # -- the end --------------------------------------------------------------------------------------------------

    def finish_calls(self) -> None:
        """The network heals, and everything that is under way comes to its end."""
        while self.turns.held:
            self.go_on(0)
        self.net.arrive()
        for number in range(SIDECARS):
            self.act(number, "tidy", lambda it: it.tidy())
        for _ in range(2):
            for number in range(SIDECARS):
                self.act(number, "ship", self.ship_all)
            self.time.sleep(PATIENCE_S)
            self.guarded(self.turns.advance)
        assert not self.turns.under_way, f"calls wait for each other: {', '.join(map(str, self.turns.under_way))}"

    def finish_upgrade(self) -> None:
        """A rolling upgrade comes to its end."""
        for number in range(SIDECARS):
            if not self.sidecars[number].disk.is_newer:
                self.guarded(lambda number=number: self.upgrade(number))
        self.finish_calls()

    def settle(self) -> None:
        """Everybody ships: what was answered is history or set aside, and anybody can read it."""
        self.finish_calls()
        if self.net.of_next_format:
            self.finish_upgrade()
        self.settle_all()
        orphans: list[tuple[int, str, int]] = []
        for number, sidecar in enumerate(self.sidecars):
            for thread in sidecar.threads():
                if thread.identity.uid in self.truth.deleted:
                    continue
                is_rolled_back = thread.archive is not None and thread.archive.rolled_back
                if thread.access == THREAD_ACCESS_OWNED and not is_rolled_back and not self.era:
                    tip, history = thread.head, self.truth.history(thread.identity.uid)
                    assert history.get(tip.tip_sequence) == tip.tip_digest, f"{thread.name!r} cannot be shipped"
                if thread.access == THREAD_ACCESS_ORPHAN:
                    orphans.append((number, thread.name, thread.head.last_version))
        for orphan in orphans:
            self.read_orphan(*orphan)
        self.check_litter()
        self.check_fresh()
        self.verify_disks()

    def settle_all(self) -> None:
        """Everybody ships, and deletes what was dropped long ago, which comes after HEAD has landed."""
        for _ in range(3):
            for number, sidecar in enumerate(self.sidecars):
                for thread in sidecar.threads():
                    if thread.access == THREAD_ACCESS_OWNED:
                        self.act(number, "settle", lambda it, thread=thread: it.ship(thread.number))
        for number in range(len(self.sidecars)):
            self.act(number, "tidy", lambda it: it.tidy())

    def verify_disks(self) -> None:
        """Whatever came from the archive, was set aside, pruned or deleted: each disk agrees with itself."""
        for number, sidecar in enumerate(self.sidecars):
            self.act(number, "tidy", lambda it: it.tidy())
            found = sidecar.findings()
            if self.era:  # what this disk never had went with what the bucket lost: blobs, or a copy's older history
                lost = re.compile("the file of blob|(the blob .*|its HEAD) is (missing in the archive|older than)")
                found = [each for each in found if not lost.search(each.message)]
            said = [f"{each.thread} {each.sequence}: {each.message}" for each in found]
            assert not said, f"disk {sidecar.disk.number} does not agree with itself: {said}"

    def read_orphan(self, number: int, name: str, last_version: int) -> None:
        """All of an orphan that can be read is its own, also after its older history came from the archive."""
        self.guarded(lambda: self.restart(number))
        for version in (1, *range(last_version, 0, -1)):
            what = f"hydrate {name} version {version}"
            self.act(number, what, lambda it, v=version: self.hydrate(it, name, "main", v))
        self.act(number, f"list records of {name}", lambda it: self.read_records(it, name))

    def check_fresh(self) -> None:
        """A machine that was never there before reads all that was archived: heads, tags, every version."""
        disk = self.new_disk("fresh")
        disk.is_newer = bool(self.net.of_next_format)
        fresh = self.start(SIDECARS, disk)
        self.sidecars.append(fresh)
        try:
            for name in ("a", "b", "a@1", "fork"):
                head = self.truth.head(self.key_of_any(name))
                if head is not None:
                    self.check_history(fresh, name, bytes(head.tip_digest), bytes(head.uid))
                else:
                    self.find_nothing(fresh, name)
            fresh.tidy()
            for key in list(self.truth.log):
                self.check_destroyed(self.keys_of(key, dead=True), is_over=True)
        finally:
            self.sidecars.remove(fresh)
            fresh.crash()
            shutil.rmtree(fresh.disk.path)

    def find_nothing(self, fresh: Sidecar, name: str) -> None:
        """Whoever finds a tombstone finishes the deletion."""
        with suppress(ThreadNotFound, Corrupt):
            fresh.archive.know(NAMESPACE, name)

    def check_history(self, fresh: Sidecar, name: str, tip: bytes, uid: bytes) -> None:
        line = self.truth.line(tip)
        heads = self.truth.branch_heads(line)
        for branch in sorted(heads):
            answer = fresh.hydrate(HydrateRequest(namespace=NAMESPACE, thread=name, branch=branch))
            digest = bytes(answer.checkpoint.digest)
            assert digest == heads[branch]
            assert self.truth.versions[digest].state in (None, state_of(answer))
        self.read_records(fresh, name)
        fresh.archive.know(NAMESPACE, name)
        thread = fresh.find(name)
        assert thread is not None
        assert thread.tags == self.truth.tags_of(line)
        assert thread.branches.keys() == heads.keys(), "a machine that was never there has other branches"
        waiting = {each.signal_id: each.payload.data for each in fresh.list_signals(name)}
        assert waiting == self.truth.waiting(line), "a machine that was never there has other signals"
        fresh.archive.complete(NAMESPACE, name)
        for branch in heads:
            listed = fresh.list(ListCheckpointsRequest(namespace=NAMESPACE, thread=name, branch=branch, page_size=1000))
            mine = [version for version in self.truth.belonging(line, branch) if version not in thread.pruned]
            shown = [each.version for each in listed.checkpoints]
            assert shown == mine[::-1], "a list of a branch is not its versions"
        effects = fresh.store.effect_list.read(ListEffectsRequest(namespace=NAMESPACE, thread=name))
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
            shown = state_of(answer)
            assert version.state in (None, shown), "a machine that was never there reads another state"
            blob = named(shown[1])
            if blob is not None:
                content = fresh.read_blob(name, blob)
                assert content == self.blobs.contents[blob], "a machine that was never there reads other bytes"
                TOTALS["archive blobs read by fresh machines"] += 1
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

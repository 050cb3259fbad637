"""Rules in which values are blobs: written, named, forgotten, collected, written again, and destroyed by accident."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.blobbook import is_there
from tests.archive_model.choices import NAMES, PLANS, WHO
from tests.archive_model.faults import HELD, Fault
from tests.archive_model.litter import whole_objects
from tests.archive_model.meetings import Meetings
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.stage import SIDECARS
from tests.daemon.driven import NAMESPACE
from tests.daemon.small import BLOB_KEPT_S

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.v1.blob_service_pb2 import WriteBlobResponse
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, WORK_STATUS_RUNNING
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.store.blobs.blobrows import find_blob

# A few contents, which come again and again.
CONTENTS = st.integers(0, 2)


class BlobRules(Meetings):
    """What a machine is told of bytes is true, there and everywhere."""

    # -- steps ----------------------------------------------------------------------------------------------------

    @rule(who=WHO, name=NAMES, which=CONTENTS, announced=st.booleans(), archived=st.booleans(), plan=PLANS)
    def save_blob(
        self, who: int, name: str, which: int, announced: bool, archived: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """A client writes a blob, and saves a version that names it."""
        content = b"content %d " % which * 40

        def verb(it: Sidecar) -> None:
            self.write_content(it, name, content, announced=announced)
            self.name_content(it, name, content, archived=archived)

        self.act(who, f"save blob {which} of {name}{' archived' if archived else ''}", verb, plan)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def read_value(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        """A reader wants the bytes of what it was shown."""
        self.act(who, f"read the blob of {name}", lambda it: self.read_slot(it, name), plan)

    @rule(who=WHO, name=NAMES)
    def forget_blobs(self, who: int, name: str) -> None:
        """No version names a blob any more, and a day later they are collected."""
        self.work(who, name, 1, 10, archived=True)
        request = PruneThreadRequest(namespace=NAMESPACE, thread=name, keep_latest_per_branch=1)
        self.act(who, f"prune {name} to its heads", lambda it: it.prune(request))
        self.act(who, "ship", self.ship_all)
        self.wait(BLOB_KEPT_S + 1.0)
        self.act(who, "sweep", lambda it: it.sweep(), sweeps=True)
        self.background(who, ())
        self.act(who, "ship", self.ship_all)
        self.background(who, ())

    # -- meetings -------------------------------------------------------------------------------------------------

    @rule(who=WHO, name=NAMES, which=CONTENTS, back=st.booleans(), again=st.booleans(), aside=st.booleans(), plan=PLANS)
    def collect_elsewhere(
        self, who: int, name: str, which: int, back: bool, again: bool, aside: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """A machine has a copy of a thread, or had the thread itself. Its owner collects a blob; then the machine takes
        the thread, and the same bytes are saved again."""
        other = (who + 1) % SIDECARS
        if back:  # the one that goes on wrote the blob itself
            self.take_over(other, name)
            self.save_blob(other, name, which, announced=True, archived=True, plan=())
            self.take_over(who, name)
        else:
            self.take_over(who, name)
            self.save_blob(who, name, which, announced=True, archived=True, plan=())
            self.read_value(other, name, ())
        if aside:
            self.work(other, name, 1, 10, archived=False)  # by one that does not know that it was replaced
        self.forget_blobs(who, name)
        self.take_over(other, name)
        if again:
            self.save_blob(other, name, which, announced=True, archived=True, plan=plan)
        else:
            self.work(other, name, 1, 10, archived=True)
        self.read_value(other, name, ())

    @rule(who=WHO, name=NAMES)
    def write_again_and_part(self, who: int, name: str) -> None:
        """A blob is written long ago, and again a minute ago. Another machine takes the thread, and sweeps; then a
        version names the blob."""
        if any(sidecar.clock.skew_s for sidecar in self.sidecars):
            return  # a day is as long as the clock of the machine says
        other, content = (who + 1) % SIDECARS, self.mark(400).encode()
        quiet = self.turns.stops
        self.take_over(who, name)
        self.act(who, f"write a blob of {name}", lambda it: self.write_content(it, name, content, announced=True))
        self.act(who, "ship", self.ship_all)
        self.wait(BLOB_KEPT_S * 0.75)
        written = self.act(
            who, f"write it again of {name}", lambda it: self.write_content(it, name, content, announced=True)
        )
        self.act(who, "ship", self.ship_all)
        self.take_over(other, name)
        self.wait(BLOB_KEPT_S * 0.75)
        self.act(other, "sweep", lambda it: it.sweep(), sweeps=True)
        self.background(other, ())
        is_kept = written is not None and quiet == self.turns.stops and not self.era

        def name_it(it: Sidecar) -> None:
            thread = it.find(name)
            if thread is not None and written is not None and thread.identity.uid.hex() == written.receipt.uid:
                is_here = self.row_of(it, name, content) is not None
                # A HEAD of the next format says what of this disk is history, and this sidecar cannot read it.
                # While its bucket is away, an owner does not know that it was replaced: it has a line of its own.
                here = self.truth.line(bytes(thread.head.tip_digest)).get(written.receipt.sequence)
                theirs = self.truth.history(thread.identity.uid).get(written.receipt.sequence)
                is_behind = thread.is_outdated or here is None or here != theirs
                assert is_here or is_behind or not is_kept, "a blob that was just written again was collected"
            self.name_content(it, name, content, archived=True)

        self.act(other, f"save the blob of {name}", name_it)

    @rule(who=WHO, name=NAMES, at=st.sampled_from((0, 0, 0, 1)))
    def collect_while_shipping(self, who: int, name: str, at: int) -> None:
        """A blob that nothing names is a day old before it is archived. A sweep has found it, and collects it right
        after a ship has looked at its thread."""
        content = self.mark(400).encode()
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.act(who, f"write a blob of {name}", lambda it: self.write_content(it, name, content, announced=True))
        self.wait(BLOB_KEPT_S + 1.0)
        before, sidecar = list(self.turns.held), self.sidecars[who]
        self.act(who, "sweep", self.sweep_here, (Fault(HELD, at, at_commit=True),), sweeps=True)
        slow = [call for call in self.turns.held if call not in before]
        sidecar.after_moment = lambda: [self.turns.let_go(call) for call in slow]
        self.ship(who, ())
        sidecar.after_moment = lambda: None
        while slow and slow[0] in self.turns.held:
            self.go_on(self.turns.held.index(slow[0]))

    @rule(who=WHO, name=NAMES, which=CONTENTS, here=st.booleans(), announced=st.booleans())
    def destroy_object(self, who: int, name: str, which: int, here: bool, announced: bool) -> None:
        """The bucket loses the object of a blob, and perhaps this disk its file. The bytes are written again; if nobody
        could, somebody brings the object back."""
        content = b"content %d " % which * 40

        def verb(it: Sidecar) -> None:
            it.archive.own(NAMESPACE, name, must_exist=True)
            row, hold = self.row_of(it, name, content), it.hold_of(name)
            if row is None or hold is None or row.sequence > hold.head.tip_sequence or hold.is_rolled_back:
                return
            objects, key = self.net.bucket.objects, hold.place.blob(row.record.blob_id)
            path = it.store.context.blob_files.path(hold.thread.identity.uid, row.record.blob_id)
            lost, kept = objects.pop(key, None), path.read_bytes() if path.exists() and not here else None
            if lost is None:
                return
            if kept is not None:
                path.unlink()
            self.blobs.destroyed[key] = hold.head.tip_sequence
            try:
                self.write_content(it, name, content, announced=announced)
                self.name_content(it, name, content, archived=False)
                it.archive._ship(hold.number)
            finally:
                del self.blobs.destroyed[key]
                now = self.row_of(it, name, content)
                if now is not None and now.record.blob_id == row.record.blob_id:
                    objects.setdefault(key, lost)

        if not self.turns.under_way:
            self.act(who, f"destroy blob {which} of {name}", verb)

    # -- what is done ---------------------------------------------------------------------------------------------

    def write_content(self, sidecar: Sidecar, name: str, content: bytes, *, announced: bool) -> WriteBlobResponse:
        """Writes a blob. The answer is true at the level that it says."""
        self.blobs.write(content)
        answer = sidecar.write_blob(name, content, announced=announced)
        self.look()
        row, thread = self.row_of(sidecar, name, content), sidecar.find(name)
        if row is None or thread is None or thread.identity.uid.hex() != answer.receipt.uid:
            return answer  # others came in between
        if thread.identity.uid in self.truth.deleted:
            return answer  # by another sidecar, after this one had looked
        place = sidecar.archive.state.place(thread.identity.namespace_keys, name)
        is_archived = is_there(whole_objects(self.net.bucket.objects), place, row)
        is_here = sidecar.store.context.blob_files.is_here(thread.identity.uid, row.record.blob_id)
        assert is_archived or is_here, "a blob was answered whose bytes are nowhere"
        assert is_archived or answer.receipt.durability != DURABILITY_ARCHIVED, "a blob was answered ARCHIVED too early"
        return answer

    def name_content(self, sidecar: Sidecar, name: str, content: bytes, *, archived: bool) -> None:
        """Saves a version that names a blob, without an expectation."""
        request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
        for edit in request.diff.edits:
            if edit.HasField("set_slot"):
                edit.set_slot.value.ClearField("content")
                edit.set_slot.value.blob.sha256 = sha256(content).digest()
                edit.set_slot.value.blob.size_bytes = len(content)
        quiet = self.quiet()
        was_here = self.row_of(sidecar, name, content) is not None
        try:
            self.save(sidecar, request, archived=archived)
        except InvalidField:  # it was lost with the line in which it was written, or was collected since
            assert not was_here or quiet != self.quiet(), "a version may not name a blob that is there"
            raise

    def row_of(self, sidecar: Sidecar, name: str, content: bytes) -> BlobRow | None:
        """The row of a content on a disk."""
        thread = sidecar.find(name)
        if thread is None:
            return None
        with sidecar.store.context.engine.read() as txn:
            return find_blob(txn, thread.identity, sha256(content).digest())

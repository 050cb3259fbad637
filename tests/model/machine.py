"""The daemon and the model side by side: how a save is predicted, how a state is read, what must agree at all times."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import grpc
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from tests.daemon.framed import FramedChannel
from tests.model.plain import Conflict, PlainState, PlainThread, PlainVersion, content_of, digest_of

from stateward import Client
from stateward._io.stubs import bind_methods
from stateward._operations.failures import error_from_rpc
from stateward.attributes import write_attributes
from stateward.errors import (
    CheckpointIdReused,
    EditConflict,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.testing import Daemon
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1.write_pb2 import WriteOptions

FORMER_TOKEN = 1 << 40  # of a lease that nobody holds any more

class Comparison(RuleBasedStateMachine):
    """One namespace of the daemon against the model. The rules are in test_daemon_beside_model.py."""

    daemon: Daemon
    numbers = itertools.count()

    @initialize()
    def begin(self) -> None:
        self.number = next(self.numbers)
        self.namespace = f"machine-{self.number}"
        self.model: dict[str, PlainThread] = {}
        self.former: dict[str, PlainThread] = {}  # the creations that were deleted last
        self.age = 0  # saves since the last crash
        self.locks: list[int] = []  # the tokens of the lease that guards saves
        self.is_held = self.has_lock = False
        self.shown: tuple[str, str, Any] | None = None  # thread, uid, and the prune that somebody was asked about
        self.connect()

    def connect(self) -> None:
        self.client = Client(self.daemon.target, namespace=self.namespace)
        over_grpc = grpc.insecure_channel(self.daemon.target, (("grpc.use_local_subchannel_pool", 1),))
        self.channel: Any = over_grpc if self.number % 2 else FramedChannel(self.daemon.target)  # each second one
        self.methods = bind_methods(self.channel)

    def disconnect(self) -> None:
        self.client.close()
        self.channel.close()

    def restart(self) -> None:
        """Kill -9, and a start."""
        self.age = 0
        self.disconnect()
        self.daemon.kill()
        self.daemon.start()
        self.connect()

    def call(self, method: str, request: Any) -> Any:
        """The answer, or the typed error, raised."""
        try:
            return self.methods[method](request, timeout=30)
        except grpc.RpcError as error:
            raise error_from_rpc(error.code().name, error.details(), error.trailing_metadata()) from None

    def thread(self, name: str) -> PlainThread:
        return self.model.get(name) or PlainThread()

    @property
    def full(self) -> list[str]:
        """The threads that have a version left."""
        return [name for name, thread in self.model.items() if thread.retained]

    def save(self, name: str, request: checkpoints.SaveRequest) -> None:
        """Sends a save, predicts what becomes of it, and compares."""
        request.namespace, request.thread = self.namespace, name
        thread = self.thread(name)
        expected = self.predict(thread, request)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.call("Save", request)
            return
        answer = self.call("Save", request)
        self.age += 1
        if isinstance(expected, int):  # a checkpoint id that was answered before
            assert (answer.version, answer.receipt.replayed) == (expected, True)
            assert answer.receipt.digest == thread.versions[expected].digest
            return
        receipt = answer.receipt
        thread.uid = thread.uid or receipt.uid
        thread.sequence += 1
        assert (receipt.uid, receipt.sequence, receipt.replayed) == (thread.uid, thread.sequence, False)
        assert (answer.version, answer.parent_version) == (thread.last + 1, expected.parent)
        assert (answer.branch or request.branch or "main") == expected.branch
        assert answer.parent_checkpoint_id == (
            thread.versions[expected.parent].checkpoint_id if expected.parent else ""
        )  # fmt: skip
        assert receipt.digest not in {version.digest for version in thread.versions.values()}
        expected.digest = receipt.digest
        if expected.branch not in thread.heads:
            thread.bases[expected.branch] = expected.parent
            thread.firsts[expected.branch] = answer.version
        thread.versions[answer.version] = expected
        thread.heads[expected.branch] = answer.version
        kept = checkpoints.SaveRequest()
        kept.CopyFrom(request)
        if request.options.request_id:
            thread.requests.append((kept, answer))
        self.model[name] = thread
        if not request.options.HasField("expected_version") or thread.last % 3 == 0:
            # The answer was lost, and the client asks again at once.
            self.check_retry(request, answer)

    def check_retry(self, request: Any, first: Any) -> None:
        """The same request again gives the first answer, and writes nothing."""
        request = self.restarted(request)
        again = self.call(type(request).__name__.removesuffix("Request"), request)
        self.compare_receipts(again, first)
        if isinstance(request, checkpoints.SaveRequest):
            assert (again.version, again.parent_version, again.create_time) == (
                first.version, first.parent_version, first.create_time,
            )  # fmt: skip
            return
        before = type(first)()
        before.CopyFrom(first)
        for answer in (again, before):  # what may change
            for name in {"receipt", "retained_versions"}.intersection(answer.DESCRIPTOR.fields_by_name):
                answer.ClearField(name)
        assert again == before

    @staticmethod
    def compare_receipts(again: Any, first: Any) -> None:
        """A retry names the entry of the first answer, and says that it wrote nothing."""
        assert again.receipt.replayed
        assert (again.receipt.uid, again.receipt.sequence, again.receipt.digest) == (
            first.receipt.uid, first.receipt.sequence, first.receipt.digest,
        )  # fmt: skip

    @staticmethod
    def restarted(request: Any) -> Any:
        """The request as its agent repeats it after a restart: under another lease, which is lost by now."""
        again = type(request)()
        again.CopyFrom(request)
        again.options.lease_token, again.options.durability = FORMER_TOKEN, checkpoint_pb2.DURABILITY_COMMITTED
        return again

    def predict(self, thread: PlainThread, request: checkpoints.SaveRequest) -> PlainVersion | type | int:
        """The version a save makes, or its error, or the version that it made before."""
        branch = request.branch or "main"
        head = thread.heads.get(branch, 0)
        answered = self.find_answer(thread, request, branch) if request.checkpoint_id else None
        if answered is not None:
            return answered
        forks_from = None
        if request.options.HasField("expected_version") and request.options.expected_version != head:
            forks_from = request.options.expected_version
            branch = request.fork_branch or f"{branch}-fork-{thread.last + 1}"
            error = self.refuses_fork(thread, request, branch)
            if error is not None:
                return error
        if request.options.expected_digest and request.options.expected_digest != thread.versions[head].digest:
            return VersionMismatch
        parent = head if forks_from is None else forks_from
        if request.HasField("parent"):
            parent = request.parent.version
            if parent > thread.last:
                return VersionNotFound
            if parent in thread.pruned:
                return VersionPruned
        version = thread.last + 1
        try:
            if request.HasField("state"):
                state = thread.state_at(parent).replaced_by(request.state, version)
            else:
                state = thread.state_at(parent).apply(request.diff, version)
        except Conflict:
            return EditConflict
        step = request.step if request.HasField("step") else None
        label = request.labels.get("label", "")
        return PlainVersion(state, parent, branch, b"", request.checkpoint_id, step, label)

    @staticmethod
    def refuses_fork(thread: PlainThread, request: checkpoints.SaveRequest, branch: str) -> type | None:
        """The error of a save whose head is not the expected one; None = it makes the branch."""
        if request.on_mismatch != checkpoints.ON_MISMATCH_FORK or request.options.expected_version > thread.last:
            return VersionMismatch
        if branch in thread.heads:
            return VersionMismatch
        if request.options.expected_version in thread.pruned:
            return VersionPruned
        # of a branch of that name that was deleted
        return CheckpointIdReused if thread.find(branch, request.checkpoint_id) else None

    def find_answer(
        self, thread: PlainThread, request: checkpoints.SaveRequest, branch: str
    ) -> int | type[CheckpointIdReused] | None:
        """The version that the same save made, found by its checkpoint id; the error if the id names another one."""
        names = [branch]
        if request.on_mismatch == checkpoints.ON_MISMATCH_FORK:
            names += [request.fork_branch] if request.fork_branch else thread.forks_of(branch)
        known = [version for name in names if (version := thread.find(name, request.checkpoint_id))]
        same = [version for version in known if self.is_same(thread, version, request)]
        if same:
            return same[0]
        return CheckpointIdReused if thread.find(branch, request.checkpoint_id) else None

    @staticmethod
    def is_same(thread: PlainThread, version: int, request: checkpoints.SaveRequest) -> bool:
        """Whether the version was made by the same request, but for its request id."""
        for old, answer in thread.requests:
            if isinstance(old, checkpoints.SaveRequest) and answer.version == version:
                bare, again = checkpoints.SaveRequest(), checkpoints.SaveRequest()
                bare.CopyFrom(old)
                again.CopyFrom(request)
                bare.options.request_id = again.options.request_id = ""
                bare.ClearField("guard")
                again.ClearField("guard")
                bare.branch, again.branch = bare.branch or "main", again.branch or "main"
                return bare == again
        return False

    def request(self, branch: str, checkpoint_id: str, step: int | None, label: str) -> checkpoints.SaveRequest:
        return checkpoints.SaveRequest(
            branch=branch, checkpoint_id=checkpoint_id, step=step, labels={"label": label} if label else None,
            options=WriteOptions(request_id=str(uuid.uuid4())),
            attributes=write_attributes({"label": label} | ({} if step is None else {"step": step})),
        )  # fmt: skip

    def fill(self, request: checkpoints.SaveRequest, state: PlainState, edits: list[Any], fits: bool) -> None:
        """Puts edits into a save: moved to where they fit, or as they are."""
        for edit in edits:
            if edit.HasField("splice_slot"):  # is refused without a digest, whatever is stored
                edit.splice_slot.base_sha256 = digest_of(state.slots.get(edit.splice_slot.slot, b""))
        request.diff.edits.extend(state.fit(edits) if fits else edits)
        request.diff.SetInParent()

    def hydrate(self, name: str, **how: Any) -> tuple[Any, state_pb2.State]:
        """A state put together from its pages, each piece of which must be where it is said to be."""
        request = checkpoints.HydrateRequest(namespace=self.namespace, thread=name, **how)
        whole, pieces = state_pb2.State(), b""
        while True:
            page = self.call("Hydrate", request)
            for slot, found in page.state.slots.items():
                whole.slots[slot].CopyFrom(found)
            for log, found in page.state.logs.items():
                if log in whole.logs:
                    assert found.first_index == whole.logs[log].first_index + len(whole.logs[log].entries)
                    whole.logs[log].entries.extend(found.entries)
                else:
                    whole.logs[log].CopyFrom(found)
            if page.HasField("chunk"):
                chunk = page.chunk
                assert chunk.offset == len(pieces)
                pieces += chunk.data
                if len(pieces) == chunk.size_bytes:
                    new, pieces = state_pb2.Value(media_type=chunk.media_type, data=pieces), b""
                    if chunk.WhichOneof("place") == "slot":
                        whole.slots[chunk.slot].CopyFrom(new)
                    else:
                        assert whole.logs[chunk.log].first_index + len(whole.logs[chunk.log].entries) == chunk.index
                        whole.logs[chunk.log].entries.append(new)
            if not page.next_page_token:
                whole.partial = page.state.partial
                return page.checkpoint, whole
            request.page_token = page.next_page_token

    def check_state(self, found: state_pb2.State, state: PlainState) -> None:
        logs = {
            name: (log.first_index, [entry.data for entry in log.entries], log.rewritten_version)
            for name, log in found.logs.items()
        }
        slots = {name: content_of(slot) for name, slot in found.slots.items()}
        assert {"slots": slots, "logs": logs} == state.visible()
        assert not found.partial

    @invariant()
    def heads_agree(self) -> None:
        """After every step, every branch's head is the model's."""
        for name, thread in getattr(self, "model", {}).items():
            for branch, version in thread.heads.items():
                checkpoint, state = self.hydrate(name, branch=branch)
                assert (checkpoint.version, checkpoint.digest) == (version, thread.versions[version].digest)
                self.check_state(state, thread.state_at(version))

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        try:
            findings = [each.finding for each in self.call("Verify", admin.VerifyRequest(namespace=self.namespace))]
            assert [finding for finding in findings if finding.reason] == []
            for name, thread in self.model.items():
                for version in thread.retained:
                    state = self.hydrate(name, version=checkpoint_pb2.VersionRef(version=version))[1]
                    self.check_state(state, thread.state_at(version))
        finally:
            self.disconnect()

    @staticmethod
    def pick(choices: Any, number: int) -> Any:
        """One of some choices, chosen by a number that knows nothing of them."""
        ordered = list(choices)
        return ordered[number % len(ordered)]

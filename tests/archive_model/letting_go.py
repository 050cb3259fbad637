"""Rules in which heads go back, branches are deleted and made again, and heads are pruned."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, PLANS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.meetings import Meetings
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.stage import SIDECARS
from tests.daemon.driven import CALLER, NAMESPACE
from tests.daemon.unthreaded import run

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    DeleteBranchResponse,
    MoveBranchRequest,
    MoveBranchResponse,
    PruneThreadRequest,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import InvalidField, VersionMismatch
from stateward_sidecar.store.thread.thread import Thread

BRANCHES = st.sampled_from(("main", "main", "side"))
T = TypeVar("T")


class LettingGo(Meetings):
    """What a machine lets go, all machines have let go."""

    @rule(who=WHO, name=NAMES, branch=BRANCHES, back=st.integers(1, 4), conditional=st.booleans(), plan=PLANS)
    def go_back(
        self, who: int, name: str, branch: str, back: int, conditional: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """A head goes back by some versions of its branch, as this disk has them."""
        request = MoveBranchRequest(
            namespace=NAMESPACE, thread=name, branch=branch,
            options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers))))
        )
        if conditional:
            request.options.expected_version = self.beliefs.get((name, branch), (0, b""))[0]

        def verb(it: Sidecar) -> None:
            thread = it.find(name)
            mine = self.versions_of(it, thread, branch) if thread is not None else []
            if mine:
                request.version.version = mine[-min(back, len(mine))]
                self.move(it, request)

        self.act(who, f"move {name}/{branch} back {back}", verb, plan)

    @rule(who=WHO, name=NAMES, again=st.booleans(), plan=PLANS)
    def drop_branch(self, who: int, name: str, again: bool, plan: tuple[Fault, ...]) -> None:
        """A branch is deleted, and perhaps made again."""
        request = DeleteBranchRequest(
            namespace=NAMESPACE, thread=name, branch="side",
            options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers))))
        )
        self.act(who, f"delete {name}/side", lambda it: self.move(it, request), plan)
        if again:
            save = self.request(name, "side", conditional=False, size=10, status=WORK_STATUS_RUNNING)
            self.act(who, f"save {name}/side", lambda it: self.save(it, save))

    @rule(who=WHO, back=st.integers(1, 3), plan=PLANS)
    def move_again(self, who: int, back: int, plan: tuple[Fault, ...]) -> None:
        """A client whose answer was lost asks again, anywhere."""
        if len(self.moves) >= back:
            request = self.moves[-back]
            self.act(who, f"move {request.thread}/{request.branch} again", lambda it: self.move(it, request), plan)

    @rule(who=WHO, name=NAMES, count=st.integers(1, 3), plan=PLANS)
    def prune_heads(self, who: int, name: str, count: int, plan: tuple[Fault, ...]) -> None:
        """The newest versions are pruned, heads too."""

        def verb(it: Sidecar) -> None:
            thread = it.find(name)
            last = thread.head.last_version if thread is not None else 0
            if not last:
                return
            versions = spans_of(range(max(last - count, 0) + 1, last + 1))
            self.lawful(
                lambda: it.prune(
                    PruneThreadRequest(namespace=NAMESPACE, thread=name, versions=versions, move_heads=True)
                )
            )

        self.act(who, f"prune the newest {count} of {name}", verb, plan)

    @rule(who=WHO, name=NAMES, count=st.integers(1, 4), plan=PLANS)
    def part_and_go_back(self, who: int, name: str, count: int, plan: tuple[Fault, ...]) -> None:
        """A machine lets versions go, and does not archive it; the other one takes the thread and goes on from them."""
        other = (who + 1) % SIDECARS
        self.work(who, name, count, 10, archived=True)
        self.go_back(who, name, "main", count + 1, conditional=False, plan=())
        self.take_over(other, name)
        self.work(other, name, 1, 10, archived=True)
        self.ship(who, plan)
        self.read(who, name, "main", ())

    # -- the verbs ------------------------------------------------------------------------------------------------

    def move(self, sidecar: Sidecar, request: MoveBranchRequest | DeleteBranchRequest) -> None:
        """Moves a head or deletes a branch; the answer names an entry that says so."""
        deleted, era = len(sidecar.disk.deleted), self.era
        threads = sidecar.threads_
        answer: MoveBranchResponse | DeleteBranchResponse | None
        if isinstance(request, MoveBranchRequest):
            answer = self.lawful(lambda: run(threads.move_branch(request, CALLER)))
        else:
            answer = self.lawful(lambda: run(threads.delete_branch(request, CALLER)))
        if request not in self.moves:
            self.moves.append(request)
        if answer is None:
            return
        self.look()
        stands_for = answer.version if isinstance(request, MoveBranchRequest) else 0
        made = [
            digest for digest, moves in self.truth.moves.items()
            if self.truth.entries[digest].sequence == answer.receipt.sequence
            and moves.get(request.branch) == stands_for
        ]  # fmt: skip
        is_gone = sidecar.find(request.thread) is None and bool(self.truth.deleted)
        if not made and (is_gone or len(sidecar.disk.deleted) > deleted):
            return  # its thread went with the same transaction
        assert made, "a move was answered that nobody made"
        thread = sidecar.find(request.thread)
        if thread is None or era != self.era or thread.identity.uid in sidecar.disk.deleted[deleted:]:
            return
        line = next(line for found, line in self.journals(sidecar) if found.number == thread.number)
        digest = line.get(answer.receipt.sequence, b"")
        if digest in made:
            sidecar.disk.promised.append((thread.identity.uid, answer.receipt.sequence, digest))
            if isinstance(answer, MoveBranchResponse):
                self.beliefs[request.thread, request.branch] = answer.version, bytes(answer.version_digest)

    def lawful(self, verb: Callable[[], T]) -> T | None:
        """The answer; None if the version is not one of the branch any more, or the head another one than expected."""
        try:
            return verb()
        except (InvalidField, VersionMismatch):
            return None

    def versions_of(self, sidecar: Sidecar, thread: Thread, branch: str) -> list[int]:
        """The versions of a branch in the line on a disk."""
        line = next((line for found, line in self.journals(sidecar) if found.number == thread.number), {})
        tip = line.get(thread.head.tip_sequence, b"")
        mine = self.truth.belonging(self.truth.line(tip), branch)
        return [version for version in mine if version not in thread.pruned]

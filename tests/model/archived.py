"""What one daemon does with an archive: threads are given up, and copies go from its disk and come back.

To clients nothing of that shows: they see the same threads, retries and all.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.model.machine import Comparison
from tests.model.strategies import PICK

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DetachRequest, WaitDurableRequest
from stateward.v1.write_pb2 import Receipt


class Archived(Comparison):
    """Rules for a daemon that has an archive to itself."""

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        """Anybody could take the thread now; the next save takes it again."""
        name = self.pick(self.model, pick)
        self.call("Detach", DetachRequest(namespace=self.namespace, thread=name))

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def wait_archived(self, pick: int) -> None:
        """Everything up to the newest entry is in the archive when this is answered."""
        name = self.pick(self.model, pick)
        self.archive(name)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, kills=st.booleans(), again=PICK)
    def lose_copy(self, pick: int, kills: bool, again: int) -> None:
        """The copy on this disk goes, and the daemon may die right after; reads, saves and retries find all of it."""
        name = self.pick(self.model, pick)
        self.archive(name)
        self.call("DeleteThread", DeleteThreadRequest(namespace=self.namespace, thread=name, local_only=True))
        if kills:
            self.restart()
        if not self.model[name].heads:  # else the look at its heads after the step brings it back
            self.client.thread(name).info()
        requests = self.model[name].requests
        if requests and again % 2:
            self.check_retry(*requests[again % len(requests)])

    def archive(self, name: str) -> None:
        """Waits until the thread is archived."""
        thread = self.model[name]
        request = WaitDurableRequest(
            namespace=self.namespace, thread=name, durability=DURABILITY_ARCHIVED,
            receipt=Receipt(uid=thread.uid, sequence=thread.sequence),
        )  # fmt: skip
        answer = self.call("WaitDurable", request)
        assert answer.receipt.durability == DURABILITY_ARCHIVED
        assert answer.receipt.archived_sequence >= thread.sequence

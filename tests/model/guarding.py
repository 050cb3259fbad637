"""The rules of the machine in which a lease on one thread guards saves of others."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.model.moving import Moving
from tests.model.strategies import FREE_EDITS, THREADS

from stateward.errors import LeaseHeld, ThreadNotFound
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, LeaseGuard, SaveRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DetachRequest
from stateward.v1.write_pb2 import WriteOptions

LOCK = "lock"


class Guarding(Moving):
    """A lock, and who saves under it."""

    @rule()
    def take_lock(self) -> None:
        """Somebody gets the lease, whoever has it."""
        request = AcquireLeaseRequest(
            namespace=self.namespace, thread=LOCK, holder={"name": "agent", "incarnation": "1"}, take_over=True,
            options=WriteOptions(request_id=str(uuid.uuid4())),
        )  # fmt: skip
        self.locks.append(self.call("AcquireLease", request).lease.token)
        self.is_held = self.has_lock = True
        assert self.locks == sorted(set(self.locks))

    @rule(how=st.sampled_from(("release", "detach", "copy", "delete")))
    def let_lock_go(self, how: str) -> None:
        """The lease is given back, or its thread given up, or its copy lost, or it is deleted."""
        if not self.has_lock:
            return
        if how == "release":
            request = ReleaseLeaseRequest(
                namespace=self.namespace, thread=LOCK, options=WriteOptions(lease_token=self.locks[-1])
            )
            assert self.call("ReleaseLease", request).released == self.is_held
            self.is_held = False
            return
        self.call("Detach", DetachRequest(namespace=self.namespace, thread=LOCK))  # archives it
        if how != "detach":
            self.call("DeleteThread", DeleteThreadRequest(
                namespace=self.namespace, thread=LOCK, local_only=how == "copy"
            ))  # fmt: skip
        if how == "delete":
            self.has_lock = self.is_held = False

    @rule(name=st.sampled_from(THREADS), edits=FREE_EDITS, back=st.sampled_from((0, 0, 0, 1)), many=st.booleans())
    def save_under_lock(self, name: str, edits: list[Any], back: int, many: bool) -> None:
        """Only the newest holder saves; a retry is answered whoever has the lock, and whatever became of it."""
        if len(self.locks) <= back:
            return
        request = self.request("main", "", None, "")
        request.options.expected_version = self.thread(name).heads.get("main", 0)
        request.guard.CopyFrom(LeaseGuard(thread=LOCK, token=self.locks[-1 - back]))
        self.fill(request, self.thread(name).state_at(request.options.expected_version), edits, fits=True)
        if self.is_held and not back:
            self.save(name, request)
            return
        request.namespace, request.thread = self.namespace, name
        batch = BatchSaveRequest(saves=[self.other_save(), request])
        method, sent = ("BatchSave", batch) if many else ("Save", request)
        with pytest.raises(LeaseHeld if self.has_lock else ThreadNotFound):
            self.call(method, sent)

    def other_save(self) -> SaveRequest:
        """A save that would pass alone."""
        request = SaveRequest(
            namespace=self.namespace, thread="never", options=WriteOptions(request_id=str(uuid.uuid4()))
        )
        request.diff.SetInParent()
        return request

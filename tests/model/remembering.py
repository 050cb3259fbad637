"""The rules of the machine in which callers remember a thread that was deleted and made again.

Its versions have the same numbers and other digests, as after the loss of a machine. Who names a version with its
digest gets this version, or is refused.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.messages import to_write
from tests.model.keeping import Keeping
from tests.model.plain import PlainThread
from tests.model.strategies import DATA, PICK, value

from stateward.errors import VersionMismatch
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import diff_pb2
from stateward.v1 import thread_service_pb2 as threads
from stateward.v1.checkpoint_pb2 import VersionRef

HEAD_FORMS = ("save", "move", "delete")
ALL_FORMS = (*HEAD_FORMS, "read", "fork", "tag", "branch off", "difference")
FORMS = st.sampled_from(ALL_FORMS)


class Remembering(Keeping):
    """Former creations of threads, and who goes on with them."""

    @precondition(lambda self: self.full)
    @rule(pick=PICK, entries=st.lists(DATA, min_size=1, max_size=2))
    def make_again(self, pick: int, entries: list[bytes]) -> None:
        """A thread is deleted and made again, with as many versions."""
        name = self.pick(self.full, pick)
        last = self.model[name].last
        self.remove(name)
        for _ in range(min(last, 4)):
            request = self.request("main", "", None, "")
            request.options.expected_version = self.thread(name).heads.get("main", 0)
            request.diff.edits.add().append.CopyFrom(diff_pb2.Append(log="l", entries=map(value, entries)))
            self.save(name, request)
        if self.in_both(name):
            for form in ALL_FORMS:  # one of each at once: few histories come back to a thread that was made again
                self.go_on(name, pick, form)

    def remove(self, name: str) -> None:
        """Deletes a thread."""
        self.client.thread(name).delete()
        self.former[name] = self.model.pop(name)

    @precondition(lambda self: self.remembered)
    @rule(pick=PICK, which=PICK, form=FORMS)
    def go_on_with_the_former(self, pick: int, which: int, form: str) -> None:
        """A call that names a version as it was in the creation before."""
        self.go_on(self.pick(self.remembered, pick), which, form)

    def go_on(self, name: str, which: int, form: str) -> None:
        """Names a version of a thread that was made again."""
        former, thread = self.former[name], self.model[name]
        common = self.in_both(name)
        head = thread.heads.get("main", 0)
        number = head if form in HEAD_FORMS else self.pick(common, which)
        if number not in common:
            return
        for digest, is_right in ((former.versions[number].digest, False), (thread.versions[number].digest, True)):
            if is_right and form not in ("read", "difference"):
                return  # the other rules do that
            method, request = self.named(name, form, number, digest)
            if is_right:
                self.call(method, request)
                continue
            with pytest.raises(VersionMismatch):
                self.call(method, request)

    def named(self, name: str, form: str, number: int, digest: bytes) -> tuple[str, Any]:
        """Method and request of a call that names a version."""
        place: dict[str, Any] = {"namespace": self.namespace, "thread": name}
        ref: Any = VersionRef(version=number, digest=digest)
        head: Any = {"expected_version": number, "expected_digest": digest}
        again = {"request_id": str(uuid.uuid4())}
        made: dict[str, tuple[str, Any]] = {
            "save": ("Save", to_write(checkpoints.SaveRequest, **place, **head, **again, diff={})),
            "move": (
                "MoveBranch",
                to_write(threads.MoveBranchRequest, **place, **head, **again, version={"version": number}),
            ),
            "delete": ("DeleteThread", to_write(threads.DeleteThreadRequest, **place, **head)),
            "read": ("Hydrate", checkpoints.HydrateRequest(**place, version=ref)),
            "fork": ("ForkThread", threads.ForkThreadRequest(**place, new_thread="copy", version=ref)),
            "tag": ("SetTag", to_write(threads.SetTagRequest, **place, **again, tag="named", version=ref)),
            "branch off": (
                "Save", to_write(checkpoints.SaveRequest, **place, **again, branch="off", parent=ref, diff={})
            ),
            "difference": ("DiffCheckpoints", checkpoints.DiffCheckpointsRequest(**place, base=ref, target=ref)),
        }
        return made[form]

    def in_both(self, name: str) -> list[int]:
        """The versions of a thread that are retained, and whose numbers its former creation had."""
        former: PlainThread = self.former[name]
        known = {number for number, version in former.versions.items() if version.digest}
        return [number for number in self.model[name].retained if number in known]

    @property
    def remembered(self) -> list[str]:
        """The threads that were made again."""
        return [name for name in self.model if name in self.former and self.in_both(name)]

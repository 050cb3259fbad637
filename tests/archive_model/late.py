"""Rules in which clients go on with a thread that was deleted meanwhile, here or elsewhere, and perhaps made again."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import KEPT, NAMES, PLANS, SELDOM, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.sidecar import NAMESPACE, Sidecar
from tests.archive_model.steps import Steps

from stateward.v1.checkpoint_pb2 import STATUS_RUNNING
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import ThreadNotFound

FORMS = st.sampled_from(("save", "put", "begin"))


class LateWriters(Steps):
    """A write that names the creation it continues reaches this one, or nothing."""

    def creations(self, name: str) -> list[bytes]:
        """The uids that clients were answered for a name, the oldest first."""
        answered = (known for request, known in self.requests if request.thread == name)
        return list(dict.fromkeys(uid for known in answered for uid in known))

    @rule(who=WHO, name=NAMES, back=st.integers(0, 3), form=FORMS, archived=st.booleans(), plan=PLANS)
    def write_late(
        self, who: int, name: str, back: int, form: str, archived: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """A client writes once more to the thread that it worked on, wherever it is sent."""
        uids = self.creations(name)
        if uids:
            uid = uids[-1 - back % len(uids)].hex()
            what = f"{form} late to {name} {uid[:6]}"
            self.act(who, what, lambda it: self.write(it, form, name, uid, archived), plan)

    def write(self, sidecar: Sidecar, form: str, name: str, uid: str, archived: bool) -> None:
        """Sends the write. If it is refused, it has claimed no name in the archive."""
        claims, stops = set(sidecar.archive.desk.hooks.claims), self.turns.stops
        try:
            self.write_as(sidecar, form, name, uid, archived)
        except ThreadNotFound:
            assert stops != self.turns.stops or claims >= set(sidecar.archive.desk.hooks.claims), (
                "a late write that was refused claimed the name"
            )
            raise

    def write_as(self, sidecar: Sidecar, form: str, name: str, uid: str, archived: bool) -> None:
        if form == "save":
            request = self.request(name, "main", conditional=False, size=10, status=STATUS_RUNNING)
            request.expected_uid = uid
            self.save(sidecar, request, archived=archived)
        elif form == "put":
            put = self.put_request(name, (KEPT[0],), size=10)
            put.expected_uid = uid
            self.put(sidecar, put, archived=archived)
        else:
            begin = BeginEffectRequest(
                namespace=NAMESPACE, thread=name, key="late", holder=Holder(name="late", incarnation="1"),
                request_id=str(uuid.UUID(int=next(self.numbers))), expected_uid=uid,
            )  # fmt: skip
            assert sidecar.begin(begin).uid == uid, "a late claim reached another thread"

    @rule(who=WHO, other=WHO, name=NAMES, form=FORMS, remade=st.booleans(), plan=PLANS, now=SELDOM)
    def go_on_after_deletion(
        self, who: int, other: int, name: str, form: str, remade: bool, plan: tuple[Fault, ...], now: bool
    ) -> None:  # fmt: skip
        """A thread is deleted while its agent works, and perhaps made again. Then the agent writes, and the deletion is
        sent once more, because its answer was lost."""
        if not now:
            return
        self.work(who, name, 2, 10, archived=True)
        uids = self.creations(name)
        if not uids:
            return
        uid = uids[-1].hex()
        self.act(who, f"delete {name} {uid[:6]}", lambda it: self.delete_creation(it, name, uid), plan)
        if remade:
            self.work(who, name, 1, 10, archived=True)
            if other != who:
                self.take_over(other, name)
        self.act(other, f"{form} late to {name}", lambda it: self.write(it, form, name, uid, archived=False))
        self.act(other, f"delete {name} {uid[:6]} again", lambda it: self.delete_creation(it, name, uid))

    def delete_creation(self, sidecar: Sidecar, name: str, uid: str) -> None:
        request = DeleteThreadRequest(namespace=NAMESPACE, thread=name, expected_uid=uid, allow_missing=True)
        answer = sidecar.delete(request)
        assert answer.uid in ("", uid), "a deletion reached another thread"
        if answer.uid:
            assert bytes.fromhex(uid) in self.truth.deleted or self.era, "deleted here, and not in the archive"

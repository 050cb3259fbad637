"""Rules in which clients go on with a thread that was deleted meanwhile, here or elsewhere, and perhaps made again."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import KEPT, KEYS, NAMES, PLANS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.messages import Messages
from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import NAMESPACE
from tests.messages import to_write

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    CompleteEffectRequest,
    RenewEffectRequest,
)
from stateward.v1.lease_pb2 import Holder
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import ClaimLost, ThreadNotFound, UidMismatch

FORMS = st.sampled_from(("save", "save", "save", "put", "begin", "signal", "blob", "renew", "finish"))

LATE_PLANS = st.one_of(st.just(()), PLANS)  # of a deletion, which most often succeeds
OFTEN = st.sampled_from((True, True, False))


class LateWriters(Messages):
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
            self.act(who, what, lambda it: self.write(it, form, name, uid, archived=archived), plan)

    def write(self, sidecar: Sidecar, form: str, name: str, uid: str, *, archived: bool) -> None:
        """Sends the write. If it is refused, it has claimed no name in the archive; and nobody refuses a write to the
        thread that the archive has."""
        claims, stops = set(sidecar.archive.state.hooks.claims), self.turns.stops
        is_alive = self.is_alive(sidecar, name, uid)
        try:
            self.write_as(sidecar, form, name, uid, archived)
        except (ThreadNotFound, UidMismatch):
            assert stops != self.turns.stops or claims >= set(sidecar.archive.state.hooks.claims), (
                "a late write that was refused claimed the name"
            )
            is_told = is_alive() and not self.is_disturbed(sidecar)
            assert not is_told, "a write was refused as late, and the archive has its thread"
            raise

    def write_as(self, sidecar: Sidecar, form: str, name: str, uid: str, archived: bool) -> None:
        if form == "save":
            request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
            request.options.expected_uid = uid
            self.save(sidecar, request, archived=archived)
        elif form == "put":
            put = self.put_request(name, (KEPT[0],), size=10)
            put.options.expected_uid = uid
            self.put(sidecar, put, archived=archived)
        elif form == "signal":
            signal = self.signal_request(name)
            signal.options.expected_uid = uid
            self.send(sidecar, signal, archived=archived)
        elif form == "blob":
            content = self.mark(400).encode()
            self.blobs.write(content)
            assert sidecar.write_blob(name, content, uid=uid).receipt.uid == uid, "a late blob reached another thread"
        elif form == "begin":
            begin = BeginEffectRequest(
                namespace=NAMESPACE, thread=name, key="late", holder=Holder(name="late", incarnation="1"),
                options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers))), expected_uid=uid),
            )  # fmt: skip
            assert sidecar.begin(begin).receipt.uid == uid, "a late claim reached another thread"
        else:
            self.end_late(sidecar, form, name, uid)

    def end_late(self, sidecar: Sidecar, form: str, name: str, uid: str) -> None:
        """An agent that had claimed an effect of the thread renews its claim or ends the effect."""
        key, token = self.payments.newest_claim(bytes.fromhex(uid))
        claim = {"namespace": NAMESPACE, "thread": name, "key": key, "claim_token": token, "expected_uid": uid}
        try:
            if form == "renew":
                answered = sidecar.renew(RenewEffectRequest(**claim)).uid
            else:
                self.payments.done.add((bytes.fromhex(uid), key))
                paid = Value(data=b"receipt")
                end = to_write(CompleteEffectRequest, **claim, state=EFFECT_STATE_DONE, value=paid)
                answered = sidecar.complete(end).receipt.uid
        except ClaimLost:
            return  # others have it, or it was never made
        assert answered == uid, "the end of a late effect reached another thread"

    @rule(who=WHO, other=WHO, name=NAMES, form=FORMS, key=KEYS, remade=st.booleans(), plan=LATE_PLANS, now=OFTEN)
    def go_on_after_deletion(
        self, who: int, other: int, name: str, form: str, remade: bool, plan: tuple[Fault, ...], now: bool,
        key: str = "fare",
    ) -> None:  # fmt: skip
        """A thread is deleted while its agent works, and perhaps made again, with as many entries. Then the agent
        writes, and the deletion is sent once more, because its answer was lost."""
        if not now:
            return
        is_claimed = form in ("renew", "finish")
        self.work(who, name, 2, 10, archived=True)
        uids = self.creations(name)
        if not uids:
            return
        if is_claimed:
            self.claim(who, name, key)
        uid = uids[-1].hex()
        self.act(who, f"delete {name} {uid[:6]}", lambda it: self.delete_creation(it, name, uid), plan)
        if remade:
            self.work(who, name, 1, 10, archived=True)
            if is_claimed:
                self.claim(who, name, key)
            if other != who:
                self.take_over(other, name)
        self.act(other, f"{form} late to {name}", lambda it: self.write(it, form, name, uid, archived=False))
        self.act(other, f"delete {name} {uid[:6]} again", lambda it: self.delete_creation(it, name, uid))

    def claim(self, who: int, name: str, key: str) -> None:
        """An agent begins to pay, and does not come to the end of it."""

        def verb(it: Sidecar) -> None:
            self.call_tool(it, name, key, restarted=False, finishes=False)

        self.act(who, f"claim {key} of {name}", verb)

    def delete_creation(self, sidecar: Sidecar, name: str, uid: str) -> None:
        request = DeleteThreadRequest(
            namespace=NAMESPACE, thread=name, options=WriteOptions(expected_uid=uid), allow_missing=True
        )
        is_alive = self.is_alive(sidecar, name, uid)
        answer = sidecar.delete(request)
        assert answer.receipt.uid in ("", uid), f"a deletion reached another thread: {uid!r} and {answer.receipt.uid!r}"
        if answer.receipt.uid:
            gone = bytes.fromhex(uid)
            assert gone in self.truth.deleted or self.era, "deleted here, and not in the archive"
            # The bucket may have lost HEAD, so that the deletion leaves no tombstone; this disk deleted the thread.
            sidecar.disk.drop(gone)
        assert not is_alive() or self.is_disturbed(sidecar), "a deletion was answered, and the archive has the thread"

"""Rules in which signals are sent, repeated, listed and acknowledged."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, PLANS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.steps import Steps
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_UNSPECIFIED, WORK_STATUS_RUNNING
from stateward.v1.signal_service_pb2 import SendSignalRequest, SendSignalResponse
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import ThreadNotFound


class Messages(Steps):
    """A signal waits for its thread, on every machine, until a save acknowledges it."""

    @rule(who=WHO, name=NAMES, archived=st.booleans(), plan=PLANS)
    def signal(self, who: int, name: str, archived: bool, plan: tuple[Fault, ...]) -> None:
        """Somebody sends a message to a thread that exists."""
        request = self.signal_request(name)
        self.act(who, f"signal {name}", lambda it: self.send(it, request, archived=archived), plan)

    @rule(who=WHO, back=st.integers(1, 4), archived=st.booleans(), plan=PLANS)
    def signal_again(self, who: int, back: int, archived: bool, plan: tuple[Fault, ...]) -> None:
        """A sender whose answer was lost asks again, anywhere."""
        if len(self.signals) >= back:
            request = self.signals[-back][0]
            self.act(who, f"signal {request.thread} again", lambda it: self.send(it, request, archived=archived), plan)

    @rule(who=WHO, name=NAMES, count=st.integers(1, 3), archived=st.booleans(), plan=PLANS)
    def acknowledge(self, who: int, name: str, count: int, archived: bool, plan: tuple[Fault, ...]) -> None:
        """An agent reads its messages, and saves what it made of some of them."""
        request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)

        def verb(it: Sidecar) -> None:
            request.ack_signals.extend(self.list_signals(it, name)[:count])
            self.save(it, request, archived=archived)

        self.act(who, f"acknowledge {count} of {name}", verb, plan)

    # -- the verbs ------------------------------------------------------------------------------------------------

    def signal_request(self, name: str) -> SendSignalRequest:
        """A message that nobody else sends."""
        return SendSignalRequest(
            namespace=NAMESPACE, thread=name, name="news", sender="somebody",
            payload=Value(data=self.mark(10).encode()),
            options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers)))),
        )  # fmt: skip

    def send(self, sidecar: Sidecar, request: SendSignalRequest, *, archived: bool = False) -> None:
        """Sends a signal, and compares the answer with the truth."""
        sent = SendSignalRequest()
        sent.CopyFrom(request)
        sent.options.durability = DURABILITY_ARCHIVED if archived else DURABILITY_UNSPECIFIED
        deleted, era = len(sidecar.disk.deleted), self.era
        answer = sidecar.signal(sent)
        self.look()
        assert request.options.expected_uid in ("", answer.receipt.uid), "a late signal reached another thread"
        digest, uid, sequence = bytes(answer.receipt.digest), bytes.fromhex(answer.receipt.uid), answer.signal.sequence
        if digest not in self.truth.signals:
            gone = uid in sidecar.disk.deleted[deleted:] or uid in self.truth.deleted
            assert gone or not digest, "a signal was answered that is on no disk"
            return
        found = answer.signal.signal_id, bytes(request.payload.data)
        assert self.truth.signals[digest] == found, "a signal was answered that this request did not make"
        self.check_once(request, answer, uid)
        if era == self.era and uid not in sidecar.disk.deleted[deleted:]:
            sidecar.disk.promised.append((uid, sequence, digest))
        if archived and answer.receipt.durability == DURABILITY_ARCHIVED:
            self.truth.promise_archived(uid, sequence, digest)

    def check_once(self, request: SendSignalRequest, answer: SendSignalResponse, uid: bytes) -> None:
        """A retry is answered as before where the first answer is history of what was answered now."""
        known = next(
            (answers for old, answers in self.signals if old.options.request_id == request.options.request_id), None
        )
        if known is None:
            known = {}
            self.signals.append((request, known))
        line, sequence = self.truth.line(bytes(answer.receipt.digest)), answer.signal.sequence
        near = [
            old for old in known.get(uid, ())
            if line.get(old.signal.sequence) == old.receipt.digest and old.signal.sequence >= sequence - self.window
        ]  # fmt: skip
        is_known = any(old.receipt.digest == answer.receipt.digest for old in near)
        assert is_known or not near, "a signal that was answered before was sent again"
        known.setdefault(uid, []).append(answer)

    def list_signals(self, sidecar: Sidecar, name: str) -> list[str]:
        """The ids of the signals that wait: those after one entry, and of history unless the thread is held."""
        check, stops = self.begin_read(sidecar, name), self.turns.stops
        try:
            found = [each.signal_id for each in sidecar.list_signals(name)]
        except ThreadNotFound:
            check(None)
            raise
        self.look()
        thread = sidecar.find(name)
        if stops == self.turns.stops and thread is not None and not self.is_disturbed(sidecar):
            here = self.truth.waiting(self.truth.line(bytes(thread.head.tip_digest)))
            assert found == list(here), "signals were shown that are not those of the tip"
        check(lambda line: found == list(self.truth.waiting(line)))
        return found

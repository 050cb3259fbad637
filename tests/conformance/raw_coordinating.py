"""The procedures of leases, effects, signals and records of the client of generated stubs."""

from __future__ import annotations

import time
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from tests.conformance.raw_values import text

from stateward.v1 import (
    checkpoint_pb2,
    checkpoint_service_pb2,
    diff_pb2,
    effect_pb2,
    effect_service_pb2,
    lease_service_pb2,
    record_pb2,
    record_service_pb2,
    signal_service_pb2,
    state_pb2,
    thread_service_pb2,
)
from stateward.v1.write_pb2 import Receipt, WriteOptions

TERM_S, WORK_S = 1, 2
POLL_S = 0.02


class Coordinating:
    """Works with the stubs and the requests of RawClient."""

    def __getattr__(self, name: str) -> Any:  # what RawClient adds
        raise AttributeError(name)

    def lease(self) -> None:
        token = self.acquire(self.thread, TERM_S)
        try:
            self.work(token)
        except grpc.RpcError as error:
            if self.name_of(error) != "LEASE_HELD":
                raise
            self.lose(token)
            return
        self.save_held(token)
        self.release(self.thread, token)

    def guard(self) -> None:
        lock = f"locks/{self.thread}"
        token = self.acquire(lock, 30)
        guard = checkpoint_service_pb2.LeaseGuard(thread=lock, token=token, expected_uid=self.lease_uid)
        try:
            self.save_guarded(guard)
        finally:
            self.release(lock, token)

    def effect(self) -> None:
        begun = self.begin()
        while begun.state == effect_pb2.EFFECT_STATE_IN_PROGRESS:
            time.sleep(POLL_S)
            begun = self.begin()
        value = begun.effect.effect.value
        if begun.claim_token:
            if begun.receipt.durability < begun.required_durability:
                self.await_claim(begun)
            is_new = begun.state == effect_pb2.EFFECT_STATE_NEW
            value = self.end(begun, "paid" if is_new else "found")
        self.report("seen", value.data.decode())

    def ask(self) -> None:
        _, version, digest = self.read()
        question = {"status": checkpoint_pb2.WORK_STATUS_WAITING, "wait_id": "budget"}
        request = self.save_request(None, expected_version=version, expected_digest=digest, **question)
        request.question.prompt = "May it cost 300?"
        self.code.call(self.checkpoints.Save, request)
        signals: list[Any] = []
        while not signals:
            time.sleep(POLL_S)
            page, _, _ = self.code.hydrate(self.checkpoints, self.hydrate_request(include_signals=True))
            signals = [signal for signal in page.signals if signal.wait_id == "budget"]
        words = signals[0].payload.data.decode()
        head = {"expected_version": page.checkpoint.version, "expected_digest": page.checkpoint.digest}
        self.use_answer(self.set_slot("seen", text(words)), self.acknowledged(page.signals, signals), head)

    def answer(self) -> None:
        request = signal_service_pb2.SendSignalRequest(
            thread=self.thread, name="answer", wait_id="budget", payload=text("yes"),
            options=WriteOptions(request_id=self.request_id()),
        )  # fmt: skip
        self.code.call(self.signals.SendSignal, request)

    def record(self) -> None:
        while True:
            request = record_service_pb2.GetRecordsRequest(thread=self.thread, keys=["count"])
            found = self.code.call(self.records_of.GetRecords, request).records
            number = int(found[0].value.data) + 1 if found else 1
            try:
                return self.put(number, found[0].revision if found else 0)
            except grpc.RpcError as error:
                if self.name_of(error) != "RECORD_CONFLICT":
                    raise

    def records(self) -> None:
        keys, request = [], record_service_pb2.ListRecordsRequest(thread=self.thread, prefix="users/")
        request.without_values = True
        while True:
            page = self.code.call(self.records_of.ListRecords, request)
            keys += [record.key for record in page.records]
            if self.is_last(page):
                break
            request.page_token = page.next_page_token
        found, left = {}, keys
        while left:
            answer = self.code.call(
                self.records_of.GetRecords, record_service_pb2.GetRecordsRequest(thread=self.thread, keys=left)
            )
            found |= {record.key: record.value.data.decode() for record in answer.records}
            left = self.rest(answer)
        self.report("seen", ",".join(f"{key}={found[key]}" for key in keys if key in found))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def acquire(self, thread: str, term_s: int) -> int:
        request = lease_service_pb2.AcquireLeaseRequest(
            thread=thread, holder=self.holder, term=Duration(seconds=term_s),
            options=WriteOptions(request_id=self.request_id()),
        )  # fmt: skip
        acquired = self.code.call(self.leases.AcquireLease, request)
        self.lease_uid = self.uid_of(acquired.receipt)
        token: int = acquired.lease.token
        return token

    def work(self, token: int) -> None:
        end = time.monotonic() + WORK_S
        while time.monotonic() < end:
            time.sleep(TERM_S * 0.3)
            self.renew(token)

    def renew(self, token: int) -> None:
        request = lease_service_pb2.RenewLeaseRequest(
            thread=self.thread, lease_token=token, expected_uid=self.lease_uid
        )
        self.code.call(self.leases.RenewLease, request)

    def lose(self, token: int) -> None:
        """What is done after the lease was lost: nothing."""

    def save_held(self, token: int) -> None:
        self.code.call(self.checkpoints.Save, self.save_request(self.set_slot("seen", text("held")), lease_token=token))

    def release(self, thread: str, token: int) -> None:
        options = WriteOptions(lease_token=token, expected_uid=self.lease_uid)
        self.code.call(self.leases.ReleaseLease, lease_service_pb2.ReleaseLeaseRequest(thread=thread, options=options))

    def save_guarded(self, guard: checkpoint_service_pb2.LeaseGuard) -> None:
        self.code.call(self.checkpoints.Save, self.save_request(self.set_slot("seen", text("guarded")), guard=guard))

    def begin(self) -> effect_service_pb2.BeginEffectResponse:
        request = effect_service_pb2.BeginEffectRequest(
            thread=self.thread, key="pay", holder=self.holder, options=WriteOptions(request_id=self.request_id())
        )
        return self.code.call(self.effects.BeginEffect, request)

    def await_claim(self, begun: effect_service_pb2.BeginEffectResponse) -> None:
        request = thread_service_pb2.WaitDurableRequest(
            thread=self.thread, receipt=self.named_by(begun.receipt), durability=begun.required_durability
        )
        self.code.call(self.threads.WaitDurable, request)

    def named_by(self, receipt: Receipt) -> Receipt:
        return receipt

    def end(self, begun: effect_service_pb2.BeginEffectResponse, result: str) -> state_pb2.Value:
        request = effect_service_pb2.CompleteEffectRequest(
            thread=self.thread, key="pay", claim_token=begun.claim_token, state=effect_pb2.EFFECT_STATE_DONE,
            value=text(result), options=WriteOptions(expected_uid=self.uid_of(begun.receipt)),
        )  # fmt: skip
        self.code.call(self.effects.CompleteEffect, request)
        return request.value

    def acknowledged(self, signals: Any, answers: Any) -> list[str]:
        return [answers[0].signal_id]

    def use_answer(self, edit: diff_pb2.Edit, ids: list[str], head: dict[str, Any]) -> None:
        self.code.call(self.checkpoints.Save, self.save_request(edit, ack_signals=ids, **head))

    def put(self, number: int, revision: int) -> None:
        write = record_pb2.RecordWrite(key="count", value=text(str(number)), expected_revision=revision)
        request = record_service_pb2.PutRecordsRequest(
            thread=self.thread, writes=[write], options=WriteOptions(request_id=self.request_id())
        )
        self.code.call(self.records_of.PutRecords, request)

    def is_last(self, page: record_service_pb2.ListRecordsResponse) -> bool:
        return not page.next_page_token

    def rest(self, answer: record_service_pb2.GetRecordsResponse) -> list[str]:
        return list(answer.rest)

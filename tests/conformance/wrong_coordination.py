"""Wrong clients: leases, effects, signals and records."""

from __future__ import annotations

import time
from typing import Any

import grpc
from tests.conformance.raw_client import RawClient
from tests.conformance.raw_values import text
from tests.conformance.wrong import CODE, OneId, Renaming, wrong

from stateward.v1 import effect_pb2, effect_service_pb2
from stateward.v1.write_pb2 import Receipt, WriteOptions

# -- leases -----------------------------------------------------------------------------------------------------------


@wrong("lease/renewed", "the client called Save")
class NeverRenews(RawClient):
    def work(self, token: int) -> None:
        time.sleep(1.5)


@wrong("lease/renewed", "more than 1 s after")
class RenewsTooLate(RawClient):
    def work(self, token: int) -> None:
        time.sleep(1.1)
        self.renew(token)


@wrong("lease/renewed", "lease_token is 0")
class SavesWithoutItsToken(RawClient):
    def save_held(self, token: int) -> None:
        super().save_held(0)


@wrong("lease/renewed", "next: RenewLease", "the client called Save", pause_after=lambda error, attempt: None)
class GivesUpOnRenewals:
    pass


@wrong("lease/renewed", "expected_uid is ''")
class RenewsTheLeaseOfAName(RawClient):
    """The next thread of the name may give out the same token."""

    def uid_of(self, receipt: Any) -> str:
        return ""


@wrong("lease/lost", "a further call came: Save", "the client called Save")
class SavesAfterALoss(RawClient):
    def lose(self, token: int) -> None:
        self.save_held(token)


@wrong("guard/held", "guard is missing")
class SavesUnguarded(RawClient):
    def save_guarded(self, guard: Any) -> None:
        super().save_guarded(None)


@wrong("guard/held", "guard.expected_uid is ''")
class GuardsByAName(RawClient):
    """The next thread of the lock's name may give out the same token."""

    def uid_of(self, receipt: Any) -> str:
        return ""


@wrong("guard/held", "not the same as the one before")
class WaitsForItself(Renaming):
    pass


@wrong("guard/lost", "slot is 'seen', not 'error'")
class DropsALostGuard(RawClient):
    def save_guarded(self, guard: Any) -> None:
        try:
            super().save_guarded(guard)
        except grpc.RpcError:
            super().save_guarded(None)


# -- effects ----------------------------------------------------------------------------------------------------------


@wrong("effect/new", "expected_uid is ''")
class EndsTheClaimOfAName(RawClient):
    """The next thread of the name may give out the same token."""

    def uid_of(self, begun: Any) -> str:
        return ""


@wrong("effect/new", "the client called BeginEffect")
class PaysAgain(RawClient):
    """Takes an end without an answer for an effect that did not happen."""

    def end(self, begun: Any, result: str) -> Any:
        self.code.pause_after = CODE.pause_after
        try:
            request = effect_service_pb2.CompleteEffectRequest(
                thread=self.thread, key="pay", claim_token=begun.claim_token, state=4, value=text(result),
                options=WriteOptions(expected_uid=begun.receipt.uid),
            )
            self.effects.CompleteEffect(request, timeout=self.deadline_s)
        except grpc.RpcError:
            return self.end(self.begin(), result)
        return request.value


@wrong("effect/done", "the client called CompleteEffect")
class PaysWhatIsPaid(RawClient):
    def begin(self) -> Any:
        begun = super().begin()
        begun.claim_token = begun.effect.claim_token
        return begun


@wrong("effect/uncertain", "value.data is b'paid'")
class PaysTheUncertain(RawClient):
    def end(self, begun: Any, result: str) -> Any:
        return super().end(begun, "paid")


@wrong("effect/lost-answer", "not the same as the one before")
class RenamesClaims(Renaming):
    pass


@wrong("effect/in-progress", "same request_id")
class AsksWithOneId(OneId):
    pass


@wrong("effect/in-progress", "the client called CompleteEffect")
class PaysForAnother(RawClient):
    def begin(self) -> Any:
        begun = super().begin()
        begun.state, begun.claim_token = effect_pb2.EFFECT_STATE_NEW, begun.effect.claim_token
        return begun


@wrong("effect/new", "same request_id")
class EndsUnderTheIdOfTheClaim(OneId):
    """The call needs no id, but must not have that of another call."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        right = self.code.call

        def call(method: Any, request: Any) -> Any:
            if isinstance(request, effect_service_pb2.CompleteEffectRequest):
                request.options.request_id = self.request_id()
            return right(method, request)

        self.code.call = call


@wrong("effect/claim-lost", "slot is 'seen', not 'error'")
class KeepsALostResult(RawClient):
    def end(self, begun: Any, result: str) -> Any:
        try:
            return super().end(begun, result)
        except grpc.RpcError:
            return text(result)


@wrong("effect/not-archived", "receipt.digest is b''")
class WaitsForANumber(RawClient):
    """Another entry may have the number by now."""

    def named_by(self, receipt: Receipt) -> Receipt:
        return Receipt(sequence=receipt.sequence, uid=receipt.uid)


@wrong("effect/not-archived", "the client called CompleteEffect")
class PaysTooEarly(RawClient):
    def await_claim(self, begun: Any) -> None:
        pass


# -- signals ----------------------------------------------------------------------------------------------------------


@wrong("ask/answered", "ack_signals differs")
class AcknowledgesAll(RawClient):
    def acknowledged(self, signals: Any, answers: Any) -> list[str]:
        return [signal.signal_id for signal in signals]


@wrong("ask/answered", "ack_signals differs")
class AcknowledgesApart(RawClient):
    """A crash between the two saves uses the answer twice."""

    def use_answer(self, edit: Any, ids: list[str], head: dict[str, Any]) -> None:
        super().use_answer(edit, [], head)


@wrong("answer/lost-answer", "not the same as the one before")
class AnswersTwice(Renaming):
    pass


@wrong("answer/stale", "the client called SendSignal", pause_after=lambda error, attempt: 0.05)
class InsistsOnAnAnswer:
    pass


# -- records ----------------------------------------------------------------------------------------------------------


@wrong("record/new", "expected_revision is missing, not 0")
class PutsOverAnything(RawClient):
    def put(self, number: int, revision: int) -> None:
        super().put(number, revision or None)  # type: ignore[arg-type]


@wrong("record/new", "options.lease_token is 7, not 0")
class InventsALease(RawClient):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        right = self.code.call

        def call(method: Any, request: Any) -> Any:
            if hasattr(request, "options"):
                request.options.lease_token = 7
            return right(method, request)

        self.code.call = call


@wrong("record/conflict", "the client called PutRecords")
class PutsBlindly(RawClient):
    def put(self, number: int, revision: int) -> None:
        try:
            super().put(number, revision)
        except grpc.RpcError as error:
            super().put(number, int(self.code.read_error(error)[1]["current_revision"]))


@wrong("record/conflict", "same request_id")
class PutsUnderOneId(OneId):
    pass


@wrong("records/pages", "the client called GetRecords")
class EndsAtAnEmptyPage(RawClient):
    def is_last(self, page: Any) -> bool:
        return not page.records


@wrong("records/pages", "the client called Save")
class TakesTheRestForMissing(RawClient):
    def rest(self, answer: Any) -> list[str]:
        return []

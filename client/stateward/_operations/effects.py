"""Operations on effects: a tool's call under a claim."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypedDict

from stateward import values
from stateward._operations import threads
from stateward._operations.steps import Call, Operation, Pause, ThreadRef, new_request_id
from stateward._operations.tools import RENEWALS_PER_TERM, Outcome, ToolCall, Tools, keyed, require_callable
from stateward.durations import Duration, seconds
from stateward.effects import NOT_HAPPENED, EffectState, Happened, RecordedEffect
from stateward.errors import (
    ClaimLost,
    EffectFailed,
    EffectInProgress,
    EffectUncertain,
    InvalidRequest,
    StatewardError,
)
from stateward.models import Durability, choice_number
from stateward.v1 import effect_service_pb2 as service
from stateward.v1.lease_pb2 import Holder

TERM_S, WAIT_S = 60.0, 30.0
FIRST_POLL_S, MAX_POLL_S = 0.02, 0.5
DETAIL_BYTES_MAX = 4096
FRESH_SHARE = 0.1
"""For this part of its term a claim is taken to be held without asking."""


class EffectOptions(TypedDict, total=False):
    """How a tool is called. Everything is optional."""

    check: Callable[..., Any] | None
    """Finds out what became of a call that nobody saw end, given the idempotency key: it returns the result, or
    NOT_HAPPENED, or None where it cannot tell. It must see what is on its way as well."""
    idempotent: bool
    """Says that calling the tool again is safe: it honours the idempotency key, or does no harm twice. It is then
    called again where nobody saw its call end and no `check` is given."""
    retry_failed: bool
    """Calls a tool that failed before once more, under another idempotency key. Only for tools whose errors mean that
    nothing happened; one that cannot tell raises EffectUncertain."""
    anchor: str
    """What the effect belongs to, at most 1,024 bytes; the key is unique under it."""
    name: str
    """A name to select by, such as the tool's; at most 256 bytes."""
    term: Duration
    """After how many seconds the claim of a process that died is free; it is renewed while the tool works."""
    wait: Duration
    """For how many seconds to wait where somebody else is at it."""
    durability: Durability | str | None
    """What the claim has reached before the tool is called. None = all there is: with an archive, it is archived, so
    that no other machine calls the tool again when this one is lost. "committed" saves a request to the bucket."""


@dataclass(frozen=True)
class Claim:
    """What a call of a tool is made under."""

    ref: ThreadRef
    anchor: str
    key: str
    token: int
    term_s: float

    def request(self, **fields: Any) -> service.CompleteEffectRequest:
        ref = self.ref
        return service.CompleteEffectRequest(
            namespace=ref.namespace,
            thread=ref.thread,
            anchor=self.anchor,
            key=self.key,
            claim_token=self.token,
            **fields,
        )

    def renew(self) -> Operation[None]:
        """Begins its term anew."""
        yield Call("CompleteEffect", self.request(renew=True), waits_for_owner=False)

    def give_back(self, state: EffectState) -> Operation[None]:
        """Ends it without a result. If that fails it runs out."""
        with suppress(StatewardError):
            yield Call("CompleteEffect", self.request(state=state))

    def call(self, tools: Tools, tool: ToolCall) -> Operation[Outcome]:
        """Calls a function while it lives."""
        return tools.call(tool, self.renew, self.term_s / RENEWALS_PER_TERM)


class Plan:
    """What is to be done about one effect, checked before anything is claimed."""

    def __init__(self, key: str, call: Callable[[str], ToolCall], options: EffectOptions) -> None:
        unknown = options.keys() - EffectOptions.__optional_keys__
        if unknown:
            raise TypeError(f"an effect has no option {', '.join(sorted(unknown))}")
        if not isinstance(key, str):
            raise TypeError(f"key takes a text, not {key!r}")
        self.key, self.call = key, call
        check = options.get("check")
        self.check = None if check is None else keyed(check, "check")
        self.is_idempotent = options.get("idempotent", False)
        self.durability = choice_number(Durability, options.get("durability"))
        self.term_s = seconds(options.get("term", TERM_S), "term")
        self.wait_s = seconds(options.get("wait", WAIT_S), "wait")
        self.anchor, self.name = options.get("anchor", ""), options.get("name", "")
        self.retry_failed = options.get("retry_failed", False)

    def request(self, ref: ThreadRef, holder: Holder, max_age: timedelta | None = None) -> service.BeginEffectRequest:
        """The request, but for its id."""
        return service.BeginEffectRequest(
            namespace=ref.namespace,
            thread=ref.thread,
            anchor=self.anchor,
            key=self.key,
            name=self.name,
            holder=holder,
            term=timedelta(seconds=self.term_s),
            max_age=max_age,
            retry_failed=self.retry_failed,
            lease_token=ref.held.token,
            durability=self.durability,  # type: ignore[arg-type]
        )


def plan(key: str, fn: Callable[..., Any], options: EffectOptions) -> Plan:
    """The effect `key` is what `fn` does."""
    return Plan(key, keyed(fn, "fn"), options)


def plan_call(key: Callable[..., str], fn: Callable[..., Any], args: Any, kwargs: Any, options: EffectOptions) -> Plan:
    """The effect of a decorated function."""
    require_callable(key, "key")
    named: EffectOptions = {"name": getattr(fn, "__name__", ""), **options}
    return Plan(key(*args, **kwargs), ToolCall(fn, args, kwargs).with_key, named)


def effect(ref: ThreadRef, holder: Holder, plan: Plan, tools: Tools) -> Operation[Any]:
    """The result of a tool that is called at most once."""
    asked_at = time.monotonic()
    begun = yield from begin(plan.request(ref, holder), plan.wait_s)
    recorded, state = RecordedEffect.from_proto(begun.effect), EffectState(begun.state)
    what = f"effect {plan.key!r} of thread {ref.thread!r}"
    facts = {**recorded.facts, "idempotency_key": begun.idempotency_key}
    if state == EffectState.DONE:
        return recorded.value
    if state == EffectState.FAILED:
        raise EffectFailed(f"{what} failed before: {recorded.detail}", metadata=facts)
    if not begun.claim_token:
        raise EffectInProgress(f"{what} has been begun by {recorded.holder!r}, and not ended", metadata=facts)
    claim = Claim(ref, plan.anchor, plan.key, begun.claim_token, plan.term_s)
    is_new = state == EffectState.NEW
    yield from await_archived(claim, begun)
    if not is_new:
        if plan.check is not None:
            found = yield from _check(claim, tools, plan.check(begun.idempotency_key), what, facts)
            if found is not None:
                return (yield from _complete(claim, Outcome(EffectState.DONE, found.result)))
        elif not plan.is_idempotent:
            yield from claim.give_back(EffectState.UNCERTAIN)
            raise EffectUncertain(
                f"{what} was begun and nobody saw it end: it may have happened. Find out and call again with check=, "
                "which returns its result or NOT_HAPPENED",
                metadata=facts,
            )
    if time.monotonic() - asked_at > plan.term_s * FRESH_SHARE:
        yield from _hold_on(claim, begun)
    outcome = yield from claim.call(tools, plan.call(begun.idempotency_key))
    return (yield from _complete(claim, outcome))


def await_archived(claim: Claim, begun: service.BeginEffectResponse) -> Operation[None]:
    """Waits until a claim is as durable as it has to be; else gives it back and raises NotArchivedYet."""
    if begun.durability >= begun.wanted:
        return
    try:
        yield from threads.await_archived(claim.ref, threads.entry_of(claim.ref, begun, begun.effect.sequence))
    except StatewardError:
        yield from claim.give_back(EffectState(begun.state))
        raise


def _hold_on(claim: Claim, begun: service.BeginEffectResponse) -> Operation[None]:
    """Renews a claim that may have run out since it was made: ClaimLost before the tool is called, not after."""
    try:
        yield from claim.renew()
    except ClaimLost:
        raise
    except StatewardError:
        yield from claim.give_back(EffectState(begun.state))
        raise


def begin(request: service.BeginEffectRequest, wait_s: float) -> Operation[service.BeginEffectResponse]:
    """The answer that is not IN_PROGRESS, or the last one. Each attempt has an id of its own."""
    end, delay_s = time.monotonic() + wait_s, FIRST_POLL_S
    while True:
        request.request_id = new_request_id()
        answer: service.BeginEffectResponse = yield Call("BeginEffect", request)
        left_s = end - time.monotonic()
        if EffectState(answer.state) != EffectState.IN_PROGRESS or left_s <= 0:
            return answer
        until_free_s = answer.retry_after.ToMicroseconds() / 1e6
        jittered_s = delay_s * random.uniform(0.5, 1.0)  # noqa: S311  spreads, hides nothing
        yield Pause(max(min(jittered_s, until_free_s, left_s), 0.001))
        delay_s = min(delay_s * 2, MAX_POLL_S)


def _check(claim: Claim, tools: Tools, check: ToolCall, what: str, facts: dict[str, str]) -> Operation[Happened | None]:
    """What has happened; None = nothing. Raises what the check raises, and EffectUncertain where it cannot tell."""
    outcome = yield from claim.call(tools, check)
    if outcome.value is NOT_HAPPENED:
        return None
    if outcome.error is None and outcome.value is not None:
        return outcome.value if isinstance(outcome.value, Happened) else Happened(outcome.value)
    yield from claim.give_back(EffectState.UNCERTAIN)
    raise outcome.error or EffectUncertain(
        f"{what} may have happened, and its check cannot tell: it returned None, where NOT_HAPPENED says no",
        metadata=facts,
    )


def _complete(claim: Claim, outcome: Outcome) -> Operation[Any]:
    """Records what became of a tool's call; returns its result or raises its error."""
    value = None
    if outcome.state == EffectState.DONE:
        try:
            value = values.encode(outcome.value, f"the result of {claim.key}")
        except (TypeError, ValueError) as error:
            yield from _unrecorded(claim, outcome, error)
    detail = "" if outcome.error is None else describe(outcome.error)
    try:
        yield Call("CompleteEffect", claim.request(state=outcome.state, value=value, detail=detail))
    except ClaimLost as lost:
        if outcome.error is None:
            lost.result, lost.has_result = outcome.value, True
            raise
        outcome.error.add_note("the claim on the effect was lost meanwhile, so this is not recorded")
    except StatewardError as error:
        if outcome.error is None:
            yield from _unrecorded(claim, outcome, error)
        elif not isinstance(outcome.error, StatewardError):
            outcome.error.add_note(f"this is not recorded: {error}")
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _unrecorded(claim: Claim, outcome: Outcome, error: Exception) -> Operation[NoReturn]:
    """The tool has done its work, and its result cannot be kept: nothing but a check will find that out."""
    if isinstance(error, (TypeError, ValueError, InvalidRequest)):
        yield from claim.give_back(EffectState.UNCERTAIN)
    error.add_note(f"the tool was called, and its result is not recorded: {outcome.value!r:.500}")
    raise error


def describe(error: Exception) -> str:
    """Type and text of an error, as it is recorded."""
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    return text[:DETAIL_BYTES_MAX].decode(errors="ignore")

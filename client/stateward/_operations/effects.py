"""Operations on effects: calls of tools under a claim."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypedDict, TypeVar

from google.protobuf.empty_pb2 import Empty

from stateward import values
from stateward._clock import boottime
from stateward._operations import threads
from stateward._operations.retry import Backoff
from stateward._operations.steps import Call, Operation, Pause, ThreadRef, check_options, new_request_id
from stateward._operations.tools import RENEWALS_PER_TERM, Outcome, ToolCall, Tools, keyed
from stateward.arguments import function, several
from stateward.durations import Duration, seconds
from stateward.effects import NOT_HAPPENED, Effect, EffectState, Happened, RecordedEffect, effects_to_proto
from stateward.errors import (
    ClaimLost,
    EffectFailed,
    EffectInProgress,
    EffectUncertain,
    NotArchivedYet,
    StatewardError,
)
from stateward.models import Durability, choice_number
from stateward.options import ThreadOptions, options_to_proto
from stateward.v1 import effect_service_pb2 as service
from stateward.v1.lease_pb2 import Holder

R = TypeVar("R", service.CompleteEffectRequest, service.RenewEffectRequest)
TERM_S, WAIT_S = 10.0, 30.0
"""Short, because a caller that follows a dead one waits for the rest of the term. The client renews the claim."""
SLACK_S = 5.0
"""The default wait is at least this much longer than the term: the claim of a dead caller ends while others wait."""
RENEWAL_S = 1.0
"""The least deadline of a renewal."""
FIRST_POLL_S, MAX_POLL_S = 0.02, 0.5
DETAIL_BYTES_MAX = 4096
FRESH_SHARE = 0.1
"""For this part of its term a claim counts as held, and is not renewed before the tool is called."""
GIVE_BACK_S = 5.0
"""The most time for giving a claim back before the error is raised."""
LEFT_MAX = 1000
UNSEEN = "its end was not recorded; call again with check=, which finds out and returns the result or NOT_HAPPENED"


class EffectOptions(TypedDict, total=False):
    """How a tool is called. Every option has a default."""

    check: Callable[..., Any] | None
    """Finds out what became of a call whose process died. It gets the idempotency key, and returns the result,
    NOT_HAPPENED, or None if it cannot tell. It must also see a call that is still on its way."""
    idempotent: bool
    """Says that a second call is safe, because the tool honours the idempotency key or does no harm twice. The tool is
    then called again if a process died during its call and there is no `check`."""
    retry_failed: bool
    """Calls a tool that failed before again, with another idempotency key. Use it only if every error of the tool means
    that nothing happened; a tool that cannot tell raises EffectUncertain."""
    anchor: str
    """What the effect belongs to, at most 1,024 bytes. The key is unique under its anchor. If the anchor is a
    checkpoint id, the effect is deleted when the last version with this id is pruned."""
    keep_when_pruned: bool
    """Keeps the effect when the versions with its anchor as checkpoint id are pruned."""
    name: str
    """A name to select effects by, such as the tool's; at most 1,024 bytes."""
    term: Duration
    """How long the claim lives unless it is renewed. The client renews it until the effect has ended. If a process
    dies, others wait for the rest of the term, unless the client has a `holder`. A coroutine function that blocks its
    event loop needs a longer term than it blocks. The default is 10 s."""
    wait: Duration | None
    """How long to wait while another caller holds the claim; then EffectInProgress. None = 30 s, or 5 s more than
    `term` if that is longer, so that the claim of a dead caller ends meanwhile."""
    durability: Durability | str | None
    """The level that the claim must reach before the tool is called. None = the highest level of this daemon: with an
    archive the claim is archived, so that no other machine calls the tool again if this machine is lost. "committed"
    saves a request to the bucket."""


class Plan:
    """The key, the call and the options of one effect, checked before anything is claimed."""

    def __init__(self, key: str, call: Callable[[str], ToolCall], options: EffectOptions) -> None:
        check_options(options, EffectOptions, "an effect")
        if not isinstance(key, str):
            raise TypeError(f"key takes a text, not {key!r}")
        self.key, self.call = key, call
        check = options.get("check")
        self.check = None if check is None else keyed(check, "check")
        self.is_idempotent = options.get("idempotent", False)
        self.durability = choice_number(Durability, options.get("durability"))
        self.term_s = seconds(options.get("term", TERM_S), "term")
        self.wait_s = wait_seconds(options.get("wait"), self.term_s)
        self.anchor, self.name = options.get("anchor", ""), options.get("name", "")
        self.retry_failed = options.get("retry_failed", False)
        self.keep_when_pruned = options.get("keep_when_pruned", False)


def wait_seconds(wait: Duration | None, term_s: float) -> float:
    """Returns how long to wait for a claim of another caller. None = longer than the term."""
    return max(WAIT_S, term_s + SLACK_S) if wait is None else seconds(wait, "wait")


@dataclass(frozen=True)
class Daemon:
    """What a claim knows of the daemon: its address, and how long the client waits for its answers."""

    target: str = ""
    patience_s: float = WAIT_S


class Claim:
    """One effect from its begin to its end: takes it through the states that `stateward.effects` shows."""

    def __init__(self, ref: ThreadRef, holder: Holder, plan: Plan, daemon: Daemon) -> None:
        self.token = 0
        self.uid = ""
        """The uid of the thread: the next thread of its name may give out the same token."""
        self.idempotency_key = ""
        self.what = f"effect {plan.key!r} of thread {ref.thread!r}"
        """The name of the effect in errors."""
        self._ref, self._holder, self._plan = ref, holder, plan
        self._place = (daemon.target, ref.namespace, ref.thread, plan.anchor, plan.key)
        self._asked_at = 0.0
        self._pid = os.getpid()
        self.patience_s = daemon.patience_s

    @property
    def is_ours(self) -> bool:
        """Whether this process made the claim. A forked child ends nothing that its parent has begun."""
        return self._pid == os.getpid()

    @property
    def interval_s(self) -> float:
        """The time between two renewals."""
        return self._plan.term_s / RENEWALS_PER_TERM

    def begin(self, max_age: timedelta | None = None) -> Operation[EffectState]:
        """Claims the effect, or returns its state. Waits as the plan says while another caller holds the claim."""
        plan = self._plan
        request = self._ref.to_write(
            service.BeginEffectRequest,
            anchor=plan.anchor,
            key=plan.key,
            name=plan.name,
            holder=self._holder,
            term=timedelta(seconds=plan.term_s),
            max_age=max_age,
            retry_failed=plan.retry_failed,
            keep_when_pruned=plan.keep_when_pruned,
            lease_token=self._ref.held.for_call(),
            durability=plan.durability,
        )
        state = yield from self._ask(request)
        if state is EffectState.IN_PROGRESS and (left := _left.pop(self._place, None)) is not None:
            claim, became = left
            # Another key belongs to a thread that was deleted and made again, where another claim may have this token.
            if claim.idempotency_key == self.idempotency_key:
                yield from claim.give_back(became)
                state = yield from self._ask(request)
        polls = Backoff(FIRST_POLL_S, MAX_POLL_S, plan.wait_s)
        while state is EffectState.IN_PROGRESS and (pause_s := polls.next_s()) is not None:
            yield Pause(max(min(pause_s, self.begun.retry_after.ToMicroseconds() / 1e6), 0.001))
            state = yield from self._ask(request)
        return state

    def take(self) -> Operation[EffectState]:
        """Begins an effect that must happen at most once, and returns its state: it is DONE, or claimed otherwise.

        Raises EffectFailed if the effect failed before, and EffectInProgress if another caller holds the claim.
        """
        state = yield from self.begin()
        if state is EffectState.FAILED:
            raise EffectFailed(f"{self.what} failed before: {self.recorded.detail}", metadata=self.facts)
        if state is not EffectState.DONE:
            if not self.token:
                raise EffectInProgress(self._advice(), metadata=self.facts)
            yield from await_archived(self, self.begun)
        return state

    def _advice(self) -> str:
        left_s = self.begun.retry_after.ToMicroseconds() / 1e6
        return (
            f"{self.recorded.holder!r} has begun {self.what} and not ended it; its claim lives for {left_s:.1f} s, "
            "unless it is renewed; call again, or with a longer wait=. A restarted agent need not wait if its "
            "client has a name of its own: Client(holder=…)"
        )

    def _ask(self, request: service.BeginEffectRequest) -> Operation[EffectState]:
        # Each time under a new id: a repeated id would get the earlier answer again.
        request.options.request_id, self._asked_at = new_request_id(), boottime()
        self.begun: service.BeginEffectResponse = yield Call("BeginEffect", request)
        self.token, self.idempotency_key = self.begun.claim_token, self.begun.idempotency_key
        self.uid = self.begun.receipt.uid
        return EffectState(self.begun.state)

    @property
    def recorded(self) -> RecordedEffect:
        return RecordedEffect.from_proto(self.begun.effect)

    @property
    def facts(self) -> dict[str, str]:
        """The metadata of errors about the effect."""
        return {**self.recorded.facts, "idempotency_key": self.idempotency_key}

    def judge(self, found: Any) -> Operation[Happened | None]:
        """Reads the result of a check; None = nothing happened. Raises EffectUncertain if the check cannot tell."""
        if found is NOT_HAPPENED:
            return None
        if found is None:
            yield from self.leave_uncertain("its check returned None, which means unknown; NOT_HAPPENED says no")
        return found if isinstance(found, Happened) else Happened(found)

    def leave_uncertain(self, why: str) -> Operation[NoReturn]:
        """Gives the claim back as uncertain and raises EffectUncertain: the next caller must find out what happened."""
        yield from self.give_back(EffectState.UNCERTAIN)
        raise EffectUncertain(f"{self.what} may have happened: {why}", metadata=self.facts)

    def record(self, value: Any, otherwise: EffectState = EffectState.UNCERTAIN) -> Operation[None]:
        """Ends the effect with a result. If the result cannot be recorded, gives the claim back as `otherwise`."""
        if not self.is_ours:
            return
        try:
            encoded = values.encode(value, f"the result of {self._plan.key}")
            yield Call("CompleteEffect", self.end(EffectState.DONE, value=encoded))
        except Exception as error:
            if not isinstance(error, ClaimLost):
                yield from self.give_back(otherwise)
            raise
        except GeneratorExit:  # interrupted: no more calls are possible
            self._leave_behind(otherwise)
            raise

    def end(self, state: EffectState, **fields: Any) -> service.CompleteEffectRequest:
        return self._about(service.CompleteEffectRequest, state=state, **fields)

    def _about(self, kind: type[R], **fields: Any) -> R:
        return self._ref.about(
            kind,
            anchor=self._plan.anchor,
            key=self._plan.key,
            claim_token=self.token,
            expected_uid=self.uid,
            **fields,
        )

    def renew(self) -> Operation[None]:
        """Restarts the term of the claim. Raises ClaimLost if another caller has taken it."""
        asked_at = boottime()
        # A daemon that does not answer must not keep the next renewal from being sent.
        deadline_s = max(self.interval_s, RENEWAL_S)
        yield Call("RenewEffect", self._about(service.RenewEffectRequest), deadline_s, waits_for_owner=False)
        self._asked_at = asked_at

    def hold_on(self) -> Operation[None]:
        """Renews a claim that may have expired, so that ClaimLost is raised before the tool is called, not after."""
        if boottime() - self._asked_at <= self._plan.term_s * FRESH_SHARE:
            return
        try:
            yield from self.renew()
        except StatewardError as error:
            if not isinstance(error, ClaimLost):
                yield from self.give_back(EffectState(self.begun.state))
            raise

    def give_back(self, state: EffectState) -> Operation[None]:
        """Gives the claim back without a result. If the daemon is away, the next caller in this process gives it back,
        or it expires."""
        if not self.is_ours:
            return
        self._leave_behind(state)
        try:
            yield Call("CompleteEffect", self.end(state), deadline_s=GIVE_BACK_S)
        except StatewardError as error:
            if error.retryable:
                return
        if _left.get(self._place, (None,))[0] is self:  # else another caller has left a later claim behind meanwhile
            del _left[self._place]

    def _leave_behind(self, state: EffectState) -> None:
        if len(_left) >= LEFT_MAX:
            _left.pop(next(iter(_left)), None)
        _left[self._place] = self, state

    def call(self, tools: Tools, tool: ToolCall) -> Operation[Outcome]:
        return tools.call(tool, self.renew, self.interval_s)


_left: dict[tuple[str, ...], tuple[Claim, EffectState]] = {}
"""Abandoned claims of this process that could not be given back because the daemon was away, at most LEFT_MAX. The
next caller of such an effect gives the claim back first. By target, namespace, thread, anchor and key."""


def await_archived(claim: Claim, begun: service.BeginEffectResponse) -> Operation[None]:
    """Waits until a claim is as durable as the daemon wants it, and renews it meanwhile. On failure, gives it back and
    raises the error."""
    if begun.receipt.durability >= begun.required_durability:
        return
    end = time.monotonic() + claim.patience_s
    try:
        while True:
            entry = threads.entry_of(claim._ref, begun.receipt)
            try:
                left_s = max(end - time.monotonic(), 0.0)
                yield from threads.await_archived(claim._ref, entry, min(left_s, claim.interval_s) or None)
                return
            except NotArchivedYet:
                if time.monotonic() >= end:
                    raise
            yield from claim.renew()
    except StatewardError as error:
        if not isinstance(error, ClaimLost):
            yield from claim.give_back(EffectState(begun.state))
        raise


def plan_call(key: Callable[..., str], fn: Callable[..., Any], args: Any, kwargs: Any, options: EffectOptions) -> Plan:
    """Returns the plan of the effect of a decorated function's call."""
    function(key, "key")
    named: EffectOptions = {"name": getattr(fn, "__name__", ""), **options}
    return Plan(key(*args, **kwargs), ToolCall(fn, args, kwargs).with_key, named)


def effect(ref: ThreadRef, holder: Holder, plan: Plan, tools: Tools, daemon: Daemon) -> Operation[Any]:
    """Returns the result of a tool. Calls the tool at most once."""
    claim = Claim(ref, holder, plan, daemon)
    state = yield from claim.take()
    if state is EffectState.DONE:
        return claim.recorded.value
    if state is EffectState.UNCERTAIN and plan.check is not None:
        checked = yield from claim.call(tools, plan.check(claim.idempotency_key))
        if checked.error is not None:
            yield from claim.give_back(EffectState.UNCERTAIN)
            raise checked.error
        found = yield from claim.judge(checked.value)
        if found is not None:
            return (yield from _complete(claim, Outcome(EffectState.DONE, found.result)))
    elif state is EffectState.UNCERTAIN and not plan.is_idempotent:
        yield from claim.leave_uncertain(UNSEEN)
    yield from claim.hold_on()
    return (yield from _complete(claim, (yield from claim.call(tools, plan.call(claim.idempotency_key)))))


def _complete(claim: Claim, outcome: Outcome) -> Operation[Any]:
    """Records the outcome of a tool's call. Returns its result or raises its error."""
    failure = outcome.error
    if failure is None:
        try:
            yield from claim.record(outcome.value)
        except ClaimLost as lost:
            lost.result, lost.has_result = outcome.value, True
            raise
        except Exception as error:
            error.add_note(f"the tool was called, but its result is not recorded: {outcome.value!r:.500}")
            raise
        return outcome.value
    if not claim.is_ours:
        raise failure
    try:
        yield Call("CompleteEffect", claim.end(outcome.state, detail=describe(failure)))
    except ClaimLost:
        failure.add_note("this error is not recorded: the claim on the effect was lost in the meantime")
    except StatewardError as error:
        if not isinstance(failure, StatewardError):
            failure.add_note(f"this error is not recorded: {error}")
    raise failure


def describe(error: Exception) -> str:
    """Returns type and text of an error, as effects record it."""
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    return text[:DETAIL_BYTES_MAX].decode(errors="ignore")


def put_effects(
    ref: ThreadRef, effects: Iterable[Effect], durability: Durability | str | None, create: ThreadOptions | None
) -> Operation[int]:
    """Records results. Returns how many were not recorded before."""
    request = ref.to_write(
        service.PutEffectsRequest,
        effects=effects_to_proto(effects),
        request_id=new_request_id(),
        durability=choice_number(Durability, durability),
        lease_token=ref.held.for_call(),
        create=options_to_proto(create),
    )
    response: service.PutEffectsResponse = yield Call("PutEffects", request)
    if response.receipt.durability < request.options.durability:
        yield from threads.await_archived(ref, threads.entry_of(ref, response.receipt))
    return response.written


def delete_effects(
    ref: ThreadRef, anchor: str, keys: Iterable[str] | None, durability: Durability | str | None
) -> Operation[int]:
    """Deletes effects. Returns how many there were."""
    named = None if keys is None else several(keys, "keys", "keys")
    if named == []:
        return 0
    request = ref.to_write(
        service.DeleteEffectsRequest,
        anchor=anchor,
        **({"all": Empty()} if named is None else {"keys": service.EffectKeys(keys=named)}),
        request_id=new_request_id(),
        lease_token=ref.held.for_call(),
        durability=choice_number(Durability, durability),
    )
    response: service.DeleteEffectsResponse = yield Call("DeleteEffects", request)
    if response.receipt.durability < request.options.durability:
        yield from threads.await_archived(ref, threads.entry_of(ref, response.receipt))
    return response.deleted


def list_effects(
    ref: ThreadRef, anchor: str | None, names: Iterable[str], key: str, with_values: bool
) -> service.ListEffectsRequest:
    """Returns the request for the first page."""
    if isinstance(names, str):
        raise TypeError("names takes a list of names, not one name")
    return ref.about(
        service.ListEffectsRequest,
        anchor=anchor,
        names=names,
        key=key,
        without_values=not with_values,
    )


def read_effects(request: service.ListEffectsRequest) -> Operation[list[RecordedEffect]]:
    """Returns a page, and sets the request's page token for the next one; an empty token = there is none."""
    page: service.ListEffectsResponse = yield Call("ListEffects", request)
    request.page_token = page.next_page_token
    return list(map(RecordedEffect.from_proto, page.effects))

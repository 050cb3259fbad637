"""Before a risky step: what the agent knows is saved, and the step is claimed, so that no restart makes it twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from stateward import values
from stateward._operations import saving
from stateward._operations.effects import Claim, await_archived, describe
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id
from stateward.effects import NOT_HAPPENED, EffectState, Happened, RecordedEffect
from stateward.errors import EffectFailed, EffectInProgress, EffectUncertain, StatewardError
from stateward.state import State
from stateward.v1 import effect_service_pb2 as service
from stateward.v1.lease_pb2 import Holder

LABEL = "before"
# The block cannot renew its claim; a holder with a name of its own need not wait for the end of it after a restart.
TERM_S = 600.0
# So long the daemon is asked to take a claim back before whatever went wrong is raised.
GIVE_BACK_S = 5.0
LEFT_MAX = 1000

Save = Callable[[], Operation[Any]]
"""Saves what is to be saved before the step."""

_left: dict[tuple[str, ...], tuple[Claim, EffectState]] = {}
"""Claims of this process that nobody is at any more and that could not be given back, since the daemon was away. By the
daemon, thread and key; whoever comes to such a step next gives its claim back first. At most LEFT_MAX."""


def save_before(ref: ThreadRef, state: State | None, name: str, options: SaveOptions) -> Operation[None]:
    """Saves a state, if there is one, under the name of the step."""
    if state is not None:
        yield from saving.save(ref, state, labelled(name, options))
    elif options:
        raise TypeError("options of a save need the state that is to be saved")


def labelled(name: str, options: SaveOptions) -> SaveOptions:
    """The same options with the label that names the step."""
    return {**options, "labels": {**(options.get("labels") or {}), LABEL: name}}


class RiskyStep:
    """A risky step that is under way. Set `result`; the step is then recorded with it."""

    def __init__(self, ref: ThreadRef, holder: Holder, target: str, name: str, key: str, term_s: float) -> None:
        self.name = name
        self.result: Any = None
        """What it came to. Where `done`, what it had come to before."""
        self.done = False
        """True where it was made before: do not make it again."""
        self.nothing_happened = False
        """Set it before you raise if the step did nothing for sure: whoever comes next then begins afresh."""
        self.idempotency_key = ""
        """The same word for all attempts at this step: give it to the tool."""
        self._ref, self._holder = ref, holder
        self._claim = Claim(ref, "", key, 0, term_s)
        self._place = (target, ref.namespace, ref.thread, key)
        self._facts: dict[str, str] = {}

    def enter(self, save: Save, has_check: bool) -> Operation[bool]:
        """Saves and claims. Returns whether a check is to be asked. Raises EffectUncertain, EffectInProgress."""
        yield from save()
        key = self._claim.key
        answer = yield from self._begin()
        if EffectState(answer.state) is EffectState.IN_PROGRESS:
            left = _left.pop(self._place, None)
            if left is not None:
                yield from self._give_back(*left)
                answer = yield from self._begin()
        recorded = RecordedEffect.from_proto(answer.effect)
        self.idempotency_key = answer.idempotency_key
        self._facts = {**recorded.facts, "idempotency_key": answer.idempotency_key}
        state_now = EffectState(answer.state)
        if state_now is EffectState.DONE:
            self.done, self.result = True, recorded.value
            return False
        if state_now is EffectState.FAILED:  # by `thread.effect`, under the same key
            raise EffectFailed(f"step {key!r} failed before: {recorded.detail}", metadata=self._facts)
        if not answer.claim_token:
            raise EffectInProgress(f"step {key!r} has been begun by {recorded.holder!r}", metadata=self._facts)
        self._claim = Claim(self._ref, "", key, answer.claim_token, self._claim.term_s)
        yield from await_archived(self._claim, answer)
        if state_now is not EffectState.UNCERTAIN:
            return False
        if not has_check:
            yield from self.give_up()
            raise self._uncertain()
        return True

    def learn(self, found: Any) -> Operation[None]:
        """What the check found: NOT_HAPPENED, a result (in a `Happened` if it may be None), or None: it cannot tell."""
        if found is NOT_HAPPENED:
            return
        if found is None:
            yield from self.give_up()
            raise self._uncertain()
        self.result = found.result if isinstance(found, Happened) else found
        yield from self._complete()
        self.done = True

    def give_up(self) -> Operation[None]:
        """Whoever comes next has to find out what happened."""
        yield from self._give_back(self._claim, EffectState.UNCERTAIN)

    def leave(self, error: BaseException | None) -> Operation[None]:
        """Records how it ended. An error says nothing about whether the step was made."""
        if self.done:
            return
        if error is None:
            yield from self._complete()
        elif self.nothing_happened:
            yield from self._give_back(self._claim, EffectState.NEW)
        else:
            detail = describe(error) if isinstance(error, Exception) else type(error).__name__
            error.add_note(f"step {self._claim.key!r} is recorded as uncertain ({detail})")
            yield from self.give_up()

    def _begin(self) -> Operation[service.BeginEffectResponse]:
        request = service.BeginEffectRequest(
            namespace=self._ref.namespace,
            thread=self._ref.thread,
            key=self._claim.key,
            name=self.name,
            holder=self._holder,
            term=timedelta(seconds=self._claim.term_s),
            request_id=new_request_id(),
        )
        answer: service.BeginEffectResponse = yield Call("BeginEffect", request)
        return answer

    def _complete(self) -> Operation[None]:
        """Records the result. One that cannot be recorded leaves the step uncertain: it was made."""
        try:
            value = values.encode(self.result, f"the result of {self._claim.key}")
            yield Call("CompleteEffect", self._claim.request(state=EffectState.DONE, value=value))
        except Exception:
            yield from self.give_up()
            raise
        except GeneratorExit:  # interrupted: nothing can be asked here any more
            self._leave_behind(self._claim, EffectState.UNCERTAIN)
            raise

    def _give_back(self, claim: Claim, state: EffectState) -> Operation[None]:
        """Ends a claim without a result; if the daemon is away, the next one here does it, or the claim runs out."""
        self._leave_behind(claim, state)
        with suppress(StatewardError):
            yield Call("CompleteEffect", claim.request(state=state), deadline_s=GIVE_BACK_S)
            _left.pop(self._place, None)

    def _leave_behind(self, claim: Claim, state: EffectState) -> None:
        if len(_left) >= LEFT_MAX:
            _left.pop(next(iter(_left)), None)
        _left[self._place] = claim, state

    def _uncertain(self) -> EffectUncertain:
        return EffectUncertain(
            f"step {self._claim.key!r} was begun and nobody saw it end: it may have happened. Find out and enter again "
            "with check=, which returns its result or NOT_HAPPENED",
            metadata=self._facts,
        )


Check = Callable[[str], Any]

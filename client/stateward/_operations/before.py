"""Risky steps: the state is saved and the step is claimed before it, so that no restart makes the step twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateward._operations import saving
from stateward._operations.effects import UNSEEN, Claim, Daemon, Plan, describe
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.tools import ToolCall
from stateward.arguments import text
from stateward.durations import Duration
from stateward.effects import EffectState
from stateward.state import State
from stateward.v1.lease_pb2 import Holder

LABEL = "before"
Check = Callable[[str], Any]
Save = Callable[[], Operation[Any]]
"""Makes the save before the step."""


def save_before(ref: ThreadRef, state: State | None, name: str, options: SaveOptions) -> Operation[None]:
    """Saves a state, if there is one, with the name of the step as a label."""
    if state is not None:
        yield from saving.save(ref, state, labelled(name, options))
    elif options:
        raise TypeError("options of a save need a state; give the state, too")


def labelled(name: str, options: SaveOptions) -> SaveOptions:
    """Returns the options with the label that names the step."""
    return {**options, "labels": {**saving.labels_of(options), LABEL: name}}


class RiskyStep:
    """A risky step that is under way. Set `result` to record it with the step."""

    def __init__(self, ref: ThreadRef, holder: Holder, daemon: Daemon, plan: Plan) -> None:
        self.name = plan.name
        self.result: Any = None
        """The result of the step; if `done`, the recorded result."""
        self.done = False
        """Whether the step was made before. Then do not make it again."""
        self.nothing_happened = False
        """Set this before you raise if the step certainly did nothing: the next caller may then make it."""
        self._claim = Claim(ref, holder, plan, daemon)
        self._claim.what = f"step {plan.key!r}"

    @property
    def idempotency_key(self) -> str:
        """A key for the tool, the same for all attempts at this step."""
        return self._claim.idempotency_key

    @property
    def interval_s(self) -> float:
        """The time between two renewals of the claim."""
        return self._claim.interval_s

    def renew(self) -> Operation[None]:
        """Renews the claim. Raises ClaimLost."""
        return self._claim.renew()

    def enter(self, save: Save, has_check: bool) -> Operation[bool]:
        """Saves, then claims the step. Returns whether a check must find out if it was made. Raises EffectInProgress if
        another caller holds the claim, and EffectUncertain if a check is needed and there is none."""
        yield from save()
        state = yield from self._claim.take()
        if state is EffectState.DONE:
            self.done, self.result = True, self._claim.recorded.value
        elif state is EffectState.UNCERTAIN and not has_check:
            yield from self._claim.leave_uncertain(UNSEEN)
        return state is EffectState.UNCERTAIN

    def learn(self, found: Any) -> Operation[None]:
        """Records what the check found: a result (as `Happened` if it may be None), NOT_HAPPENED, or None = unknown."""
        happened = yield from self._claim.judge(found)
        if happened is not None:
            self.result = happened.result
            yield from self._claim.record(self.result)
            self.done = True

    def give_up(self) -> Operation[None]:
        """Gives the claim back as uncertain: the next caller must find out what happened."""
        yield from self._claim.give_back(EffectState.UNCERTAIN)

    def leave(self, error: BaseException | None) -> Operation[None]:
        """Records the end of the step. An error does not tell whether the step was made."""
        if self.done or not self._claim.is_ours:
            return
        if error is None:
            yield from self._claim.record(self.result)
        elif self.nothing_happened:
            yield from self._claim.give_back(EffectState.NEW)
        else:
            detail = describe(error) if isinstance(error, Exception) else type(error).__name__
            error.add_note(f"{self._claim.what} is recorded as uncertain ({detail})")
            yield from self.give_up()


def plan_step(name: str, key: str, term: Duration, wait: Duration | None) -> Plan:
    """Returns the plan of a step. Raises ValueError for a term or a wait that is none."""
    text(name, "name")
    return Plan(key or name, _no_tool, {"name": name, "term": term, "wait": wait})


def _no_tool(_key: str) -> ToolCall:
    raise AssertionError("a risky step is made by its block")

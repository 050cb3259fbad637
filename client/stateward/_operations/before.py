"""Before a risky step: what the agent knows is saved, and the step is claimed, so that no restart makes it twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateward._operations import saving
from stateward._operations.effects import UNSEEN, Claim, Plan, describe
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.tools import ToolCall
from stateward.effects import EffectState
from stateward.state import State
from stateward.v1.lease_pb2 import Holder

LABEL = "before"
# The block cannot renew its claim; a holder with a name of its own need not wait for the end of it after a restart.
TERM_S = 600.0

Save = Callable[[], Operation[Any]]
"""Saves what is to be saved before the step."""


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
        self._claim = Claim(ref, holder, Plan(key, _no_tool, {"name": name, "term": term_s, "wait": 0}), target)
        self._claim.what = f"step {key!r}"

    @property
    def idempotency_key(self) -> str:
        """The same word for all attempts at this step: give it to the tool."""
        return self._claim.idempotency_key

    def enter(self, save: Save, has_check: bool) -> Operation[bool]:
        """Saves and claims. Returns whether a check is to be asked. Raises EffectUncertain, EffectInProgress."""
        yield from save()
        state = yield from self._claim.take()
        if state is EffectState.DONE:
            self.done, self.result = True, self._claim.recorded.value
        elif state is EffectState.UNCERTAIN and not has_check:
            yield from self._claim.leave_uncertain(UNSEEN)
        return state is EffectState.UNCERTAIN

    def learn(self, found: Any) -> Operation[None]:
        """What the check found: NOT_HAPPENED, a result (in a `Happened` if it may be None), or None: it cannot tell."""
        happened = yield from self._claim.judge(found)
        if happened is not None:
            self.result = happened.result
            yield from self._claim.record(self.result)
            self.done = True

    def give_up(self) -> Operation[None]:
        """Whoever comes next has to find out what happened."""
        yield from self._claim.give_back(EffectState.UNCERTAIN)

    def leave(self, error: BaseException | None) -> Operation[None]:
        """Records how it ended. An error says nothing about whether the step was made."""
        if self.done:
            return
        if error is None:
            yield from self._claim.record(self.result)
        elif self.nothing_happened:
            yield from self._claim.give_back(EffectState.NEW)
        else:
            detail = describe(error) if isinstance(error, Exception) else type(error).__name__
            error.add_note(f"{self._claim.what} is recorded as uncertain ({detail})")
            yield from self.give_up()


def _no_tool(_key: str) -> ToolCall:
    raise AssertionError("a risky step is made by its block")


Check = Callable[[str], Any]

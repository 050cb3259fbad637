"""The rules of `autosave`, without I/O and without waiting: when a state is saved, and with which options.

A state is *whole* when the agent says so: at a step, and outside of `changing()` blocks once the agent uses them. Only
whole states are saved. So a timer or a SIGTERM in the middle of a change waits for its end, and an exception in the
middle of a change saves nothing: the next process continues from the last whole state.

A question of the agent stays open until a step continues from it. Neither a SIGTERM nor the end of the block withdraws
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stateward._operations import before, saving, windows
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.updating import open_question
from stateward.arguments import function
from stateward.durations import Duration, seconds
from stateward.errors import NotArchivedYet, StatewardError
from stateward.models import Checkpoint, Status, choice_number
from stateward.state import State
from stateward.window import Window

EVERY_MIN_S = 0.001
# The options of a step that also hold for saves between this step and the next.
STICKY = ("step", "schema_version", "metrics")
Saved = Operation[Checkpoint | None]


@dataclass(frozen=True)
class Mark:
    """A step that left the state whole and is not saved yet."""

    checkpoint: Checkpoint | None
    """The version that the state continues from. If the state has another version later, that one has the step."""
    changes: bytes
    options: SaveOptions


class Cadence:
    """What is saved, what is due, and what went wrong."""

    def __init__(
        self,
        ref: ThreadRef,
        state: State,
        *,
        every: Duration | None,
        after_each_step: bool,
        windows: Sequence[Window],
        options: SaveOptions,
        clock: Callable[[], float],
    ) -> None:
        saving.require_state(state, "autosave")
        self.state = state
        self.error: BaseException | None = None
        """The error of the last save in the background; raised at the next step, or at the end."""
        self.last: Checkpoint | None = None
        self._ref = ref
        self._every_s = None if every is None else seconds(every, "every", least=EVERY_MIN_S)
        self._after_each_step = after_each_step
        self._windows = windows
        self._base = options
        self._clock = function(clock, "clock")
        self._tried_at = clock()
        self._said: dict[str, Any] = dict(options)  # the options of the last save
        self._mark: Mark | None = None
        if ref.ephemeral:  # a save does this, too, but changes are collected before the first save
            state._keep_out(ref.ephemeral)

    def step(self, options: SaveOptions) -> Saved:
        """Ends a step: saves now, or marks the state as whole. Raises a permanent error of a save in the background.

        After a passing error, the state is saved now, with the options of this step: a save with those of the earlier
        step would name that step in a version that includes this one.
        """
        is_overdue = self._take_error()
        asked: SaveOptions = {**self._base, **given(options)}
        if self._after_each_step or is_overdue or self.wait_s() == 0:
            return (yield from self._save(asked))
        self._mark = Mark(self.state.checkpoint, self._changes(), asked)
        return None

    def before(self, name: str, options: SaveOptions) -> Operation[None]:
        """Saves, even if nothing changed, with the name of a risky step as a label; otherwise as between two steps."""
        self._take_error()
        between = self._between_steps()
        said: SaveOptions = {**between, **given(options)}
        labels = {**saving.labels_of(between), **saving.labels_of(options)}
        asked = before.labelled(name, {**said, "labels": labels})
        # The labels of this one version must not make the next save necessary, only because it does not have them.
        yield from self._save(asked, said={**said, "labels": between.get("labels")})

    def finish(self, status: Status | str | None = None, options: SaveOptions | None = None) -> Saved:
        """Makes the final save if the state or its status changed. `status`: that of a process that is asked to end."""
        self._take_error()
        return (yield from self._save(self._last_word(status, options or {})))

    def finish_after_error(self, status: Status | str | None) -> Operation[None]:
        """After an exception: saves the state if the last step is not saved yet and nothing changed after that step."""
        try:
            is_whole = self._marked is not None and self._changes() == self._marked.changes
        except (TypeError, ValueError):  # a half-made change may hold values that cannot be stored
            is_whole = False
        if is_whole:
            yield from self.finish(status)

    def wait_s(self) -> float:
        """Returns the seconds until the next save in the background is due."""
        if self._every_s is None:
            return float("inf")
        return max(self._tried_at + self._every_s - self._clock(), 0.0)

    def in_background(self, status: Status | str | None = None) -> Operation[None]:
        """Saves what changed since the last save, and keeps the error. Does nothing after a permanent error."""
        self._tried_at = self._clock()
        if self.error is not None and not passes(self.error):
            return
        watch_again = _held_objects(self.state)
        try:
            yield from self._save(self._last_word(status, {}))
            self.error = None
        except Exception as error:  # noqa: BLE001  the agent's thread raises it
            self.error = error
        finally:
            watch_again()

    @property
    def _marked(self) -> Mark | None:
        """The step that is not saved yet, neither by this object nor by the agent."""
        mark = self._mark
        return mark if mark is not None and mark.checkpoint is self.state.checkpoint else None

    def _last_word(self, status: Status | str | None, options: SaveOptions) -> SaveOptions:
        """Returns the options of a save that the agent did not ask for: an open question stays open."""
        asked: Any = {**self._between_steps(), "status": status} if status is not None else self._between_steps()
        said = given(options)
        question: Any = {} if self._marked is not None or "status" in said else open_question(self.state)
        return {**asked, **question, **said}

    def _between_steps(self) -> SaveOptions:
        if self._marked is not None:
            return {**self._marked.options}
        sticky: Any = {name: self._said[name] for name in STICKY if name in self._said}
        return {**self._base, **sticky}

    def _take_error(self) -> bool:
        """Returns whether a save in the background has failed and may be retried. Raises a permanent error."""
        error, self.error = self.error, None
        if error is not None and not passes(error):
            raise error
        return error is not None

    def _save(self, options: SaveOptions, said: SaveOptions | None = None) -> Saved:
        """Saves if anything changed. The options of the next save are compared with `said`; None = with `options`."""
        if not self._changes() and not self._says_more(options):
            self._mark = None
            return None
        self._tried_at = self._clock()
        try:
            checkpoint = yield from windows.save(self._ref, self.state, self._windows, options)
        except NotArchivedYet as error:
            self._was_saved(said or options, error.checkpoint)
            raise
        self._was_saved(said or options, checkpoint)
        return checkpoint

    def _was_saved(self, options: SaveOptions, checkpoint: Checkpoint | None) -> None:
        self.last, self._said, self._mark = checkpoint, dict(options), None

    def _says_more(self, options: SaveOptions) -> bool:
        answer = self.state._waiting_answer
        if answer is not None and options.get("wait_id") != answer.wait_id:  # a step continues from the question
            return True
        said = {**self._said, **open_question(self.state)}
        return any(said.get(name) != value for name, value in options.items() if name != "request_id")

    def _changes(self) -> bytes:
        return self.state._collect().diff.SerializeToString(deterministic=True)


def given(options: SaveOptions) -> SaveOptions:
    """Returns the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]


def check_sigterm(status: Status | str) -> None:
    """Raises ValueError for a wrong status, which would otherwise show only when the process ends."""
    choice_number(Status, status, "sigterm_status")


def report_loss(error: BaseException) -> None:
    """Logs that the final save failed. The message goes to stderr unless logging is set up."""
    what = f"{type(error).__name__}: {error}"
    logging.getLogger("stateward").error("the final save after SIGTERM failed: %s", what)


def passes(error: BaseException) -> bool:
    """Whether the same save may succeed later. It never does after a VersionMismatch: another agent has saved."""
    return isinstance(error, StatewardError) and error.retryable


def _held_objects(state: State) -> Callable[[], None]:
    """Returns a function that watches again the objects that the agent has read from the state.

    After a save, a state no longer sees edits of objects that were read before. An agent cannot know that of a save
    that it did not make.
    """
    slots = dict(state.slots._watched)
    logs = {name: dict(log._watched) for name, log in state.logs._logs.items()}

    def watch_again() -> None:
        for name, value in slots.items():
            if name in state.slots._stored and name not in state.slots._deleted:
                state.slots._watched.setdefault(name, value)
        for name, entries in logs.items():
            log = state.logs._logs.get(name)
            if log is not None:
                for index, value in entries.items():
                    if log._first <= index < log._cut:
                        log._watched.setdefault(index, value)

    return watch_again

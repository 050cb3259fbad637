"""When an agent's state is saved, and what as: the rules of `autosave`, without I/O and without waiting.

A state is *whole* when the agent says so: at a step, and, once it makes its changes under `changing()`, outside of
those. Nothing is ever saved at another moment. So a timer or a SIGTERM that comes in the middle of a change waits for
its end, and an exception in the middle of one saves nothing: the next process goes on from the last whole state.

A question that the agent asked stays open until a step goes on from it: who may end this process, be it a SIGTERM or
the end of the block, does not withdraw it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stateward._operations import before, windows
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.updating import open_question
from stateward.durations import Duration, seconds
from stateward.errors import NotArchivedYet, StatewardError
from stateward.models import Checkpoint, Status, choice_number
from stateward.state import State
from stateward.window import Window

EVERY_MIN_S = 0.001
# Of the options of a step, what still holds for a save between two steps.
STICKY = ("step", "schema_version", "metrics")


@dataclass(frozen=True)
class Mark:
    """A step that left the state whole and is not saved yet."""

    checkpoint: Checkpoint | None
    """What the state goes on from; once that is another one, the step is part of it."""
    changes: bytes
    options: SaveOptions


class Cadence:
    """Knows what is saved, what is due, and what went wrong."""

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
        self.state = state
        self.error: BaseException | None = None
        """What a save in the background met last; raised at the next step, or at the end."""
        self.last: Checkpoint | None = None
        self._ref = ref
        self._every_s = None if every is None else seconds(every, "every", least=EVERY_MIN_S)
        self._after_each_step = after_each_step
        self._windows = windows
        self._base = options
        self._clock = clock
        self._tried_at = clock()
        self._said: dict[str, Any] = dict(options)  # what the last save said besides the state
        self._mark: Mark | None = None  # a step that is not saved yet
        if ref.ephemeral:  # as a save does it; else its changes are taken before
            state.keep_out(ref.ephemeral)

    # -- on the agent's thread, with the state whole --------------------------------------------------------------

    def step(self, options: SaveOptions) -> Operation[Checkpoint | None]:
        """A step is done: saves now, or marks the state as whole. Raises what the background met, unless it passes.

        What the background could not save is saved now, as what it has become: to save it as the step before first
        would name that step in a version that holds this one.
        """
        is_overdue = self._take_error()
        asked: SaveOptions = {**self._base, **given(options)}
        if self._after_each_step or is_overdue or self.wait_s() == 0:
            return (yield from self._save(asked))
        self._mark = Mark(self.state.checkpoint, self._changes(), asked)
        return None

    def before(self, name: str, options: SaveOptions) -> Operation[None]:
        """Saves under the name of a risky step, whether anything changed or not; else as between two steps."""
        self._take_error()
        between = self._between_steps()
        said: SaveOptions = {**between, **given(options)}
        labels = {**(between.get("labels") or {}), **(options.get("labels") or {})}
        asked = before.labelled(name, {**said, "labels": labels})
        # What is said of this one version is no reason for another that does not say it.
        yield from self._save(asked, said={**said, "labels": between.get("labels")})

    def finish(
        self, status: Status | str | None = None, options: SaveOptions | None = None
    ) -> Operation[Checkpoint | None]:
        """The final save, if anything is left to be said. With a `status` the process is asked to end: then it is made
        whether a step is done or not."""
        self._take_error()
        return (yield from self._save(self._last_word(status, options or {})))

    def finish_after_error(self, status: Status | str | None) -> Operation[None]:
        """After an exception: saves the state if it is as the last step left it, and that is not saved yet."""
        if self._marked is not None and self._is_as_marked(self._marked):
            yield from self.finish(status)

    def _is_as_marked(self, mark: Mark) -> bool:
        try:
            return self._changes() == mark.changes
        except (TypeError, ValueError):  # half made, it holds what cannot be stored
            return False

    # -- in the background, with the state whole ------------------------------------------------------------------

    def wait_s(self) -> float:
        """Until the next save in the background is due."""
        if self._every_s is None:
            return float("inf")
        return max(self._tried_at + self._every_s - self._clock(), 0.0)

    def in_background(self, status: Status | str | None = None) -> Operation[None]:
        """Saves what changed since the last save. Keeps what goes wrong. What trying again cannot mend is not tried."""
        self._tried_at = self._clock()
        if self.error is not None and not passes(self.error):
            return
        held = _hands(self.state)
        try:
            yield from self._save(self._last_word(status, {}))
            self.error = None
        except Exception as error:  # noqa: BLE001  the agent's thread raises it
            self.error = error
        finally:
            held()

    @property
    def _marked(self) -> Mark | None:
        """The step that is not saved yet; by nobody, for the agent may save the state itself."""
        mark = self._mark
        return mark if mark is not None and mark.checkpoint is self.state.checkpoint else None

    def _last_word(self, status: Status | str | None, options: SaveOptions) -> SaveOptions:
        """What is said without the agent: an open question stays."""
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
        """Whether the background could not save something that may be tried again. Raises what will not pass."""
        error, self.error = self.error, None
        if error is not None and not passes(error):
            raise error
        return error is not None

    def _save(self, options: SaveOptions, said: SaveOptions | None = None) -> Operation[Checkpoint | None]:
        """`said` is what it counts as having said; None = the options."""
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
        if answer is not None and options.get("wait_id") != answer.wait_id:  # a step goes on from the question
            return True
        said = {**self._said, **open_question(self.state)}
        return any(said.get(name) != value for name, value in options.items() if name != "request_id")

    def _changes(self) -> bytes:
        return self.state.collect().diff.SerializeToString(deterministic=True)


def given(options: SaveOptions) -> SaveOptions:
    """The options that say something."""
    said: Any = {name: value for name, value in options.items() if value is not None}
    return said  # type: ignore[no-any-return]


def check_sigterm(status: Status | str) -> None:
    """ValueError now for what else would be found wrong when the process ends."""
    try:
        choice_number(Status, status)
    except ValueError as error:
        raise ValueError(f"sigterm_status: {error}") from None


def report_loss(error: BaseException) -> None:
    """Says that the final save failed, as long as there is somebody to say it. To stderr, unless logging is set up."""
    what = f"{type(error).__name__}: {error}"
    logging.getLogger("stateward").error("the final save after SIGTERM failed: %s", what)


def passes(error: BaseException) -> bool:
    """Whether the same save may succeed later. A VersionMismatch never does: somebody else has gone on."""
    return isinstance(error, StatewardError) and error.retryable


def _hands(state: State) -> Callable[[], None]:
    """Remembers which values the agent may hold in its hands, to be watched again after a save that it did not ask for.

    A save ends the life of objects that were read from a state: later edits of them are not seen. An agent that did not
    save cannot know that.
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

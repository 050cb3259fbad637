"""When an agent's state is saved, and what as: the rules of `autosave`, without I/O and without waiting.

A state is *whole* when the agent says so: at a step, and, once it makes its changes under `changing()`, outside of
those. Nothing is ever saved at another moment. So a timer or a SIGTERM that comes in the middle of a change waits for
its end, and an exception in the middle of one saves nothing: the next process goes on from the last whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateward import _windows
from stateward._operations import Operation, ThreadRef
from stateward._saving import SaveOptions
from stateward.errors import NotArchivedYet, StatewardError
from stateward.models import Checkpoint, Status
from stateward.state import State
from stateward.window import Window

# Of the options of a step, what still holds for a save between two steps.
STICKY = ("step", "schema_version", "metrics")


class Cadence:
    """Knows what is saved, what is due, and what went wrong."""

    def __init__(
        self,
        ref: ThreadRef,
        state: State,
        *,
        every_s: float | None,
        after_each_step: bool,
        windows: Sequence[Window],
        options: SaveOptions,
        clock: Callable[[], float],
    ) -> None:
        if every_s is not None and every_s <= 0:
            raise ValueError("every_s is not above 0")
        self.state = state
        self.error: BaseException | None = None
        """What a save in the background met last; raised at the next step, or at the end."""
        self.last: Checkpoint | None = None
        self._ref = ref
        self._every_s = every_s
        self._after_each_step = after_each_step
        self._windows = windows
        self._base = options
        self._clock = clock
        self._tried_at = clock()
        self._said: dict[str, Any] = dict(options)  # what the last save said besides the state
        self._marked: SaveOptions | None = None  # of a step that is not saved yet
        self._whole = b""  # the changes as they were then

    # -- on the agent's thread, with the state whole --------------------------------------------------------------

    def step(self, options: SaveOptions) -> Operation[Checkpoint | None]:
        """A step is done: saves now, or marks the state as whole. Raises what the background met, unless it passes."""
        yield from self._settle_error()
        asked: SaveOptions = {**self._base, **given(options)}
        if self._after_each_step or self.wait_s() == 0:
            return (yield from self._save(asked))
        self._marked, self._whole = asked, self._changes()
        return None

    def end(self, status: Status | str, options: SaveOptions) -> Operation[Checkpoint | None]:
        """Saves whether a step is done or not, as the last word: whatever was kept is tried again or raised."""
        yield from self._settle_error()
        return (yield from self._save({**self._between_steps(), "status": status, **given(options)}))

    def finish(self, status: Status | str | None = None) -> Operation[Checkpoint | None]:
        """The final save, if anything is left to be said."""
        yield from self._settle_error()
        asked = self._between_steps()
        if status is not None:
            asked["status"] = status
        return (yield from self._save(asked))

    def is_whole_after_error(self) -> bool:
        """Whether an exception left the state as the last step had it, and that is not saved."""
        return self._marked is not None and self._changes() == self._whole

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
        asked = self._between_steps()
        if status is not None:
            asked["status"] = status
        try:
            yield from self._save(asked)
            self.error = None
        except Exception as error:  # noqa: BLE001  the agent's thread raises it
            self.error = error
        finally:
            held()

    def _between_steps(self) -> SaveOptions:
        if self._marked is not None:
            return {**self._marked}
        sticky: Any = {name: self._said[name] for name in STICKY if name in self._said}
        return {**self._base, **sticky}

    def _settle_error(self) -> Operation[None]:
        """What the background could not save is tried once more if that may help, else its error is raised."""
        error, self.error = self.error, None
        if error is None:
            return
        if not passes(error):
            raise error
        yield from self._save(self._between_steps())

    def _save(self, options: SaveOptions) -> Operation[Checkpoint | None]:
        if not self._changes() and not self._says_more(options):
            self._marked = None
            return None
        self._tried_at = self._clock()
        try:
            checkpoint = yield from _windows.save(self._ref, self.state, self._windows, options)
        except NotArchivedYet as error:
            self._was_saved(options, error.checkpoint)
            raise
        self._was_saved(options, checkpoint)
        return checkpoint

    def _was_saved(self, options: SaveOptions, checkpoint: Checkpoint | None) -> None:
        self.last, self._said, self._marked, self._whole = checkpoint, dict(options), None, b""

    def _says_more(self, options: SaveOptions) -> bool:
        return any(self._said.get(name) != value for name, value in options.items() if name != "request_id")

    def _changes(self) -> bytes:
        return self.state.collect().diff.SerializeToString(deterministic=True)


def given(options: SaveOptions) -> SaveOptions:
    """The options that say something."""
    said: Any = {name: value for name, value in options.items() if value is not None}
    return said  # type: ignore[no-any-return]


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

"""Shows the progress of an import: a bar on a terminal, a line for each run in a pipe."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as BarTask
from rich.text import Text

from stateward.cli.files.importing import Totals
from stateward.cli.files.workers import Result, Task
from stateward.cli.show.output import clean, console, counted, fail, say, size


class Lines:
    """Prints a line for each run that saved steps. The summary counts the runs that were already imported.

    Without ``tells`` only failures are printed.
    """

    def __init__(self, *, tells: bool = True) -> None:
        self._tells = tells

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def on_step(self, task: Task, message_bytes: int) -> None:
        """Prints nothing: a pipe gets one line for each run."""

    def on_run(self, result: Result) -> None:
        """Prints the result of a run."""
        if result.problem is not None:
            fail(result.problem)
        elif self._tells and result.task.run is not None and result.totals.steps:
            say(f"{clean(result.task.run.thread)}: {_outcome(result.totals)}, {size(result.totals.message_bytes)}")


def _outcome(totals: Totals) -> str:
    if not totals.steps_done_before:
        return f"{counted(totals.steps, 'step')} saved"
    return f"{counted(totals.steps, 'step')} saved after the {totals.steps_done_before:,} that were already saved"


class Bar:
    """A progress bar with steps per second and message bytes. Its length is the size of the file in bytes."""

    def __init__(self, runs: int, size_bytes: int) -> None:
        self._runs, self._runs_done = runs, 0
        self._lock = threading.Lock()
        self._steps = self._message_bytes = 0
        self._moved: dict[int, float] = {}
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _Figures(self),
            TimeRemainingColumn(),
            console=console(),
        )
        self._bar = self._progress.add_task(self._description, total=max(size_bytes, 1))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def _description(self) -> str:
        return f"{self._runs_done}/{self._runs} runs"

    @property
    def figures(self) -> str:
        """The number of steps, steps per second, and message bytes."""
        seconds = max(time.monotonic() - self._started, 0.001)
        return f"{self._steps:,} steps  {self._steps / seconds:,.0f}/s  {size(self._message_bytes)}"

    def on_step(self, task: Task, message_bytes: int) -> None:
        """Moves the bar by the step's share of the bytes of its line."""
        assert task.run is not None
        share = task.weight_bytes / len(task.run.steps)
        with self._lock:
            self._steps += 1
            self._message_bytes += message_bytes
            self._moved[id(task)] = self._moved.get(id(task), 0.0) + share
        self._progress.advance(self._bar, share)

    def on_run(self, result: Result) -> None:
        """Counts the run, and prints its problem, if any, above the bar."""
        self._runs_done += 1
        with self._lock:
            moved = self._moved.pop(id(result.task), 0.0)
        self._progress.update(self._bar, advance=result.task.weight_bytes - moved, description=self._description)
        if result.problem is not None:
            fail(result.problem)


class _Figures(ProgressColumn):
    """Shows steps per second and bytes of the whole bar."""

    def __init__(self, bar: Bar) -> None:
        self._of = bar
        super().__init__()

    def render(self, task: BarTask) -> Text:
        return Text(self._of.figures)

"""Imports several runs at the same time, so that their saves share commits.

Workers are threads of this process. An error of one run becomes its result. An error that every run would meet (no
daemon, full disk) stops all workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateward.cli.files.importing import Run, RunRefused, Totals, import_run
from stateward.cli.show.output import CommandError
from stateward.errors import (
    Corrupt,
    InvalidRequest,
    KeyUnavailable,
    StateTooLarge,
    Unavailable,
    VersionMismatch,
)

if TYPE_CHECKING:
    from stateward import Client

STOP_TIMEOUT_S = 3.0
# Errors that concern one thread. All other errors would affect the next run too.
OF_ONE_RUN = (Corrupt, InvalidRequest, KeyUnavailable, StateTooLarge, VersionMismatch)


@dataclass(frozen=True)
class Task:
    """A run to import, or the problem of a line that is not a run."""

    run: Run | None
    weight_bytes: int
    """Its share of the progress bar: the length of its line."""
    problem: str | None = None


@dataclass
class Result:
    """The result of a task. `error` stops the whole import."""

    task: Task
    totals: Totals = field(default_factory=Totals)
    problem: str | None = None
    error: Exception | None = None


def work(
    client: Client,
    tasks: Iterable[Task],
    *,
    resume: bool,
    concurrency: int,
    on_step: Callable[[Task, int], None],
) -> Generator[Result, None, None]:
    """Yields results in the order of completion. The workers' threads call `on_step` with (task, message bytes)."""
    stop = threading.Event()
    waiting: queue.Queue[Task | None] = queue.Queue()
    results: queue.Queue[Result] = queue.Queue()

    def run_worker() -> None:
        while (task := waiting.get()) is not None and not stop.is_set():
            results.put(_import(client, task, resume, stop, on_step))

    workers = [threading.Thread(target=run_worker, daemon=True) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    under_way = 0
    is_whole = False
    try:
        for task in tasks:
            waiting.put(task)
            under_way += 1
            if under_way > concurrency:  # one more than the number of workers, so that no worker waits for the reader
                yield _next(results)
                under_way -= 1
        for _ in range(under_way):
            yield _next(results)
        is_whole = True
    finally:
        stop.set()
        for _ in workers:
            waiting.put(None)
        if not is_whole:
            client.close()  # ends calls that wait for a daemon that may never return
        for worker in workers:
            worker.join(STOP_TIMEOUT_S)


def _next(results: queue.Queue[Result]) -> Result:
    result = results.get()
    if isinstance(result.error, Unavailable):
        raise CommandError(f"{result.error.message}; run the same import again to continue where it stopped")
    if result.error is not None:
        raise result.error
    return result


def _import(
    client: Client, task: Task, resume: bool, stop: threading.Event, on_step: Callable[[Task, int], None]
) -> Result:
    run = task.run
    if run is None:
        return Result(task, problem=task.problem)
    try:
        totals = import_run(
            client, run, resume=resume, should_stop=stop.is_set, on_step=lambda step_bytes: on_step(task, step_bytes)
        )
        totals.stored_bytes = client.thread(run.thread).info().stored_bytes
    except (RunRefused, TypeError, ValueError) as error:
        return Result(task, problem=str(error))
    except VersionMismatch:
        return Result(task, problem=f"{run.where}: another writer changes thread {run.thread!r}; import it again later")
    except OF_ONE_RUN as error:
        return Result(task, problem=f"{run.where}: thread {run.thread!r}: {error.message}")
    except Exception as error:  # noqa: BLE001  raised again by the thread that waits for this result
        return Result(task, error=error)
    return Result(task, totals)

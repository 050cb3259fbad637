"""`stateward import`: recorded runs from files, several at a time, with progress and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.files.exporting import KINDS
from stateward.cli.files.importing import Run, RunInvalid, Totals
from stateward.cli.files.progress import Bar, Lines
from stateward.cli.files.recordings import Damaged, Line, Recording, examine, read_runs
from stateward.cli.files.restore import Options, Restored, restore
from stateward.cli.files.workers import Task, work
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.output import (
    CommandError,
    clean,
    counted,
    fail,
    is_terminal,
    print_facts,
    print_json,
    say,
    size,
    times,
)
from stateward.cli.show.ticker import Ticker

if TYPE_CHECKING:
    from stateward import Client, Stats


def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="JSON Lines, plain or gzip; one run per line.")],
    thread_prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Prefix for names of threads; default for runs: the file's name and /."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue threads that an earlier import began, or fail.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N runs (or threads) of each file.")
    ] = None,
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="Restore without retention and any TTL, so that nothing expires.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Runs imported at the same time; they share commits.")
    ] = 4,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import recorded runs, as a thread for each run with a version after each step; or restore exported threads.

    `stateward import langgraph FILE|URL` imports a database of LangGraph's savers, and has a --help of its own.

    A line is a run: {"run_id": "...", "messages": [...]}, in which each step appends a message, or
    {"run_id": "...", "states": [{"step": 1, "messages": [...]}, ...]} with the whole list at each step. Other fields
    (source, model, meta) go to the slot "run". After an interruption, run the same command again to continue.

    The command recognizes files of `stateward export --versions` by their content, and restores threads with the same
    names (after --thread-prefix). It restores a thread completely or not at all; it reports and skips a thread that is
    damaged or incomplete in the file. If you run the same import again, it skips the threads that it restored.

    A restored thread has its versions with their numbers, times, states, branches, tags, checkpoint ids, labels,
    metadata, metrics and questions, and its settings, effects, records, waiting signals and blobs. A retry of an
    earlier save or signal gets its first answer. These things differ: uid, digests, sequences and sizes at rest. Nobody
    holds a lease, and the next lease has a higher token. An open tool call becomes UNCERTAIN, so that an agent checks
    it before it calls the tool again. A TTL, of the thread or of a record, counts from now. The journal has no entries
    for acknowledged signals, moved tags and removed blobs: `stateward replay` of a restored thread shows the questions,
    and not who answered them. All other times are the original ones, also for retention
    rules: use --keep-all if a rule would prune an old backup.

    \b
    Examples:
      stateward import runs.jsonl.gz
      stateward import recordings/*.jsonl --namespace history --concurrency 8
      stateward import runs.jsonl --thread-prefix 2026/ --limit 3
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    try:
        recordings = [examine(path, limit) for path in files]
    except Damaged as error:
        raise CommandError(f"{error}; nothing was imported") from None
    runs = [each for each in recordings if not each.has_versions]
    stems = [each.stem for each in runs]
    for name in stems:
        if thread_prefix is None and stems.count(name) > 1:
            raise CommandError(
                f"two of the files are called {name!r}, and their threads would be mixed up; "
                "import them one by one with --thread-prefix"
            )
    problems, restored = 0, list[Restored]()
    with connect(context, target, namespace) as client:
        client.server_info()  # a daemon that is not there is one error, not one for each run
        started = time.monotonic()
        totals, failures = Totals(), 0
        try:
            if runs:
                display = Lines(tells=False) if as_json else _display(runs)
                totals, failures = _import_all(client, runs, thread_prefix, limit, resume, concurrency, display)
            for recording in recordings:
                if recording.has_versions:
                    done, found = _restore(client, recording, Options(thread_prefix or "", resume, limit, keep_all))
                    restored.append(done)
                    problems += found
                    if not as_json:
                        say(f"{clean(str(recording.path))}: {_what_was_saved(done)}")
        except Damaged as error:  # behind the lines of --limit
            raise CommandError(f"{error}; what comes before the damage may be imported already") from None
        except KeyboardInterrupt:
            fail("interrupted; run the same import again to continue")
            raise typer.Exit(130) from None
        seconds, stats = time.monotonic() - started, client.stats()
    if as_json:
        print_json(_as_json(totals, failures, restored, problems, seconds))
    elif totals.runs:
        _print_summary(totals, seconds, stats)
    _tell_what_failed(totals, failures, problems)


def _tell_what_failed(totals: Totals, failures: int, problems: int) -> None:
    if failures:
        fail(f"{failures} of {totals.runs + failures} runs were not imported; the reasons are above")
    if problems:
        fail(f"{counted(problems, 'problem')} with exported threads; the lines above name them")
    if failures or problems:
        raise typer.Exit(1)


def _as_json(
    totals: Totals, failures: int, restored: list[Restored], problems: int, seconds: float
) -> dict[str, object]:
    saved = sum((each.saved for each in restored), Counter[str]())
    return {
        **vars(totals), "runs_failed": failures, "threads_restored": sum(each.threads for each in restored),
        "restored": {kind: saved[kind] for kind in KINDS}, "problems": problems, "seconds": round(seconds, 3),
        "versions_done_before": sum(each.versions_before for each in restored),
    }  # fmt: skip


def _restore(client: Client, recording: Recording, options: Options) -> tuple[Restored, int]:
    """Restores exported threads; returns what was restored, and how many problems there were."""
    problems: list[str] = []

    def tell(problem: str) -> None:
        problems.append(problem)
        fail(problem)

    with Ticker("restoring") as ticker:
        totals = restore(
            client,
            recording,
            options,
            on_line=lambda so_far: ticker.say(
                f"{so_far.lines:,}/{recording.runs:,} records, {counted(so_far.threads, 'thread')}"
            ),
            on_problem=tell,
        )
    return totals, len(problems)


def _what_was_saved(totals: Restored) -> str:
    """Returns the summary of a restore. Kinds of which nothing was saved are left out, except versions."""
    kinds = [counted(totals.saved[kind], kind) for kind in KINDS if kind == "version" or totals.saved[kind]]
    were = "was" if totals.versions_before == 1 else "were"
    before = f"; {counted(totals.versions_before, 'version')} {were} there already" if totals.versions_before else ""
    return f"{counted(totals.threads, 'thread')}, {', '.join(kinds)} saved{before}"


def _import_all(
    client: Client,
    recordings: list[Recording],
    prefix: str | None,
    limit: int | None,
    resume: bool,
    concurrency: int,
    shown: AbstractContextManager[Bar | Lines],
) -> tuple[Totals, int]:
    """Imports everything that can be; returns what was, and how many runs were not."""
    totals, failures = Totals(), 0
    with shown as display:
        tasks = _tasks(recordings, prefix, limit)
        results = work(client, tasks, resume=resume, concurrency=concurrency, on_step=display.on_step)
        with closing(results):
            for result in results:
                if result.problem is None:
                    totals.add(result.totals)
                else:
                    failures += 1
                display.on_run(result)
    return totals, failures


def _tasks(recordings: list[Recording], prefix: str | None, limit: int | None) -> Iterator[Task]:
    """What the workers are to do. Files of one prefix may name the same thread: the first run has it."""
    owners: dict[str, str] = {}
    for recording in recordings:
        for line, run in read_runs(recording, f"{recording.stem}/" if prefix is None else prefix, limit):
            yield _task(line, run, owners)


def _task(line: Line, run: Run | RunInvalid, owners: dict[str, str]) -> Task:
    weight = len(line.data)
    if isinstance(run, RunInvalid):
        return Task(None, weight, str(run))
    if not run.steps:
        return Task(None, weight, f"{run.where} has no steps, so there is nothing to save")
    owner = owners.setdefault(run.thread, run.where)
    if owner != run.where:
        return Task(
            None, weight, f"{run.where}: thread {run.thread!r} belongs to {owner}; give another --thread-prefix"
        )
    return Task(run, weight)


def _display(recordings: list[Recording]) -> AbstractContextManager[Bar | Lines]:
    if not is_terminal():
        return Lines()
    return Bar(sum(each.runs for each in recordings), sum(each.size_bytes for each in recordings))


def _print_summary(totals: Totals, seconds: float, stats: Stats) -> None:
    before = f", {totals.steps_done_before:,} were there already" if totals.steps_done_before else ""
    done = f", {totals.runs_done_before:,} were there already" if totals.runs_done_before else ""
    rate = f"{totals.steps / seconds:,.0f} steps/s" if totals.steps else ""
    say()
    print_facts(
        [
            ("runs", f"{totals.runs:,}{done}"),
            ("steps saved", f"{totals.steps:,}{before}"),
            ("messages", f"{size(totals.message_bytes)} ({totals.message_bytes:,} bytes)"),
            ("full saves", f"{size(totals.full_bytes)} would be the whole list at every step" + _ratio(totals)),
            ("stored", f"{size(totals.stored_bytes)} compressed and sealed" if totals.stored_bytes else ""),
            ("data file", f"{size(stats.used_bytes)} in use on disk, by all {stats.threads:,} threads of the daemon"),
            ("time", f"{seconds:.1f} s" + (f", {rate}" if rate else "")),
        ]
    )


def _ratio(totals: Totals) -> str:
    return f", {times(totals.full_bytes / totals.stored_bytes)} what is stored" if totals.stored_bytes else ""

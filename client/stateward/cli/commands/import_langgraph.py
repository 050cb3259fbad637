"""`stateward import langgraph`: a database of LangGraph's own savers, thread by thread, with progress and a summary."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from stateward._version import install_command
from stateward.cli.files.workers import OF_ONE_RUN
from stateward.cli.options.connect import NamespaceOption, TargetOption, connect
from stateward.cli.show.output import CommandError, clean, counted, fail, is_terminal, note, print_facts, say
from stateward.cli.show.ticker import Ticker
from stateward.errors import AlreadyExists, EditConflict, OwnershipLost, Unavailable

if TYPE_CHECKING:
    from stateward import Client
    from stateward.langgraph.importing import Imported, Progress
    from stateward.langgraph.sources import Source

OF_ONE_THREAD = (*OF_ONE_RUN, AlreadyExists, EditConflict, OwnershipLost)


def import_langgraph(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="SQLite file of a SqliteSaver, or URL of a PostgresSaver.")
    ],
    thread: Annotated[
        list[str] | None, typer.Option("--thread", "-t", metavar="ID", help="Only this one; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare what is there, and report what is missing; write nothing.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Threads imported at the same time; they share commits.")
    ] = 8,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Import a database of LangGraph's SqliteSaver or PostgresSaver, for `stateward.langgraph.StatewardSaver`.

    Every thread keeps its id and its whole history: all checkpoints of all namespaces with their ids, parents, metadata
    and pending writes. Values are copied as they are, so the classes of your program are not needed. The command only
    reads the database.

    At the end of each thread the command reads every checkpoint back and compares it with the original. If you run the
    same import again, it writes only what is missing: after an interruption, or after the graphs wrote more to the
    database. Stop the graphs before the last import. The command does not change a thread that has something else.
    Exit code 1 if a thread could not be imported.

    The command leaves LangGraph's store (long-term memory) where it is, and says how many items it has. To move them,
    read them with the old store, and put them into `stateward.langgraph.StatewardStore`.

    Set LANGGRAPH_AES_KEY if LangGraph encrypted the values. The versions in Stateward have the time of the import; the
    checkpoints themselves keep theirs. A file of the name "langgraph" is ./langgraph.

    \b
    Examples:
      stateward import langgraph checkpoints.sqlite --dry-run
      stateward import langgraph checkpoints.sqlite
      stateward import langgraph postgresql://user@host/db -n graphs
      stateward import langgraph checkpoints.sqlite --thread trip-1
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    started = time.monotonic()
    with _open(source) as opened, connect(context, target, namespace) as client:
        client.server_info()  # a daemon that is not there is one error, not one for each thread
        threads = _chosen(opened, thread)
        run = _Run(sum(count for _, count in threads), len(threads), dry_run, opened.store_items())
        try:
            _import_all(run, opened, client, [name for name, _ in threads], concurrency)
        except KeyboardInterrupt:
            fail("interrupted; run the same import again to continue")
            raise typer.Exit(130) from None
    _print_summary(run, time.monotonic() - started)
    if run.store_items:
        note(
            f"LangGraph's store in this database has {counted(run.store_items, 'item')} (long-term memory), which this "
            "command does not import; see --help"
        )
    if run.failures:
        fail(f"{len(run.failures)} of {counted(run.threads, 'thread')} not imported; the reasons are above")
        raise typer.Exit(1)


@dataclass
class _Run:
    """What was done so far. Threads of the import add to it."""

    expected: int
    """Checkpoints of the chosen threads."""
    threads: int
    dry_run: bool
    store_items: int = 0
    """Items of LangGraph's store, which stay in the database."""
    written: int = 0
    compared: int = 0
    done: list[Imported] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def add(self, progress: Progress) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self.lock:
            self.written += progress.written
            self.compared += progress.compared

    @property
    def how_far(self) -> str:
        return (
            f"{self.written:,} written and {self.compared:,} compared of {counted(self.expected, 'checkpoint')}, "
            f"{len(self.done) + len(self.failures):,} of {counted(self.threads, 'thread')}"
        )


class _Stopped(Exception):
    """Ends a worker in the middle of a thread."""


@contextmanager
def _open(source: str) -> Iterator[Source]:
    try:
        from stateward.langgraph.sources import SourceInvalid, open_source  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise CommandError(f"this needs {error.name}; run: {install_command('langgraph-import')}") from None
    try:
        with open_source(source) as opened:
            yield opened
    except SourceInvalid as error:
        raise CommandError(str(error)) from None


def _chosen(source: Source, names: Sequence[str] | None) -> list[tuple[str, int]]:
    found = source.threads()
    if not names:
        return found
    missing = set(names) - {name for name, _ in found}
    if missing:
        raise CommandError(f"{source.name} has no thread {min(missing)!r}")
    return [(name, count) for name, count in found if name in names]


def _import_all(run: _Run, source: Source, client: Client, threads: Sequence[str], concurrency: int) -> None:
    from stateward.langgraph.importing import import_thread, open_saver  # noqa: PLC0415  an extra

    saver = open_saver(client.target, client.namespace)
    executor = ThreadPoolExecutor(concurrency)
    try:
        with Ticker("comparing" if run.dry_run else "importing") as ticker:

            def tell(progress: Progress) -> None:
                run.add(progress)
                ticker.say(run.how_far)

            futures = {
                executor.submit(import_thread, source, saver, name, dry_run=run.dry_run, on_progress=tell): name
                for name in threads
            }
            for future in as_completed(futures):
                _add(run, futures[future], future)
                ticker.say(run.how_far)
    except Unavailable as error:
        raise CommandError(f"{error.message}; run the same import again to continue where it stopped") from None
    finally:
        run.stop.set()
        saver.close()  # ends calls that wait for a daemon that may never return
        executor.shutdown(cancel_futures=True)


def _add(run: _Run, thread: str, future: Future[Imported]) -> None:
    from stateward.langgraph.importing import ThreadRefused  # noqa: PLC0415  an extra
    from stateward.langgraph.sources import SourceInvalid  # noqa: PLC0415  an extra

    problem = ""
    try:
        result = future.result()
    except SourceInvalid:
        raise  # of all threads
    except ThreadRefused as error:
        problem = str(error)
    except OF_ONE_THREAD as error:
        problem = f"thread {thread!r}: {error.message}"
    except (TypeError, ValueError) as error:
        problem = f"thread {thread!r}: {error}"
    if problem:
        run.failures.append(problem)
        fail(problem)
        return
    run.done.append(result)
    if not is_terminal() and result.checkpoints:
        before = f" after the {result.present:,} that were there" if result.present else ""
        say(f"{clean(thread) or repr(thread)}: {counted(result.checkpoints, 'checkpoint')} {_did(run)}{before}")


def _did(run: _Run) -> str:
    return "missing" if run.dry_run else "written and compared"


def _print_summary(run: _Run, seconds: float) -> None:
    written = sum(each.checkpoints for each in run.done)
    present = sum(each.present for each in run.done)
    writes = sum(each.writes for each in run.done)
    lacking = sum(each.lacking for each in run.done)
    gone_on = sum(each.has_gone_on for each in run.done)
    complete = sum(each.was_complete for each in run.done)
    say()
    print_facts(
        [
            ("threads", f"{len(run.done):,}" + (f", {complete:,} were there already" if complete else "")),
            ("checkpoints", f"{written:,} {_did(run)}" + (f", {present:,} were there already" if present else "")),
            ("pending writes", f"{writes:,} written" if writes else ""),
            ("incomplete", f"{counted(lacking, 'checkpoint')} without some pending writes" if lacking else ""),
            ("gone on", f"{counted(gone_on, 'thread')} changed in Stateward after the import" if gone_on else ""),
            ("time", f"{seconds:.1f} s"),
        ]
    )

"""`stateward export`: threads as files that `stateward import` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from stateward.cli.commands.threads import StatusName, collected, read_labels
from stateward.cli.files.exporting import FILE_END, FORMAT, KIND, KINDS, MARK
from stateward.cli.files.files import Output, named, written
from stateward.cli.files.run_records import NoRun, read_messages_record, read_run_record
from stateward.cli.options.connect import NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.show.one_by_one import ATTEMPTS, Failures, read_again
from stateward.cli.show.output import CommandError, counted, note, size
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import read_time
from stateward.errors import Fenced, ThreadNotFound, ThreadsUnreadable, UidMismatch, VersionNotFound, VersionPruned
from stateward.values import encode

if TYPE_CHECKING:
    from stateward import Client
    from stateward.admin import ServerInfo
    from stateward.models import ThreadFilters

PAGE_MAX = 1000


class _Form(TypedDict):
    """What an export has of each thread."""

    versions: bool
    messages_only: bool


def export(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="Names of threads.", autocompletion=complete_thread)
    ] = None,
    all_threads: Annotated[bool, typer.Option("--all", "-a", help="All threads of the namespace.")] = False,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="All threads whose names start with this.")
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="A backup: everything that is stored of each thread.")
    ] = False,
    messages_only: Annotated[
        bool, typer.Option("--messages-only", help="Only the newest messages of each thread.")
    ] = False,
    trajectories: Annotated[
        bool,
        typer.Option("--trajectories", help="Finished runs for training, one per line; the next options choose them."),
    ] = False,
    status: Annotated[
        list[StatusName] | None,
        typer.Option(
            "--status",
            "-s",
            case_sensitive=False,
            metavar="STATUS",
            help="Only this status; default: completed, failed and cancelled; repeatable.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only with this label; repeatable.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only of this agent.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only changed since: 24h, 7d, or 2026-01-31.")
    ] = None,
    min_metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Only if this metric is at least NUMBER; repeatable."),
    ] = None,
    max_metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Only if this metric is at most NUMBER; repeatable.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="SLOT", help='Slot with the outcome; default: "outcome", else "result".')
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=named, help="Written at the end; .gz packs. Default: stdout."
        ),
    ] = None,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write threads as JSON Lines that `stateward import` reads.

    Without --versions each line is a recorded run. This works for threads that an import made, or that look like one:
    the log "messages" and little else. Labels, tags, statuses and records of `thread.replay` are left out.

    With --versions the file is a backup of everything that is stored of a thread. Each line has a "kind": the thread,
    its blobs (a line for each MiB), each version with its edits, the effects, the waiting signals, and an end record
    with a checksum, by which import finds damage. It lacks records that have expired, and signals that were
    acknowledged: it does not tell who answered a question. `stateward import --help` lists what differs in a restored
    thread. If an agent writes meanwhile, the export still shows the thread as it was at one moment. Export each
    namespace separately. A principal that may read only some threads gets these, and is told so. With an archive, --all
    exports the threads that this daemon knows; `stateward archive index` makes it know all of them. An orphan is
    restored as a thread that can be written; its name gets an ending, `~` and 12 digits.

    A thread that cannot be read is named on stderr; the file has the others, and the exit code is 1. Threads that are
    removed meanwhile are left out, and named. The export waits up to five minutes for a daemon that restarts. If no
    thread can be read, the file stays as it was. Links are followed; a device or a FIFO is written to directly.

    A pipe cannot take lines back. With --versions a thread that fails may leave lines there, and one that is read again
    begins anew. A reader takes a thread when its end record has come, and drops its lines if another "thread" record or
    the "file_end" record comes first. The whole export has come if the last line is "file_end"; its "threads" counts
    those with an end. Without --versions each line is whole, nothing marks the end, and only the exit code tells.

    With --trajectories each line is a finished run: thread, uid, agent, version, step, status, status_detail, outcome,
    labels, metrics, create_time, update_time, messages, tool_calls and tools ([{name, calls, errors}]). messages and
    tool_calls include entries that a window trimmed; messages_missing and tool_calls_missing count the pruned entries.

    \b
    Examples:
      stateward export runs/run-7                         one run, to stdout
      stateward export --prefix runs/ -o runs.jsonl.gz
      stateward export --all --versions -o all.jsonl.gz   a backup
      stateward export --trajectories --max-metric cost_usd=0.5 > runs.jsonl
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    chooses = {"--status": status, "--label": label, "--agent": agent, "--since": since, "--outcome": outcome,
               "--min-metric": min_metric, "--max-metric": max_metric}  # fmt: skip
    if trajectories:
        if versions or messages_only or all_threads:
            hint = "it cannot be combined with --versions, --messages-only or --all"
            raise typer.BadParameter(hint, param_hint="--trajectories")
        if names and any(each is not None for option, each in chooses.items() if option != "--outcome"):
            raise typer.BadParameter("give either names or filters", param_hint="THREAD")
        from stateward.cli.commands.export_trajectories import export_trajectories, read_metrics  # noqa: PLC0415
        from stateward.cli.files.trajectories import MetricRange  # noqa: PLC0415

        filters: ThreadFilters = {
            "statuses": [each.value for each in status or ()],
            "labels": read_labels(label or ()),
            "name_prefix": prefix or "",
            "updated_after": read_time(since, "--since"),
        }
        metrics = MetricRange(
            read_metrics(min_metric or (), "--min-metric"), read_metrics(max_metric or (), "--max-metric")
        )
        with connect(context, target, namespace) as client:
            export_trajectories(client, names or (), filters, metrics, agent, outcome, output)
        return
    if given := [option for option, each in chooses.items() if each is not None]:
        raise typer.BadParameter("it needs --trajectories", param_hint=given[0])
    if sum([bool(names), all_threads, prefix is not None]) != 1:
        raise typer.BadParameter("give names, or --all, or --prefix TEXT", param_hint="THREAD")
    if versions and messages_only:
        raise typer.BadParameter("it cannot be combined with --messages-only", param_hint="--versions")
    with connect(context, target, namespace) as client:
        server = client.server_info()
        chosen, problem = _choose(client, names or [], prefix or "")
        if not chosen and problem is None:
            raise CommandError(
                f"there is no such thread in namespace {client.namespace}; `stateward threads` lists what there is"
            )
        failures = Failures()
        failures.note(problem)
        with written(output) as file, Ticker("exporting") as ticker:
            writing = _Export(client, file, ticker, len(chosen), versions=versions, messages_only=messages_only)
            if names and len(chosen) == 1:
                writing.take(chosen[0])
            else:
                writing.take_all(chosen, failures, are_named=bool(names))
            if failures and not writing.threads:
                failures.end("nothing is exported; the export would lack", writing.advice(failures))
            if versions:
                file.write(_encode({MARK: FORMAT, KIND: FILE_END, "threads": writing.threads}, "") + b"\n")
    _tell_part(server, are_named=bool(names))
    if output is not None:
        note(f"{output} holds {writing.what()}, {size(writing.size_bytes)} before packing")
    failures.end("the export lacks", writing.advice(failures))


def _tell_part(server: ServerInfo, *, are_named: bool) -> None:
    if server.reads_part and not are_named:
        note(f"only threads that {server.principal} may read are in it; if there are others, a backup lacks them")


class _Export:
    """Writes threads one by one, each of them whole or not at all, and counts what it wrote."""

    def __init__(
        self, client: Client, file: Output, ticker: Ticker, chosen: int, *, versions: bool, messages_only: bool
    ) -> None:
        self._client, self._file, self._ticker, self._chosen = client, file, ticker, chosen
        self._options: _Form = {"versions": versions, "messages_only": messages_only}
        self._begun = self.threads = self.lines = self.size_bytes = self._no_runs = 0
        self._kinds = Counter[str]()

    def what(self) -> str:
        """What was written, in the words of the summary of an import."""
        kinds = [counted(self._kinds[kind], kind) for kind in KINDS if self._kinds[kind]]
        return ", ".join([counted(self.threads, "thread"), *kinds])

    def advice(self, failures: Failures) -> str:
        """What helps against the failures."""
        told = ["`stateward export --versions` exports threads that are no runs"] if self._no_runs else []
        told += ["`stateward verify` says more"] if failures.count > self._no_runs else []
        return "; ".join(told)

    def take_all(self, names: list[str], failures: Failures, *, are_named: bool) -> None:
        """Writes the threads that can be read, and names the others. A thread that was removed since it was listed is
        no failure."""
        for name in names:
            with failures.unless_removed(name, is_named=are_named):
                self.take(name)

    def take(self, name: str) -> None:
        """Writes a thread. Begins anew if the daemon was restarted, or if the parts would be of two histories."""
        self._begun += 1
        read = partial(read_again, self._client, name, partial(self._write, name))
        lines = None
        for _ in range(ATTEMPTS - 1):
            with suppress(Fenced, VersionPruned, ThreadNotFound, UidMismatch):  # another thread may have the name
                lines = read()
                break
        if lines is None:
            lines = read()
        if not lines:
            note(f"thread {name!r} has no version on branch main yet, and is skipped")
        self.threads += bool(lines)

    def _write(self, name: str) -> int:
        """Writes the lines of a thread; returns how many. Leaves nothing of it in a file if it raises."""
        place, before = self._file.place(), (self.lines, self.size_bytes, self._kinds.copy())
        try:
            for line, kind in _lines(self._client, name, **self._options):
                self._file.write(line)
                self.lines += 1
                self.size_bytes += len(line)
                self._kinds[kind] += 1
                so_far = f"{self.lines:,} lines, {size(self.size_bytes)}"
                self._ticker.say(f"{self._begun}/{self._chosen} threads, {so_far}")
        except Exception as error:
            self._no_runs += isinstance(error, _NoRun)
            if self._file.is_stream and self.lines > before[0]:
                note(
                    f"{counted(self.lines - before[0], 'line')} of thread {name!r} left already, without its end "
                    "record: readers must drop them, as `stateward import` does"
                )
            self._file.return_to(place)
            self.lines, self.size_bytes, self._kinds = before
            raise
        return self.lines - before[0]


def _choose(client: Client, names: list[str], prefix: str) -> tuple[list[str], ThreadsUnreadable | None]:
    if names:
        return list(dict.fromkeys(names)), None
    infos, problem = collected(client.threads(name_prefix=prefix, page_size=PAGE_MAX))
    return sorted(each.name for each in infos), problem


def _lines(client: Client, name: str, *, versions: bool, messages_only: bool) -> Iterator[tuple[bytes, str]]:
    """The lines of a thread, each with the kind of record; a run has none."""
    if versions:
        yield from _backup_lines(client, name)
        return
    try:
        record = (read_messages_record if messages_only else read_run_record)(client, name)
        yield _encode(record, name) + b"\n", ""
    except VersionNotFound:
        return  # only made, by an effect or a lease
    except NoRun as problem:
        raise _refusal(name, problem) from None


def _backup_lines(client: Client, name: str) -> Iterator[tuple[bytes, str]]:
    """The records of a thread; the last one says what the others add up to."""
    from stateward.cli.files.backups import read_records  # noqa: PLC0415  the messages are loaded when they are used

    sums = sha256()
    try:
        for record in read_records(client, name):
            if record[KIND] == "end":
                record["sha256"] = sums.hexdigest()
            line = encode(record, "").data + b"\n"
            sums.update(line)
            yield line, record[KIND]
    except (TypeError, ValueError) as error:
        raise CommandError(f"thread {name!r} cannot be exported: {error}") from None


def _encode(record: dict[str, Any], name: str) -> bytes:
    try:
        return encode(record, "").data
    except (TypeError, ValueError) as error:
        raise _refusal(name, error) from None


class _NoRun(CommandError):
    """The thread cannot be written as a run."""


def _refusal(name: str, problem: Exception) -> _NoRun:
    return _NoRun(
        f"thread {name!r} is not a recorded run: {problem}; "
        "--versions exports every thread without loss, --messages-only its messages"
    )

"""`stateward export`: threads as files that `stateward import` reads."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.connect import NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.exporting import FILE_END, FORMAT, KIND, MARK
from stateward.cli.files import written
from stateward.cli.output import CommandError, counted, note, size
from stateward.cli.run_records import NoRun, read_messages_record, read_run_record
from stateward.cli.threads import StatusName, collected, read_labels
from stateward.cli.ticker import Ticker
from stateward.cli.times import read_time
from stateward.errors import Corrupt, KeyUnavailable, ThreadNotFound, ThreadsUnreadable, VersionNotFound
from stateward.values import encode

if TYPE_CHECKING:
    from stateward import Client
    from stateward.models import ThreadFilters

PAGE_MAX = 1000


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
        typer.Option("--output", "-o", metavar="FILE", help="Written whole or not at all; .gz packs. Default: stdout."),
    ] = None,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write threads as JSON Lines that `stateward import` reads.

    Without --versions each line is a recorded run. This works for threads that an import made, or that look like one:
    the log "messages" and little else. Labels, tags, statuses and records of `thread.replay` are left out.

    With --versions the file is a backup of everything that is stored of a thread. Each line has a "kind": the thread,
    its blobs (a line for each MiB), each version with its edits, the effects, the waiting signals, and an end record
    with a checksum, by which import finds damage. `stateward import --help` lists what differs in a restored thread. If
    an agent writes meanwhile, the export still shows the thread as it was at one moment. Export each namespace
    separately. With an archive, --all exports the threads that this daemon knows; `stateward archive index` makes it
    know all of them. An orphan is restored as a thread that can be written; its name gets an ending, `~` and 12 digits.

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
        from stateward.cli.export_trajectories import export_trajectories, read_metrics  # noqa: PLC0415
        from stateward.cli.trajectories import MetricRange  # noqa: PLC0415

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
        client.server_info()
        chosen, problem = _choose(client, names or [], prefix or "")
        if not chosen and problem is None:
            raise CommandError(
                f"there is no such thread in namespace {client.namespace}; `stateward threads` lists what there is"
            )
        problems = _write(client, chosen, output, are_named=bool(names), versions=versions, messages_only=messages_only)
    if problem is not None:
        problems.append(problem.message)
    if problems:
        raise CommandError(f"the export lacks threads: {'; '.join(problems)}; `stateward verify` says more")


def _write(
    client: Client, chosen: list[str], output: Path | None, *, are_named: bool, versions: bool, messages_only: bool
) -> list[str]:
    """Writes the chosen threads. Returns what is wrong with those that cannot be read, unless they were named."""
    problems: list[str] = []
    size_bytes = lines = counts = written_threads = 0
    with written(output) as file, Ticker("exporting") as ticker:
        for number, name in enumerate(chosen, 1):
            before = lines
            try:
                for line, is_whole in _lines(client, name, versions=versions, messages_only=messages_only):
                    file.write(line)
                    lines, size_bytes, counts = lines + 1, size_bytes + len(line), counts + is_whole
                    ticker.say(f"{number}/{len(chosen)} threads, {lines:,} lines, {size(size_bytes)}")
            except ThreadNotFound:
                if are_named or lines > before:
                    raise
                note(f"thread {name!r} was removed meanwhile, and is skipped")
                continue
            except (Corrupt, KeyUnavailable) as error:
                if are_named:
                    raise
                problems.append(f"{name!r} cannot be read ({error.message})")  # import skips what was written of it
                continue
            written_threads += lines > before
            if lines == before:
                note(f"thread {name!r} has no version on branch main yet, and is skipped")
        if versions:
            file.write(_encode({MARK: FORMAT, KIND: FILE_END, "threads": written_threads}, "") + b"\n")
    if output is not None:
        what = counted(counts, "version") + " of " if versions else ""
        note(f"{output} holds {what}{counted(written_threads, 'thread')}, {size(size_bytes)} before packing")
    return problems


def _choose(client: Client, names: list[str], prefix: str) -> tuple[list[str], ThreadsUnreadable | None]:
    if names:
        return list(dict.fromkeys(names)), None
    infos, problem = collected(client.threads(name_prefix=prefix, page_size=PAGE_MAX))
    return sorted(each.name for each in infos), problem


def _lines(client: Client, name: str, *, versions: bool, messages_only: bool) -> Iterator[tuple[bytes, bool]]:
    """The lines of a thread, each with whether it is a run or a version."""
    if versions:
        yield from _backup_lines(client, name)
        return
    try:
        record = (read_messages_record if messages_only else read_run_record)(client, name)
        yield _encode(record, name) + b"\n", True
    except VersionNotFound:
        return  # only made, by an effect or a lease
    except NoRun as problem:
        raise _refusal(name, problem) from None


def _backup_lines(client: Client, name: str) -> Iterator[tuple[bytes, bool]]:
    """The records of a thread; the last one says what the others add up to."""
    from stateward.cli.backups import read_records  # noqa: PLC0415  the messages are loaded when they are used

    sums = sha256()
    try:
        for record in read_records(client, name):
            if record[KIND] == "end":
                record["sha256"] = sums.hexdigest()
            line = encode(record, "").data + b"\n"
            sums.update(line)
            yield line, record[KIND] == "version"
    except (TypeError, ValueError) as error:
        raise CommandError(f"thread {name!r} cannot be exported: {error}") from None


def _encode(record: dict[str, Any], name: str) -> bytes:
    try:
        return encode(record, "").data
    except (TypeError, ValueError) as error:
        raise _refusal(name, error) from None


def _refusal(name: str, problem: Exception) -> CommandError:
    return CommandError(
        f"thread {name!r} is not a recorded run: {problem}; "
        "--versions exports every thread without loss, --messages-only its messages"
    )

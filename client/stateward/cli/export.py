"""`stateward export`: threads as files that `stateward import` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.connect import NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.files import written
from stateward.cli.output import CommandError, counted, note, size
from stateward.cli.run_records import NoRun, read_messages_record, read_run_record
from stateward.cli.ticker import Ticker
from stateward.exporting import read_versions
from stateward.values import encode

if TYPE_CHECKING:
    from stateward import Client

PAGE_MAX = 1000


def export(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="Names of threads.", autocompletion=complete_thread)
    ] = None,
    all_threads: Annotated[bool, typer.Option("--all", "-a", help="All threads of the namespace.")] = False,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="All threads whose names start so.")
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="Every version with all that belongs to it, one a line; any thread.")
    ] = False,
    messages_only: Annotated[
        bool, typer.Option("--messages-only", help="The newest messages of any thread, and nothing else of it.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Written whole or not at all; .gz packs. Default: stdout."),
    ] = None,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write threads as JSON Lines that `stateward import` reads.

    Without --versions a line is a recorded run, for threads that an import made (or of that shape: the log "messages"
    and little else); labels, tags and statuses are not in it. With --versions a line is a version, and nothing is
    lost but times, digests and the numbers of pruned versions.

    \b
    Examples:
      stateward export runs/run-7                         one run, to stdout
      stateward export --prefix runs/ -o runs.jsonl.gz
      stateward export --all --versions -o all.jsonl.gz   a backup
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if sum([bool(names), all_threads, prefix is not None]) != 1:
        raise typer.BadParameter("give names, or --all, or --prefix TEXT", param_hint="THREAD")
    if versions and messages_only:
        raise typer.BadParameter("it goes without --messages-only", param_hint="--versions")
    with connect(context, target, namespace) as client:
        client.server_info()
        chosen = _choose(client, names or [], prefix or "")
        if not chosen:
            raise CommandError(
                f"there is no such thread in namespace {client.namespace}; `stateward threads` lists what there is"
            )
        size_bytes = lines = 0
        with written(output) as file, Ticker("exporting") as ticker:
            for number, name in enumerate(chosen, 1):
                for record in _records(client, name, versions=versions, messages_only=messages_only):
                    line = _encode(record, name) + b"\n"
                    file.write(line)
                    lines, size_bytes = lines + 1, size_bytes + len(line)
                    ticker.say(f"{number}/{len(chosen)} threads, {lines:,} lines, {size(size_bytes)}")
    if output is not None:
        what = counted(lines, "version") + " of " if versions else ""
        note(f"{output} holds {what}{counted(len(chosen), 'thread')}, {size(size_bytes)} before packing")


def _choose(client: Client, names: list[str], prefix: str) -> list[str]:
    if names:
        return list(dict.fromkeys(names))
    return sorted(each.name for each in client.threads(name_prefix=prefix, page_size=PAGE_MAX))


def _records(client: Client, name: str, *, versions: bool, messages_only: bool) -> Iterator[dict[str, Any]]:
    try:
        if versions:
            yield from read_versions(client, name)
        else:
            yield (read_messages_record if messages_only else read_run_record)(client, name)
    except NoRun as problem:
        raise _refusal(name, problem) from None


def _encode(record: dict[str, Any], name: str) -> bytes:
    try:
        return encode(record, "").data
    except (TypeError, ValueError) as error:
        raise _refusal(name, error) from None


def _refusal(name: str, problem: Exception) -> CommandError:
    return CommandError(
        f"thread {name!r} is no recorded run: {problem}; "
        "--versions exports every thread without loss, --messages-only its messages"
    )

"""`stateward restore`, which is `stateward archive restore` too: threads from the archive onto this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import (
    EVERY_NAMESPACE,
    JsonOption,
    NamespaceOption,
    OneThreadArgument,
    TargetOption,
    archived_names,
    connect,
)
from stateward.cli.show.output import CommandError, counted, fail, print_json, say, size
from stateward.cli.show.ticker import Ticker
from stateward.errors import Unavailable

if TYPE_CHECKING:
    from stateward.archive import RestoreProgress


def restore(
    context: typer.Context,
    thread: OneThreadArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be restored.")] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Copy threads from the archive to this disk, with their history. Exit code 1 if a thread cannot be restored.

    Agents do not need this command: the daemon fetches a thread when an agent reads it. Use it to copy everything to
    this disk, for example after the loss of a machine. No thread changes its owner. Later, the first write here
    attaches a free thread; `stateward attach --take-over` attaches any thread. After an interruption, run the command
    again: it skips what this disk already has. Without THREAD and --namespace it restores all threads of all
    namespaces.

    \b
    Examples:
      stateward restore --dry-run
      stateward restore
      stateward restore booking-42
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    problems: list[dict[str, str]] = []
    last: RestoreProgress | None = None
    verb = "looking" if dry_run else "restoring"
    fallback = EVERY_NAMESPACE if thread is None else "default"
    with connect(context, target, namespace, fallback=fallback) as client, archived_names():
        try:
            with Ticker(verb) as ticker, client.archive.restore(thread, dry_run=dry_run) as progress:
                for each in progress:
                    last = each
                    if each.problem:
                        problems.append({"thread": each.thread, "problem": each.problem})
                    ticker.say(
                        f"{each.threads:,} of {each.total_threads:,} threads, {each.entries:,} entries, "
                        f"{size(each.read_bytes)}"
                    )
        except Unavailable as error:
            if last is None:
                raise
            raise CommandError(
                f"{error.message}; {last.threads:,} of {last.total_threads:,} threads were done: run it again, it "
                "skips what this disk already has"
            ) from None
    _report(last, problems, as_json=as_json, dry_run=dry_run)


def _report(last: RestoreProgress | None, problems: list[dict[str, str]], *, as_json: bool, dry_run: bool) -> None:
    threads = last.threads if last is not None else 0
    counts: dict[str, Any] = {
        "threads": threads - len(problems),
        "entries": last.entries if last is not None else 0,
        "read_bytes": last.read_bytes if last is not None else 0,
    }
    if as_json:
        print_json({**counts, "problems": problems, "dry_run": dry_run})
    else:
        did = "would restore" if dry_run else "restored"
        entries = counted(counts["entries"], "entry", "entries")
        new = f"{entries} that this disk {'does' if dry_run else 'did'} not have"
        say(f"{did} {counted(counts['threads'], 'thread')}: {new}, {size(counts['read_bytes'])}")
    for each in problems:
        fail(f"{each['thread']}: {each['problem']}" if each["thread"] else each["problem"])
    if problems:
        fail(
            f"{counted(len(problems), 'thread')} of {threads:,} could not be restored; "
            "`stateward archive verify THREAD --read-data 100` shows what is missing"
        )
        raise typer.Exit(1)

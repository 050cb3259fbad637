"""`stateward archive repair` and `gc`: putting the bucket in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import (
    EVERY_NAMESPACE,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.show.describe import held_by, thread_as_json
from stateward.cli.show.output import clean, counted, fail, print_json, say, size
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import read_length

if TYPE_CHECKING:
    from stateward.archive import GarbageProgress


def repair(
    context: typer.Context,
    thread: ThreadArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the damage.")] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Rewrite a thread in the archive from this disk, if it was lost, damaged or rolled back there.

    This disk must be the one that wrote the thread last. The command changes nothing on this disk.

    \b
    Examples:
      stateward archive repair booking-42 --dry-run
      stateward archive repair booking-42
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client, Ticker("repairing"):
        found = client.archive.repair(thread, dry_run=dry_run)
    if as_json:
        print_json({"thread": thread_as_json(found.thread), "findings": list(found.findings), "dry_run": dry_run})
        return
    for finding in found.findings:
        say(clean(finding))
    if not found.findings:
        say(f"nothing is wrong with {clean(thread)} in the archive", style="green")
    elif dry_run:
        say("nothing was written")
    else:
        say(f"{clean(thread)} is repaired: version {found.thread.version}, {held_by(found.thread)}", style="green")


def gc(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the objects that would be removed.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Only objects unused for longer than this: 1h, 2d, 0s; default: 1h."
        ),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Remove objects from the bucket that no thread needs: those of deleted threads and of interrupted work.

    The command also deletes threads whose TTL ended more than an hour ago, with all their versions, unless another
    sidecar holds them. It removes no other version. Without --namespace it covers all namespaces.
    A thread that cannot be read keeps its objects. The command names it after the rest, and exits 1.

    \b
    Examples:
      stateward archive gc --dry-run
      stateward archive gc
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    age = None if older_than is None else read_length(older_than, "--older-than", zero_allowed=True)
    keys: list[str] = []
    problems: list[str] = []
    last: GarbageProgress | None = None
    with (
        connect(context, target, namespace, fallback=EVERY_NAMESPACE) as client,
        Ticker("collecting") as ticker,
        client.archive.collect(dry_run=dry_run, older_than=age) as progress,
    ):
        for each in progress:
            last = each
            if each.key:
                keys.append(each.key)
            if each.problem:
                problems.append(each.problem)
            ticker.say(f"{each.threads:,} threads, {each.objects:,} objects, {len(keys):,} to go")
    threads, objects = (last.threads, last.objects) if last is not None else (0, 0)
    removed, removed_bytes = (last.removed, last.removed_bytes) if last is not None else (0, 0)
    if as_json:
        print_json(
            {
                "threads": threads,
                "objects": objects,
                "removed": removed,
                "removed_bytes": removed_bytes,
                "keys": keys,
                "dry_run": dry_run,
                "problems": problems,
            }
        )
    else:
        for key in keys if dry_run else ():
            say(clean(key))
        number = len(keys) if dry_run else removed
        freed = f", {size(removed_bytes)}" if removed_bytes else ""
        did = "would remove" if dry_run else "removed"
        say(f"{did} {number:,} of {counted(objects, 'object')}{freed}; looked at {counted(threads, 'thread')}")
    for problem in problems:
        fail(problem)
    if problems:
        fail(f"the garbage of {counted(len(problems), 'thread')} was not removed")
        raise typer.Exit(1)

"""`stateward migrate`: brings all threads to the schema that a program expects, by the program's own migrations."""

from __future__ import annotations

import importlib
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.commands.threads import collected, end_with, read_labels
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.show.output import CommandError, clean, counted, fail, print_json, say
from stateward.cli.show.ticker import Ticker
from stateward.errors import ThreadNotFound

if TYPE_CHECKING:
    from stateward.errors import ThreadsUnreadable
    from stateward.migrations import Migrations, Report

FAILURES_SHOWN_MAX = 20


def migrate(
    context: typer.Context,
    place: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The Migrations object; also found from this directory.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Migrate in memory only, and report the result.")] = False,
    thread: Annotated[
        list[str] | None,
        typer.Option(
            "--thread", "-t", metavar="THREAD", help="Only this one; may be repeated.", autocompletion=complete_thread
        ),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that start with this.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only with this label; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Save every thread of the namespace as a new version of the current schema. Exit code 1 if a migration fails.

    The command migrates the threads on this daemon's disk; run `stateward restore` first for threads that only the
    archive has. A dry run counts threads that another sidecar wrote last separately: only the real run finds out
    whether that sidecar still holds them.

    Agents may work meanwhile; an agent that saves without a pause waits for a moment. Old versions do not change. A
    thread that fails does not change either, and is listed. After an interruption, run the command again. The command
    imports the module, which runs its code; output of that code goes to stderr. The migration restarts the TTL of a
    finished thread.

    \b
    Examples:
      stateward migrate booking.schema:migrations --dry-run
      stateward migrate booking.schema:migrations
      stateward migrate booking.schema:migrations --thread booking-42 --json
      stateward migrate booking.schema:migrations --prefix test/ --label team=red
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if thread and (prefix or label):
        raise typer.BadParameter("it names the threads; leave --prefix and --label out", param_hint="--thread")
    labels = read_labels(label or ())
    unread: ThreadsUnreadable | None = None
    with redirect_stdout(sys.stderr):  # the program's own words are no part of the result
        migrations = load(place)
        with connect(context, target, namespace) as client, Ticker("migrating") as ticker:

            def tell(name: str, report: Report) -> None:
                ticker.say(f"{report.threads:,} threads, {len(report.failures):,} failed, {name}")

            if prefix or labels:
                infos, unread = collected(client.threads(name_prefix=prefix, labels=labels))
                thread = [each.name for each in infos if each.orphan is None]
            report = client.migrate(migrations, dry_run=dry_run, threads=thread, on_progress=tell)
    if as_json:
        print_json(_facts(report))
    else:
        _print(report)
    end_with(unread)
    if not report.ok:
        raise typer.Exit(1)


def load(place: str) -> Migrations:
    """Returns the object that MODULE:NAME names. Raises CommandError if there is none."""
    from stateward.migrations import Migrations  # noqa: PLC0415  costs a part of a start, and `--help` needs none

    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise typer.BadParameter("give it as module:name, such as booking.schema:migrations", param_hint="MODULE:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module's own code raises
        raise CommandError(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Migrations):
        raise CommandError(f"{place} is a {type(found).__name__}, not a stateward.Migrations")
    return found


def _facts(report: Report) -> dict[str, Any]:
    return {
        "current": report.current,
        "dry_run": report.dry_run,
        "threads": report.threads,
        "migrated": [
            {"from": start, "to": end, "branches": count} for (start, end), count in sorted(report.migrated.items())
        ],
        "unchanged": report.unchanged,
        "remote": report.remote,
        "orphans": report.orphans,
        "failures": [
            {"thread": each.thread, "branch": each.branch, "kind": type(each.error).__name__, "error": str(each.error)}
            for each in report.failures
        ],
    }


def _print(report: Report) -> None:
    did = "would go" if report.dry_run else "went"
    for (start, end), count in sorted(report.migrated.items()):
        say(f"{counted(count, 'branch', 'branches')} {did} from schema {start} to {end}")
    orphans = f", {counted(report.orphans, 'orphan')} passed over" if report.orphans else ""
    say(
        f"{counted(report.threads, 'thread')} looked at, "
        f"{counted(report.unchanged, 'branch', 'branches')} had schema {report.current} already{orphans}"
    )
    if report.remote:
        say(
            f"{counted(report.remote, 'branch', 'branches')} of threads that another sidecar wrote last: a "
            "run migrates those that are free by then, and cannot migrate the others"
        )
    # What is not there has no state that could stay as before.
    missing = [each for each in report.failures if not each.branch and isinstance(each.error, ThreadNotFound)]
    failures = [each for each in report.failures if each not in missing]
    for each in failures[:FAILURES_SHOWN_MAX]:
        say(f"failed: {clean(str(each.error))}")
    for each in missing:
        fail(f"there is no thread {each.thread!r}")
    if failures:
        more = len(failures) - FAILURES_SHOWN_MAX
        fail(
            f"{counted(len(failures), 'branch', 'branches')} could not be migrated and "
            f"{'stays' if len(failures) == 1 else 'stay'} as before"
            + (f" ({more:,} more than are shown; --json has all)" if more > 0 else "")
        )

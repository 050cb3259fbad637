"""`stateward archive list` and `index`: what is in the archive, and a view of it on this disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from stateward.cli.options.connect import EVERY_NAMESPACE, JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.describe import status_word, thread_as_json
from stateward.cli.show.output import counted, fail, filled, note, print_json, print_table, say, size
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import time_ago

if TYPE_CHECKING:
    from stateward.archive import ArchivedThread

COLUMNS = ("NAMESPACE", "THREAD", "VERSION", "STATUS", "WRITTEN BY", "ARCHIVED", "SIZE")


def list_(
    context: typer.Context,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List all threads in the archive, of all sidecars. The exit code is 1 if a thread cannot be read.

    Without --namespace the command lists all namespaces. It sends two to four requests to the bucket for each thread.

    \b
    Examples:
      stateward archive list
      stateward archive list --json | jq '.[] | select(.detached | not)'
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with (
        connect(context, target, namespace, fallback=EVERY_NAMESPACE) as client,
        Ticker("listing the archive") as ticker,
        client.archive.list() as listing,
    ):
        found = _gather(listing, ticker)
    readable = [each for each in found if each.thread is not None]
    if as_json:
        print_json([_as_json(each) for each in found])
    elif readable:
        columns, rows = filled(COLUMNS, list(map(_row, readable)), optional=("NAMESPACE",) if namespace else ())
        print_table(columns, rows, right=("VERSION", "SIZE"))
    elif not found:
        note("the archive holds no thread" + (f" of namespace {namespace}" if namespace else ""))
    _report_problems(found)


def index(
    context: typer.Context,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Make all threads of the archive known on this disk, as copies without history, for `threads` and `stats`.

    No thread changes its owner. Run the command again to see later changes. The daemon fetches a thread's history when
    somebody reads it. Without --namespace the command indexes all namespaces.

    \b
    Examples:
      stateward archive index && stateward threads --status failed
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with (
        connect(context, target, namespace, fallback=EVERY_NAMESPACE) as client,
        Ticker("indexing the archive") as ticker,
        client.archive.list(index=True) as listing,
    ):
        found = _gather(listing, ticker)
    problems = [each for each in found if each.problem]
    if as_json:
        print_json({"threads": len(found) - len(problems), "problems": [each.problem for each in problems]})
    else:
        say(f"{counted(len(found) - len(problems), 'thread')} of the archive can be seen with `stateward threads`")
    _report_problems(found)


def _gather(listing: Iterable[ArchivedThread], ticker: Ticker) -> list[ArchivedThread]:
    found = []
    for each in listing:
        if each.thread is not None or each.problem:  # else only a sign of life
            found.append(each)
            ticker.say(counted(len(found), "thread"))
    return found


def _report_problems(found: list[ArchivedThread]) -> None:
    problems = [each for each in found if each.problem]
    for each in problems:
        fail(f"{each.thread.name}: {each.problem}" if each.thread is not None else each.problem)
    if problems:
        fail(
            f"{counted(len(problems), 'thread')} of {len(found):,} could not be read; `stateward archive verify` shows "
            "what is wrong, `stateward archive repair THREAD` repairs threads that this disk has"
        )
        raise typer.Exit(1)


def _row(each: ArchivedThread) -> tuple[str, ...]:
    assert each.thread is not None
    info = each.thread
    return (
        info.namespace,
        info.name,
        str(info.version),
        status_word(info.status),
        info.owner_id + (" (gave it up)" if each.detached else ""),
        "" if each.archive_time is None else time_ago(each.archive_time),
        size(each.object_bytes),
    )


def _as_json(each: ArchivedThread) -> dict[str, Any]:
    known = {} if each.thread is None else {"namespace": each.thread.namespace, **thread_as_json(each.thread)}
    return {
        **known,
        "detached": each.detached,
        "object_bytes": each.object_bytes,
        "archive_time": None if each.archive_time is None else each.archive_time.isoformat(),
        "problem": each.problem,
    }

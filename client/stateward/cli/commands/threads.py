"""`stateward threads`: what there is, the most recently changed first."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.describe import pairs, status_word, thread_as_json
from stateward.cli.show.output import CommandError, counted, filled, note, print_json, print_table, size
from stateward.cli.show.times import read_time, time_ago
from stateward.errors import StatewardError, ThreadsUnreadable
from stateward.models import Access

if TYPE_CHECKING:
    from datetime import datetime

    from stateward import Client, ThreadInfo
    from stateward.models import HeldThread, ThreadFilters

DEFAULT_LIMIT = 50
PAGE_MAX = 1000
ELSEWHERE_S, ELSEWHERE_MAX = 1.0, 100
COLUMNS = ("THREAD", "VERSION", "STEP", "STATUS", "CHANGED", "STORED", "TO ARCHIVE", "WRITTEN BY", "LABELS")


class StatusName(StrEnum):
    """The statuses, as they are typed."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def threads(
    context: typer.Context,
    status: Annotated[
        list[StatusName] | None,
        typer.Option(
            "--status",
            "-s",
            case_sensitive=False,
            metavar="STATUS",
            help="Only running, waiting, paused, completed, failed or cancelled ones; repeatable.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only with this label; repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that start with this.")] = "",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--updated-since",
            metavar="TIME",
            help="Only those changed since then: 2h, 7d, or 2026-01-31T12:00.",
        ),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--updated-before", metavar="TIME", help="Only those not changed since then.")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="Only those at exactly this step.")] = None,
    min_step: Annotated[int | None, typer.Option(metavar="N", help="Only those at this step or later.")] = None,
    max_step: Annotated[int | None, typer.Option(metavar="N", help="Only those at this step or earlier.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of threads, by status.")] = False,
    held: Annotated[
        bool, typer.Option("--held", help="Only held threads, which no other list shows: uid, times and size.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="At most N threads; 0 = all.")
    ] = DEFAULT_LIMIT,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List threads, the most recently changed first.

    \b
    Examples:
      stateward threads
      stateward threads --status waiting --status failed
      stateward threads --status failed --step 5 --since 24h --label k=v
      stateward threads --count
      stateward threads --label model=gpt-4o --prefix tau-bench/ --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if step is not None and (min_step is not None or max_step is not None):
        raise typer.BadParameter("it cannot be combined with --min-step or --max-step", param_hint="--step")
    filters: ThreadFilters = {
        "statuses": [each.value for each in status or ()],
        "labels": read_labels(label or ()),
        "name_prefix": prefix,
        "updated_after": read_time(since, "--since"),
        "updated_before": read_time(before, "--updated-before"),
        "min_step": min_step if step is None else step,
        "max_step": max_step if step is None else step,
    }
    if held:
        if count or any(each not in (None, "", [], {}) for each in filters.values()):
            raise typer.BadParameter("it stands alone: nothing else of a held thread is known", param_hint="--held")
        with connect(context, target, namespace) as client:
            _print_held(client.held_threads(), limit, client.namespace, as_json=as_json)
        return
    is_filtered = any(each not in (None, "", [], {}) for each in filters.values())
    is_all = count or not limit
    filters["page_size"] = PAGE_MAX if is_all else min(limit + 1, PAGE_MAX)
    with connect(context, target, namespace) as client:
        if count:
            counts, problem = _count(client, filters)
            _print_counts(counts, as_json=as_json)
            end_with(problem)
            return
        found = client.threads(**filters)
        infos, problem = collected(found if is_all else islice(found, limit + 1))
        where = client.namespace
        others = "" if as_json or is_filtered or (limit and len(infos) > limit) else count_elsewhere(client)
    has_more = bool(limit) and len(infos) > limit
    if has_more:
        infos.pop()
    # The daemon's order is exact to the second only.
    infos.sort(key=lambda each: each.update_time, reverse=True)
    if as_json:
        print_json([thread_as_json(each) for each in infos])
    elif infos:
        is_all_ours = all(each.access in (None, Access.OWNED) for each in infos)
        rows = [_row(each, "" if is_all_ours else _writer(each)) for each in infos]
        columns, shown = filled(COLUMNS, rows, ("WRITTEN BY", "TO ARCHIVE"))
        print_table(columns, shown, right=("VERSION", "STEP", "STORED", "TO ARCHIVE"), below=("LABELS",))
    else:
        note(f"no threads in namespace {where!r}" + (" match" if is_filtered else ""))
    if others:
        note(others)
    if has_more:
        note(f"there are more than {limit} threads; --limit 0 lists all")
    end_with(problem)


def _print_held(found: list[HeldThread], limit: int, where: str, *, as_json: bool) -> None:
    shown = found[:limit] if limit else found
    if as_json:
        print_json(
            [
                {
                    "uid": each.uid,
                    "create_time": _iso(each.create_time),
                    "update_time": _iso(each.update_time),
                    "stored_bytes": each.stored_bytes,
                }
                for each in shown
            ]
        )
    elif shown:
        rows = [(each.uid, _ago(each.update_time), _ago(each.create_time), size(each.stored_bytes)) for each in shown]
        print_table(("UID", "CHANGED", "MADE", "STORED"), rows, right=("STORED",))
    else:
        note(f"no held threads in namespace {where!r}")
    if len(found) > len(shown):
        note(f"there are {len(found):,} held threads; --limit 0 lists all")


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when is not None else None


def _ago(when: datetime | None) -> str:
    return time_ago(when) if when is not None else "?"


def count_elsewhere(client: Client) -> str:
    """Returns what to say of threads that are in the archive and not on this disk, as on a new machine after a loss.
    Empty = there are none, or the bucket does not say so at once."""
    number, is_cut = 0, False
    with suppress(StatewardError), client.archive.list(elsewhere=True) as found:
        alarm = threading.Timer(ELSEWHERE_S, found.close)
        alarm.daemon = True
        alarm.start()
        for each in islice(found, ELSEWHERE_MAX):
            number += each.thread is not None
        is_cut = not alarm.is_alive() or number == ELSEWHERE_MAX
        alarm.cancel()
    if not number:
        return ""
    least = "at least " if is_cut else ""
    which = f"{counted(number, 'more thread is', 'more threads are')} in the archive only"
    return f"{least}{which}: `stateward archive list`, `stateward restore`"


def collected(found: Iterable[ThreadInfo]) -> tuple[list[ThreadInfo], ThreadsUnreadable | None]:
    """Returns the threads of a list, and the error in which it ended because others cannot be opened."""
    infos: list[ThreadInfo] = []
    try:
        for each in found:
            infos.append(each)  # noqa: PERF402  (what came before the error counts)
    except ThreadsUnreadable as problem:
        return infos, problem
    return infos, None


def end_with(problem: ThreadsUnreadable | None) -> None:
    """Ends the command with the error in which a list ended, if any."""
    if problem is not None:
        raise CommandError(f"{problem.message}; `stateward verify` says more")


def _count(client: Client, filters: ThreadFilters) -> tuple[dict[str, int], ThreadsUnreadable | None]:
    """How many threads there are of each status. Only what no index knows makes it look at the threads."""
    chosen, problem = set(filters["statuses"]), None
    if any(filters[name] not in (None, "", {}) for name in ("labels", "name_prefix", "min_step", "max_step")):
        infos, problem = collected(client.threads(**filters))
        found = Counter(status_word(info.status) for info in infos)
    else:
        after, before = filters["updated_after"], filters["updated_before"]
        try:
            counts = client.count_threads(updated_after=after, updated_before=before)
        except ThreadsUnreadable as error:
            counts, problem = dict(error.counts), error
        found = Counter({status_word(status): number for status, number in counts.items()})
    return {name: number for name, number in found.most_common() if not chosen or name in chosen}, problem


def _print_counts(counts: dict[str, int], *, as_json: bool) -> None:
    total = sum(counts.values())
    if as_json:
        print_json({"threads": total, "by_status": counts})
        return
    rows = [(name, f"{number:,}") for name, number in counts.items()]
    print_table(("STATUS", "THREADS"), [*rows, ("all", f"{total:,}")], right=("THREADS",))


def _row(info: ThreadInfo, writer: str) -> tuple[str, ...]:
    step = "" if info.step is None else str(info.step)
    status = status_word(info.status) + (f" ({info.status_detail})" if info.status_detail else "")
    return (
        info.name,
        str(info.version),
        step,
        status,
        time_ago(info.update_time),
        size(info.stored_bytes),
        counted(info.unarchived_entries, "entry", "entries") if info.unarchived_entries else "",
        writer,
        pairs(info.labels),
    )


def _writer(info: ThreadInfo) -> str:
    if info.orphan is not None:
        return f"orphan of {info.orphan.thread}"
    return "this sidecar" if info.access == Access.OWNED else info.owner_id


def read_labels(given: Sequence[str]) -> dict[str, str]:
    """Labels that are typed as KEY=VALUE."""
    labels = dict[str, str]()
    for each in given:
        key, separator, value = each.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE", param_hint="--label")
        if labels.get(key, value) != value:  # a thread has one value, and the first one would be forgotten
            raise typer.BadParameter(f"{key!r} is given twice; no thread has both values", param_hint="--label")
        labels[key] = value
    return labels

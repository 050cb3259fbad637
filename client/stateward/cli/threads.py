"""`stateward threads`: what there is, the most recently changed first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.output import is_terminal, note, print_json, print_table, say, size

if TYPE_CHECKING:
    from stateward import ThreadInfo

DEFAULT_LIMIT = 50
PAGE_MAX = 1000


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
        typer.Option("--status", "-s", case_sensitive=False, help="Only threads with this status; repeatable."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only with this label; repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that start so.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="At most so many; 0 = all.")
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
      stateward threads --label model=gpt-4o --prefix tau-bench/ --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    labels = _read_labels(label or ())
    with connect(context, target, namespace) as client:
        found = client.threads(
            statuses=[each.value for each in status or ()],
            labels=labels,
            name_prefix=prefix,
            page_size=min(limit + 1, PAGE_MAX) if limit else PAGE_MAX,
        )
        infos = list(islice(found, limit + 1) if limit else found)
        where = client.namespace
    has_more = bool(limit) and len(infos) > limit
    if has_more:
        infos.pop()
    # The daemon's order is exact to the second only.
    infos.sort(key=lambda each: each.update_time, reverse=True)
    if as_json:
        print_json([thread_as_json(each) for each in infos])
    elif infos:
        columns = ("THREAD", "VERSION", "STEP", "STATUS", "CHANGED", "STORED", "LABELS")
        print_table(columns, map(_row, infos), right=("VERSION", "STEP", "STORED"))
    elif is_terminal():
        say(f"no threads in namespace {where}" + (" that match" if status or labels or prefix else ""))
    if has_more:
        note(f"there are more than {limit} threads; --limit 0 lists all")


def thread_as_json(info: ThreadInfo) -> dict[str, Any]:
    """What is known about a thread, for scripts."""
    return {
        "thread": info.name,
        "uid": info.uid,
        "version": info.version,
        "step": info.step,
        "status": status_word(info.status),
        "status_detail": info.status_detail,
        "labels": dict(info.labels),
        "metrics": dict(info.metrics),
        "create_time": info.create_time.isoformat(),
        "update_time": info.update_time.isoformat(),
        "retained_versions": info.retained_versions,
        "stored_bytes": info.stored_bytes,
        "sequence": info.sequence,
        "archived_sequence": info.archived_sequence,
    }


def status_word(status: Any) -> str:
    """A status as it is typed; its number where it is newer than this command."""
    return status.name.lower() if hasattr(status, "name") else str(status or "")


def time_ago(time: datetime) -> str:
    """How long ago something was: 5 s, 12 min, 3 h, then the date."""
    seconds = max((datetime.now(UTC) - time).total_seconds(), 0)
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < length:
            return f"{seconds:.0f} {unit} ago"
        seconds /= length
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def _row(info: ThreadInfo) -> tuple[str, ...]:
    labels = " ".join(f"{key}={value}" for key, value in sorted(info.labels.items()))
    step = "" if info.step is None else str(info.step)
    status = status_word(info.status) + (f" ({info.status_detail})" if info.status_detail else "")
    return info.name, str(info.version), step, status, time_ago(info.update_time), size(info.stored_bytes), labels


def _read_labels(given: Sequence[str]) -> dict[str, str]:
    labels = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE", param_hint="--label")
        labels[key] = value
    return labels

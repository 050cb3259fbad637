"""Formats the statistics of the archive, for people and for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stateward.cli.show.output import counted, size
from stateward.cli.show.times import length

if TYPE_CHECKING:
    from stateward.admin import ArchiveStats
    from stateward.archive import ArchiveStatus


def archive_facts(stats: ArchiveStats) -> list[tuple[str, str]]:
    """Returns facts about the archive: state of the bucket, lag, and threads."""
    behind = "nothing; everything is archived"
    if stats.rolled_back:
        behind = "nothing but the threads that are rolled back"
    if stats.lag_entries or stats.dirty_threads:
        entries, threads = counted(stats.lag_entries, "entry", "entries"), counted(stats.dirty_threads, "thread")
        oldest = "" if stats.lag is None else f", the oldest for {length(stats.lag)}"
        behind = f"{entries} of {threads}, {size(stats.lag_bytes)}{oldest}"
    answers = "answered the last request; `stateward doctor` asks it now"
    if stats.away:
        answers = "does not answer; new versions wait on this disk"
    return [
        ("bucket", answers + (f" ({stats.error})" if stats.error else "")),
        ("behind by", behind),
        ("holds", f"{counted(stats.owned_threads, 'thread')} that it may write now, without those that it gave up"),
        ("orphans", f"{stats.orphans:,}; `stateward threads` marks them" if stats.orphans else ""),
        ("rolled back", _rolled_back(stats.rolled_back)),
    ]


def _rolled_back(number: int) -> str:
    if not number:
        return ""
    return f"{counted(number, 'thread')}, older in the bucket than what was archived; `stateward archive repair THREAD`"


def cost_facts(stats: ArchiveStats) -> list[tuple[str, str]]:
    """Returns requests and bytes written since the daemon's start."""
    return [
        ("  requests", f"{stats.requests:,}"),
        ("  heads", f"{stats.heads:,}, {size(stats.head_bytes)}"),
        ("  objects", f"{stats.objects:,}, {size(stats.object_bytes)}, for {size(stats.entry_bytes)} of entries"),
    ]


def status_as_json(found: ArchiveStatus) -> dict[str, Any]:
    """Returns the status of the archive as JSON, for scripts. Durations are in seconds."""
    return {
        **asdict(found),
        "stats": stats_as_json(found.stats),
        "interval": found.interval.total_seconds(),
        "lease": found.lease.total_seconds(),
    }


def stats_as_json(stats: ArchiveStats) -> dict[str, Any]:
    """Returns the statistics as JSON, for scripts."""
    return {**asdict(stats), "lag": None if stats.lag is None else stats.lag.total_seconds()}


def archive_cost(stats: ArchiveStats) -> str:
    """Returns requests and bytes written since the daemon's start, on one line."""
    return f"{counted(stats.requests, 'request')}, {size(stats.head_bytes + stats.object_bytes)} written"

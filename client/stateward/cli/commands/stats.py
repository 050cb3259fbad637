"""`stateward stats`: what the daemon is, holds and has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from stateward.admin import LimitUse
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.archive_facts import archive_cost, archive_facts, stats_as_json
from stateward.cli.show.describe import status_word
from stateward.cli.show.output import print_facts, print_json, say, size
from stateward.cli.show.times import clock_time, time_ago


def stats(
    context: typer.Context,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the daemon's settings, its contents, and its activity since its start.

    \b
    Examples:
      stateward stats
      stateward stats --json | jq .stats.used_bytes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        server, now, where = client.server_info(), client.stats(), client.target
    if as_json:
        archive = None if now.archive is None else stats_as_json(now.archive)
        shown = {"target": where, "server": _server_as_json(server), "stats": {**asdict(now), "archive": archive}}
        print_json(shown)
        return
    print_facts(
        [
            ("daemon", f"stateward-sidecar {server.version} at {where}"),
            ("started", f"{clock_time(server.start_time)}, {time_ago(server.start_time)}"),
            ("data format", str(server.format)),
            ("key", f"{server.key_id} (fingerprint)"),
            *(("not ready", why) for why in server.not_ready),
            *([("draining", "takes no new work; `stateward drain --undo` ends that")] if now.draining else []),
            *([("wire", server.wire)] if server.wire else []),
            *([("principal", f"{server.principal}, who makes this call")] if server.principal else []),
            ("features", ", ".join(sorted(server.features)) or "none beyond the basics"),
            ("durability", f"{status_word(server.default_durability)} by default"),
            ("largest state", size(server.max_state_bytes)),
        ]
    )
    _print_limits("limits of this client and namespace", server.limits)
    _print_limits("fullest limits", now.limits)
    say()
    say("on this disk", style="bold")
    print_facts(
        [
            ("  threads", f"{now.threads:,}"),
            (
                "  data file",
                f"{size(now.used_bytes)} in use of {size(now.file_bytes)}, may grow to {size(now.map_bytes)}",
            ),
            *([("  blobs", size(now.blob_bytes))] if now.blob_bytes else []),
            ("  cache", f"{size(now.cache_bytes)} of {size(now.cache_limit_bytes)}"),
            ("  waiting writes", f"{now.queued_writes:,}"),
            ("  open watches", f"{now.watches:,}"),
            *(
                [("  failures", f"{now.background_failures:,} in the background; its log has more")]
                if now.background_failures
                else []
            ),
        ]
    )
    if now.archive is not None:
        say()
        say("in the archive", style="bold")
        print_facts([(f"  {name}", value) for name, value in archive_facts(now.archive)])
    say()
    say("since its start", style="bold")
    print_facts(
        [
            ("  versions saved", f"{now.saves:,}"),
            ("  commits", f"{now.commits:,}"),
            ("  journal", f"{now.entries:,} entries, {size(now.entry_bytes)} compressed and sealed"),
            ("  snapshots", f"{now.snapshots:,}, {size(now.snapshot_bytes)} compressed and sealed"),
            ("  archive", "" if now.archive is None else archive_cost(now.archive)),
            *((f"  refused: {limit}", f"{count:,}") for limit, count in sorted(now.limit_refusals.items())),
        ]
    )
    for warning in server.warnings:
        say()
        print_facts([("warning", warning)])


def _print_limits(title: str, limits: Sequence[LimitUse]) -> None:
    if limits:
        say()
        say(title, style="bold")
        print_facts([(f"  {each.limit} of {each.subject}", f"{each.used:,} of {each.maximum:,}") for each in limits])


def _server_as_json(server: Any) -> dict[str, Any]:
    return {
        **asdict(server),
        "features": sorted(server.features),
        "request_id_window": server.request_id_window.total_seconds(),
        "default_durability": status_word(server.default_durability),
        "start_time": server.start_time.isoformat(),
    }

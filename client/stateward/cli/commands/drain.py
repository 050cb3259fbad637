"""`stateward drain`: empties this machine before an orchestrator takes it away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.output import CommandError, counted, note, print_json, say
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import read_length
from stateward.errors import StatewardError

if TYPE_CHECKING:
    from stateward import Client
    from stateward.admin import DrainResult, Stats

GRACE_MAX = timedelta(hours=1)
LOOK_INTERVAL_S = 0.2


def drain(
    context: typer.Context,
    undo: Annotated[bool, typer.Option("--undo", help="Accept work again.")] = False,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="Time limit: 30s, 5m, at most 1h; default: the daemon's setting."),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Prepare this machine for removal: archive everything, release every thread, accept no new work.

    The daemon reports itself as not ready at once, and refuses saves; reads still work. It stays in this mode after the
    command ends or is interrupted, until `stateward drain --undo` or a restart. The exit code is 0 only if no data is
    on this machine alone, so that the machine may be removed. If the exit code is not 0, run the command again to
    continue.

    Use it to empty a node, or in a hook that runs after its agents have ended: an agent that still runs gets
    ShuttingDown for its last save. A daemon that is stopped with SIGTERM archives and releases threads by itself.

    \b
    Examples:
      stateward drain --grace 30s
      stateward drain --grace 5m --json | jq .dirty_threads
      stateward drain --undo
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if undo and grace is not None:
        raise typer.BadParameter("--undo needs no time", param_hint="--grace")
    most = None if grace is None else read_length(grace, "--grace")
    if most is not None and most > GRACE_MAX:
        raise typer.BadParameter(f"{grace!r} is more than an hour", param_hint="--grace")
    with connect(context, target, namespace) as client, Ticker("draining") as ticker:
        with _Look(client, lambda stats: ticker.say(_how_far(stats))):
            result = client.drain(grace=most, undo=undo)
        has_archive = client.stats().archive is not None
    if as_json:
        print_json({**asdict(result), "archive": has_archive})
    else:
        _tell(result, undo=undo)
    if undo or result.dirty_threads == 0:
        return
    if result.ready:
        raise CommandError("draining was undone with --undo while this command ran")
    raise CommandError(_why(result, has_archive=has_archive))


def _tell(result: DrainResult, *, undo: bool) -> None:
    if undo:
        say("the daemon takes work again")
    elif result.dirty_threads == 0:
        say(f"drained: {counted(result.detached_threads, 'thread')} given up, nothing is on this machine alone")
    elif result.detached_threads:
        note(f"{counted(result.detached_threads, 'thread')} given up")


def _why(result: DrainResult, *, has_archive: bool) -> str:
    left = counted(result.dirty_threads, "thread")
    if not has_archive:
        return (
            f"{left} on this disk only, as the daemon has no archive: do not take the disk away. It takes no new work; "
            "`stateward drain --undo` ends that"
        )
    return (
        f"{left} with something that is not archived yet: drain again with a longer --grace; "
        "`stateward archive status` shows whether the bucket answers"
    )


def _how_far(stats: Stats) -> str:
    if stats.archive is None:
        return ""
    held = counted(stats.archive.owned_threads, "thread")
    return f"{held} held, {stats.archive.dirty_threads:,} not archived"


class _Look:
    """Reads the daemon's figures at intervals while the drain runs."""

    def __init__(self, client: Client, tell: Callable[[Stats], None]) -> None:
        self._client = client
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            with suppress(StatewardError):  # the drain call itself reports the error
                self._tell(self._client.stats())

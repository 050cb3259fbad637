"""`stateward attach` and `detach`: which sidecar may write a thread."""

from __future__ import annotations

from typing import Annotated

import typer

from stateward.cli.options.connect import (
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    archived_names,
    connect,
)
from stateward.cli.show.describe import held_by, thread_as_json
from stateward.cli.show.output import clean, counted, print_json, say
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import read_length


def attach(
    context: typer.Context,
    thread: ThreadArgument,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take the thread from its owner. Use only if that machine is dead or stopped."
        ),
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only fetch what is archived; the owner stays.")
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="How long to wait until the thread is free: 90s, 10m; at most 1h."),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Make this daemon the owner of a thread that is in the archive.

    Agents do not need this command: their first write attaches a free thread. A thread is free when its owner has
    released it, or when this daemon has seen the owner archive nothing for the lease time. With --take-over the old
    owner is fenced at its next write to the archive; its unarchived entries stay on its disk as an orphan.

    \b
    Examples:
      stateward attach booking-42
      stateward attach booking-42 --wait 2m
      stateward attach booking-42 --take-over
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if sum((take_over, read_only, wait is not None)) > 1:
        raise typer.BadParameter("give only one of them", param_hint="--take-over, --read-only and --wait")
    patience = 0 if wait is None else read_length(wait, "--wait")
    with connect(context, target, namespace) as client, Ticker("attaching"), archived_names():
        info = client.thread(thread).archive.attach(take_over=take_over, read_only=read_only, wait=patience)
    if as_json:
        print_json(thread_as_json(info))
        return
    say(f"{clean(thread)} is {held_by(info)}; its newest version is {info.version}")


def detach(
    context: typer.Context,
    thread: ThreadArgument,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Archive a thread's committed entries, then release the thread, so that any sidecar may take it at once.

    \b
    Examples:
      stateward detach booking-42
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client, Ticker("archiving"):
        info = client.thread(thread).archive.detach()
    if as_json:
        print_json(thread_as_json(info))
        return
    entries = counted(info.archived_sequence, "entry", "entries")
    say(f"{clean(thread)} is archived ({entries}) and given up; any sidecar of the archive may take it now")

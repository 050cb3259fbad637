"""`stateward fork`: a copy of a thread."""

from __future__ import annotations

from typing import Annotated

import typer

from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.options.where import AtOption, find_checkpoint
from stateward.cli.show.describe import thread_as_json
from stateward.cli.show.output import print_json, say


def fork(
    context: typer.Context,
    thread: ThreadArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the copy, which must not exist.")],
    at: AtOption = None,
    branch: BranchOption = "main",
    whole: Annotated[
        bool, typer.Option("--whole", help="Copy every version, with its number, tags and branch.")
    ] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Copy one version of a thread to a new thread, as its version 1; or copy the whole thread.

    The copy has its own key, so either thread can be removed without the other. To continue from an earlier version
    within the same thread, with edited slots, use `stateward branch THREAD NAME --at 14 --set SLOT=VALUE`.

    \b
    Examples:
      stateward fork booking-42 booking-42-london --at before-dates
      stateward fork booking-42 booking-42-backup --whole
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if whole and (at is not None or branch != "main"):
        raise typer.BadParameter("it copies all versions; leave out --at and --branch", param_hint="--whole")
    with connect(context, target, namespace) as client:
        source = client.thread(thread, branch=branch)
        info = source.fork(new, find_checkpoint(source, at), all_versions=whole).info()
    if as_json:
        print_json(thread_as_json(info))
        return
    came_from = info.forked_from.version if info.forked_from else "?"
    what = f"{info.retained_versions:,} versions" if whole else f"version {came_from}"
    say(f"{new} is a copy of {what} of {thread}; its newest version is {info.version}")

"""`stateward tag`: lists, sets and deletes names of versions."""

from __future__ import annotations

from typing import Annotated

import typer

from stateward.cli.connect import BranchOption, JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.output import CommandError, is_terminal, print_json, print_table, say
from stateward.cli.where import AtOption, find_checkpoint
from stateward.errors import VersionMismatch


def tag(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The tag; default: list all tags.")] = None,
    at: AtOption = None,
    branch: BranchOption = "main",
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Remove the tag; the version stays.")] = False,
    expected: Annotated[
        int | None,
        typer.Option("--expected", min=0, metavar="V", help="Only if the tag names V now; 0 = only if it is new."),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Set a tag on a version, move a tag, delete it, or list all tags. A tagged version is never pruned.

    \b
    Examples:
      stateward tag booking-42                          all tags
      stateward tag booking-42 before-dates --at 12     set or move the tag
      stateward tag booking-42 before-dates --delete --expected 12
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if name is None and (at is not None or delete or expected is not None):
        raise typer.BadParameter("--at, --delete and --expected need a tag", param_hint="NAME")
    if delete and at is not None:
        raise typer.BadParameter("it cannot be combined with --at", param_hint="--delete")
    if delete and expected == 0:
        raise typer.BadParameter("with --delete it is at least 1", param_hint="--expected")
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        if name is None:
            found = sorted(handle.info().tags, key=lambda each: each.version)
        else:
            try:
                if delete:
                    found = [handle.delete_tag(name, expected=expected)]
                else:
                    found = [handle.tag(name, find_checkpoint(handle, at), expected=expected)]
            except VersionMismatch as error:
                raise CommandError(f"{error.message}; `stateward tag {thread}` lists the tags") from None
    if as_json:
        print_json([{"tag": each.name, "version": each.version} for each in found])
    elif name is not None:
        say(f"{name} {'deleted; it named' if delete else 'is'} version {found[0].version}")
    elif found:
        print_table(("TAG", "VERSION"), [(each.name, str(each.version)) for each in found], right=("VERSION",))
    elif is_terminal():
        say(f"thread {thread} has no tags")

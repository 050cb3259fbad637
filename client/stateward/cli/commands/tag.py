"""`stateward tag`: lists, sets and deletes names of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    YesOption,
    connect,
)
from stateward.cli.options.where import MAIN, AtOption, check_name, find_checkpoint, find_expected
from stateward.cli.show.output import CommandError, confirm, note, print_json, print_table, say
from stateward.errors import VersionMismatch

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread
    from stateward.models import Tag


def tag(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The tag; default: list all tags.")] = None,
    at: AtOption = None,
    branch: BranchOption = "main",
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Remove the tag; the version stays.")] = False,
    expected: Annotated[
        str | None,
        typer.Option(
            "--expected",
            metavar="V",
            help="Only if the tag names V now, VERSION or VERSION:DIGEST; 0 = only if it is new. Then it does not ask.",
        ),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Set a tag on a version, move a tag, delete it, or list all tags. A tagged version is never pruned.
    A name that --at would read as something else, such as 12, step:3 or the name of a branch, is refused.

    Before it moves or deletes a tag, the command says which version the tag names, and asks; without a terminal it
    needs --expected or --yes. It does nothing if the tag names another version by then.

    \b
    Examples:
      stateward tag booking-42                          all tags
      stateward tag booking-42 before-dates --at 12     set or move the tag
      stateward tag booking-42 before-dates --delete --expected 12
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    _check_use(name, at, expected, deletes=delete)
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        if name is None:
            found = sorted(handle.info().tags, key=lambda each: each.version)
        else:
            try:
                known = find_expected(handle, expected, least=0)
                if delete:
                    found = [_delete(handle, name, known, yes=yes)]
                else:
                    found = [_set(handle, name, find_checkpoint(handle, at), known, yes=yes)]
            except VersionMismatch as error:
                raise CommandError(
                    f"{error.message}; nothing was changed, `stateward tag {thread}` lists the tags"
                ) from None
    if as_json:
        print_json([{"tag": each.name, "version": each.version} for each in found])
    elif name is not None:
        say(f"{name} {'deleted; it named' if delete else 'is'} version {found[0].version}")
    elif found:
        print_table(("TAG", "VERSION"), [(each.name, str(each.version)) for each in found], right=("VERSION",))
    else:
        note(f"thread {thread} has no tags")


def _check_use(name: str | None, at: str | None, expected: str | None, *, deletes: bool) -> None:
    if name is None and (at is not None or deletes or expected is not None):
        raise typer.BadParameter("--at, --delete and --expected need a tag", param_hint="NAME")
    if deletes and at is not None:
        raise typer.BadParameter("it cannot be combined with --at", param_hint="--delete")
    if deletes and expected == "0":
        raise typer.BadParameter("with --delete it is at least 1", param_hint="--expected")
    if name is not None and not deletes:  # a tag of such a name can still be deleted
        check_name(name)


def _delete(thread: Thread, name: str, expected: Checkpoint | int | None, *, yes: bool) -> Tag:
    if expected is None and not yes:
        expected = thread.checkpoints.get(at=name)
        what = f"tag {name!r} of thread {thread.name!r}, which names version {expected.version}"
        _ask(f"Delete {what}? The version may then be pruned.")
    return thread.tags.delete(name, expected=expected)


def _set(
    thread: Thread, name: str, version: Checkpoint | None, expected: Checkpoint | int | None, *, yes: bool
) -> Tag:
    """Makes a tag, or moves it."""
    info = thread.info()
    if name in [MAIN, *(each.name for each in info.branches)]:
        raise typer.BadParameter(f"{name!r} is a branch, which --at would read as the tag", param_hint="NAME")
    if expected is None and not yes:
        if all(each.name != name for each in info.tags):
            return thread.tags.set(name, version, expected=0)
        expected, version = thread.checkpoints.get(at=name), version or thread.checkpoints.get()
        if expected.version != version.version:
            _ask(f"Move tag {name!r} of thread {thread.name!r} from version {expected.version} to {version.version}?")
    return thread.tags.set(name, version, expected=expected)


def _ask(question: str) -> None:
    confirm(question, yes=False, give="give --expected VERSION, or --yes", otherwise="nothing was changed")

"""`stateward branch`: lists branches, starts a branch with edited slots, moves a head, deletes a branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, YesOption, connect
from stateward.cli.options.typed import read_json
from stateward.cli.options.where import MAIN, AtOption, check_name, find_checkpoint, find_expected
from stateward.cli.show.describe import checkpoint_as_json
from stateward.cli.show.output import CommandError, clean, confirm, filled, note, print_json, print_table, say
from stateward.errors import VersionMismatch

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread
    from stateward.models import Branch, MovedHead


def branch(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The branch; default: list all branches.")] = None,
    at: AtOption = None,
    from_branch: Annotated[
        str | None, typer.Option("--from", metavar="BRANCH", help="Branch that --at refers to; default: main.")
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SLOT=VALUE",
            help="Set a slot, to JSON, or to text that is not JSON and begins with neither [ nor {. Repeatable.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="SLOT", help="Remove a slot; repeatable.")
    ] = None,
    move_to: Annotated[
        str | None, typer.Option("--move-to", metavar="VERSION", help="Move the head to this version of the branch.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Delete the branch; its versions stay.")] = False,
    expected: Annotated[
        str | None,
        typer.Option(
            "--expected",
            metavar="V",
            help="Move or delete only if the head is V now, VERSION or VERSION:DIGEST; then it does not ask.",
        ),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Start a branch from an earlier version, with edited slots, to try how the run continues from there. Or list all
    branches, move the head of a branch back, or delete a branch.

    The first version of a new branch is the earlier version with the edits. An agent continues it with
    client.thread(THREAD, branch=NAME). Other branches do not change. `stateward fork` copies a version to a new thread.
    Versions after a moved head, and those of a deleted branch, stay readable by number until they are pruned.

    Before it moves a head or deletes a branch, the command says which version is the head, and asks; without a terminal
    it needs --expected or --yes. It does nothing if the head is another one by then. `stateward branch THREAD --json`
    shows the digests.

    \b
    Examples:
      stateward branch booking-42                       all branches
      stateward branch booking-42 cheaper --at step:14 --set budget=300
      stateward branch booking-42 rome --at 14 --set goal='{"city": "Rome"}'
      stateward diff booking-42 main..cheaper
      stateward branch booking-42 main --move-to 12 --expected 15
      stateward branch booking-42 cheaper --delete
      stateward branch booking-42 cheaper --delete --yes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if name == "":
        raise typer.BadParameter("it is empty", param_hint="NAME")
    begins = any(each is not None for each in (at, from_branch)) or bool(slots or unset)
    if name is not None and not delete and move_to is None:
        check_name(name)
    _check_use(name, begins=begins, moves=move_to is not None, deletes=delete, is_expected=expected is not None)
    edits = read_slots(slots or ())
    _check_edits(edits, unset or ())
    with connect(context, target, namespace) as client:
        if name is None:
            found = sorted(client.thread(thread).info().branches, key=lambda each: each.version)
            _print_branches(thread, found, as_json=as_json)
        elif delete:
            version = _delete(client.thread(thread, branch=name), name, expected, yes=yes)
            _tell(as_json, {"branch": name, "version": 0, "previous_version": version},
                  f"branch {clean(name)} of {clean(thread)} deleted; its head was version {version}")  # fmt: skip
        elif move_to is not None:
            moved = _move(client.thread(thread, branch=name), name, move_to, expected, yes=yes)
            facts = {"branch": name, "version": moved.version, "previous_version": moved.previous_version}
            _tell(as_json, facts, f"the head of branch {clean(name)} of {clean(thread)} is version {moved.version}; "
                  f"it was {moved.previous_version}")  # fmt: skip
        else:
            source = client.thread(thread, branch=from_branch or "main")
            _begin(source, name, at, edits, unset or [], as_json=as_json)


def _check_use(name: str | None, *, begins: bool, moves: bool, deletes: bool, is_expected: bool) -> None:
    if name is None and (begins or moves or deletes or is_expected):
        raise typer.BadParameter("every option but --json needs a branch", param_hint="NAME")
    if begins + moves + deletes > 1:
        raise typer.BadParameter("a call starts a branch, moves a head or deletes a branch", param_hint="NAME")
    if is_expected and not (moves or deletes):
        raise typer.BadParameter("it needs --move-to or --delete", param_hint="--expected")


def _check_edits(edits: dict[str, Any], unset: Sequence[str]) -> None:
    """Refuses a slot that is given twice: only the user knows which of the two was meant."""
    for number, name in enumerate(unset):
        if name in edits:
            raise typer.BadParameter(f"slot {name!r} is in --set, too", param_hint="--unset")
        if name in unset[:number]:
            raise typer.BadParameter(f"slot {name!r} is given twice", param_hint="--unset")


def _delete(branch: Thread, name: str, expected: str | None, *, yes: bool) -> int:
    """Deletes a branch; returns the version that was its head."""
    if name == MAIN:
        raise CommandError(
            "branch 'main' cannot be deleted: every thread has it; --move-to moves its head, and `stateward rm` "
            "removes the thread"
        )
    head = find_expected(branch, expected)
    if head is None and not yes:
        head = branch.checkpoints.get()
        what = f"branch {name!r} of thread {branch.name!r}, whose head is version {head.version}"
        _ask(f"Delete {what}? Its versions stay readable by number until they are pruned.")
    with _unchanged():
        return branch.branches.delete(name, expected_version=head)


def _move(branch: Thread, name: str, where: str, expected: str | None, *, yes: bool) -> MovedHead:
    """Moves the head of a branch."""
    to = find_checkpoint(branch, where, "--move-to")
    assert to is not None
    head = find_expected(branch, expected)
    if head is None and not yes:
        head = branch.checkpoints.get()
        what = f"the head of branch {name!r} of thread {branch.name!r}"
        if head.version != to.version:
            _ask(f"Move {what} from version {head.version} to {to.version}?")
    with _unchanged():
        return branch.branches.move(name, to, expected_version=head)


def _ask(question: str) -> None:
    confirm(question, yes=False, give="give --expected VERSION, or --yes", otherwise="nothing was changed")


@contextmanager
def _unchanged() -> Iterator[None]:
    try:
        yield
    except VersionMismatch as error:
        raise CommandError(f"{error.message}; nothing was changed, look again") from None


def _begin(
    source: Thread, name: str, at: str | None, edits: dict[str, Any], unset: Sequence[str], *, as_json: bool
) -> None:
    info = source.info()
    if name in [each.name for each in info.branches]:
        raise CommandError(f"thread {source.name!r} has a branch {name!r} already; choose another name")
    if name in [each.name for each in info.tags]:
        raise typer.BadParameter(f"{name!r} is a tag of the thread, which --at reads first", param_hint="NAME")
    checkpoint = _save(source, name, find_checkpoint(source, at), edits, unset)
    what = f", with {', '.join(sorted([*edits, *unset]))} edited" if edits or unset else ""
    _tell(as_json, checkpoint_as_json(checkpoint),
          f"branch {clean(name)} of {clean(source.name)} begins with version {checkpoint.version}, "
          f"made from version {checkpoint.parent_version}{clean(what)}")  # fmt: skip


def _tell(as_json: bool, facts: Any, text: str) -> None:
    if as_json:
        print_json(facts)
    else:
        say(text)


def _print_branches(thread: str, found: Sequence[Branch], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "branch": each.name, "version": each.version, "base_version": each.base_version,
                    "newest_version": each.newest_version or each.version, "digest": each.digest.hex(),
                }
                for each in found
            ]
        )  # fmt: skip
    elif found:
        rows = [
            (each.name, str(each.version), str(each.base_version or ""), str(each.newest_version or ""))
            for each in found
        ]
        columns, shown = filled(("BRANCH", "VERSION", "MADE FROM", "NEWEST"), rows, ("MADE FROM", "NEWEST"))
        print_table(columns, shown, right=("VERSION", "MADE FROM", "NEWEST"))
    else:
        note(f"thread {thread} has no branches")


def _save(source: Thread, name: str, at: Checkpoint | None, edits: dict[str, Any], unset: Sequence[str]) -> Any:
    base = at or source.checkpoints.get()
    handle = source.branch(name, at=base)
    state = handle.hydrate()
    for slot in unset:
        if slot not in state.slots:
            raise CommandError(f"version {base.version} has no slot {slot!r} to remove")
        del state.slots[slot]
    state.slots.update(edits)
    return handle.save(state, step=base.step, metadata={"branched_from": base.version, "edited": [*edits, *unset]})


def read_slots(given: Sequence[str]) -> dict[str, Any]:
    """Slots that are typed as SLOT=VALUE."""
    found: dict[str, Any] = {}
    for each in given:
        name, separator, text = each.partition("=")
        if not name or not separator:
            raise typer.BadParameter(f"{each!r} is not SLOT=VALUE", param_hint="--set")
        if name in found:
            raise typer.BadParameter(f"slot {name!r} is given twice", param_hint="--set")
        try:
            found[name] = read_json(text, f"--set {name}")
        except ValueError as error:
            if text.startswith(("[", "{")):
                raise CommandError(f"--set {name}: this is not JSON: {error}") from None
            found[name] = text
    return found

"""`stateward branch`: starts a branch from an earlier version, with edited slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.describe import checkpoint_as_json
from stateward.cli.output import CommandError, clean, print_json, say
from stateward.cli.typed import read_json
from stateward.cli.where import AtOption, find_version

if TYPE_CHECKING:
    from stateward import Thread


def branch(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new branch, which must not exist.")],
    at: AtOption = None,
    from_branch: Annotated[str, typer.Option("--from", metavar="BRANCH", help="Branch that --at refers to.")] = "main",
    slots: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SLOT=VALUE", help="Set a slot, to JSON or, if it is not JSON, to text. Repeatable."
        ),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="SLOT", help="Remove a slot; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Start a branch from an earlier version, with edited slots, to try how the run continues from there.

    The first version of the branch is the earlier version with the edits. An agent continues it with
    client.thread(THREAD, branch=NAME). Other branches do not change. `stateward fork` copies a version to a new thread.

    \b
    Examples:
      stateward branch booking-42 cheaper --at step:14 --set budget=300
      stateward branch booking-42 rome --at 14 --set goal='{"city": "Rome"}'
      stateward diff booking-42 main..cheaper
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if not name:
        raise typer.BadParameter("it is empty", param_hint="NAME")
    edits = read_slots(slots or ())
    with connect(context, target, namespace) as client:
        source = client.thread(thread, branch=from_branch)
        there = [each.name for each in source.info().branches]
        if name in there:
            raise CommandError(f"thread {thread!r} has a branch {name!r} already; choose another name")
        checkpoint = _save(source, name, find_version(source, at), edits, unset or [])
    if as_json:
        print_json(checkpoint_as_json(checkpoint))
        return
    what = f", with {', '.join(sorted([*edits, *(unset or [])]))} edited" if edits or unset else ""
    say(f"branch {clean(name)} of {clean(thread)} begins with version {checkpoint.version}, "
        f"made from version {checkpoint.parent_version}{clean(what)}")  # fmt: skip


def _save(source: Thread, name: str, at: int | None, edits: dict[str, Any], unset: Sequence[str]) -> Any:
    base = source.checkpoint(at)
    handle = source.branch(name, at=base.version)
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
        try:
            found[name] = read_json(text, f"--set {name}")
        except ValueError:
            found[name] = text
    return found

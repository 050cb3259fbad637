"""`stateward history`: the versions of a thread, newest first, and how its branches belong together."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.options.where import require_versions
from stateward.cli.show.describe import checkpoint_as_json, held_by, pairs, status_word
from stateward.cli.show.graph import draw
from stateward.cli.show.layouts import InternalOption
from stateward.cli.show.one_by_one import end_if_damaged
from stateward.cli.show.output import CommandError, filled, note, print_json, print_table, say, shorten, size
from stateward.cli.show.timeline import Happening, Timeline, for_scripts, lines, shown
from stateward.cli.show.times import time_ago
from stateward.errors import StatewardError
from stateward.models import Access, Durability, Status
from stateward.salvage import list_versions

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread

DEFAULT_LIMIT = 50
COLUMNS = (
    "",
    "VERSION",
    "PARENT",
    "BRANCH",
    "STEP",
    "STATUS",
    "SAVED",
    "ID",
    "EDITS",
    "STORED",
    "ARCHIVED",
    "TAGS",
    "LABELS",
    "ASKS",
    "ANSWERED",
    "FAILED",
    "EFFECTS",
)
# Columns that are left out if they are empty: "" is the drawing, BRANCH needs more than one branch, and ARCHIVED an
# archive.
OPTIONAL = ("", "BRANCH", "STEP", "ID", "ARCHIVED", "TAGS", "LABELS", "ASKS", "ANSWERED", "FAILED", "EFFECTS")
BELOW = ("ID", "TAGS", "LABELS", "ASKS", "ANSWERED", "FAILED", "EFFECTS")
# What the last columns tell. Effects are those since the version before; it failed after it was saved.
_FAILED = ("failed",)
TOLD = (("asked",), ("answered", "signal"), _FAILED, ("effect",))
TOLD_WIDTH = 200


def history(
    context: typer.Context,
    thread: ThreadArgument,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Versions that were saved on this branch.")
    ] = "main",
    all_branches: Annotated[bool, typer.Option("--all", "-a", help="All branches, with a drawing of them.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="At most N versions; 0 = all.")
    ] = DEFAULT_LIMIT,
    internal: InternalOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List the versions of a thread, newest first, with questions, answers and tool calls.

    A damaged version or tool call does not hide the others: the command names it, and exits 1.

    \b
    Examples:
      stateward history booking-42
      stateward history booking-42 --all --limit 0
      stateward history booking-42 --branch retry --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread)
        info = handle.info()
        require_versions(info)
        names = [each.name for each in info.branches]
        if not all_branches and branch not in names:
            raise CommandError(f"thread {thread!r} has no branch {branch!r}; it has: {', '.join(names)}")
        listed = list_versions(handle, "" if all_branches else branch, limit + 1 if limit else None)
        found = listed.items
        timeline = Timeline(handle, info, min((each.sequence for each in found[: limit or None]), default=0))
        happened = [timeline.at(each, before) for each, before in zip_longest(found, found[1:])]
        head = next((each for each in found if each.version == info.version), None)
        later = timeline.later(head) if head is not None else []
        is_free = info.access == Access.REMOTE and not as_json and _is_free(handle)
    has_more = bool(limit) and len(found) > limit
    if has_more:
        found.pop()
    tags: dict[int, list[str]] = {}
    for each in info.tags:
        tags.setdefault(each.version, []).append(each.name)
    if as_json:
        print_json(
            [
                {
                    **checkpoint_as_json(each),
                    "tags": tags.get(each.version, []),
                    "happened": for_scripts(things),
                    "later": for_scripts(later) if each is head else [],
                }
                for each, things in zip(found, happened, strict=False)
            ]
        )
    else:
        happened = [shown(each, internal=internal) for each in happened]
        _print(found, happened, tags, is_drawn=all_branches, is_archived=info.access in (Access.OWNED, Access.REMOTE))
        if since := shown(later, internal=internal):
            say("since then", style="bold")
            for line in lines(since):
                say(line)
        if info.access in (Access.REMOTE, Access.ORPHAN):
            note(f"this is {held_by(info, is_free=is_free)}")
    if has_more:
        note(f"there are more than {limit} versions; --limit 0 lists all")
    others = [name for name in names if name != branch]
    if others and not all_branches and not as_json:
        note(f"there is more on other branches ({', '.join(others)}); --all shows them too")
    listed.damaged += timeline.effects.damaged
    end_if_damaged(listed, "element")


def _is_free(handle: Thread) -> bool:
    """Whether no sidecar owns the thread: a read names the owner, and a thread's facts the one that wrote it last."""
    try:
        return not handle.hydrate(slots=(), logs=()).owner_id
    except StatewardError:  # the versions are shown all the same
        return False


def _print(
    found: list[Checkpoint], happened: list[list[Happening]], tags: dict[int, list[str]], *, is_drawn: bool,
    is_archived: bool,
) -> None:  # fmt: skip
    forks = draw([(each.version, each.parent_version) for each in found]) if is_drawn else [""] * len(found)
    has_branches = len({each.branch for each in found}) > 1
    rows = [
        _row(each, fork, each.branch if has_branches else "", tags.get(each.version, []), is_archived=is_archived)
        + tuple(_told([] if what == _FAILED and each.status == Status.FAILED else things, *what) for what in TOLD)
        for each, fork, things in zip(found, forks, happened, strict=False)
    ]
    columns, shown = filled(COLUMNS, rows, OPTIONAL)
    print_table(columns, shown, right=("VERSION", "PARENT", "STEP", "EDITS", "STORED"), below=BELOW)


def _told(happened: list[Happening], *what: str) -> str:
    return shorten("; ".join(each.text for each in happened if each.what in what), TOLD_WIDTH)


def _row(each: Checkpoint, fork: str, branch: str, tags: Any, *, is_archived: bool) -> tuple[str, ...]:
    archived = "yes" if each.durability == Durability.ARCHIVED else "not yet"
    return (
        fork,
        str(each.version),
        str(each.parent_version or "-"),
        branch,
        "" if each.step is None else str(each.step),
        status_word(each.status) + (f" ({each.status_detail})" if each.status_detail else ""),
        time_ago(each.create_time),
        each.checkpoint_id,
        size(each.edit_bytes),
        size(each.stored_bytes),
        archived if is_archived else "",
        " ".join(tags),
        pairs(each.labels),
    )

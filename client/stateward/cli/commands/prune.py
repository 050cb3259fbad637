"""`stateward prune`: removes versions of a thread by a rule, after saying how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, YesOption, connect
from stateward.cli.show.output import CommandError, confirm, counted, print_json, say
from stateward.cli.show.times import read_length
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch

if TYPE_CHECKING:
    from stateward.models import PruneResult

VERSIONS_MAX = 100_000
SHOWN_MAX = 12


def prune(
    context: typer.Context,
    thread: ThreadArgument,
    versions: Annotated[
        str | None, typer.Option("--versions", metavar="LIST", help="These, such as 1-9,12 (not heads, not tagged).")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="Those saved longer ago: 12h, 30d.")
    ] = None,
    keep_latest: Annotated[
        int | None,
        typer.Option("--keep-latest", min=1, metavar="N", help="All but the newest N of each branch."),
    ] = None,
    move_heads: Annotated[
        bool,
        typer.Option("--move-heads", help="--versions may name heads: such a branch moves back, or is deleted."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be removed.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Remove versions of a thread now, by one rule. The newest version of each branch, tagged versions and
    bases of branches stay.

    The command asks first; without a terminal it needs --yes. It then removes none but the versions that it counted:
    what agents save while the question is open stays. If it removes fewer, because one of them was tagged meanwhile, it
    says so, and exits 1. The remaining versions stay readable.

    \b
    Examples:
      stateward prune booking-42 --keep-latest 20 --dry-run
      stateward prune booking-42 --older-than 30d
      stateward prune booking-42 --versions 3-17,21 --yes
      stateward prune booking-42 --versions 19-21 --move-heads
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if sum(each is not None for each in (versions, older_than, keep_latest)) != 1:
        raise typer.BadParameter("give one of --versions, --older-than and --keep-latest", param_hint="rule")
    rule: dict[str, Any] = {
        "versions": None if versions is None else read_versions(versions),
        "older_than": None if older_than is None else read_length(older_than, "--older-than"),
        "keep_latest_per_branch": keep_latest,
        "move_heads": move_heads,
    }
    if move_heads and versions is None:
        raise typer.BadParameter("it needs --versions", param_hint="--move-heads")
    with connect(context, target, namespace) as client:
        handle = client.thread(thread)
        result = handle.prune(**rule, dry_run=True)
        number, less = len(result.pruned_versions), 0
        if number and not dry_run:
            confirm(_question(thread, result), yes=yes)
            try:
                result = handle.prune(**rule, plan=result)
            except (ThreadNotFound, UidMismatch, VersionMismatch) as error:
                raise CommandError(f"{error.message}; look again") from None
            less = number - len(result.pruned_versions)
    _tell(result, as_json=as_json, dry_run=dry_run)
    if less > 0:
        why = "tagged or pruned since then, or a branch begins there now"
        raise CommandError(f"{counted(less, 'version')} less than asked about: {why}")


def _tell(result: PruneResult, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(
            {
                "pruned_versions": list(result.pruned_versions),
                "retained_versions": result.retained_versions,
                "dry_run": dry_run,
            }
        )
        return
    did = "would remove" if dry_run else "removed"
    shown = f" ({_ranges(result.pruned_versions)})" if result.pruned_versions else ""
    say(f"{did} {counted(len(result.pruned_versions), 'version')}{shown}; {result.retained_versions:,} left")


def _question(thread: str, found: PruneResult) -> str:
    number = len(found.pruned_versions)
    moved = [
        f"delete branch {each.branch!r}" if not each.version
        else f"move branch {each.branch!r} from version {each.previous_version} to {each.version}"
        for each in (found.plan.moved_heads if found.plan is not None else ())
    ]  # fmt: skip
    whole = counted(number + found.retained_versions, "version")
    return " and ".join([f"Remove {number:,} of {whole} of thread {thread!r} for good", *moved]) + "?"


def read_versions(text: str) -> list[int]:
    """Numbers and ranges: 1-9,12."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or not 1 <= int(first) <= int(last) < 1 << 63:
            raise typer.BadParameter(
                f"{part.strip()!r} is not a version or a range such as 3-17", param_hint="--versions"
            )
        if len(found) + int(last) - int(first) >= VERSIONS_MAX:
            raise typer.BadParameter(f"more than {VERSIONS_MAX:,} versions at once", param_hint="--versions")
        found += range(int(first), int(last) + 1)
    return found


def _ranges(versions: tuple[int, ...]) -> str:
    """Ascending numbers for people: 1-9, 12."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts[:SHOWN_MAX]) + (", …" if len(texts) > SHOWN_MAX else "")

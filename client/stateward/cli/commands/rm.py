"""`stateward rm`: removes threads, after a question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.commands.threads import collected
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, YesOption, complete_thread, connect
from stateward.cli.show.one_by_one import Failures
from stateward.cli.show.output import CommandError, clean, confirm, counted, note, print_json, say
from stateward.errors import StatewardError, ThreadNotFound, ThreadsUnreadable, VersionMismatch

if TYPE_CHECKING:
    from stateward import Client, ThreadInfo

PAGE_MAX = 1000


def rm(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="THREAD", help="Names of threads.", autocompletion=complete_thread),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="All threads whose names start with this.")
    ] = None,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="Ignore names of threads that do not exist.")
    ] = False,
    local_only: Annotated[
        bool,
        typer.Option("--local-only", help="Only from this disk; the archive keeps them, and may be unreachable."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Remove threads permanently: the daemon destroys each thread's key, and no version can be read again.

    The command asks first; without a terminal it needs --yes. A thread that changes while the question is open is not
    removed, and neither is the next one of its name; the command names it, and exits 1. If one of the threads does not
    exist, it removes none. Copies made with fork remain.

    \b
    Examples:
      stateward rm booking-42
      stateward rm --prefix test/ --yes
      stateward rm booking-42 booking-43 --missing-ok --yes
      stateward rm --prefix 2025/ --local-only --yes    the archive keeps them
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if bool(names) == (prefix is not None):
        raise typer.BadParameter("give names, or --prefix TEXT", param_hint="THREAD")
    if prefix == "":
        raise typer.BadParameter("an empty one would be every thread of the namespace", param_hint="--prefix")
    with connect(context, target, namespace) as client:
        if local_only and client.stats().archive is None:
            raise CommandError("--local-only would lose them for good: this daemon has no archive; leave it out")
        found, problem = _find(client, names or [], prefix, missing_ok, local_only)
        removed, reasons = list[str](), dict[str, str]()
        if found:
            confirm(_question(found, client.namespace, local_only), yes=yes)
        failures = Failures()
        failures.note(problem)
        try:
            for info in found:
                with nullcontext() if len(found) == 1 else failures.beside(info.name), _kept(reasons, info.name):
                    if _remove(client, info, local_only, was_asked=not yes):
                        removed.append(info.name)
                        if not as_json:
                            say(f"removed {clean(info.name)}" + (" from this disk" if local_only else ""))
                    else:
                        reasons[info.name] = "somebody else has deleted it"
                        note(f"thread {info.name!r} was not removed: {reasons[info.name]}")
        finally:  # also if the daemon goes away: what is removed is removed
            left = [each.name for each in found if each.name not in removed]
            if as_json:
                not_removed = [{"thread": name, "reason": reasons.get(name, "it was not tried")} for name in left]
                damaged = () if problem is None else problem.threads
                not_removed += [{"thread": each.name, "reason": each.message} for each in damaged]
                print_json({"removed": removed, "not_removed": not_removed})
    failures.end("not removed are", "look again")


def _remove(client: Client, info: ThreadInfo, local_only: bool, *, was_asked: bool) -> bool:
    """Removes the creation of the thread that was found. Returns False if it is not there any more. After a question,
    raises CommandError for that, and if anything was written to the thread since then: the daemon compares the journals
    as it deletes."""
    try:
        is_removed = client.thread(info.name).delete(
            missing_ok=True, expected_uid=info.uid, unchanged_since=info if was_asked else None, local_only=local_only
        )
    except VersionMismatch:
        what = f"thread {info.name!r} has changed since the question; it was not removed, look again"
        raise CommandError(what) from None
    if was_asked and not is_removed:
        raise CommandError(
            f"thread {info.name!r} was deleted elsewhere since the question, and a new one of its name is left alone; "
            "look again"
        )
    return is_removed


@contextmanager
def _kept(reasons: dict[str, str], name: str) -> Iterator[None]:
    """Keeps the reason why a thread was not removed."""
    try:
        yield
    except (CommandError, StatewardError) as error:
        reasons[name] = str(error)
        raise


def _find(
    client: Client, names: list[str], prefix: str | None, missing_ok: bool, local_only: bool
) -> tuple[list[ThreadInfo], ThreadsUnreadable | None]:
    if prefix is not None:
        infos, problem = collected(client.threads(name_prefix=prefix, page_size=PAGE_MAX))
        found = sorted(infos, key=lambda each: each.name)
        if not found and problem is None and not missing_ok:
            raise CommandError(
                f"no thread of namespace {client.namespace} starts with {prefix!r}; `stateward threads` lists them"
            )
        return found, problem
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(_find_here(client, name) if local_only else client.thread(name).info())
        except ThreadNotFound as error:
            if not missing_ok:
                raise CommandError(f"{error.message}; nothing was removed, --missing-ok ignores such names") from None
    return found, None


def _find_here(client: Client, name: str) -> ThreadInfo:
    """The thread, if it is on this disk. Lists are of this disk only, where `info` may have to ask the archive."""
    for info in client.threads(name_prefix=name, page_size=PAGE_MAX):
        if info.name == name:
            return info
    raise ThreadNotFound(f"there is no thread {name!r} on this disk")


def _question(found: list[ThreadInfo], namespace: str, local_only: bool) -> str:
    which = f"thread {found[0].name!r}" if len(found) == 1 else f"{len(found):,} threads"
    if local_only:
        entries = sum(each.unarchived_entries for each in found)
        lost = f", and lose {counted(entries, 'entry', 'entries')} that only it has" if entries else ""
        return f"Remove {which} of namespace {namespace} from this disk{lost}?"
    versions = sum(each.retained_versions for each in found)
    kinds = {
        "record": sum(each.records for each in found),
        "effect": sum(each.effects for each in found),
        "waiting signal": sum(each.pending_signals for each in found),
    }
    parts = [counted(versions, "version"), *(counted(number, kind) for kind, number in kinds.items() if number)]
    lost = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"Remove {which} of namespace {namespace} with {lost} for good?"

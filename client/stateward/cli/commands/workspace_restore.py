"""`stateward workspace ls`, `cat`, `diff`, `plan`, `restore` and `undo`: looking at the files of versions, and going
back to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.options.where import FORMS, AtOption, find_checkpoint
from stateward.cli.show.output import CommandError, counted, note, print_json, print_table, say, size
from stateward.errors import RestoreUnfinished, StatewardError

if TYPE_CHECKING:
    from stateward import Client, PathChange, PathFacts, Restored, RestorePlan, Rules, Thread, Workspace

DirectoryArgument = Annotated[str, typer.Argument(metavar="DIR", help="The directory.")]
OtherOption = Annotated[
    str | None, typer.Option("--thread", metavar="OTHER", help="The thread whose version it is; default: THREAD.")
]
GitignoreOption = Annotated[bool, typer.Option("--gitignore", help="What .gitignore files name is left out, too.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Take a directory such as your home directory, too.")]
KeepOption = Annotated[
    bool, typer.Option("--keep-changed", help="Files that changed since the restore was killed stay as they are.")
]
SHOWN_MAX = 1000
SIGNS = {"make": "+", "replace": "~", "delete": "-"}


def ls(
    context: typer.Context,
    thread: ThreadArgument,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory of it; default: all.")] = "",
    at: AtOption = None,
    branch: BranchOption = "main",
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List the files of a version.

    \b
    Examples:
      stateward workspace ls coding-7
      stateward workspace ls coding-7 src --at 40 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        found = handle.trees.list(find_checkpoint(handle, at), path)
    if as_json:
        print_json([{"path": _text(name), **_as_json(facts)} for name, facts in found.items()])
    else:
        rows = [(each.kind, size(each.size_bytes) if each.kind == "file" else "", _shown(name, each))
                for name, each in found.items()]  # fmt: skip
        print_table(("KIND", "SIZE", "PATH"), rows, right=("SIZE",))


def cat(
    context: typer.Context,
    thread: ThreadArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file.")],
    at: AtOption = None,
    branch: BranchOption = "main",
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print a file of a version, byte by byte.

    \b
    Examples:
      stateward workspace cat coding-7 src/main.py --at 40
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        data = handle.trees.read(path, find_checkpoint(handle, at))
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def diff(
    context: typer.Context,
    thread: ThreadArgument,
    a: Annotated[str, typer.Argument(metavar="FROM", help=f"From this version: {FORMS}.")],
    b: Annotated[str | None, typer.Argument(metavar="TO", help="To this version; default: the newest.")] = None,
    branch: BranchOption = "main",
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show which files differ between two versions: + was added, ~ is another one, - was removed.

    \b
    Examples:
      stateward workspace diff coding-7 40
      stateward workspace diff coding-7 40 41 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        changes = handle.trees.diff(find_checkpoint(handle, a, "FROM"), find_checkpoint(handle, b, "TO"))
    if as_json:
        print_json(list(map(_change_as_json, changes)))
    else:
        _say_changes(changes)


def plan(
    context: typer.Context,
    thread: ThreadArgument,
    directory: DirectoryArgument,
    at: AtOption = None,
    branch: BranchOption = "main",
    other: OtherOption = None,
    gitignore: GitignoreOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show what a restore would change in a directory, and what it would keep. Nothing is written there.

    \b
    Examples:
      stateward workspace plan coding-7 /app --at 40
      stateward workspace plan coding-7 /app --thread coding-6 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        with _working_in(directory):
            found = _plan(client, thread, directory, at, branch, other, _rules(gitignore=gitignore, force=force))
        _show_plan(found, as_json=as_json)


def restore(
    context: typer.Context,
    thread: ThreadArgument,
    directory: DirectoryArgument,
    at: AtOption = None,
    branch: BranchOption = "main",
    other: OtherOption = None,
    mode: Annotated[
        Literal["files", "conversation", "both"],
        typer.Option("--mode", help="What goes back: the files, the head of the branch, or both."),
    ] = "files",
    resume: Annotated[bool, typer.Option("--resume", help="Finish a restore that was killed.")] = False,
    take_back: Annotated[bool, typer.Option("--undo", help="Take a restore back that was killed.")] = False,
    keep_changed: KeepOption = False,
    gitignore: GitignoreOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Bring a directory back to the files of a version. `stateward workspace plan` shows before what that changes.

    A snapshot of what is there comes first: `stateward workspace undo` brings it back. What the rules leave out, such
    as .git, .venv and .env, stays as it is. A file that changes meanwhile is not touched, and stops the restore.

    \b
    Examples:
      stateward workspace restore coding-7 /app --at 40
      stateward workspace restore coding-7 /app --at 40 --mode both
      stateward workspace restore coding-7 /app --resume
      stateward workspace restore coding-7 /app --undo --keep-changed
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if resume and take_back:
        raise typer.BadParameter("a call finishes a restore or takes it back", param_hint="--undo")
    if keep_changed and not (resume or take_back):
        raise typer.BadParameter("it needs --resume or --undo", param_hint="--keep-changed")
    if (resume or take_back) and any((at, other, mode != "files")):
        raise typer.BadParameter("the restore that was killed has its own version", param_hint="--resume, --undo")
    rules = _rules(gitignore=gitignore, force=force)
    with connect(context, target, namespace) as client:
        if resume or take_back:
            with _working_in(directory):
                place = client.thread(thread).workspace(directory, rules)
                done = (place.resume if resume else place.take_back)(keep_changed=keep_changed)
            _say_done(done, 0, as_json=as_json)
            return
        with _working_in(directory):
            found = _plan(client, thread, directory, at, branch, other, rules)
            undo = found.apply(mode)
        if not as_json:
            _say_git(found)
        _say_done(undo.done, undo.version, as_json=as_json)


def undo(
    context: typer.Context,
    thread: ThreadArgument,
    directory: DirectoryArgument,
    gitignore: GitignoreOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Bring back the files that were in a directory before its last restore. Undone once more, the restored ones come.

    The head of the branch stays: `stateward branch THREAD main --move-to VERSION` moves it.

    \b
    Examples:
      stateward workspace undo coding-7 /app
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        with _working_in(directory):
            place = client.thread(thread).workspace(directory, _rules(gitignore=gitignore, force=force))
            made = place.plan_undo().apply()
        _say_done(made.done, made.version, as_json=as_json)


@contextmanager
def _working_in(directory: str) -> Iterator[None]:
    """Raises CommandError if the system does not let the command work there, or if a restore there is not over."""
    try:
        yield
    except RestoreUnfinished as error:
        if "no restore" in error.message:
            raise
        advice = "`stateward workspace restore THREAD DIR` goes on with --resume, and back with --undo"
        raise CommandError(f"{error.message}; {advice}") from None
    except OSError as error:
        if isinstance(error, StatewardError):
            raise
        raise CommandError(f"{error.filename or directory}: {error.strerror or error}") from None
    except ImportError as error:
        raise CommandError(str(error)) from None


def _rules(*, gitignore: bool, force: bool) -> Rules:
    from stateward import Rules  # noqa: PLC0415  the client is loaded at first use

    return Rules(gitignore=gitignore, force=force)


def _plan(
    client: Client, name: str, directory: str, at: str | None, branch: str, other: str | None, rules: Rules
) -> RestorePlan:
    thread: Thread = client.thread(name, branch=branch)
    place: Workspace = thread.workspace(directory, rules)
    source = client.thread(other, branch=branch) if other else thread
    return place.plan(find_checkpoint(source, at), branch=branch if other else None, thread=other)


def _show_plan(found: RestorePlan, *, as_json: bool) -> None:
    kept = {
        "ignored": found.ignored, "unheld": found.unheld, "omitted": found.omitted, "blocked": found.blocked,
    }  # fmt: skip
    if as_json:
        facts = {name: list(map(_text, paths)) for name, paths in kept.items()}
        heads = {"git": found.git, "git_now": found.git_now}
        known = {name: None if head is None else asdict(head) for name, head in heads.items()}
        print_json({"version": found.version, "changes": list(map(_change_as_json, found.changes)), **facts, **known})
        return
    _say_changes(found.changes)
    said = {
        "ignored": "kept, because rules leave it out", "unheld": "kept, because it changed while it was read",
        "omitted": "of the version, and not written", "blocked": "holds what is kept, and would have to go",
    }  # fmt: skip
    for name, paths in kept.items():
        for path in paths[:SHOWN_MAX]:
            say(f"  {_text(path)}  ({said[name]})")
        if len(paths) > SHOWN_MAX:
            note(f"{len(paths) - SHOWN_MAX:,} more: {said[name]}")
    counts = {sign: sum(each.action == action for each in found.changes) for action, sign in SIGNS.items()}
    note(f"version {found.version}: {counts['+']:,} made, {counts['~']:,} replaced, {counts['-']:,} deleted")
    _say_git(found)


def _say_git(found: RestorePlan) -> None:
    """Says where git was, and where it is if that is elsewhere."""
    before, now = found.git, found.git_now
    if before is not None:
        is_there = now is not None and (now.branch, now.commit) == (before.branch, before.commit)
        elsewhere = f"; it is on {now}" if now else "; no repository is there now"
        note(f"git was on {before}" + ("" if is_there else elsewhere))


def _say_changes(changes: tuple[PathChange, ...]) -> None:
    for each in changes[:SHOWN_MAX]:
        say(f"{SIGNS[each.action]} {_text(each.path)}")
    if len(changes) > SHOWN_MAX:
        note(f"{len(changes) - SHOWN_MAX:,} more; --json shows all")


def _say_done(done: Restored, version: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"made": done.made, "replaced": done.replaced, "deleted": done.deleted,
                    "kept": list(map(_text, done.kept)), "undo_version": version or None})  # fmt: skip
        return
    for path in done.kept:
        note(f"{_text(path)} stays as it is: somebody changed it meanwhile, or put something into it")
    before = f"; version {version} names what was there before" if version else ""
    say(f"{counted(done.made, 'path')} made, {done.replaced:,} replaced, {done.deleted:,} deleted{before}")


def _change_as_json(change: PathChange) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    known = {name: None if facts is None else _as_json(facts) for name, facts in sides.items()}
    return {"path": _text(change.path), "action": change.action, **known}


def _as_json(facts: PathFacts) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": facts.kind}
    if facts.kind == "file":
        found |= {"size": facts.size_bytes, "executable": facts.executable}
    if facts.kind == "symlink":
        found["target"] = _text(facts.target)
    return found if facts.kind == "directory" else {**found, "mtime_ns": facts.mtime_ns}


def _shown(path: bytes, facts: PathFacts) -> str:
    tail = {"directory": "/", "symlink": f" -> {_text(facts.target)}"}.get(facts.kind, "")
    return _text(path) + tail


def _text(path: bytes) -> str:
    """A path as text: bytes that are no UTF-8, and control characters, as escapes."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()

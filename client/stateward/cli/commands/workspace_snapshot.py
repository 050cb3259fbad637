"""`stateward workspace snapshot` and `du`: keeping the files of a directory, and what they take."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.show.output import CommandError, counted, note, print_facts, print_json, size

if TYPE_CHECKING:
    from stateward import Snapshot

NAMED_MAX = 10

def snapshot(
    context: typer.Context,
    thread: ThreadArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The directory.")],
    branch: Annotated[str, typer.Option("--branch", metavar="B", help="The branch that gets the version.")] = "main",
    gitignore: Annotated[bool, typer.Option("--gitignore", help="Leave out what .gitignore files say.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also the home directory, /, and one with the daemon's data.")
    ] = False,
    git: Annotated[
        Literal["head", "status", "whole"],
        typer.Option("--git", help="Note branch and commit; ask git for changes, too; or keep all of .git."),
    ] = "head",
    max_files: Annotated[int, typer.Option("--max-files", min=1, metavar="N", help="Refuse more files.")] = 200_000,
    max_bytes: Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="Refuse more bytes.")] = "2 GiB",
    max_file_bytes: Annotated[
        str, typer.Option("--max-file-bytes", metavar="SIZE", help="Refuse a file of more bytes.")
    ] = "256 MiB",
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Save a version with the files of a directory, on top of the branch's head.

    The state, the status and an open question stay as they are. The command reads only files that changed since the
    last snapshot of the directory. It leaves out .git, node_modules, .venv and the like, files that usually hold
    secrets, and what .statewardignore files name, and says so.

    \b
    Examples:
      stateward workspace snapshot coding-7 /app
      stateward workspace snapshot coding-7 . --gitignore --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    from stateward import Rules  # noqa: PLC0415  the client is loaded at first use

    try:
        rules = Rules(
            gitignore=gitignore, force=force, git=git, max_files=max_files, max_bytes=max_bytes,
            max_file_bytes=max_file_bytes,
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(f"--{str(error).replace('_', '-')}") from None
    with connect(context, target, namespace) as client:
        handle = client.thread(thread).branch(branch)
        try:
            taken = handle.workspace(directory, rules).snapshot()
        except (OSError, ImportError) as error:
            raise CommandError(str(error)) from None
        saved = handle.apply([], workspace=taken)
    if as_json:
        print_json({"thread": thread, "version": saved.version, **_as_json(taken)})
        return
    print_facts(
        [
            ("version", f"{saved.version} of {thread}"),
            ("files", f"{taken.files:,}, {size(taken.tree.size_bytes)}"),
            ("tree", taken.tree.digest.hex()),
            ("read", f"{counted(taken.read, 'file')}, {size(taken.read_bytes)}"),
            ("sent", f"{counted(taken.sent, 'object')}, {size(taken.sent_bytes)}"),
            *([("git", str(taken.git))] if taken.git is not None else []),
        ]
    )
    _say_some("left out", [str(each) for each in taken.left_out])
    _say_some("changed while it was read", [_shown(each) for each in taken.torn])
    _say_some("differs from another name in case only", [_shown(each) for each in taken.collisions])


def usage(
    context: typer.Context,
    thread: ThreadArgument,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show what the files of all versions of a thread take in the daemon.

    \b
    Examples:
      stateward workspace du coding-7
      stateward workspace du coding-7 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        found = client.thread(thread).trees.usage()
    if as_json:
        print_json(asdict(found))
        return
    print_facts(
        [
            ("trees", f"{found.trees:,}, {size(found.tree_bytes)} as whole copies"),
            ("objects", f"{found.directories:,} directories and {found.chunks:,} chunks, {size(found.size_bytes)}"),
            ("at rest", f"{size(found.stored_bytes)} in {counted(found.packs, 'pack')} and in the journal"),
        ]
    )


def _as_json(taken: Snapshot) -> dict[str, Any]:
    return {
        "tree": taken.tree.digest.hex(),
        "files": taken.files,
        "size_bytes": taken.tree.size_bytes,
        "read": taken.read,
        "read_bytes": taken.read_bytes,
        "sent": taken.sent,
        "sent_bytes": taken.sent_bytes,
        "torn": [_shown(each) for each in taken.torn],
        "left_out": [{"path": _shown(each.path), "reason": each.reason} for each in taken.left_out],
        "collisions": [_shown(each) for each in taken.collisions],
        "git": None if taken.git is None else asdict(taken.git),
    }


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _say_some(what: str, names: list[str]) -> None:
    """Names the first of some paths on stderr, and counts the others."""
    for each in names[:NAMED_MAX]:
        note(f"{what}: {each}")
    if len(names) > NAMED_MAX:
        note(f"{what}: {len(names) - NAMED_MAX:,} more, which --json lists")

"""`stateward workspace snapshot` and `du`: keeping the files of a directory, and what they take."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.options.limits import (
    MAX_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MaxBytesOption,
    MaxFileBytesOption,
    MaxFilesOption,
    rules_of,
)
from stateward.cli.show.output import CommandError, counted, name_some, print_facts, print_json, size

if TYPE_CHECKING:
    from stateward import Snapshot


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
    max_files: MaxFilesOption = MAX_FILES,
    max_bytes: MaxBytesOption = MAX_BYTES,
    max_file_bytes: MaxFileBytesOption = MAX_FILE_BYTES,
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
    rules = rules_of(
        gitignore=gitignore, force=force, git=git, max_files=max_files, max_bytes=max_bytes,
        max_file_bytes=max_file_bytes,
    )  # fmt: skip
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
    name_some("left out", [str(each) for each in taken.left_out])
    name_some("changed while it was read", [_shown(each) for each in taken.torn])
    name_some("differs from another name in case only", [_shown(each) for each in taken.collisions])


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

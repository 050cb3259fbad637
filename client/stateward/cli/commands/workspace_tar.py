"""`stateward workspace export` and `import`: the files of versions as tars."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer

from stateward.cli.files.files import written
from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.options.limits import (
    MAX_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MaxBytesOption,
    MaxFileBytesOption,
    MaxFilesOption,
    rules_of,
)
from stateward.cli.options.where import AtOption, find_checkpoint
from stateward.cli.show.output import CommandError, counted, name_some, note, print_json, size
from stateward.errors import StatewardError


def export_tar(
    context: typer.Context,
    thread: ThreadArgument,
    tar: Annotated[str, typer.Option("--tar", metavar="FILE", help='Written at the end; .gz packs. "-" = stdout.')],
    at: AtOption = None,
    branch: BranchOption = "main",
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write the files of a version as a tar. Names, contents, symlinks, times and execution are exact.

    \b
    Examples:
      stateward workspace export coding-7 --tar app.tar --at 40
      stateward workspace export coding-7 --tar - | tar -t
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        version = find_checkpoint(handle, at)
        with written(None if tar == "-" else _named(tar)) as output:
            tree = handle.trees.export_tar(cast("IO[bytes]", output), version)
    note(f"{counted(tree.files, 'file')}, {size(tree.size_bytes)}")


def import_tar(
    context: typer.Context,
    thread: ThreadArgument,
    tar: Annotated[str, typer.Option("--tar", metavar="FILE", help='The tar, also a packed one. "-" = stdin.')],
    branch: BranchOption = "main",
    max_files: MaxFilesOption = MAX_FILES,
    max_bytes: MaxBytesOption = MAX_BYTES,
    max_file_bytes: MaxFileBytesOption = MAX_FILE_BYTES,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Save a version with the files of a tar, on top of the branch's head. Nothing is unpacked on this machine.

    The state stays as it is. A tar that is cut off or damaged, or that has absolute names or "..", is refused. Devices
    and FIFOs are left out, and named.

    \b
    Examples:
      stateward workspace import coding-7 --tar app.tar.gz
      tar -c . | stateward workspace import coding-7 --tar -
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    rules = rules_of(
        left_out=(), secrets=(), git="whole", max_files=max_files, max_bytes=max_bytes, max_file_bytes=max_file_bytes
    )
    with connect(context, target, namespace) as client:
        handle = client.thread(thread).branch(branch)
        with _opened(tar) as file:
            taken = handle.trees.import_tar(file, rules)
        saved = handle.apply([], workspace=taken)
    left_out = [{"path": each.path.decode(errors="backslashreplace"), "reason": each.reason} for each in taken.left_out]
    if as_json:
        facts: dict[str, Any] = {"thread": thread, "version": saved.version, "tree": taken.tree.digest.hex()}
        counts = {"files": taken.files, "size_bytes": taken.tree.size_bytes, "sent": taken.sent}
        print_json({**facts, **counts, "sent_bytes": taken.sent_bytes, "left_out": left_out})
        return
    name_some("left out", [str(each) for each in taken.left_out])
    files = f"{counted(taken.files, 'file')}, {size(taken.tree.size_bytes)}"
    print(f"version {saved.version} of {thread}: {files}; {counted(taken.sent, 'object')} sent")


def _named(name: str) -> Path:
    if not name or Path(name) == Path():
        raise typer.BadParameter("it is empty; give the name of a file", param_hint="--tar")
    return Path(name)


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Opens a file, or stdin. Raises CommandError if it cannot be read."""
    try:
        if name == "-":
            yield sys.stdin.buffer
            return
        with _named(name).open("rb") as file:
            yield file
    except OSError as error:
        if isinstance(error, StatewardError):
            raise
        raise CommandError(f"{error.filename or name}: {error.strerror or error}") from None
    except ImportError as error:
        raise CommandError(str(error)) from None

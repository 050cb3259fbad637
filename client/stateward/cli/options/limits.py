"""Options that say how much a snapshot may have, and the rules that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.show.output import CommandError

if TYPE_CHECKING:
    from stateward import Rules

MaxFilesOption = Annotated[int, typer.Option("--max-files", min=1, metavar="N", help="Refuse more files.")]
MaxBytesOption = Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="Refuse more bytes.")]
MaxFileBytesOption = Annotated[
    str, typer.Option("--max-file-bytes", metavar="SIZE", help="Refuse a file of more bytes.")
]
MAX_FILES, MAX_BYTES, MAX_FILE_BYTES = 200_000, "2 GiB", "256 MiB"


def rules_of(**given: Any) -> Rules:
    """Returns the rules that a command was given. Raises CommandError, which names the option."""
    from stateward import Rules  # noqa: PLC0415  the client is loaded at first use

    try:
        return Rules(**given)
    except ValueError as error:
        raise CommandError(f"--{str(error).replace('_', '-')}") from None

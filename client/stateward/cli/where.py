"""How a version is named on the command line: `12`, a tag, `tag:12` for a tag that looks like a number, or `id:NAME`
for the checkpoint id that its writer gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.output import CommandError

if TYPE_CHECKING:
    from stateward import Thread

VERSION_DIGITS_MAX = 19
FORMS = "12, a tag, or id:CHECKPOINT_ID"

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="VERSION", help=f"A version: {FORMS}; default: the newest.")
]


def read_where(text: str, option: str = "--at", least: int = 1) -> dict[str, Any]:
    """The version as keywords for `hydrate` and `checkpoint`. CommandError for a number that is none."""
    kind, separator, name = text.partition(":")
    if separator and kind in ("id", "tag"):
        if not name:
            raise CommandError(f"{option} {text} lacks the name after the colon; a version is {FORMS}")
        return {"checkpoint_id" if kind == "id" else "tag": name}
    if not text.removeprefix("-").isdecimal():
        if not text:
            raise CommandError(f"{option} is empty; a version is {FORMS}")
        return {"tag": text}
    if len(text) > VERSION_DIGITS_MAX or not least <= int(text) < 1 << 63:
        counted = "from 1" if least else "from 1, and 0 is the empty state"
        raise CommandError(f"{option} {text} is no version; they count {counted}")
    return {"version": int(text)}


def find_version(thread: Thread, text: str | None, option: str = "--at", least: int = 1) -> int | None:
    """The number of a version; None = none was given, which means the newest. Asks the daemon about names only."""
    if text is None:
        return None
    where = read_where(text, option, least)
    if "version" in where:
        return int(where["version"])
    return thread.checkpoint(**where).version

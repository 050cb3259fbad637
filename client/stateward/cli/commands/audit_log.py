"""`stateward audit-log`: the file of `stateward-sidecar --audit-log`. Needs no daemon."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption
from stateward.cli.show.output import CommandError, clean, note, print_json, say

NOTHING = "0" * 64
"""What the first line of a chain has as the hash of the line before it."""
EXIT_WRONG, EXIT_UNREADABLE = 1, 2

audit_log = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@audit_log.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Check the file in which a daemon keeps its security events.

    \b
    Examples:
      stateward-sidecar --audit-log /var/log/stateward/audit.log
      stateward audit-log check /var/log/stateward/audit.log
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@dataclass
class Chain:
    """What was read of a chain so far."""

    lines: int = 0
    begins: str = ""
    """The hash that the first line names."""
    last: str = ""
    """That of the last line."""
    before_last: str = ""
    first_time: str = ""
    last_time: str = ""
    torn: list[str] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    """Hashes that have not been met yet."""
    open: str = ""
    """The place of a line that is no event, until the next line explains it."""


class _WrongError(Exception):
    """A line does not fit."""


@audit_log.command(short_help="Check that no line was changed, removed or inserted.")
def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The file; renamed ones before it, the oldest first.")
    ],
    has: Annotated[
        list[str] | None,
        typer.Option("--has", metavar="HASH", help="A hash that was printed before: its line must still be there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that each line continues the line before it, and print the hash of the last one.

    The hash finds lines that were changed, removed, inserted or reordered, and says which is the first that does not
    fit. It cannot find that the last lines are missing, or that all lines were written again: keep the printed hash on
    another machine, and give it with --has next time.

    Exit code 0: all lines fit. 1: a line does not. 2: a file cannot be read.

    \b
    Examples:
      stateward audit-log check audit.log
      stateward audit-log check audit.log.1 audit.log --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    for each in has or []:
        if not re.fullmatch("[0-9a-f]{64}", each):
            raise CommandError(f"--has {clean(each)}: a hash has 64 hex digits; this command prints it")
    chain = Chain(wanted=set(has or []))
    wrong = ""
    try:
        for file in files:
            _read(file, chain)
        if chain.wanted:
            raise _WrongError(f"no line has the hash {min(chain.wanted)}: lines are missing, or were written again")
    except _WrongError as error:
        wrong = str(error)
    except OSError as error:
        note(f"cannot read {clean(str(error.filename))}: {error.strerror}")
        raise typer.Exit(EXIT_UNREADABLE) from None
    if as_json:
        print_json(
            {
                "fits": not wrong, "wrong": wrong, "lines": chain.lines, "begins": chain.begins, "last": chain.last,
                "first_time": chain.first_time, "last_time": chain.last_time, "torn": chain.torn,
            }
        )  # fmt: skip
    else:
        _show(chain, wrong)
    if wrong:
        raise typer.Exit(EXIT_WRONG)


def _show(chain: Chain, wrong: str) -> None:
    for place in chain.torn:
        note(f"{place} was not written whole: the daemon was killed there, or the disk was full")
    if wrong:
        note(wrong)
        return
    if chain.begins not in ("", NOTHING):
        note(f"the first line continues {chain.begins}, which is in a file before")
    times = f", from {clean(chain.first_time)} to {clean(chain.last_time)}; the last is" if chain.lines else ""
    say(f"{chain.lines} lines fit{times}")
    if chain.lines:
        say(chain.last)


def _read(file: Path, chain: Chain) -> None:
    """Reads a file of the chain. Raises _WrongError, OSError."""
    name = clean(file.name)
    for number, line in enumerate(_lines(file), 1):
        place = f"{name}, line {number}"
        if not line.endswith(b"\n"):  # the daemon may be writing it
            chain.torn.append(place)
            chain.open = ""
            return
        _take(line[:-1], place, chain)
    if chain.open:
        raise _WrongError(f"{chain.open}: is no event")


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from opened


def _take(line: bytes, place: str, chain: Chain) -> None:
    event = _parse(line)
    if event is None:
        if chain.open:
            raise _WrongError(f"{chain.open}: is no event")
        chain.open = place
    else:
        _check(event, place, chain)
    chain.before_last, chain.last = chain.last, hashlib.sha256(line).hexdigest()
    chain.wanted.discard(chain.last)
    chain.lines += 1


def _check(event: dict[str, Any], place: str, chain: Chain) -> None:
    before = str(event.get("before", ""))
    if chain.lines and before != chain.last:
        raise _WrongError(
            f"{place}: does not continue the line before it: one of the two was changed, or lines between them are gone"
        )
    is_torn = event.get("event") == "torn"
    if chain.open and not is_torn:
        raise _WrongError(f"{chain.open}: is no event")
    if is_torn:
        of = str(event.get("of", ""))
        if not chain.before_last:  # the torn line is the first one that was read
            chain.begins = of
        elif of != chain.before_last:
            raise _WrongError(f"{place}: names another line as the one before the torn one")
        chain.torn.append(chain.open or f"the line before {place}")
        chain.open = ""
    if not chain.lines:
        chain.begins = before
    chain.first_time = chain.first_time or str(event.get("time", ""))
    chain.last_time = str(event.get("time", ""))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("before"), str) else None

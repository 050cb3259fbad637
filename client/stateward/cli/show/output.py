"""Printing: tables on a terminal, plain columns in a pipe, sizes for people, questions, errors as one line.

A state contains data of unknown origin. Its control characters are shown as escapes, so that they cannot control the
terminal, and its text is never read as markup.

rich is imported only to print on a terminal, because output into a pipe and `--help` do not need it.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

NAMED_MAX = 10
"""So many things are named at once."""


UNIT_STEP = 1024


class CommandError(Exception):
    """A mistake that only the user can correct. The message says what to do, in one line."""


def is_terminal() -> bool:
    """Whether a person looks at the output."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """The terminal, with nothing interpreted in what is printed."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def clean(text: str) -> str:
    """The text on one line, with escapes in place of what is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def clean_lines(text: str) -> str:
    """The text with escapes in place of what is not printable, but for ends of lines and tabs. They are those of JSON,
    so that JSON stays JSON."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text)


def shorten(text: str, width: int) -> str:
    """At most `width` characters, cleaned. What is cut away is never looked at."""
    cleaned = clean(text[: width + 1])
    return cleaned if len(cleaned) <= width else cleaned[: width - 1] + "…"


def fail(message: str) -> None:
    """Prints an error as one line to stderr."""
    line = f"stateward: {clean(' '.join(message.split()))}"
    if sys.stderr.isatty():
        console(stderr=True).print(line, style="red", soft_wrap=True)
    else:
        print(line, file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Prints a remark that is not part of the result, to stderr."""
    print(f"stateward: {clean(message)}", file=sys.stderr, flush=True)


def confirm(
    question: str, *, yes: bool, give: str = "give --yes to say so", otherwise: str = "nothing was removed"
) -> None:
    """Asks before a command does what the user should know of. Raises CommandError if the user refuses, or if there is
    neither a terminal nor --yes; `give` then names the option to give.

    A yes is about what the question shows. The caller acts on just that: on the uid, the versions with their digest or
    the wait id that it read before it asked. It never looks the thing up again by its name.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{clean(question)} There is no terminal to ask on: {give}")
    print(f"{clean(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError(otherwise)


def say(text: str = "", style: str = "") -> None:
    """Prints a line, coloured on a terminal."""
    if is_terminal():
        console().print(text, style=style or None, soft_wrap=True)
    else:
        print(text, flush=True)


def say_value(text: str) -> None:
    """Prints a value of unknown origin: as it is into a pipe, and so that it cannot control a terminal."""
    print(clean_lines(text) if is_terminal() else text, flush=True)


def print_json(value: Any) -> None:
    """Prints JSON; what UTF-8 cannot say (lone surrogates) goes as escapes."""
    print(json.dumps(value, indent=2 if is_terminal() else None))


def print_line_of_json(value: Any) -> None:
    """Prints JSON on one line, at once: for what comes bit by bit."""
    print(json.dumps(value), flush=True)


def filled(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The table without those of the optional columns in which every cell is empty."""
    kept = [at for at, name in enumerate(columns) if name not in optional or any(row[at] for row in rows)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Prints rows under their columns; those named in `right` are numbers. A pipe gets aligned text, never cut.

    On a terminal that is too narrow, what stands in the columns `below` goes to a line of its own under its row.
    """
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *cleaned, strict=True)]
    if not is_terminal():
        for row in [list(columns), *cleaned]:
            print(_aligned(columns, row, widths, right))
    elif below and sum(widths) + 3 * len(widths) > console().width:
        _print_narrow(columns, cleaned, right, below)
    else:
        _print_boxed(columns, cleaned, right)


def _aligned(columns: Sequence[str], row: Sequence[str], widths: Sequence[int], right: Sequence[str]) -> str:
    cells = [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _print_boxed(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def _print_narrow(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], below: Sequence[str]
) -> None:
    kept = [at for at, name in enumerate(columns) if name not in below]
    shown = [columns[at] for at in kept]
    cut = [[row[at] for at in kept] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(shown, *cut, strict=True)]
    say(_aligned(shown, shown, widths, right), style="bold")
    for row, whole in zip(cut, rows, strict=True):
        say(_aligned(shown, row, widths, right))
        more = [f"{name.lower()}: {cell}" for name, cell in zip(columns, whole, strict=True) if name in below and cell]
        if more:
            say(" " * (widths[0] + 2) + "  ".join(more), style="dim")


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names and values, one a line; a fact with an empty value is left out."""
    known = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        if is_terminal():
            from rich.text import Text

            console().print(Text.assemble((f"{name:<{width}}  ", "bold"), clean(value)))
        else:
            print(f"{name:<{width}}  {clean(value)}")


def size(count_bytes: float) -> str:
    """Bytes for people, in the units of the daemon's settings: 512 B, 6.33 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < UNIT_STEP:
            return f"{count_bytes:.0f} {unit}" if unit == "B" or count_bytes >= 100 else f"{count_bytes:.3g} {unit}"
        count_bytes /= UNIT_STEP
    return f"{count_bytes:,.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things for people: 1 version, 12 versions."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def name_some(what: str, names: Sequence[str]) -> None:
    """Names the first of some things on stderr, and counts the others."""
    for each in names[:NAMED_MAX]:
        note(f"{what}: {each}")
    if len(names) > NAMED_MAX:
        note(f"{what}: {len(names) - NAMED_MAX:,} more, which --json lists")


def milliseconds(seconds: float) -> str:
    """A short time for people."""
    return f"{seconds * 1000:.1f} ms"


def times(ratio: float) -> str:
    """How many times more: 152 ×, 3.4 ×."""
    return f"{ratio:,.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×"

"""Printing: tables on a terminal, plain columns in a pipe, sizes and times for people, errors as one line.

What comes out of a state is data that anybody may have written: control characters in it are shown as escapes, so that
they cannot drive the reader's terminal, and nothing in it is taken for markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


class CommandError(Exception):
    """Something only the user can put right. The message says what to do, in one line."""


def is_terminal() -> bool:
    """Whether a person looks at the output."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal, with nothing interpreted in what is printed."""
    return Console(highlight=False, markup=False, emoji=False)


def clean(text: str) -> str:
    """The text on one line, with escapes in place of what is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shorten(text: str, width: int) -> str:
    """At most `width` characters, cleaned. What is cut away is never looked at."""
    cleaned = clean(text[: width + 1])
    return cleaned if len(cleaned) <= width else cleaned[: width - 1] + "…"


def fail(message: str) -> None:
    """Prints an error as one line to stderr."""
    line = f"stateward: {clean(' '.join(message.split()))}"
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True).print(line, style="red")
    else:
        print(line, file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Prints a remark that is not part of the result, to stderr."""
    print(f"stateward: {message}", file=sys.stderr, flush=True)


def say(text: str = "", style: str = "") -> None:
    """Prints a line, coloured on a terminal."""
    if is_terminal():
        console().print(text, style=style or None, soft_wrap=True)
    else:
        print(text, flush=True)


def print_json(value: Any) -> None:
    """Prints JSON; what UTF-8 cannot say (lone surrogates) goes as escapes."""
    print(json.dumps(value, indent=2 if is_terminal() else None))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints rows under their columns; those named in `right` are numbers. A pipe gets aligned text, never cut."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if is_terminal():
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in cleaned:
            table.add_row(*map(Text, row))
        console().print(table)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *cleaned, strict=True)]
    for row in [list(columns), *cleaned]:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names and values, one a line; a fact with an empty value is left out."""
    known = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        if is_terminal():
            console().print(Text.assemble((f"{name:<{width}}  ", "bold"), clean(value)))
        else:
            print(f"{name:<{width}}  {clean(value)}")


def size(count_bytes: float) -> str:
    """Bytes for people: 512 B, 6.7 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_bytes < 1000:
            return f"{count_bytes:.0f} B" if unit == "B" else f"{count_bytes:.3g} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:,.1f} TB"


def milliseconds(seconds: float) -> str:
    """A short time for people."""
    return f"{seconds * 1000:.1f} ms"


def times(ratio: float) -> str:
    """How many times more: 152 ×, 3.4 ×."""
    return f"{ratio:,.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×"

"""Draws versions and their parents: one cell of text for each version, newest first.

    o        7  main
    │ o      6  retry
    │ o      5  retry
    o─┘      4  main     both 7 and 5 were made from 4

Every open line waits for one version: the parent of the last version drawn on that line. A version takes the first
line that waits for it and closes the others. If a version was pruned, the lines that wait for it end at its place.
"""

from __future__ import annotations

from collections.abc import Iterable

NODE, LINE, JOIN, TURN, BLANK = "o", "│", "─", "┘", " "


def draw(versions: Iterable[tuple[int, int]]) -> list[str]:
    """Returns one cell for each (version, parent). Versions must come newest first; parent 0 = none."""
    lines: list[int] = []  # the version that each line waits for; 0 = the line is free
    drawn = []
    for version, parent in versions:
        lines = [0 if awaited > version else awaited for awaited in lines]
        taken = [at for at, awaited in enumerate(lines) if awaited == version]
        if not taken:
            taken = [lines.index(0)] if 0 in lines else [len(lines)]
            lines[taken[0] : taken[0] + 1] = [version]
        drawn.append(_cell(lines, taken))
        for at in taken[1:]:
            lines[at] = 0
        lines[taken[0]] = parent
        while lines and lines[-1] == 0:
            lines.pop()
    return drawn


def _cell(lines: list[int], taken: list[int]) -> str:
    text = ""
    for at, awaited in enumerate(lines):
        inside = taken[0] < at <= taken[-1]
        before = JOIN if inside else BLANK
        if at == taken[0]:
            mark = NODE
        elif at in taken:
            mark = TURN
        elif awaited:
            mark = LINE
        else:
            mark = JOIN if inside else BLANK
        text += (before if at else "") + mark
    return text.rstrip()

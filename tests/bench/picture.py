"""The picture of a run: saves and reads of every contender at three sizes as bars on a log axis, and a row of facts.

Plain SVG with the reader's own fonts, made to be read at a width of 800.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from tests.bench.payload import SIZES
from tests.bench.peers.stateward import CLIENT, STUB
from tests.bench.report import Report, Section, format_bytes, format_ms
from tests.bench.sections import graph

WIDTH, MARGIN, LABELS, GAP, ROW, BAR = 800, 28, 206, 16, 20, 12
PANEL = (WIDTH - 2 * MARGIN - LABELS - 2 * GAP) / 3
FIGURE = 58
"""Room for the figure behind the longest bar."""
INK, QUIET, LINE, TRACK = "#1f2937", "#6b7280", "#e5e7eb", "#f6f7f9"
OURS, FLOOR, PEER = "#0f766e", "#9ca3af", "#93a8c9"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def draw(report: Report) -> str:
    """The whole picture."""
    body, y = list[str](), 44.0
    body.append(text(MARGIN, y, "What it costs to keep an agent's state", size=21, weight=650))
    y += 22
    told = "Everybody in turn, in one run, synced to the disk before the answer. Medians; bars on a log scale."
    body.append(text(MARGIN, y, told, fill=QUIET, size=12.5))
    y = draw_run(body, report, y + 22)
    for name, title in (("save", "Save a message"), ("hydrate", "Read the state")):
        section = report.section(name)
        if section.rows:
            y = draw_bars(body, section, title, y + 40)
    y = draw_facts(body, report, y + 26)
    facts, source = report.machine, report.payload.split(" ", maxsplit=1)[0]
    where = f"{facts['cpus']} CPUs, {facts['system'].split('-')[0]}, {facts['file_system']}, Python {facts['python']}"
    y += 24
    body.append(text(MARGIN, y, f"{where}, {source} messages", fill=QUIET, size=11))
    height = round(y + 20)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="Benchmark of Stateward and its peers" font-family="{FONT}">'
    )
    back = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="#fff" stroke="{LINE}"/>'
    return "\n".join((head, back, *body, "</svg>\n"))


def draw_run(body: list[str], report: Report, y: float) -> float:
    """What a step of a whole LangGraph agent costs, in a tile of its own. Returns where it ends."""
    run, others = report.section("graph"), {"SQLite": graph.SQLITE, "Postgres": graph.POSTGRES}
    step, size = (run.find(graph.OURS, "sync", figure) for figure in ("step_ms", "disk_bytes"))
    if step is None or size is None:
        return y - 22
    beside = [f"{format_bytes(size)} on disk"]
    for name, saver in others.items():
        theirs, taken = (run.find(saver, "sync", figure) for figure in ("step_ms", "disk_bytes"))
        if theirs is not None and taken is not None:
            beside.append(f"LangGraph's {name} saver {format_ms(theirs)}, {format_bytes(taken)}")
    body.append(f'<rect x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="62" rx="8" fill="{TRACK}"/>')
    body.append(text(MARGIN + 14, y + 38, format_ms(step), size=22, weight=650, fill=OURS))
    body.append(text(MARGIN + 130, y + 27, "a step of a LangGraph agent whose every checkpoint is synced", size=12.5))
    body.append(text(MARGIN + 130, y + 46, "; ".join(beside), size=11, fill=QUIET))
    return y + 62


def draw_bars(body: list[str], section: Section, title: str, y: float) -> float:
    """A line for each contender, a panel for each size, one axis for all of them. Returns where it ends."""
    values = {(row.contender, row.case): row.figures["p50_ms"] or 0.0 for row in section.rows}
    names = list(dict.fromkeys(row.contender for row in section.rows))
    low = 10 ** math.floor(math.log10(min(values.values())))
    scale = (PANEL - FIGURE) / math.log10(max(values.values()) / low)
    body.append(text(MARGIN, y, title, size=15, weight=650))
    top = y + 14
    for panel, case in enumerate(SIZES):
        x = MARGIN + LABELS + panel * (PANEL + GAP)
        body.append(text(x, y, f"state of {case}", size=12.5, weight=600, fill=QUIET))
        body.append(f'<rect x="{x:.1f}" y="{top}" width="{PANEL:.1f}" height="{len(names) * ROW}" fill="{TRACK}"/>')
        body.extend(draw_axis(x, top, len(names) * ROW, low, max(values.values()), scale))
    for place, name in enumerate(names):
        middle = top + place * ROW + ROW / 2
        ours = name in {STUB, CLIENT}
        weight, color = (650, INK) if ours else (400, "#374151")
        body.append(text(MARGIN, middle + 4, label(name), size=12, weight=weight, fill=color))
        for panel, case in enumerate(SIZES):
            if (value := values.get((name, case))) is None:
                continue
            x, width = MARGIN + LABELS + panel * (PANEL + GAP), max(math.log10(value / low) * scale, 1.5)
            fill = OURS if name.startswith(STUB) else FLOOR if name.startswith(("echo", "file")) else PEER
            body.append(
                f'<rect x="{x:.1f}" y="{middle - BAR / 2}" width="{width:.1f}" height="{BAR}" rx="2" fill="{fill}"/>'
            )
            body.append(text(x + width + 5, middle + 4, format_ms(value), size=11, weight=weight, fill=color))
    return top + len(names) * ROW + 14


def label(name: str) -> str:
    """A contender's name at the beginning of a line; etcd writes itself small."""
    return name if name.startswith("etcd") else name[0].upper() + name[1:]


def draw_axis(x: float, top: float, height: float, low: float, high: float, scale: float) -> Iterable[str]:
    """A line at each power of ten, with its name below."""
    for power in range(round(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = x + (power - math.log10(low)) * scale
        yield f'<path d="M{at:.1f} {top}v{height}" stroke="{LINE}"/>'
        tick = f"{10.0**power:g}" + (" ms" if power == 0 else "")
        yield text(at, top + height + 13, tick, size=10, fill=QUIET, anchor="middle" if at > x else "start")


def draw_facts(body: list[str], report: Report, y: float) -> float:
    """Tiles with one large figure each. Returns where they end."""
    tiles = list(find_facts(report))
    width = (WIDTH - 2 * MARGIN - (len(tiles) - 1) * 12) / max(len(tiles), 1)
    for place, (figure, what, beside) in enumerate(tiles):
        x = MARGIN + place * (width + 12)
        body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="84" rx="8" fill="{TRACK}"/>')
        body.append(text(x + 14, y + 31, figure, size=20, weight=650, fill=OURS))
        body.append(text(x + 14, y + 51, what, size=11.5, fill=INK))
        body.append(text(x + 14, y + 68, beside, size=11, fill=QUIET))
    return y + (84 if tiles else 0)


def find_facts(report: Report) -> Iterable[tuple[str, str, str]]:
    """(figure, what it is, what to compare it with) of the sections that ran."""
    disk, flight = report.section("bytes"), report.section("flight")
    if (ours := disk.find(CLIENT, "", "disk_bytes")) is not None:
        savers = ("LangGraph SQLite saver", "SQLite, whole state")
        theirs = next(filter(None, (disk.find(name, "", "disk_bytes") for name in savers)), None)
        beside = f"whole states: {format_bytes(theirs)}" if theirs else disk.title.split(":")[0]
        yield format_bytes(ours), "on disk, every step of a run", beside
    if (rate := flight.find(STUB, "", "calls_per_s")) is not None:
        share = flight.find(STUB, "", "x_echo") or 0
        yield f"{rate:,.0f} /s", "saves, 64 in flight", f"{share * 100:.0f} % of a bare echo"
    if rows := report.section("start").rows:
        seconds, threads = rows[-1].figures["first_hydrate_s"], rows[-1].contender.split(", ", 1)[1]
        yield f"{seconds:.2f} s", "start to first answer", threads
    if rows := report.section("memory").rows:
        after = format_bytes(rows[0].figures["after_load_bytes"] or 0)
        yield format_bytes(rows[0].figures["idle_bytes"] or 0), "resident, idle", f"{after} after load"


def text(
    x: float, y: float, words: str, *, size: float = 12, weight: int = 400, fill: str = INK, anchor: str = "start"
) -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )

"""The picture of a run: first what users get, then what a call costs, with bars that are sorted, the best first.

    python -m tests.bench.picture RESULTS.json PICTURE.svg

draws saved results again. Plain SVG with the reader's own fonts and colours for light and dark pages, narrow enough to
be read on a telephone. A part whose section did not run is left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tests.bench.payload import SIZES
from tests.bench.peers.stateward import CLIENT, STUB, WHOLE
from tests.bench.report import Report, Section, format_bytes, format_ms
from tests.bench.sections import graph

WIDTH, MARGIN, LABELS, ROW, BAR = 520, 20, 204, 19, 11
FIGURE = 108
"""Room for the figure behind the longest bar."""
SHORTEST, *_, LONGEST = SIZES
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# class: (property, in light, in dark)
COLOURS = {
    "ink": ("fill", "#1f2937", "#e5e7eb"), "quiet": ("fill", "#5b6472", "#a3adbb"),
    "ours": ("fill", "#0f766e", "#2dd4bf"), "peer": ("fill", "#93a8c9", "#5d7299"),
    "floor": ("fill", "#b6bdc8", "#4b5363"), "tile": ("fill", "#f3f5f8", "#272c35"),
    "back": ("fill", "#ffffff", "#1b1e24"), "edge": ("stroke", "#e2e8f0", "#343a46"),
}  # fmt: skip
BOUGHT = (
    "What the extra tenths of a millisecond buy, with each save: two syncs",
    "of the disk before the answer, a version that stays readable, a check",
    "against other writers, encryption with a key for each thread, and,",
    "with an archive, a copy in the bucket a second later.",
)
NAMES = {
    CLIENT: "Stateward, frames (Python)", STUB: "Stateward, gRPC", WHOLE: "Stateward, whole state",
    graph.OURS: "Stateward", graph.SQLITE: "LangGraph SQLite saver", graph.POSTGRES: "LangGraph Postgres saver",
    graph.MEMORY: "in memory, nothing kept", "echo": "a bare gRPC echo",
}  # fmt: skip


@dataclass
class Bar:
    """A line of a panel: whose, how long, and what is written behind it."""

    contender: str
    value: float
    figure: str

    @property
    def kind(self) -> str:
        """Its colour: ours, a floor that keeps nothing for anybody, or a peer."""
        if self.contender.startswith(STUB):
            return "ours"
        return "floor" if self.contender.startswith(("echo", "file", graph.MEMORY)) else "peer"


Panel = tuple[str, str, list[Bar]]
"""A title, what is measured, and the bars."""
Fact = tuple[str, str, str]
"""A figure, what it is, and what to compare it with."""


def draw(report: Report) -> str:
    """The whole picture."""
    body, y = list[str](), 38.0
    body.append(text(MARGIN, y, "What it costs to keep an agent's state", size=19, weight=650))
    told = "All in turn, in one run; everybody syncs to the disk before the answer."
    for line in (told, "Medians. Shorter is better."):
        y += 18
        body.append(text(MARGIN, y, line, kind="quiet"))
    y = draw_panels(body, find_gains(report), y)
    y = draw_facts(body, list(find_lives(report)), y + 18)
    y = draw_panels(body, find_times(report), y - 6)
    y = draw_facts(body, list(find_facts(report)), y + 18)
    for line in ("", *BOUGHT, "", machine(report)):
        y += 17 if line else 8
        kind, size = ("ink", 12) if line in BOUGHT else ("quiet", 11)
        body += [text(MARGIN, y, line, kind=kind, size=size)] if line else []
    height = round(y + 18)
    light, dark = ("".join(f".{name}{{{c[0]}:{c[at]}}}" for name, c in COLOURS.items()) for at in (1, 2))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="Benchmark of Stateward and its peers" font-family="{FONT}">'
        f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    )
    back = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" class="back edge"/>'
    return "\n".join((head, back, *body, "</svg>\n"))


def machine(report: Report) -> str:
    """What the figures depend on."""
    facts, source = report.machine, report.payload.split(" ", maxsplit=1)[0]
    return (
        f"{facts['cpus']} CPUs, {facts['system'].split('-')[0]}, {facts['file_system']}, Python {facts['python']}, "
        f"{source} messages"
    )


def find_gains(report: Report) -> Iterator[Panel]:
    """What users get."""
    yield "Bytes at rest, for each step of a run", *at_rest(report.section("bytes"))
    yield (
        "A save while the run grows", f"state of {SHORTEST} → {LONGEST}; the bar is the time at {LONGEST}",
        growing(report.section("save")),
    )  # fmt: skip
    yield (
        "A whole LangGraph agent, time for a step", "200 steps, messages of 2 KB, durability=sync; on disk: 15 runs",
        whole_runs(report.section("graph")),
    )  # fmt: skip


def find_times(report: Report) -> Iterator[Panel]:
    """What single calls take."""
    save, hydrate, wire = (report.section(name) for name in ("save", "hydrate", "wire"))
    yield f"Save a message, state of {SHORTEST}", "one at a time", latencies(save)
    yield f"Read the newest state of {SHORTEST}", "one at a time", latencies(hydrate)
    yield "Both wires of one daemon", "frames: Python on the same host; gRPC: everybody else", wires(wire)


def at_rest(section: Section) -> tuple[str, list[Bar]]:
    """Of a run of so many steps that is saved step by step."""
    steps = int((re.findall(r"(\d+) steps", section.title) or ["1"])[0])
    bars = [(row.contender, (row.figures["disk_bytes"] or 0) / steps) for row in section.rows]
    return f"one run of {steps} steps, saved step by step", [Bar(name, size, format_bytes(size)) for name, size in bars]


def growing(section: Section) -> list[Bar]:
    """What a save costs when the state is short and when it is long."""
    bars = []
    for name in dict.fromkeys(row.contender for row in section.rows):
        short, long = (section.find(name, case, "p50_ms") for case in (SHORTEST, LONGEST))
        if short is not None and long is not None and not name.startswith(("echo", "file")):
            bars.append(Bar(name, long, f"{short:.1f} → {format_ms(long)}"))
    return bars


def whole_runs(section: Section) -> list[Bar]:
    """A step of an agent with each saver, and what its runs leave on disk."""
    bars = []
    for row in section.rows:
        step, size = row.figures["step_ms"], row.figures["disk_bytes"]
        if row.case == "sync" and step is not None:
            bars.append(Bar(row.contender, step, format_ms(step) + (f", {format_bytes(size)}" if size else "")))
    return bars


def latencies(section: Section) -> list[Bar]:
    """Everybody's time at the shortest state."""
    rows = [(row.contender, row.figures["p50_ms"]) for row in section.rows if row.case == SHORTEST]
    shown = [(name, value) for name, value in rows if value is not None and name != "echo, both ways"]
    return [Bar(name, value, format_ms(value)) for name, value in shown]


def wires(section: Section) -> list[Bar]:
    """One caller on each wire, by the kind of call."""
    rows = [(f"{row.contender}: {row.case}", row.figures.get("p50_ms")) for row in section.rows]
    return [Bar(name, value, format_ms(value)) for name, value in rows if value is not None]


def draw_panels(body: list[str], panels: Iterable[Panel], y: float) -> float:
    """Those that have bars, one below the other. Returns where they end."""
    for title, note, bars in panels:
        if bars:
            y = draw_panel(body, title, note, sorted(bars, key=lambda bar: bar.value), y + 34)
    return y


def draw_panel(body: list[str], title: str, note: str, bars: list[Bar], y: float) -> float:
    """A line for each contender, on one linear scale. Returns where it ends."""
    body.append(text(MARGIN, y, title, size=14, weight=650))
    body.append(text(MARGIN, y + 16, note, kind="quiet", size=11))
    top, scale = y + 24, (WIDTH - 2 * MARGIN - LABELS - FIGURE) / max(bar.value for bar in bars)
    for place, bar in enumerate(bars):
        middle, width = top + place * ROW + ROW / 2, max(bar.value * scale, 1.5)
        weight, kind = (650, "ink") if bar.kind == "ours" else (400, "quiet" if bar.kind == "floor" else "ink")
        x = MARGIN + LABELS
        body.append(text(MARGIN, middle + 4, label(bar.contender), kind=kind, weight=weight))
        body.append(
            f'<rect x="{x}" y="{middle - BAR / 2}" width="{width:.1f}" height="{BAR}" rx="2" class="{bar.kind}"/>'
        )
        body.append(text(x + width + 6, middle + 4, bar.figure, kind=kind, size=11, weight=weight))
    return top + len(bars) * ROW


def label(name: str) -> str:
    """A contender's name at the beginning of a line; etcd writes itself small."""
    name = NAMES.get(name, name).replace(f"{STUB}, ", "").replace(": ", ", ")
    return name if name.startswith(("etcd", "gRPC")) else name[0].upper() + name[1:]


def draw_facts(body: list[str], tiles: list[Fact], y: float) -> float:
    """Tiles with one large figure each, two in a line. Returns where they end."""
    width = (WIDTH - 2 * MARGIN - 12) / 2
    for place, (figure, what, beside) in enumerate(tiles):
        x, top = MARGIN + place % 2 * (width + 12), y + place // 2 * 84
        body.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="74" rx="8" class="tile"/>')
        body.append(text(x + 12, top + 27, figure, size=18, weight=650, kind="ours"))
        body.append(text(x + 12, top + 46, what))
        body.append(text(x + 12, top + 62, beside, size=11, kind="quiet"))
    return y + (len(tiles) + 1) // 2 * 84


def find_lives(report: Report) -> Iterator[Fact]:
    """After a lost machine, and late in a long run."""
    if rows := report.section("cold").rows:
        first, more = rows[-1].figures["first_hydrate_s"] or 0, rows[0].figures["p50_ms"] or 0
        yield f"{first:.2f} s", "a lost machine: start to first state", f"each further thread {format_ms(more)}"
    if len(rows := report.section("steps").rows) > 1:
        early, late = (row.figures["p50_ms"] or 0 for row in (rows[0], rows[-1]))
        steps = " → ".join(row.contender.rpartition(" ")[2] for row in (rows[0], rows[-1]))
        yield f"{early:.2f} → {format_ms(late)}", "a save, early and late in a run", f"step {steps}"


def find_facts(report: Report) -> Iterator[Fact]:
    """Load, start and memory."""
    if len(rows := [row for row in report.section("wire").rows if row.case == "64 in flight"]) > 1:
        slow, fast = sorted(row.figures["calls_per_s"] or 0 for row in rows)
        yield f"{fast:,.0f} /s", "saves, 64 in flight, frames", f"{slow:,.0f} with gRPC"
    if rows := report.section("start").rows:
        seconds, threads = rows[-1].figures["first_hydrate_s"], rows[-1].contender.split(", ", 1)[1]
        yield f"{seconds:.2f} s", "start to first answer", threads
    if rows := report.section("memory").rows:
        after = format_bytes(rows[0].figures["after_load_bytes"] or 0)
        yield format_bytes(rows[0].figures["idle_bytes"] or 0), "resident, idle", f"{after} after load"


def text(x: float, y: float, words: str, *, size: float = 12, weight: int = 400, kind: str = "ink") -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" class="{kind}">{escape(words)}</text>'
    )


if __name__ == "__main__":
    results, picture = map(Path, sys.argv[1:])
    picture.write_text(draw(Report.from_json(json.loads(results.read_text(encoding="utf-8")))), encoding="utf-8")

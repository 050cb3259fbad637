"""What was found: rows in sections, as tables for people and as JSON for everything else."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SIZE_UNITS = ("B", "KB", "MB", "GB")
TITLES = {"p50_ms": "p50", "p99_ms": "p99", "calls_per_s": "calls/s", "neighbour_per_s": "its work/s"}
TITLES |= {"mb_per_s": "MB/s", "grown_bytes": "grown by", "disk_bytes": "on disk", "wire_bytes": "on the wire"}


@dataclass
class Row:
    """One line: who, in which case (a size, a step; may be empty), and figures whose names end in their unit."""

    contender: str
    case: str
    figures: dict[str, float | None]


@dataclass
class Section:
    """One table."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, contender: str, case: str = "", **figures: float | None) -> None:
        """Another row."""
        self.rows.append(Row(contender, case, figures))

    def find(self, contender: str, case: str, figure: str) -> float | None:
        """One figure; None where it was not measured."""
        for row in self.rows:
            if (row.contender, row.case) == (contender, case):
                return row.figures.get(figure)
        return None


@dataclass
class Aim:
    """Something that was promised. `figure` is None where its section did not run."""

    aim: str
    limit: float
    figure: float | None
    unit: str = ""
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it holds; None = not measured."""
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


@dataclass
class Report:
    """Everything that one run found."""

    machine: dict[str, Any]
    payload: str
    rounds: int
    quick: bool = False
    """Shortened: good for trying out, and its aims say little."""
    sections: list[Section] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Sections that ended with an error, and which. What they measured before it is among the sections."""

    def section(self, name: str) -> Section:
        """A section by name; an empty one where it did not run."""
        return next((section for section in self.sections if section.name == name), Section(name, ""))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        aims = [{**asdict(aim), "met": aim.met} for aim in self.aims]
        return {**asdict(self), "aims": aims}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Report:
        """The report of a run that was saved."""
        sections = [Section(**{**each, "rows": [Row(**row) for row in each["rows"]]}) for each in found["sections"]]
        aims = [Aim(**{name: value for name, value in each.items() if name != "met"}) for each in found["aims"]]
        return cls(**{**found, "sections": sections, "aims": aims})


def machine_facts(work: Path, versions: dict[str, str]) -> dict[str, Any]:
    """What the figures depend on. Nothing that names the machine."""
    packages = ("grpcio", "protobuf", "lmdb", "zstandard", "cryptography", "psycopg", "redis", "langgraph-checkpoint",
                "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")  # fmt: skip
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "file_system": file_system(work),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def file_system(directory: Path) -> str:
    """The kind of file system that all data of the run lie on."""
    if sys.platform != "linux":
        return "unknown"
    answer = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=False)
    kind = answer.stdout.strip()
    for line in Path("/proc/mounts").read_text().splitlines():  # stat says "ext2/ext3" for all of that family
        _, mounted, name, *_ = line.split()
        if directory.is_relative_to(mounted) and directory.stat().st_dev == Path(mounted).stat().st_dev:
            kind = name
    return kind or "unknown"


def format_figure(name: str, value: float | None) -> str:
    """A figure with the unit that its name ends in."""
    if value is None:
        return "-"
    if name.endswith("_ms"):
        return format_ms(value)
    if name.endswith("_us"):
        return f"{value:,.0f} µs"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_per_s"):
        return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
    if name.endswith("_s"):
        return f"{value:.2f} s"
    return f"{value:.2f}"


def format_ms(value: float) -> str:
    """Milliseconds with three digits that count."""
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def format_bytes(value: float) -> str:
    """Bytes in decimal units."""
    for unit in SIZE_UNITS:
        if value < 1000 or unit == SIZE_UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def print_section(section: Section) -> None:
    """A table: one line a row, a blank line where the case changes."""
    names = list(dict.fromkeys(name for row in section.rows for name in row.figures))
    print(f"\n{section.title}")
    heads = [TITLES.get(name, _words(name)) for name in names]
    case_width = max([8, *(len(row.case) for row in section.rows)])
    labels = [f"{row.case:{case_width}}  {row.contender}" if row.case else row.contender for row in section.rows]
    width = max([50, *map(len, labels)])
    print(f"  {'':{width}}" + "".join(f"{head:>15}" for head in heads))
    case = section.rows[0].case if section.rows else ""
    for row, label in zip(section.rows, labels, strict=True):
        if row.case != case:
            print()
            case = row.case
        print(f"  {label:{width}}" + "".join(f"{format_figure(name, row.figures.get(name)):>15}" for name in names))
    for note in section.notes:
        print(f"  ({note})")
    sys.stdout.flush()


def _words(name: str) -> str:
    for unit in ("_ms", "_us", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return name.replace("x_", "x ").replace("_", " ")


def print_aims(aims: list[Aim]) -> None:
    """The closing table."""
    width = max(len(aim.aim) for aim in aims)
    print(f"\n{'aims':{width + 2}}{'limit':>15}{'figure':>15}")
    for aim in aims:
        limit = ("≥ " if aim.at_least else "≤ ") + _with_unit(aim.limit, aim.unit)
        figure = "not measured" if aim.figure is None else _with_unit(aim.figure, aim.unit)
        verdict = {None: "", True: "met", False: "SHORT"}[aim.met]
        print(f"  {aim.aim:{width}}{limit:>15}{figure:>15}  {verdict}{'; ' + aim.note if aim.note else ''}")


def _with_unit(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value * 100:.0f} %"
    if unit in {"MB", "MiB", "µs", "B"}:
        return f"{value:.0f} {unit}"
    return f"{value:.2f}{' ' + unit if unit else ''}"

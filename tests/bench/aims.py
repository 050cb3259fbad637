"""What was promised, as ratios within one run, and whether it holds."""

from __future__ import annotations

from tests.bench.payload import SIZES
from tests.bench.peers.stateward import CLIENT, ECHO, ECHO_BOTH_WAYS, STUB
from tests.bench.report import Aim, Report, Row
from tests.bench.sections import archive, lists, writer

LANGGRAPH_SQLITE, LANGGRAPH_POSTGRES = "LangGraph SQLite saver", "LangGraph Postgres saver"


def judge(report: Report) -> list[Aim]:
    """Every aim, also those whose section did not run."""
    alone, hydrate = report.section("alone"), report.section("hydrate")
    steps, start, memory = (_last(report.section(name).rows) for name in ("steps", "start", "memory"))
    large, small = alone.find(STUB, "1 MB", "p50_ms"), alone.find(STUB, "10 KB", "p50_ms")
    aims = [
        Aim(f"save at {case}, x echo", 2.0, alone.find(STUB, case, "x_echo"), note="without peers at work")
        for case in SIZES
    ]
    aims += [
        Aim("save at 1 MB, x save at 10 KB", 1.3, _ratio(large, small)),
        Aim("save at step 10,000, x step 10", 1.2, steps.get("x_step_10")),
        Aim("64 in flight, of the echo's rate", 0.65, report.section("flight").find(STUB, "", "x_echo"), "%", True),
    ]
    ours = hydrate.find(STUB, "1 MB", "p50_ms")
    for name, text in ((ECHO, "an echo that returns 1 MB"), (ECHO_BOTH_WAYS, "an echo of 1 MB both ways")):
        aims.append(Aim(f"hydrate of 1 MB, x {text}", 2.0, _ratio(ours, hydrate.find(name, "1 MB", "p50_ms"))))
    for saver, cases in ((LANGGRAPH_POSTGRES, SIZES), (LANGGRAPH_SQLITE, ("100 KB", "1 MB"))):
        for section in ("save", "hydrate"):
            aims += [_faster(report, section, saver, case) for case in cases]
    aims += [
        Aim("start to first hydrate, 10,000 threads", 0.7, start.get("first_hydrate_s"), "s"),
        Aim(
            "first page of a list, 100,000 threads", 20, _slowest_page(report), "ms", note="p50 of the slowest question"
        ),
        Aim("idle memory", 60, _ratio(memory.get("idle_bytes"), 1e6), "MB"),
        *_archive(report),
        Aim(
            "writer's save at 10 KB, x save", 0.85, report.section("writer").find(writer.WRITER, writer.CASE, "x_unary")
        ),
        Aim(
            "sent by a writer, x saves one after the other",
            2.0,
            report.section("pipelined").find(writer.SENT, writer.CASE, "x_unary"),
            "x",
            True,
        ),
        Aim("acknowledged saves missing after kills, power loss", 0, None, note="make soak tells"),
    ]
    return aims


def _slowest_page(report: Report) -> float | None:
    """Counts and reading a whole list are no pages."""
    rows = [row for row in report.section("list").rows if not row.contender.endswith(lists.NO_PAGES)]
    return max((row.figures["p50_ms"] or 0.0 for row in rows), default=None)


def _archive(report: Report) -> list[Aim]:
    """What an archive costs, and how soon another machine goes on from it."""
    archived, committed = report.section("archived"), report.section("committed")
    shipped = next((row.figures for row in report.section("shipped").rows), {})
    cold = _last(report.section("cold").rows)
    aims = [
        Aim(f"ARCHIVED save at {case}, x bare conditional PUT", 1.3, archived.find(archive.ARCHIVED, case, "x_bare"))
        for case in ("10 KB", "100 KB", f"10 KB, {archive.AWAY_S * 1000:g} ms away")
    ]
    aims += [
        Aim(f"COMMITTED save at {case}, x without archive", 1.15, committed.find(archive.WITH, case, "x_without"))
        for case in SIZES
    ]
    return [
        *aims,
        Aim("writes to the bucket a flush", 1.1, shipped.get("puts_a_flush")),
        Aim("largest HEAD", 64, _ratio(shipped.get("head_bytes"), 1024), "KiB"),
        Aim("packs and snapshots, x bytes of new entries", 3.0, shipped.get("x_new_entries")),
        Aim("empty disk: start to first hydrate", 1.0, cold.get("first_hydrate_s"), "s"),
    ]


def _faster(report: Report, section: str, saver: str, case: str) -> Aim:
    """Like with like: Stateward's Python client against a saver, both take and give Python values."""
    ours, theirs = (report.section(section).find(name, case, "p50_ms") for name in (CLIENT, saver))
    note = "Python client" if section == "save" else "Python client; if reads are meant as well"
    return Aim(f"{section} at {case}, x {saver}", 1.0, _ratio(ours, theirs), note=note)


def _last(rows: list[Row]) -> dict[str, float | None]:
    """Figures of Stateward's last row."""
    ours = [row.figures for row in rows if row.contender.startswith(STUB)]
    return ours[-1] if ours else {}


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other is not None else None

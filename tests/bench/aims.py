"""What was promised, as ratios within one run, and whether it holds."""

from __future__ import annotations

from tests.bench.payload import SIZES
from tests.bench.peers.stateward import CLIENT, ECHO, ECHO_BOTH_WAYS, STUB
from tests.bench.report import Aim, Report, Row
from tests.bench.sections import (
    access,
    archive,
    graph,
    lists,
    logs,
    opening,
    saver,
    tls,
    waits,
    watched,
    wire,
    workspace,
    writer,
)  # fmt: skip
from tests.bench.sections import disk as disks
from tests.bench.wires import name_of

LANGGRAPH_SQLITE, LANGGRAPH_POSTGRES = "LangGraph SQLite saver", "LangGraph Postgres saver"


def judge(report: Report) -> list[Aim]:
    """Every aim, also those whose section did not run."""
    alone, hydrate = report.section("alone"), report.section("hydrate")
    large, small = alone.find(STUB, "1 MB", "p50_ms"), alone.find(STUB, "10 KB", "p50_ms")
    aims = [
        *_save_path(report),
        Aim("save at 1 MB, x save at 10 KB", 1.3, _ratio(large, small)),
        Aim("save at step 10,000, x step 10", 1.2, _last(report.section("steps").rows).get("x_step_10")),
    ]
    ours = hydrate.find(STUB, "1 MB", "p50_ms")
    for name, text in ((ECHO, "an echo that returns 1 MB"), (ECHO_BOTH_WAYS, "an echo of 1 MB both ways")):
        aims.append(Aim(f"hydrate of 1 MB, x {text}", 2.0, _ratio(ours, hydrate.find(name, "1 MB", "p50_ms"))))
    for peer, cases in ((LANGGRAPH_POSTGRES, SIZES), (LANGGRAPH_SQLITE, ("100 KB", "1 MB"))):
        for section in ("save", "hydrate"):
            aims += [_faster(report, section, peer, case) for case in cases]
    sent = report.section("pipelined").find(writer.SENT, writer.CASE, "x_unary")
    page_note = "p50 of the slowest question"
    return [
        *aims,
        Aim("first page of a list, 100,000 threads", 20, _slowest_page(report), "ms", note=page_note),
        *_archive(report),
        *_wire(report),
        *_access(report),
        *_tls(report),
        *_saver(report),
        *_graph(report),
        *_logs(report),
        *_workspace(report),
        Aim("sent by a writer, x saves one after the other", 2.0, sent, "x", True),
        Aim("acknowledged saves missing after kills, power loss", 0, None, note="make soak tells"),
    ]


def _access(report: Report) -> list[Aim]:
    """What grants cost."""
    section = report.section("access")
    checks = [section.find(access.CHECK, case, "us") for case in access.GRANTS]
    return [
        Aim("check of a token and its grants", 10, max((each for each in checks if each), default=None), "µs"),
        Aim("lone save with --access, x without, frames", 1.05, section.find(access.WITH, "frames", "x_without")),
        Aim("lone save with --access, x without, gRPC", 1.05, section.find(access.WITH, "grpc", "x_without")),
    ]


def _wire(report: Report) -> list[Aim]:
    """What frames gain over gRPC, with the same daemon."""
    section = report.section("wire")

    def found(case: str, figure: str) -> float | None:
        return section.find(name_of("frames"), case, figure)

    return [
        Aim("frames: lone save, x gRPC", 0.5, found(wire.LONE, "x_grpc")),
        Aim("frames: lone save, x a gRPC echo", 1.5, found(wire.LONE, "x_echo")),
        Aim("frames: Client.save, x gRPC", 0.55, found(wire.CLIENT, "x_grpc")),
        Aim("frames: hot hydrate, x gRPC", 0.35, found(wire.HYDRATE, "x_grpc")),
        Aim("frames: rate of 64 in flight, x gRPC", 2.0, found(wire.FLIGHT, "x_grpc"), "x", True),
        Aim("frames: CPU by save of 64 in flight, x gRPC", 0.45, found(wire.FLIGHT, "cpu_x_grpc")),
        Aim("frames: rate of 16 processes, x gRPC", 1.7, found(wire.PROCESSES, "x_grpc"), "x", True),
        Aim("frames: ARCHIVED save, x gRPC", 0.9, found(waits.ARCHIVED, "x_grpc")),
        Aim(f"frames: p99 of a {waits.BESIDE}, x gRPC", 0.3, found(waits.BESIDE, "p99_x_grpc")),
    ]


def _tls(report: Report) -> list[Aim]:
    """What mutual TLS and a token cost, beside a unix socket."""
    section = report.section("tls")
    return [
        Aim(f"TLS, token: {kind} {case}, x a unix socket", limit, section.find(tls.TLS, f"{kind} {case}", "x_socket"))
        for kind in (tls.SAVE, tls.READ)
        for case, limit in zip(tls.CASES, (1.25, 1.6), strict=True)
    ]


def _save_path(report: Report) -> list[Aim]:
    """What one save, one read and one version cost. The floor is an echo, or a bare PUT, in the same run."""
    alone, flight, hydrate = (report.section(name) for name in ("alone", "flight", "hydrate"))
    disk, archived = report.section("disk"), report.section("archived")
    start, memory = (_last(report.section(name).rows) for name in ("start", "memory"))
    callers = ((STUB, "raw stub", 1.7), (CLIENT, "Python client", 1.9))
    aims = [
        Aim(f"lone save at {case}, {caller}, x echo", limit, alone.find(name, case, "x_echo"))
        for name, caller, limit in callers
        for case in SIZES
    ]
    unary = report.section("writer").find(writer.WRITER, writer.CASE, "x_unary")
    decoded, raw = (hydrate.find(name, "1 MB", "p50_ms") for name in (CLIENT, STUB))
    return [
        *aims,
        Aim(f"writer's save at {writer.CASE}, x save", 0.75, unary),
        Aim("64 in flight, of the echo's rate", 0.65, flight.find(STUB, "", "x_echo"), "%", True),
        Aim("64 in flight, the daemon's CPU by save", 350, flight.find(STUB, "", "server_cpu_us"), "µs"),
        Aim("CPU by save with metrics, x without", 1.03, report.section("watched").find(watched.WITH, "", "x_off")),
        Aim("hydrate of 10 KB, x echo", 1.15, hydrate.find(STUB, "10 KB", "x_echo")),
        Aim("hydrate of 1 MB, Python client, x raw stub", 1.6, _ratio(decoded, raw)),
        Aim("on disk, all recorded runs, x message bytes", 0.85, disk.find(STUB, disks.ALL, "x_messages")),
        Aim("on disk, runs of tau-bench, x message bytes", 1.2, disk.find(STUB, disks.SHORT, "x_messages")),
        Aim("start to first hydrate, 10,000 threads", 0.4, start.get("first_hydrate_s"), "s"),
        *_opening(report),
        Aim("idle memory", 50, _ratio(memory.get("idle_bytes"), 1e6), "MB"),
        *(
            Aim(
                f"ARCHIVED save at {case}, x bare conditional PUT",
                limit,
                archived.find(archive.ARCHIVED, case, "x_bare"),
            )
            for case, limit in {"10 KB": 1.8, "100 KB": 1.8, archive.AWAY: 1.15}.items()
        ),
    ]


def _opening(report: Report) -> list[Aim]:
    """What it costs that nobody starts the daemon by hand."""
    section, ours = report.section("open"), f"stateward, {opening.BY_OPEN}"
    return [
        Aim("open() to the first answer, x Client()", 1.3, section.find(ours, opening.RUNS, "x_by_hand")),
        Aim("open() that starts the daemon, x by hand", 1.2, section.find(ours, opening.COLD, "x_by_hand")),
    ]


def _slowest_page(report: Report) -> float | None:
    """Counts and reading a whole list are no pages."""
    rows = [row for row in report.section("list").rows if not row.contender.endswith(lists.NO_PAGES)]
    return max((row.figures["p50_ms"] or 0.0 for row in rows), default=None)


def _saver(report: Report) -> list[Aim]:
    """LangGraph's checkpointers, as ratios to SQLite's."""
    section, aims = report.section("saver"), list[Aim]()

    def ratio(case: str, figure: str) -> float | None:
        return _ratio(section.find(saver.OURS, case, figure), section.find(saver.THEIRS, case, figure))

    for case in saver.cases():
        limit = 1.0 if case.startswith("400 ") else 0.5
        aims += [
            Aim(f"LangGraph step, {case}, x SQLite's", limit, ratio(case, "p50_ms")),
            Aim(f"LangGraph step's CPU, {case}, x SQLite's", limit, ratio(case, "cpu_ms")),
            Aim(f"LangGraph get of the newest, {case}, x SQLite's", 1.3, ratio(case, "get_ms")),
            Aim(f"LangGraph list of {saver.LISTED}, {case}, x SQLite's", 1.5, ratio(case, "list_ms")),
            Aim(f"LangGraph {saver.SUBGRAPHS} subgraphs at once, {case}, x SQLite's", 1.0, ratio(case, "fan_out_ms")),
            Aim(f"LangGraph on disk, {case}, x SQLite's", 1 / 60, ratio(case, "disk_bytes")),
        ]
    return aims


def _graph(report: Report) -> list[Aim]:
    """A whole run of an agent in LangGraph, as ratios to SQLite's saver."""
    section, limits = report.section("graph"), {"sync": 1.2, "async": 1.1, "exit": 1.1}
    return [
        Aim(f"LangGraph run, durability {mode}, x SQLite's", limit, section.find(graph.OURS, mode, "x_sqlite"))
        for mode, limit in limits.items()
    ]


def _archive(report: Report) -> list[Aim]:
    """What an archive costs, and how soon another machine goes on from it."""
    committed = report.section("committed")
    shipped = next((row.figures for row in report.section("shipped").rows), {})
    cold = _last(report.section("cold").rows)
    return [
        *(
            Aim(f"COMMITTED save at {case}, x without archive", 1.15, committed.find(archive.WITH, case, "x_without"))
            for case in SIZES
        ),
        Aim("writes to the bucket a flush", 1.1, shipped.get("puts_a_flush")),
        Aim("largest HEAD", 64, _ratio(shipped.get("head_bytes"), 1024), "KiB"),
        Aim("packs and snapshots, x bytes of new entries", 3.0, shipped.get("x_new_entries")),
        Aim("empty disk: start to first hydrate", 1.0, cold.get("first_hydrate_s"), "s"),
    ]


def _logs(report: Report) -> list[Aim]:
    """A long log costs what a short one does."""
    section = report.section("logs")
    grown = section.find(logs.LARGE, logs.MEMORY, "grown_bytes")
    return [
        *(
            Aim(f"{case} of a long log, x a short one", 1.1, section.find(logs.LARGE, case, "x_small"))
            for case in (logs.APPEND, logs.HYDRATE)
        ),
        Aim("takeover of a long log, x a short one", 1.1, section.find(logs.LARGE, logs.TAKEOVER, "x_small")),
        Aim("stored, a long transcript, x message bytes", 0.35, section.find(logs.LARGE, logs.TRANSCRIPT, "x_new")),
        Aim("the same, 10 versions kept, x message bytes", 0.35, section.find(logs.LARGE, logs.PRUNED, "x_new")),
        Aim("memory for a long log", 64, None if grown is None else grown / (1 << 20), "MiB"),
    ]


def _workspace(report: Report) -> list[Aim]:
    """Files of a directory, as ratios to git, which syncs nothing, and to restic."""
    section, ours, aims = report.section("workspace"), workspace.OURS, list[Aim]()
    cases = list(dict.fromkeys(row.case for row in section.rows)) or [workspace.USUAL.case]
    for case in cases:

        def ratio(figure: str, peer: str, case: str = case) -> float | None:
            return _ratio(section.find(ours, case, figure), section.find(peer, case, figure))

        unchanged, memory = section.find(ours, case, "unchanged_ms"), report.section("workspace memory")
        aims += [
            Aim(f"{case}: first snapshot, x git", 1.5, ratio("first_s", "git")),
            Aim(f"{case}: first snapshot, x restic", 2.0, ratio("first_s", "restic")),
            Aim(f"{case}: nothing changed, x git", 4.0, ratio("unchanged_ms", "git")),
            Aim(f"{case}: nothing changed, x restic", 0.5, ratio("unchanged_ms", "restic")),
            Aim(f"{case}: 10 files changed, x nothing", 1.2, _ratio(section.find(ours, case, "changed_ms"), unchanged)),
            Aim(f"{case}: restore, x git", 2.0, ratio("restore_s", "git")),
            Aim(f"{case}: client's memory", 100, _mib(memory.find(ours, case, "client_grown_bytes")), "MiB"),
            Aim(f"{case}: daemon's memory", 64, _mib(memory.find(ours, case, "daemon_grown_bytes")), "MiB"),
        ]
    saves, beside = (report.section(f"workspace {name}") for name in ("saves", "neighbour"))
    versions, requests = (report.section(f"workspace {name}") for name in ("versions", "requests"))
    large, with_tree, without = cases[0], f"{STUB}, with", f"{STUB}, without"
    more = _difference(saves.find(with_tree, large, "stored_bytes"), saves.find(without, large, "stored_bytes"))
    disk, git = versions.find(ours, "", "disk_bytes"), versions.find("git after gc", "", "disk_bytes")
    step, plain = (requests.find(f"{STUB}, {name}", "", "requests") for name in (workspace.STEP, workspace.AS_LARGE))
    neighbour = beside.find(f"{STUB}, {workspace.BESIDE}", large, "x_alone")
    return [
        *aims,
        Aim("save(workspace=unchanged), x save", 1.05, saves.find(with_tree, large, "x_without")),
        Aim("save(workspace=unchanged), bytes more", 64, more, "B"),
        Aim("versions on disk, x restic", 1.0, _ratio(disk, versions.find("restic", "", "disk_bytes"))),
        Aim("versions on disk, x git after gc", 2.0, _ratio(disk, git)),
        Aim("bucket requests of a step, x a save as large", 1.0, _ratio(step, plain)),
        Aim("neighbour's p99 beside snapshots, x alone", 1.5, neighbour),
    ]


def _mib(value: float | None) -> float | None:
    return _ratio(value, 1 << 20)


def _difference(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None


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

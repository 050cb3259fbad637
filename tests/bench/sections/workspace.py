"""Files of a directory as versions of a thread, beside git, restic and borg.

Everybody keeps the same directory, in turn. Stateward's client is a process of its own, which runs on between its
snapshots, as an agent does; the others are programs that start for each call, as their users have them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

from tests.bench import agent as agents
from tests.bench.agent import Agent
from tests.bench.field import Field
from tests.bench.files import Files, Size
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.keepers import KEEPERS, Borg, Git, Keeper, Restic, empty, open_keepers
from tests.bench.peers.stateward import STUB, Stub
from tests.bench.processes import Peak
from tests.bench.report import Section
from tests.bench.rounds import at_a_rate, p50_ms, p99_ms, timed
from tests.bench.sections import Effort
from tests.bench.sections.storage import used_bytes

from stateward.testing import Daemon
from stateward.v1.admin_service_pb2 import GetStatsRequest
from stateward.v1.admin_service_pb2_grpc import AdminServiceStub

OURS, NEW, COMMAND = "stateward", "stateward, a new client", "stateward, the command"
USUAL, LARGE = Size(10_000, 200_000_000), Size(100_000, 2_000_000_000)
QUICK = Size(300, 3_000_000)
VERSIONED = Size(1000, 20_000_000)
"""The directory of the many versions."""
CHANGED = 10
SETTLED_S = 2.5
"""Files that are younger are read again by the next snapshot."""
FEW = 3
PLAIN, STEP, AS_LARGE = "save of a message", f"save with {FEW} changed files", "save of a message as large as these"
NEIGHBOUR_PER_S = 50
BESIDE = "beside first snapshots"
THREAD = "agent"


def sizes(effort: Effort) -> list[Size]:
    """The directories of a run."""
    return [QUICK] if effort.quick else [USUAL, LARGE] if effort.long else [USUAL]


def versions(effort: Effort) -> int:
    """How many versions are on disk: restic takes a second or two for each."""
    return 3 if effort.quick else 200 if effort.long else 40


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Five tables."""
    times, memory = Section("workspace", "files of a directory, beside programs that keep files"), _memory_section()
    saves = Section("workspace saves", "save(workspace=unchanged), beside the same save without it, in turn")
    beside = Section("workspace neighbour", f"save of one message at 10 KB, {NEIGHBOUR_PER_S} a second")
    for size in sizes(effort):
        root = field.work / f"files-{size.files}"
        files = Files(root, size)
        time.sleep(SETTLED_S)
        with field.own_daemon(f"workspace-{size.files}") as daemon:
            with agents.running(daemon.target, field.work / f"cache-{size.files}") as agent:
                agent.do("open", thread=THREAD, root=str(root))
                _take_turns(field, times, effort, files, agent, memory, daemon)
                _add_saves(saves, size, agent, effort)
            _add_neighbour(field, beside, files, daemon, payload, effort)
        subprocess.run(["rm", "-rf", root], check=True)
    yield times
    yield saves
    yield memory
    yield beside
    yield _measure_requests(field, effort)
    yield _measure_versions(field, effort)


def _take_turns(
    field: Field, section: Section, effort: Effort, files: Files, agent: Agent, memory: Section, daemon: Daemon
) -> None:
    """Each does the same with the same files, one after the other."""
    case, only = files.size.case, KEEPERS if files.size is not LARGE else (Git, Restic)
    keepers = open_keepers(field.work, files.root, field.skipped, only) if field.with_peers else []
    figures: dict[str, dict[str, float | None]] = {each.name: {} for each in keepers} | {OURS: {}, NEW: {}, COMMAND: {}}

    def note(figure: str, rounds: int, *, change: int = 0) -> None:
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            if change:
                files.change(change)
            for each in keepers:
                found.setdefault(each.name, []).append(timed(each.keep))
            found.setdefault(OURS, []).append(agent.do("keep"))
        for name, times in found.items():
            figures[name][figure] = median(times)

    for each in keepers:
        figures[each.name]["first_s"] = timed(each.keep)
    with Peak(agent.pid) as client, Peak(daemon.pid) as server:
        figures[OURS]["first_s"] = agent.do("keep")
    memory.add(OURS, case, client_grown_bytes=client.grown_bytes, daemon_grown_bytes=server.grown_bytes)
    figures[OURS]["x_disk"] = used_bytes(daemon.data_dir) / files.size.size_bytes
    for each in keepers:
        figures[each.name]["x_disk"] = each.disk_bytes / files.size.size_bytes
    rounds = 2 if effort.quick or files.size is LARGE else 5
    note("unchanged_ms", rounds)
    note("changed_ms", rounds, change=CHANGED)
    _add_others(field, figures, files, agent, daemon, rounds)
    target = field.work / "restored"
    for _ in range(1 if files.size is LARGE else 2):
        for each in keepers:
            seconds = timed(partial(each.restore, empty(target)))
            figures[each.name]["restore_s"] = min(seconds, figures[each.name].get("restore_s") or seconds)
        empty(target)
        with Peak(agent.pid) as client:
            seconds = agent.do("restore", target=str(target))
        figures[OURS]["restore_s"] = min(seconds, figures[OURS].get("restore_s") or seconds)
    memory.rows[-1].figures["restoring_grown_bytes"] = client.grown_bytes
    empty(target).rmdir()
    figures[OURS]["rewind_ms"] = agent.do("rewind", back=1)
    for name, row in figures.items():
        in_ms = {key: (value or 0) * 1000 if key.endswith("_ms") else value for key, value in row.items()}
        section.add(name, case, **in_ms)
    _add_notes(section, keepers)


def _add_others(
    field: Field, figures: dict[str, dict[str, float | None]], files: Files, agent: Agent, daemon: Daemon, rounds: int
) -> None:
    """A client that begins with the index on the disk, and the command, which is a process for each snapshot."""
    times = list[float]()
    for _ in range(rounds):
        agent.do("open", thread=THREAD, root=str(files.root))
        times.append(agent.do("keep"))
    figures[NEW]["unchanged_ms"] = median(times)
    command = [sys.executable, "-m", "stateward.cli", "workspace", "snapshot", THREAD, str(files.root)]
    command += ["--target", daemon.target]
    environment = agents.environment(field.work / f"cache-{files.size.files}")

    def run() -> None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the command failed: {done.stderr}")

    figures[COMMAND]["unchanged_ms"] = median([timed(run) for _ in range(rounds)])


def _add_notes(section: Section, keepers: list[Keeper]) -> None:
    ours = "Stateward: each pack of 8 MiB and its rows, the save; a restore each file, each directory and its journal"
    section.notes = [
        "first, unchanged, 10 changed: git add -A and write-tree; a backup; a snapshot and the save that names it",
        "a restore into an empty directory; a rewind of 10 changed files: plan, undo, files",
        "synced to the disk before the end: " + "; ".join([*(each.syncs for each in keepers), ours]),
        "medians; a restore: the shorter of two. x disk: what the first snapshot takes, x bytes of the files",
    ]


def _memory_section() -> Section:
    section = Section("workspace memory", "memory that grows meanwhile, beyond that of idle processes")
    section.notes.append("the most that is resident and no file, looked at each 10 ms; of a client with a connection")
    return section


def _add_saves(section: Section, size: Size, agent: Agent, effort: Effort) -> None:
    found = agent.do("saves", rounds=effort.rounds)
    floor = p50_ms(found["plain"]["times"])
    for name, label in {"plain": "stateward, without", "tree": "stateward, with"}.items():
        times = found[name]["times"]
        section.add(
            label, size.case, p50_ms=p50_ms(times), p99_ms=p99_ms(times), x_without=p50_ms(times) / floor,
            stored_bytes=found[name]["bytes"],
        )  # fmt: skip
    section.notes = ["stored: what the thread takes, for each save"]


def _add_neighbour(
    field: Field, section: Section, files: Files, daemon: Daemon, payload: Payload, effort: Effort
) -> None:
    """A caller who saves little at a steady rate, alone and while somebody else takes first snapshots."""
    stub, appended, calls = Stub(daemon.target), payload.appended(), min(effort.rounds, 400)
    stub.fill("caller", payload.state(SIZES["10 KB"]))
    figures = dict[str, list[float]]()
    figures["alone"] = at_a_rate(lambda: stub.step("caller", next(appended)), calls, NEIGHBOUR_PER_S)
    with agents.running(daemon.target, field.work / "cache-neighbour") as agent, ThreadPoolExecutor(1) as pool:
        is_over, done = False, 0

        def work() -> None:
            nonlocal done
            while not is_over:
                agent.do("open", thread=f"neighbour-{done}", root=str(files.root))
                agent.do("keep")
                done += 1

        busy = pool.submit(work)
        figures[BESIDE] = at_a_rate(
            lambda: stub.step("caller", next(appended)), calls, NEIGHBOUR_PER_S
        )
        is_over = True
        busy.result()
    stub.close()
    for name, times in figures.items():
        section.add(
            f"{STUB}, {name}", files.size.case, p50_ms=p50_ms(times), p99_ms=p99_ms(times),
            x_alone=p99_ms(times) / p99_ms(figures["alone"]),
        )  # fmt: skip
    section.notes = ["x alone: p99; whoever takes the snapshots takes CPU of this machine, too"]


def _measure_requests(field: Field, effort: Effort) -> Section:
    """Steps that are answered when the bucket has them: so each step has its own requests."""
    section = Section("workspace requests", "requests to the bucket, for each step")
    size, steps = (QUICK, 3) if effort.quick else (VERSIONED, 20)
    root, bucket = field.work / "files-requests", field.work / "bucket"
    files = Files(root, size)
    bucket.mkdir()
    time.sleep(SETTLED_S)
    with (
        field.own_daemon("requests", archive=bucket.as_uri(), default_durability="archived") as daemon,
        agents.running(daemon.target, field.work / "cache-requests") as agent,
    ):
        agent.do("open", thread=THREAD, root=str(root))
        agent.do("keep")
        sent = 0.0
        for name in (PLAIN, STEP, AS_LARGE):
            before = _requests(daemon)
            for _ in range(steps):
                if name == STEP:
                    files.change(FEW)
                    agent.do("keep")
                    sent += agent.do("sent") / steps
                else:
                    agent.do("save", size_bytes=int(sent) if name == AS_LARGE else 500)
            section.add(f"stateward, {name}", requests=(_requests(daemon) - before) / steps)
    section.notes.append(f"ARCHIVED; such a step sends {sent / 1000:,.0f} KB of objects, which travel in the save")
    return section


def _requests(daemon: Daemon) -> int:
    stub = Stub(daemon.target)
    found = AdminServiceStub(stub.channel).GetStats(GetStatsRequest()).archive.requests
    stub.close()
    return int(found)


def _measure_versions(field: Field, effort: Effort) -> Section:
    """The same changes, kept one after the other."""
    count, size = versions(effort), QUICK if effort.quick else VERSIONED
    section = Section("workspace versions", f"{count} versions of {size.case}, 5 files changed and one new in each")
    root = field.work / "files-versions"
    files = Files(root, size)
    keepers = open_keepers(field.work, root, field.skipped, (Git, Restic, Borg)) if field.with_peers else []
    time.sleep(SETTLED_S)
    with field.own_daemon("versions") as daemon:
        with agents.running(daemon.target, field.work / "cache-versions") as agent:
            agent.do("open", thread=THREAD, root=str(root))
            for _ in range(count):
                for each in keepers:
                    each.keep()
                    if isinstance(each, Git):
                        each.commit()
                agent.do("keep")
                files.change(5)
                files.add()
        daemon.stop()
        section.add(OURS, disk_bytes=used_bytes(daemon.data_dir))
    for each in keepers:
        if isinstance(each, Git):
            each.settle()
        section.add(each.name + (" after gc" if isinstance(each, Git) else ""), disk_bytes=each.disk_bytes)
    section.notes.append("Stateward: the whole data directory, with what every store has")
    return section

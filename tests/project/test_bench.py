"""The danger: a bench that breaks where a peer is missing, claims what it did not measure, or leaves servers behind."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.bench.field import Field
from tests.bench.report import Section
from tests.processes import running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


@pytest.fixture
def bench_without_servers(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no database is installed, and no Go."""
    from tests.bench import servers
    from tests.bench.sections import load

    def absent(*_: object) -> None:
        raise servers.PeerAbsent(servers.HOW_TO_INSTALL)

    def no_go() -> None:
        raise servers.PeerAbsent("Go is not installed")

    monkeypatch.chdir(repository)
    monkeypatch.setattr(servers, "find_postgres", absent)
    monkeypatch.setattr(servers, "find_binary", absent)
    monkeypatch.setattr(load, "find_go", no_go)


WORKSPACE = [f"workspace {name}" for name in ("saves", "memory", "neighbour", "requests", "versions")]
PROGRAMS = ("git", "restic", "borg")


@pytest.mark.slow
@pytest.mark.usefixtures("bench_without_servers")
@pytest.mark.timeout(900)  # it computes for half a minute, and beside twenty busy processes ten times as long
def test_whole_bench_without_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With few rounds and no database, each section has Stateward's figures, and absent peers are named, and why."""
    from tests.bench.__main__ import SECTIONS, main
    from tests.bench.sections.archive import PARTS

    files = ["--json", str(tmp_path / "b" / "b.json"), "--svg", str(tmp_path / "b" / "b.svg")]
    assert main(["--quick", "--rounds", "2", *files]) == 0
    found = json.loads((tmp_path / "b" / "b.json").read_text())
    sections = {section["name"]: section["rows"] for section in found["sections"]}
    assert sections.keys() == {*SECTIONS, "alone", "pipelined", "traced", *PARTS, *WORKSPACE} - {"archive", "load"}
    assert found["skipped"]["compiled client"] == "Go is not installed"
    for name, rows in sections.items():
        ours = [row["figures"] for row in rows if row["contender"].startswith("stateward")]
        assert ours, f"no row of Stateward in {name}"
        figures = [figure for row in ours for key, figure in row.items() if not key.endswith("grown_bytes")]
        assert all(figure > 0 for figure in figures), f"{name}: {ours}"
    for peer in ("PostgreSQL", "Redis", "etcd", *PROGRAMS):
        assert "make bench-peers" in found["skipped"][peer]
        assert not any(row["contender"].startswith(peer) for rows in sections.values() for row in rows)
    for aim in found["aims"]:
        measured = aim["figure"] is not None
        assert measured == (aim["met"] is not None)
        lacks_peer = any(name in aim["aim"] for name in ("LangGraph", *PROGRAMS))
        assert measured or lacks_peer or "make soak" in aim["note"], f"{aim['aim']} was not measured"
    picture = ET.parse(tmp_path / "b" / "b.svg").getroot()
    assert "href" not in ET.tostring(picture, encoding="unicode"), "the picture loads something"
    words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Stateward, gRPC", "SQLite, whole state", "start to first answer"} <= set(words)
    printed = capsys.readouterr().out
    assert "left out: PostgreSQL (not installed: make bench-peers)" in printed
    assert "all data on" in printed


# What `make bench` installs does not have these; the bench stops where it imports one.
ONLY_DEV = ("pytest", "hypothesis", "moto", "grpc_tools", "xdist")
NEWCOMER = f"""
import sys
sys.modules.update(dict.fromkeys({ONLY_DEV!r}))
from tests.bench.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_newcomer_can_run_it(repository: Path, tmp_path: Path) -> None:
    """The bench needs no development tools."""
    command = [sys.executable, "-c", NEWCOMER, "--quick", "--rounds", "2", "--no-peers", "--section", "save"]
    command += ["--json", str(tmp_path / "b.json")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "b.json").read_text())["failed"] == {}


@pytest.mark.usefixtures("bench_without_servers")
def test_a_failed_section_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error of a server ends its section; the others are measured, the results are written, the exit code is 1."""
    from tests.bench import __main__ as bench

    def measure(*_: object) -> Iterator[Section]:
        yield Section("archived", "the part before the error")
        raise OSError("the server answered 500")

    monkeypatch.setitem(bench.SECTIONS, "archive", measure)
    files = ["--json", str(tmp_path / "b.json"), "--svg", str(tmp_path / "b.svg")]
    assert bench.main(["--quick", "--rounds", "2", "--section", "archive", "--section", "memory", *files]) == 1
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["failed"] == {"archive": "OSError: the server answered 500"}
    assert [section["name"] for section in found["sections"]] == ["memory", "archived"]
    assert {aim["met"] for aim in found["aims"] if aim["aim"] == "idle memory"} <= {True, False}
    assert ET.parse(tmp_path / "b.svg").getroot().tag.endswith("svg")
    assert "FAILED: section archive (OSError: the server answered 500)" in capsys.readouterr().out


@pytest.mark.usefixtures("bench_without_servers")
def test_daemons_keep_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server of the bench is told to compile its modules anew at each start."""
    from tests.bench import __main__ as bench

    told = set[bool]()

    def measure(field: Field, *_: object) -> Iterator[Section]:
        for pid in (field.daemon.pid, field.echo.pid):  # what a process was started with
            told.add(b"PYTHONDONTWRITEBYTECODE" in Path(f"/proc/{pid}/environ").read_bytes())
        yield Section("memory", "nothing")

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setitem(bench.SECTIONS, "memory", measure)
    assert bench.main(["--quick", "--no-peers", "--section", "memory"]) == 0
    assert told == {False}


def test_nothing_recorded_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Without recorded runs the messages are generated, of the same sizes, and the source says so."""
    from tests.bench.payload import MESSAGE_BYTES, SIZES, load_payload

    payload = load_payload(Path("nowhere"))
    assert payload.source == "generated"
    for size in SIZES.values():
        assert 0.9 * size < sum(map(len, payload.state(size))) <= size
    appended = payload.appended()
    lengths = [len(next(appended)) for _ in range(100)]
    assert MESSAGE_BYTES[0] <= min(lengths) <= max(lengths) <= MESSAGE_BYTES[1]


def test_the_picture_leads_with_what_users_get(repository: Path) -> None:
    """Bytes, growth, a whole agent and recovery come before the time of a call; the best is first; both schemes."""
    from tests.bench.picture import BOUGHT, draw
    from tests.bench.report import Report

    bench = Section("save", "", [])
    for name, figure in (("stateward", 1.2), ("LangGraph Postgres saver", 0.9), ("stateward, Python client", 1.0)):
        for case, times in (("10 KB", 1), ("1 MB", 2 if name.startswith("stateward") else 20)):
            bench.add(name, case, p50_ms=figure * times)
    disk = Section("bytes", "one run of 10 steps, saved step by step")
    disk.add("stateward, Python client", disk_bytes=1000)
    runs, cold, wire = Section("graph", ""), Section("cold", ""), Section("wire", "")
    runs.add("AsyncSqliteSaver", "sync", step_ms=1.5, disk_bytes=1e9)
    cold.add("stateward", "in HEAD", first_hydrate_s=0.2, p50_ms=3.0)
    wire.add("stateward, frames", "Client.save", p50_ms=0.7)
    facts = {"cpus": 2, "system": "Linux 6", "file_system": "ext4", "python": "3.11"}
    report = Report(facts, "generated", 2, sections=[wire, cold, runs, bench, disk])
    picture = ET.fromstring(draw(Report.from_json(json.loads(json.dumps(report.as_json())))))
    words = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    order = ["Bytes at rest, for each step of a run", "100 B", "A save while the run grows", "1.0 → 2.00 ms",
             "1.2 → 2.40 ms", "0.9 → 18.0 ms", "A whole LangGraph agent, time for a step", "1.50 ms, 1.0 GB", "0.20 s",
             "Save a message, state of 10 KB", "0.90 ms", "1.00 ms", "1.20 ms", "Both wires of one daemon", "0.70 ms",
             *BOUGHT]  # fmt: skip
    assert [word for word in words if word in order] == order
    assert "prefers-color-scheme:dark" in ET.tostring(picture, encoding="unicode")
    committed = (repository / "tests/bench/bench.svg").read_text()
    assert all(line in committed for line in (*BOUGHT, "Both wires of one daemon", "prefers-color-scheme:dark"))


def test_aims_are_not_met_by_what_was_not_measured() -> None:
    """An aim without a figure is neither met nor short, and a figure at the wrong side of its limit is short."""
    from tests.bench.aims import judge
    from tests.bench.report import Aim, Report

    assert {aim.met for aim in judge(Report({}, "generated", 2))} == {None}
    assert [Aim("a", 2.0, figure).met for figure in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [Aim("a", 0.65, figure, "%", at_least=True).met for figure in (0.64, 0.65)] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing(repository: Path, sign: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle ends every server that was started and removes its data."""
    command = [sys.executable, "-m", "tests.bench", "--section", "save", "--rounds", "100000"]
    with running(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        for line in bench.stdout:
            if line.startswith("messages:"):
                break
        started = children(bench.pid)
        said = " ".join(part for pid in started for part in command_line(pid))
        folders = {Path(found) for found in re.findall(r"(/[^\s=:]*/swb-[^/\s]+)", said)}
        assert started
        assert folders
        bench.send_signal(sign)
        bench.communicate(timeout=60)
    assert bench.returncode in {128 + sign, -sign}
    assert [pid for pid in started if command_line(pid)] == []
    assert [folder for folder in folders if folder.exists()] == []


def children(pid: int) -> list[int]:
    """Processes that the main thread of a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> list[str]:
    """A process's arguments; empty for one that ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []

"""The danger: the audit log was changed and nobody sees it; or it ends with a kill, a full disk or a rename, and what
comes later does not fit, or holds the daemon up."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.daemon.process import eventually
from tests.metrics.scraped import ANY_PORT, scrape
from tests.start.contract import METHODS, open_channel, reason_of, request_of
from tests.start.launch import start

from stateward import Client
from stateward.admin import Verdict
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.storage import auditlog
from stateward_sidecar.storage.auditlog import EVENTS_MAX, AuditLog

TOKEN = "t" * 20
NOTHING = "0" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def kinds_of(path: Path) -> list[str]:
    return [str(line["event"]) for line in lines_of(path)]


def last_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().splitlines()[-1]).hexdigest()


def check(*arguments: Path | str) -> dict[str, Any]:
    """What `stateward audit-log check --json` says."""
    found = run("audit-log", "check", "--json", *map(str, arguments))
    said = json.loads(found.out)
    assert found.code == (0 if said["fits"] else 1)
    return dict(said)


def deny(daemon: Daemon) -> None:
    method = METHODS["Hydrate"]
    with open_channel(daemon.target, "frames") as channel:
        assert reason_of(channel, method, request_of(method, "secret"), "no") == "UNAUTHENTICATED"


def started(tmp_path: Path, path: Path, **flags: Any) -> Any:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN)
    return run_daemon(tmp_path / "data", token_file=tokens, audit_log=path, **flags)


def examined(client: Client) -> Any:
    found = client.diagnose(probe_bucket=False).diagnoses
    return next(each.verdict for each in found if each.check == "audit_log")


def written(path: Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


def test_events_are_in_the_log(tmp_path: Path, path: Path) -> None:
    """As in the daemon's log, with time, peer and method; only the daemon's user can read it; it names no thread."""
    with started(tmp_path, path) as daemon:
        deny(daemon)
        with Client(daemon.target, token=TOKEN) as client:
            uid = client.thread("secret").append("m", 1).uid
            client.thread("secret").delete()
        eventually(lambda: "deleted" in kinds_of(path))
        assert path.stat().st_mode & 0o777 == 0o600
        daemon.stop()
        found = lines_of(path)
        assert [each["event"] for each in found] == ["started", "denied", "deleted", "stopped"]
        assert found[0]["before"] == NOTHING
        assert found[1]["method"] == "Hydrate"
        assert found[1]["peer"] == f"uid={os.getuid()} pid={os.getpid()}"
        assert found[2]["uid"] == uid
        assert b"secret" not in path.read_bytes()
        said = check(path)
        assert (said["lines"], said["last"]) == (4, last_of(path))
        daemon.start()
        daemon.stop()
    assert check(path, "--has", said["last"])["lines"] == 6


def test_a_kill_at_any_moment(tmp_path: Path, path: Path) -> None:
    """After kill -9 amid denied calls and deletions, the next start goes on, and all lines fit."""
    last = ""
    with started(tmp_path, path) as daemon:
        for round_ in range(4):
            lines = path.read_bytes().count(b"\n")
            with Client(daemon.target, token=TOKEN) as client:
                for number in range(5):
                    deny(daemon)
                    client.thread(f"t{number}").append("m", 1)
                    client.thread(f"t{number}").delete()
            eventually(lambda before=lines + round_: written(path, before))  # type: ignore[misc]
            daemon.kill()
            daemon.start()
            last = check(path, *(["--has", last] if last else []))["last"]
    assert kinds_of(path).count("started") == 5


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_line_is_told(tmp_path: Path, path: Path, cut: int) -> None:
    """A line that was not written whole stays, the line behind it says so, and the check does, too."""
    with started(tmp_path, path) as daemon:
        deny(daemon)
        eventually(lambda: "denied" in kinds_of(path))
        daemon.kill()
        whole = path.read_bytes()
        path.write_bytes(whole[:-cut])
        assert check(path)["torn"] == ["audit.log, line 2"]
        daemon.start()
        eventually(lambda: written(path, 4))
        raw = path.read_bytes()
        assert raw.startswith(whole[:-cut] + b"\n")
        torn, again = (json.loads(line) for line in raw.splitlines()[2:4])
    assert (torn["event"], again["event"]) == ("torn", "started")
    said = check(path)
    assert said["torn"] == ["the line before audit.log, line 3" if cut == 1 else "audit.log, line 2"]
    found = run("audit-log", "check", str(path))
    assert (found.code, found.out.splitlines()[-1]) == (0, last_of(path))
    assert "was not written whole" in found.err


def test_a_renamed_file_is_continued(tmp_path: Path, path: Path) -> None:
    """The next event makes a new file, which names the last line of the renamed one."""
    old = path.with_name("audit.log.1")
    with started(tmp_path, path) as daemon:
        deny(daemon)
        eventually(lambda: "denied" in kinds_of(path))
        path.rename(old)
        deny(daemon)
        eventually(lambda: written(path, 2))
        path.unlink()  # is told no less
        deny(daemon)
        eventually(lambda: written(path, 2))
    assert kinds_of(path)[:2] == ["continued", "denied"]
    assert kinds_of(old) == ["started", "denied"]
    assert path.stat().st_mode & 0o777 == 0o600
    wrong = check(old, path)  # the one that was removed is missing
    assert wrong["wrong"].startswith("audit.log, line 1: does not continue the line before it")
    assert check(path)["begins"] not in ("", NOTHING)


def test_files_of_a_chain_are_checked_together(tmp_path: Path, path: Path) -> None:
    """In their order, and in no other one."""
    old = path.with_name("audit.log.1")
    with started(tmp_path, path) as daemon:
        path.rename(old)
        deny(daemon)
        eventually(lambda: written(path, 2))
    assert check(old, path)["fits"]
    assert not check(path, old)["fits"]
    assert check(path)["begins"] == last_of(old)


def test_saves_go_on_while_the_file_cannot_be_written(tmp_path: Path, path: Path) -> None:
    """The daemon says so in its log, as metric and to the doctor. What waited is written later."""
    with started(tmp_path, path, metrics=ANY_PORT) as daemon, Client(daemon.target, token=TOKEN) as client:
        path.rename(path.with_name("old"))
        path.mkdir()
        deny(daemon)
        client.thread("job").append("m", 1)
        eventually(lambda: "the audit log cannot be written" in daemon.stderr)
        assert scrape(daemon)("stateward_audit_failing") == 1
        assert examined(client) is Verdict.FAILED
        client.thread("job").append("m", 2)
        path.rmdir()
        eventually(lambda: written(path, 2))
        eventually(lambda: scrape(daemon)("stateward_audit_failing") == 0)
        assert scrape(daemon)("stateward_audit_lost_total") == 0
        assert examined(client) is Verdict.OK
    assert kinds_of(path) == ["continued", "denied"]
    assert check(path.with_name("old"), path)["fits"]


def test_lost_events_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no longer waits is lost, and a line says how much."""
    monkeypatch.setattr(auditlog.events, "audit_lost", 0)
    monkeypatch.setattr(auditlog.events, "audit_failing", False)
    log = AuditLog(path)
    path.unlink()
    path.mkdir()
    began = time.monotonic()
    for number in range(EVENTS_MAX + 500):
        log.put({"event": "denied", "number": number})
    assert time.monotonic() - began < 20  # nobody waits for the file
    path.rmdir()
    eventually(lambda: written(path, EVENTS_MAX + 2))
    log.close()
    found = lines_of(path)
    lost = sum(each["count"] for each in found if each["event"] == "lost")
    assert lost == auditlog.events.audit_lost >= 400
    kept = [each["number"] for each in found if each["event"] == "denied"]
    assert kept == list(range(len(kept)))
    assert len(kept) + lost == EVENTS_MAX + 500
    assert check(path)["fits"]


FULL = """
import resource, sys, time
from pathlib import Path
from stateward_sidecar.storage.auditlog import AuditLog
path = Path(sys.argv[1])
log = AuditLog(path)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the file system of this process is full from here on
for number in range(20):
    log.put({"event": "denied", "number": number})
while not log.why:
    time.sleep(0.01)
while path.stat().st_size < 1000:
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.close()
"""


def test_a_full_disk(path: Path) -> None:
    """The line that did not fit is told as torn, and all events follow once there is room; the torn one again."""
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    said = check(path)
    assert said["fits"], said
    assert len(said["torn"]) == 1
    events = [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    found = [each["number"] for each in events if each["event"] == "denied"]
    assert sorted(set(found)) == list(range(20))
    assert len(found) <= 21  # the torn line may lack nothing but its end
    assert sum(each["event"] == "torn" for each in events) == 1


def made(path: Path, count: int) -> list[bytes]:
    log = AuditLog(path)
    for number in range(count):
        log.put({"event": "denied", "number": number})
    log.close()
    return path.read_bytes().splitlines(keepends=True)


def test_every_change_is_found(path: Path) -> None:
    """Each changed byte, and each removed, repeated, moved or invented line; the last by the hash that was kept."""
    lines = made(path, 5)
    last, whole = last_of(path), b"".join(lines)
    changed: list[tuple[bytes, int]] = []
    for at in range(0, len(whole), 7):
        number = whole[:at].count(b"\n") + 1
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        changed.append((bytes(flipped), number))
    for at in range(5):
        changed += [
            (b"".join(lines[:at] + lines[at + 1 :]), at + 1),
            (b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]), at + 2),
            (b"".join([*lines[:at], b"{}\n", *lines[at:]]), at + 1),
        ]
        if at:
            changed.append((b"".join([*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]), at))
    for data, number in changed:
        path.write_bytes(data)
        said = check(path, "--has", last)
        if data == b"".join(lines[1:]):
            assert said["begins"] == hashlib.sha256(lines[0][:-1]).hexdigest()  # names a line of an earlier file
            continue
        assert not said["fits"], data
        if said["wrong"].startswith("audit.log"):  # else only the hash that was kept finds it
            found = int(said["wrong"].split("line ")[1].split(":")[0])
            assert found in (number, number + 1), (said["wrong"], number)


def test_a_torn_line_is_no_excuse(path: Path) -> None:
    """Nobody can hide a change behind an invented line that says `torn`."""
    lines = made(path, 4)
    before = json.loads(lines[2])["before"]
    rubbish = b"rubbish"
    torn = {"before": hashlib.sha256(rubbish).hexdigest(), "event": "torn", "of": before, "bytes": len(rubbish)}
    path.write_bytes(b"".join([*lines[:2], rubbish + b"\n", json.dumps(torn).encode() + b"\n", *lines[2:]]))
    assert check(path)["wrong"].startswith("audit.log, line 5: does not continue")
    torn["of"] = NOTHING
    path.write_bytes(b"".join([*lines[:2], rubbish + b"\n", json.dumps(torn).encode() + b"\n"]))
    assert check(path)["wrong"].startswith("audit.log, line 4: names another line")
    path.write_bytes(b"".join([*lines[:2], rubbish + b"\n"]))
    assert check(path)["wrong"] == "audit.log, line 3: is no event"


def test_exit_codes(path: Path) -> None:
    """0: it fits, 1: it does not, 2: it cannot be read."""
    made(path, 2)
    assert run("audit-log", "check", str(path)).code == 0
    assert run("audit-log", "check", str(path), "--has", "1" * 64).code == 1
    assert run("audit-log", "check", str(path.with_name("missing"))).code == 2
    assert run("audit-log", "check", str(path), "--has", "x").code == 1


def test_what_is_no_audit_log_stops_the_start(tmp_path: Path, path: Path) -> None:
    """A link, a directory, a pipe, another file, one that others can write, and one that another daemon writes."""
    other = tmp_path / "other"
    other.write_text("root:x:0:0\n")
    other.chmod(0o600)
    cases = {
        "link": lambda: path.symlink_to(other), "directory": path.mkdir, "pipe": lambda: os.mkfifo(path, 0o600),
        "other": lambda: path.write_text("root:x:0:0\n"), "open": lambda: (path.touch(), path.chmod(0o620)),
    }  # fmt: skip
    for make in cases.values():
        make()  # type: ignore[operator]
        ended = start(tmp_path, "--audit-log", str(path))
        assert ended.code == 1
        assert ended.line.startswith(f"stateward-sidecar: --audit-log {path}: ")
        path.rmdir() if path.is_dir() else path.unlink()
    assert other.read_text() == "root:x:0:0\n"
    log = AuditLog(path)
    assert "another daemon writes it" in start(tmp_path, "--audit-log", str(path)).line
    log.close()

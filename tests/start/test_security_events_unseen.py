"""The danger: somebody tries doors, takes a thread or destroys one, and nothing says who and when; or those who try
doors fill the disk with what is said of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import eventually, fleet, write_steps
from tests.metrics.scraped import ANY_PORT, scrape
from tests.start.contract import (
    METHODS,
    STREAMED,
    WIRES,
    digest_of,
    open_channel,
    reason_of,
    request_of,
    streamed_reason,
)

from stateward import Client, errors
from stateward.testing import Daemon, run_daemon
from stateward_sidecar import security
from stateward_sidecar.security import ALL_LINES, CALLER_LINES, CALLERS_MAX, Denials

SECRET = "secret-plans"
AGENT, KEEPER = "a" * 20, "k" * 20
ACCESS = f"""
[[principal]]
name = "agent"
token_sha256 = "{digest_of(AGENT)}"
grants = ["read,write team/agent-*"]

[[principal]]
name = "keeper"
token_sha256 = "{digest_of(KEEPER)}"
grants = ["read,write,delete,admin */*"]
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path = tmp_path_factory.mktemp("access") / "access.toml"
    path.write_text(ACCESS)
    with run_daemon(access=path, metrics=ANY_PORT, sweep_interval=1) as running:
        with Client(running.target, token=KEEPER, namespace="team") as client:
            client.thread(SECRET).append("m", 1)
        yield running


def events_of(daemon: Daemon, kind: str, **facts: Any) -> list[dict[str, Any]]:
    """The security events of a kind that the log has, with these facts."""
    lines = [json.loads(line) for line in daemon.stderr.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("security") == kind and facts.items() <= line.items()]


@pytest.mark.parametrize("wire", WIRES)
def test_denied_calls_are_told(daemon: Daemon, wire: str) -> None:
    """With principal, method and peer; as metric with the method; and never with the name of the thread."""
    before, had = scrape(daemon), len(events_of(daemon, "denied"))
    with open_channel(daemon.target, wire) as channel:
        for name, thread, token, reason in (
            ("Hydrate", SECRET, AGENT, "PERMISSION_DENIED"),
            ("Watch", SECRET, "no" * 9, "UNAUTHENTICATED"),
            ("GetThread", "agent-1", AGENT, "THREAD_NOT_FOUND"),
        ):
            assert reason_of(channel, METHODS[name], request_of(METHODS[name], thread), token) == reason
    known, unknown = events_of(daemon, "denied")[had:]
    assert (known["principal"], known["method"], known["reason"]) == ("agent", "Hydrate", "PERMISSION_DENIED")
    assert "principal" not in unknown
    assert (unknown["method"], unknown["reason"]) == ("Watch", "UNAUTHENTICATED")
    for each in (known, unknown):
        assert each["level"] == "warning"
        assert each["peer"].split()[0] == ("unix:" if wire == "grpc" else f"uid={os.getuid()}")
        if wire != "grpc":
            assert each["peer"].split()[1] == f"pid={os.getpid()}"
    after = scrape(daemon)
    for method, count in (("Hydrate", 1), ("Watch", 1), ("GetThread", 0), ("Save", 0)):
        name = "stateward_denied_calls_total"
        assert after(name, method=method) - before(name, method=method) == count
    assert SECRET not in daemon.stderr
    assert AGENT not in daemon.stderr


def test_denied_calls_of_a_stream_are_told(daemon: Daemon) -> None:
    """Each of RunCalls by itself, by the name of its own method."""
    had = len(events_of(daemon, "denied"))
    with open_channel(daemon.target, "grpc") as channel:
        name = next(iter(STREAMED))
        assert streamed_reason(channel, name, request_of(METHODS[name], SECRET), AGENT) == "PERMISSION_DENIED"
    (found,) = events_of(daemon, "denied")[had:]
    assert (found["principal"], found["method"]) == ("agent", name)


def test_deletions_are_told(daemon: Daemon) -> None:
    """By whom, with the uid; and those of expired threads, which nobody asked for."""
    with Client(daemon.target, token=KEEPER, namespace="team") as client:
        gone = client.thread("gone")
        uid = gone.append("m", 1).uid
        gone.delete()
        gone.delete(missing_ok=True)
        (found,) = events_of(daemon, "deleted", uid=uid)
        assert (found["principal"], found["method"]) == ("keeper", "DeleteThread")
        expiring = client.thread("expiring")
        uid = expiring.finish(expiring.hydrate(), ttl=1.0).uid
        eventually(lambda: events_of(daemon, "deleted", uid=uid))
    (found,) = events_of(daemon, "deleted", uid=uid)
    assert "principal" not in found


def test_changed_tokens_and_open_doors_are_told(tmp_path: Path) -> None:
    """A token that everybody can read, the key that was made, and each change of the file of tokens."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 20)
    tokens.chmod(0o640)
    with run_daemon(token_file=tokens, debuggable=True) as daemon:
        (found,) = events_of(daemon, "exposed", level="warning")
        assert "--debuggable" in found["event"]
        tokens.write_text("u" * 20)
        eventually(lambda: events_of(daemon, "changed", event="read the token file again"))
        tokens.unlink()
        eventually(lambda: events_of(daemon, "changed", level="error"))


def test_a_thread_that_is_taken_is_told_by_both(tmp_path: Path) -> None:
    """The sidecar that takes a thread says so, and so does the one that lost it. A thread that was given up is not
    taken."""
    with fleet(tmp_path) as pair:
        first, second = pair.machine("first"), pair.machine("second")
        one, other = pair.client(first), pair.client(second)
        write_steps(one, "job", 1, archived=True)
        write_steps(one, "calm", 1, archived=True)
        uid = one.thread("job").info().uid
        one.thread("calm").archive.detach()
        other.thread("calm").archive.attach()
        other.thread("job").archive.attach(take_over=True)
        (found,) = events_of(second, "taken")
        assert found["uid"] == uid
        with pytest.raises((errors.Fenced, errors.NotOwner, errors.NotArchivedYet)):
            one.thread("job").append("late", 1, durability="archived")
        eventually(lambda: events_of(first, "taken", uid=uid))


class Told:
    """Counts what is told, with a clock that stands still."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now_s = time.monotonic()
        patch.setattr(security, "note", lambda kind, said, **facts: self.lines.append({"said": said, **facts}))
        patch.setattr(security, "monotonic", lambda: self.now_s)
        self.denials = Denials()

    def deny(self, principal: str, count: int, known: str = "") -> None:
        for _ in range(count):
            self.denials.note("Save", "PERMISSION_DENIED", principal, "peer", known)

    @property
    def left_out(self) -> int:
        return sum(each.get("left_out") or 0 for each in self.lines)

    @property
    def denied(self) -> int:
        return sum(each["said"] == "a call was denied" for each in self.lines)


def test_a_storm_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per caller and second, with a count of what was left out; and no caller hides another one."""
    told = Told(monkeypatch)
    told.deny("loud", 10_000)
    assert len(told.lines) == CALLER_LINES
    told.deny("quiet", 1)
    assert told.lines[-1]["principal"] == "quiet"
    for _ in range(60):
        told.now_s += 1.0
        told.deny("loud", 1000)
    assert told.denied <= CALLER_LINES + 1 + 61
    told.denials.settle(now=True)
    assert told.denied + told.left_out == 10_000 + 1 + 60_000
    lines = len(told.lines)
    told.denials.settle(now=True)
    assert len(told.lines) == lines


def test_a_storm_of_many_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all lines together, and in memory; whoever has no identity counts as one caller."""
    told = Told(monkeypatch)
    for number in range(3 * CALLERS_MAX):
        told.deny("", 2, known=f"uid={number}")
    told.deny("", 50)
    assert len(told.lines) <= ALL_LINES
    assert len(told.denials._callers) <= CALLERS_MAX + 1
    told.now_s += 3600
    told.deny("again", 1)
    assert told.lines[-1]["principal"] == "again"
    told.denials.settle()
    assert told.denied + told.left_out == 6 * CALLERS_MAX + 51


def test_a_storm_that_is_over_is_counted(daemon: Daemon) -> None:
    """Though no later call is denied, the log says in the end how many had no line."""
    before = scrape(daemon)("stateward_denied_calls_total", method="ListSignals")
    with open_channel(daemon.target, "grpc") as channel:
        for _ in range(CALLER_LINES + 30):
            reason_of(channel, METHODS["ListSignals"], request_of(METHODS["ListSignals"], SECRET), AGENT)
    assert scrape(daemon)("stateward_denied_calls_total", method="ListSignals") - before == CALLER_LINES + 30

    def told() -> int:
        found = events_of(daemon, "denied")
        own = sum(each.get("method") == "ListSignals" for each in found)
        return own + sum(each.get("left_out", 0) for each in found)

    eventually(lambda: told() >= CALLER_LINES + 30)

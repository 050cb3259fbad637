"""The danger: a load that does not save what it says, or that ends the bench where Go or a peer is missing."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.field import Field, open_field
from tests.bench.payload import load_payload
from tests.bench.sections import Effort, load
from tests.bench.sections.load import Programs, Target
from tests.bench.servers import PeerAbsent, Server

# The first build on a machine compiles every module.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(load.DOWNLOAD_LIMIT_S + load.BUILD_LIMIT_S + 300)]
BODIES = [load.save_body(b'"a value"', as_slot=False), load.save_body(b'"another"', as_slot=True)]


@pytest.fixture(scope="module")
def programs() -> Programs:
    """The compiled client; skips its tests if it cannot be built here."""
    try:
        return load.build(load.PROGRAM)
    except PeerAbsent as reason:
        pytest.skip(str(reason))


@pytest.fixture
def field(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    """An echo and a daemon."""
    monkeypatch.chdir(repository)
    with open_field(with_peers=False) as field:
        yield field


def test_it_saves_what_it_says(programs: Programs, field: Field) -> None:
    """Each lane has a thread with a version for each call, made of the bodies in turn."""
    target = Target("stateward", "stateward", field.daemon.target, field.daemon.pid, connections=2)
    known = set[str]()
    with field.daemon.client() as client:
        for seconds in (0.2, 2.0, 20.0):  # a busy machine comes to nothing but the warm-up in a moment
            found = load.run(programs, target, in_flight=4, seconds=seconds, bodies=BODIES)
            versions = {thread.name: thread.version for thread in client.threads() if thread.name not in known}
            assert len(versions) == 4
            if min(versions.values()) >= 2:
                break
            known |= versions.keys()
        assert 0 < found.p50_ms <= found.p99_ms
        assert found.calls_per_s > 0
        assert min(versions.values()) >= 2, "the warm-up alone was saved"
        for name, version in versions.items():
            state = client.thread(name).hydrate()
            appended = (version + 1) // 2 if int(name.rpartition("-")[2]) % 2 == 0 else version // 2
            assert list(state.logs["messages"]) == ["a value"] * appended
            assert state.slots["page"] == "another"


def test_it_compares_before_it_swaps(programs: Programs, field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load on threads that have versions already is refused, and the daemon's words come back."""
    monkeypatch.setattr(load, "_numbers", itertools.repeat(0))
    target = Target("stateward", "stateward", field.daemon.target)
    load.run(programs, target, in_flight=1, seconds=0.0, bodies=BODIES)
    with pytest.raises(RuntimeError, match=r"version 0: rpc error: .*version"):
        load.run(programs, target, in_flight=1, seconds=0.0, bodies=BODIES)


@pytest.mark.usefixtures("programs")
def test_a_peer_that_fails_is_left_out(field: Field, tmp_path: Path) -> None:
    """Every case has Stateward and the echo, both with figures; the peer is named with its error."""
    field.servers["Redis"] = Server(str(tmp_path / "nobody.sock"), os.getpid())
    (section,) = load.measure(field, load_payload(Path("nowhere")), Effort(2, quick=True))
    assert len({row.case for row in section.rows}) == len(load.SIZES) * len(load.QUICK_IN_FLIGHT)
    names = {row.contender for row in section.rows}
    assert {"echo", "stateward", "stateward, TCP", "stateward, TCP, 8 connections"} <= names
    assert all(figure is None or figure > 0 for row in section.rows for figure in row.figures.values())
    assert "Redis" not in names
    assert "nobody.sock" in field.skipped["Redis"]


def test_modules_that_cannot_be_loaded_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network and with nothing kept from before, the section has a reason."""
    try:
        load.find_go()
    except PeerAbsent as reason:
        pytest.skip(str(reason))
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    with pytest.raises(PeerAbsent, match=r"Go cannot load its modules: .*disabled"):
        load.build(tmp_path / "client")


def test_values_have_their_size() -> None:
    """Values are JSON strings of exactly the size that a row names, and differ."""
    payload = load_payload(Path("nowhere"))
    for size in load.SIZES.values():
        values = list(itertools.islice(load.make_values(payload, size), load.BODIES))
        assert {len(value) for value in values} == {size}
        assert len(set(values)) == load.BODIES

"""One real daemon for all tests of this directory, and a thread of its own with two versions for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.daemon.wire import THREAD, TIMEOUT_S, Wire, appends, sets
from tests.messages import to_write
from tests.service.agents import Agent, Stream
from tests.service.walk import run_walked

from stateward.testing import Daemon, run_daemon
from stateward.v1.admin_service_pb2 import VerifyFinding
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.state_pb2 import State
from stateward.v1.thread_pb2 import ThreadInfo
from stateward.v1.thread_service_pb2 import GetThreadResponse, ListThreadsRequest


@dataclass(frozen=True)
class Place:
    """A namespace of a test's own, with one thread at version 2: a log of two entries and a slot "goal"."""

    wire: Wire
    daemon: Daemon
    namespace: str

    def request(self, **fields: object) -> SaveRequest:
        """A save that would be taken; ``fields`` make it wrong."""
        asked = {"namespace": self.namespace, "thread": THREAD, "expected_version": 2, "diff": appends("third")}
        return to_write(SaveRequest, **{**asked, **fields})  # type: ignore[arg-type]

    def thread(self) -> ThreadInfo:
        return self.wire.thread(self.namespace, THREAD)

    def described(self) -> GetThreadResponse:
        return self.wire.described(self.namespace, THREAD)

    def state(self) -> State:
        return self.wire.hydrate(HydrateRequest(namespace=self.namespace, thread=THREAD))

    def look(self) -> tuple[bytes, bytes, int]:
        """Everything a refused call must leave as it was."""
        described, state = (seen.SerializeToString(deterministic=True) for seen in (self.described(), self.state()))
        return described, state, self.wire.entries_written()

    def findings(self) -> list[VerifyFinding]:
        """What Verify finds in the threads of the namespace. The store, which tests share, is verified at their end."""
        asked = ListThreadsRequest(namespace=self.namespace, page_size=1000)
        threads = [each.thread for each in self.wire.threads.ListThreads(asked, timeout=TIMEOUT_S).threads]
        return [finding for thread in threads for finding in self.wire.findings(self.namespace, thread)]


@pytest.fixture(scope="package")
def daemon() -> Iterator[Daemon]:
    """With a small limit for states, so that the tests of it are quick."""
    with run_daemon(max_state_size="4MiB", sweep_interval=0) as running:
        yield running


@pytest.fixture(scope="session")
def walked() -> Iterator[Daemon]:
    """The daemon of the walks over all methods."""
    with run_walked() as running:
        yield running


@pytest.fixture(scope="package", params=["grpc", "frames"])
def wire(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """Each wire, for all tests. What they leave behind is verified at the end, once: it is some hundred threads."""
    opened = Wire(daemon.target, frames=request.param == "frames")
    yield opened
    assert opened.findings() == []
    opened.close()


@pytest.fixture
def place(wire: Wire, daemon: Daemon, request: pytest.FixtureRequest) -> Place:
    here = Place(wire, daemon, f"test {request.node.name}"[:200])
    wire.save(here.request(expected_version=0, diff=appends("first", "second"), request_id="made-1"))
    wire.save(here.request(expected_version=1, diff=sets("goal", "Paris"), request_id="made-2", checkpoint_id="step-2"))
    return here


@pytest.fixture
def untouched(place: Place) -> Iterator[Place]:
    """The place; afterwards nothing may have been written, Verify must be clean and the daemon the same process."""
    before, pid = place.look(), place.daemon.pid
    yield place
    assert place.look() == before
    assert place.findings() == []
    assert place.daemon.pid == pid


@pytest.fixture
def make(wire: Wire, place: Place) -> Callable[[str], Agent]:
    """Agents on the thread of the test."""
    return lambda name: Agent(wire, place.namespace, name)


@pytest.fixture(params=["pipelined", "awaited", "mixed"])
def hints(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What frames say of those after them: the truth, the opposite, and now this, now that."""
    kinds = {"pipelined": lambda number: False, "awaited": lambda number: True, "mixed": lambda number: number % 3 > 0}
    monkeypatch.setattr(Stream, "awaited", staticmethod(kinds[request.param]))

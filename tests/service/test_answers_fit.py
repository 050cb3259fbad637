"""The danger: an answer is larger than the 4 MiB that a gRPC client accepts by default, and can never be received."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from tests.service.conftest import Place
from tests.service.wire import THREAD, TIMEOUT_S, appends, refused

from stateward.testing import Daemon
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.signal_service_pb2_grpc import SignalServiceStub
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_service_pb2 import DeleteBranchRequest, DeleteTagRequest, GetThreadRequest, SetTagRequest
from stateward_sidecar.store.branches import BRANCHES_MAX
from stateward_sidecar.store.settings import TAGS_MAX

RECEIVED_BYTES = 4 << 20
SIGNALS, LARGE = 20, b"x" * 500_000


@pytest.fixture
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    """With the limits that gRPC has by default."""
    with grpc.insecure_channel(daemon.target, [("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield opened


@pytest.fixture
def sent(place: Place) -> list[str]:
    """Signals that have ten megabytes together; returns their ids in order."""
    found = []
    for number in range(SIGNALS):
        request = SendSignalRequest(
            namespace=place.namespace, thread=THREAD, name="large", payload=Value(data=LARGE), request_id=f"{number}"
        )
        found.append(place.wire.signals.SendSignal(request, timeout=TIMEOUT_S).signal.signal_id)
    return found


@pytest.mark.parametrize("page_size", [0, 1, 3])
def test_signals_are_listed_in_pages(place: Place, channel: grpc.Channel, sent: list[str], page_size: int) -> None:
    """Each signal is listed once, oldest first."""
    found, request = [], ListSignalsRequest(namespace=place.namespace, thread=THREAD, page_size=page_size)
    while True:
        page = SignalServiceStub(channel).ListSignals(request, timeout=TIMEOUT_S)
        assert len(page.signals) <= (page_size or SIGNALS)
        found += [signal.signal_id for signal in page.signals]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == sent


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_a_state_brings_its_signals_in_pages(
    place: Place, channel: grpc.Channel, sent: list[str], max_bytes: int
) -> None:
    """The state comes once, and behind it each signal once."""
    whole = State(slots={f"s{number}": Value(data=LARGE) for number in range(5)})
    place.wire.save(place.request(diff=None, state=whole, expected_version=2))
    request = HydrateRequest(namespace=place.namespace, thread=THREAD, include_signals=True, max_bytes=max_bytes)
    signals: list[Signal] = []
    slots: list[str] = []
    while True:
        page = CheckpointServiceStub(channel).Hydrate(request, timeout=TIMEOUT_S)
        assert page.ByteSize() <= RECEIVED_BYTES
        assert page.checkpoint.version == 3
        slots += page.state.slots
        signals += page.signals
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert sorted(slots) == sorted(whole.slots)
    assert [signal.signal_id for signal in signals] == sent


def test_small_signals_come_with_the_first_page(place: Place, channel: grpc.Channel) -> None:
    """A client that hydrates makes no more calls than before."""
    send = SendSignalRequest(namespace=place.namespace, thread=THREAD, name="small", request_id="r")
    place.wire.signals.SendSignal(send, timeout=TIMEOUT_S)
    request = HydrateRequest(namespace=place.namespace, thread=THREAD, include_signals=True)
    page = CheckpointServiceStub(channel).Hydrate(request, timeout=TIMEOUT_S)
    assert [signal.name for signal in page.signals] == ["small"]
    assert not page.next_page_token


@pytest.mark.slow
def test_a_thread_has_so_many_tags(place: Place) -> None:
    """One more is refused with the field. A tag that exists may be moved, and after a deletion there is room."""
    at = {"namespace": place.namespace, "thread": THREAD}
    version = VersionRef(version=1)
    requests = [SetTagRequest(**at, tag=f"{n:06}" + "x" * 250, version=version) for n in range(TAGS_MAX + 1)]
    for first in range(0, TAGS_MAX, 500):
        calls = [place.wire.threads.SetTag.future(each, timeout=60) for each in requests[first : first + 500]]
        for call in calls:
            call.result()
    found = refused(place.wire.threads.SetTag, requests[-1])
    assert (found.reason, found.field) == ("QUOTA_EXCEEDED", "tag")
    answer = place.wire.threads.GetThread(GetThreadRequest(**at), timeout=TIMEOUT_S)
    assert len(answer.thread.tags) == TAGS_MAX
    assert answer.ByteSize() < RECEIVED_BYTES // 2
    moved = SetTagRequest(**at, tag=requests[0].tag, version=VersionRef(version=2))
    place.wire.threads.SetTag(moved, timeout=TIMEOUT_S)
    place.wire.threads.DeleteTag(DeleteTagRequest(**at, tag=requests[0].tag), timeout=TIMEOUT_S)
    place.wire.threads.SetTag(requests[-1], timeout=TIMEOUT_S)


@pytest.mark.slow
def test_a_thread_has_so_many_branches(place: Place) -> None:
    """A save that would make one more is refused with the field, and saves on all others go on."""
    at = {"namespace": place.namespace, "thread": THREAD}

    def save(number: int) -> SaveRequest:
        name = f"{number:06}" + "x" * 200
        return SaveRequest(**at, branch=name, parent=VersionRef(version=1), diff=appends("x"), request_id=name)

    for first in range(1, BRANCHES_MAX, 250):
        numbers = range(first, min(first + 250, BRANCHES_MAX))
        calls = [place.wire.checkpoints.Save.future(save(n), timeout=60) for n in numbers]
        for call in calls:
            call.result()
    found = refused(place.wire.checkpoints.Save, save(BRANCHES_MAX))
    assert (found.reason, found.field) == ("QUOTA_EXCEEDED", "branch")
    answer = place.wire.threads.GetThread(GetThreadRequest(**at), timeout=TIMEOUT_S)
    assert len(answer.thread.branches) == BRANCHES_MAX
    assert answer.ByteSize() < RECEIVED_BYTES // 2
    place.wire.save(place.request(request_id="main goes on"))
    place.wire.threads.DeleteBranch(DeleteBranchRequest(**at, branch=save(1).branch), timeout=TIMEOUT_S)
    place.wire.save(save(BRANCHES_MAX))

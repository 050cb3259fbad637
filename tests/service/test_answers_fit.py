"""The danger: an answer is larger than the 4 MiB that a gRPC client accepts by default, and can never be received."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.inside import daemon_inside
from tests.daemon.wire import THREAD, TIMEOUT_S, appends, refused
from tests.service.conftest import Place

from stateward.testing import Daemon
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.signal_service_pb2_grpc import SignalServiceStub
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_pb2 import Branch, Tag, ThreadInfo
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    DeleteTagRequest,
    GetThreadRequest,
    GetThreadResponse,
    SetTagRequest,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.checks.check import TAG_BYTES_MAX
from stateward_sidecar.store.versions import branches, settings
from stateward_sidecar.store.versions.branches import BRANCHES_MAX
from stateward_sidecar.store.versions.settings import TAGS_MAX

RECEIVED_BYTES = 4 << 20
NAME_BYTES_MAX = 1024
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
            namespace=place.namespace,
            thread=THREAD,
            name="large",
            payload=Value(data=LARGE),
            options=WriteOptions(request_id=f"{number}"),
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
    send = SendSignalRequest(
        namespace=place.namespace, thread=THREAD, name="small", options=WriteOptions(request_id="r")
    )
    place.wire.signals.SendSignal(send, timeout=TIMEOUT_S)
    request = HydrateRequest(namespace=place.namespace, thread=THREAD, include_signals=True)
    page = CheckpointServiceStub(channel).Hydrate(request, timeout=TIMEOUT_S)
    assert [signal.name for signal in page.signals] == ["small"]
    assert not page.next_page_token


def test_the_most_tags_and_branches_fit_into_one_answer() -> None:
    """GetThread, whose answer has no pages, with the longest names there may be."""
    tags = [Tag(name="x" * TAG_BYTES_MAX, version=1 << 40)] * TAGS_MAX
    digest, number = bytes(16), 1 << 40
    branch = Branch(
        name="x" * NAME_BYTES_MAX, version=number, version_digest=digest, base_version=number, moved_version=number,
        newest_version=number, first_version=number,
    )  # fmt: skip
    rest = {"metadata, labels and the question": "x" * (1 << 20)}
    thread = ThreadInfo(labels=rest)
    answer = GetThreadResponse(thread=thread, tags=tags, branches=[branch] * BRANCHES_MAX)
    assert answer.ByteSize() < RECEIVED_BYTES - (256 << 10)


def test_a_thread_has_so_many_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused with the field. A tag that exists may be moved, and after a deletion there is room."""
    monkeypatch.setattr(settings, "TAGS_MAX", 5)
    with daemon_inside(tmp_path) as daemon:
        threads, at = daemon.wire.threads, {"thread": THREAD}
        for number in range(2):
            daemon.wire.save(SaveRequest(**at, diff=appends("x"), options=WriteOptions(request_id=f"{number}")))

        def tag(name: str, version: int = 1) -> SetTagRequest:
            return SetTagRequest(**at, tag=name, version=VersionRef(version=version))

        for name in "abcde":
            threads.SetTag(tag(name), timeout=TIMEOUT_S)
        found = refused(threads.SetTag, tag("f"))
        assert (found.reason, found.field) == ("QUOTA_EXCEEDED", "tag")
        threads.SetTag(tag("a", 2), timeout=TIMEOUT_S)
        threads.DeleteTag(DeleteTagRequest(**at, tag="a"), timeout=TIMEOUT_S)
        threads.SetTag(tag("f"), timeout=TIMEOUT_S)
        shown = threads.GetThread(GetThreadRequest(**at), timeout=TIMEOUT_S).tags
        assert [each.name for each in shown] == [*"bcdef"]


def test_a_thread_has_so_many_branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that would make one more is refused with the field and leaves nothing; saves on all others go on."""
    monkeypatch.setattr(branches, "BRANCHES_MAX", 4)
    with daemon_inside(tmp_path) as daemon:
        wire, at = daemon.wire, {"thread": THREAD}

        def save(name: str) -> SaveRequest:
            parent = VersionRef(version=1)
            return SaveRequest(
                **at, branch=name, parent=parent, diff=appends("x"), options=WriteOptions(request_id=name)
            )

        wire.save(SaveRequest(**at, diff=appends("x"), options=WriteOptions(request_id="main")))
        for name in "abc":
            wire.save(save(name))
        found = refused(wire.checkpoints.Save, save("d"))
        assert (found.reason, found.field) == ("QUOTA_EXCEEDED", "branch")
        assert wire.save(SaveRequest(**at, diff=appends("x"), options=WriteOptions(request_id="on"))).version == 5
        wire.threads.DeleteBranch(DeleteBranchRequest(**at, branch="a"), timeout=TIMEOUT_S)
        wire.save(save("d"))
        shown = wire.threads.GetThread(GetThreadRequest(**at), timeout=TIMEOUT_S).branches
        assert [each.name for each in shown] == ["b", "c", "d", "main"]
        assert wire.findings() == []

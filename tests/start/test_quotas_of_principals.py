"""The danger: one client takes all, or a limit of it stops what it must go on with, or refuses what would pass."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import FramedChannel
from tests.daemon.process import eventually
from tests.start.quotas import OPERATOR, TOKEN, limited

from stateward import AsyncClient, Client
from stateward.errors import RateExceeded
from stateward.testing import Daemon, run_daemon
from stateward.v1.call_service_pb2 import CallAnswer, RunCallsRequest, StreamedCall
from stateward.v1.call_service_pb2_grpc import CallServiceStub
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, HydrateRequest, ReadLogRequest, SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, GetThreadRequest, WatchRequest
from stateward.v1.thread_service_pb2_grpc import ThreadServiceStub

WIRES = ("grpc", "frames")
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)


@pytest.fixture(params=WIRES)
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Daemon], Any]:
    """Connects to a daemon on either wire, with no retries."""
    monkeypatch.setenv("STATEWARD_WIRE", request.param)
    if request.param == "frames":
        return lambda daemon: FramedChannel(daemon.target)
    options = [("grpc.enable_retries", 0)]
    return lambda daemon: grpc.insecure_channel(daemon.target.replace("unix://", "unix:"), options)


def save(number: int, thread: str = "t") -> SaveRequest:
    request = SaveRequest(thread=thread)
    request.options.request_id = f"save {number}"
    request.diff.edits.add().append.log = "m"
    request.diff.edits[0].append.entries.add(media_type="text/plain", data=b"x")
    return request


def told(status: bytes) -> tuple[str, dict[str, str], float]:
    """Reason, facts and pause of an error."""
    found: dict[str, Any] = {}
    for detail in Status.FromString(status).details:
        for kind in (ErrorInfo, RetryInfo):
            if detail.Is(kind.DESCRIPTOR):
                found[kind.__name__] = kind.FromString(detail.value)
    info = found["ErrorInfo"]
    pause = found["RetryInfo"].retry_delay.ToTimedelta().total_seconds() if "RetryInfo" in found else 0.0
    return info.reason, dict(info.metadata), pause


def quota_of(error: grpc.RpcError) -> tuple[str, dict[str, str], float]:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return told(dict(error.trailing_metadata())["grpc-status-details-bin"])


def refused(act: Callable[[], object], limit: str) -> tuple[dict[str, str], float]:
    """A call fails because of a limit of its principal. Returns facts and pause."""
    with pytest.raises(grpc.RpcError) as error:
        act()
    reason, facts, pause_s = quota_of(error.value)
    assert (reason, facts["limit"], facts["principal"]) == ("QUOTA_EXCEEDED", limit, "agent")
    return facts, pause_s


def hang(channel: Any, count: int) -> list[Any]:
    """Watches: calls that stay under way."""
    stub = ThreadServiceStub(channel)
    return [stub.Watch(WatchRequest(thread="t", after_sequence=0), metadata=AUTHORIZED) for _ in range(count)]


def test_a_principal_has_no_stream_more_than_it_may(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """Also across connections. A stream that ends makes room; others, and calls, are not concerned."""
    access = limited(tmp_path, limits={"streams": 2})
    with run_daemon(access=access) as daemon, ExitStack() as stack:
        first, second = (stack.enter_context(connect(daemon)) for _ in range(2))
        CheckpointServiceStub(first).Save(save(1), metadata=AUTHORIZED, timeout=30)
        open_ones = [*hang(first, 1), *hang(second, 1)]
        for each in open_ones:
            next(each)
        facts, pause_s = refused(lambda: next(hang(second, 1)[0]), "streams")
        assert (facts["maximum"], facts["used"], pause_s) == ("2", "2", 0)
        ThreadServiceStub(first).GetThread(GetThreadRequest(thread="t"), metadata=AUTHORIZED, timeout=30)
        with Client(daemon.target, token=OPERATOR) as operator, operator.thread("t").watch(after_sequence=0) as other:
            assert next(other)
        open_ones[0].cancel()

        def has_room() -> bool:
            again = hang(second, 1)[0]
            with suppress(grpc.RpcError):
                open_ones.append(again)
                return bool(next(again))
            return False

        eventually(has_room)
        for each in open_ones:
            each.cancel()


def test_who_follows_a_log_has_the_place_of_a_stream(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """So that one who follows for hours keeps nobody of its principal from reading; and a place that is left is given
    back."""
    access = limited(tmp_path, limits={"calls": 1, "streams": 1})
    with run_daemon(access=access) as daemon, connect(daemon) as channel:
        stub = CheckpointServiceStub(channel)
        stub.Save(save(1), metadata=AUTHORIZED, timeout=30)
        asked = ReadLogRequest(thread="t", log="m", from_index=1)
        asked.wait.FromSeconds(60)

        def follow() -> Any:
            return stub.ReadLog.future(asked, metadata=AUTHORIZED, timeout=60)

        def read() -> Any:
            return stub.ReadLog(ReadLogRequest(thread="t", log="m"), metadata=AUTHORIZED, timeout=30)

        first = follow()
        with Client(daemon.target, token=TOKEN) as client:
            eventually(lambda: {each.limit: each.used for each in client.server_info().limits}["streams"] == 1)
        assert len(read().entries) == 1
        facts, _ = refused(lambda: follow().result(30), "streams")
        assert facts["used"] == "1"
        refused(lambda: next(hang(channel, 1)[0]), "streams")
        stub.Save(save(2), metadata=AUTHORIZED, timeout=30)
        assert len(first.result(30).entries) == 1
        eventually(lambda: next(hang(channel, 1)[0]))


def test_a_pace_lets_a_second_of_saves_pass_at_once(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """The next one is told when to come again, and passes then. Reads, deletions and others are not concerned."""
    access = limited(tmp_path, limits={"saves_per_second": 2})
    with run_daemon(access=access) as daemon, connect(daemon) as channel:
        stub, threads = CheckpointServiceStub(channel), ThreadServiceStub(channel)

        def save_now(number: int) -> Any:
            return stub.Save(save(number), metadata=AUTHORIZED, timeout=30)

        pause_s = 0.0
        for number in range(200):
            try:
                save_now(number)
            except grpc.RpcError as error:
                reason, facts, pause_s = quota_of(error)
                break
        assert (reason, facts["limit"], facts["maximum"]) == ("QUOTA_EXCEEDED", "saves_per_second", "2")
        assert number >= 2
        assert 0 < pause_s <= 0.5
        threads.GetThread(GetThreadRequest(thread="t"), metadata=AUTHORIZED, timeout=30)
        with Client(daemon.target, token=OPERATOR) as operator:
            for _ in range(5):
                operator.thread("other").append("m", 1)
        time.sleep(pause_s + 0.05)
        save_now(1000)
        threads.DeleteThread(DeleteThreadRequest(thread="t"), metadata=AUTHORIZED, timeout=30)


def test_a_batch_counts_each_of_its_saves(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """A batch of more than a second's saves passes when nothing was saved, and the next save waits for longer."""
    access = limited(tmp_path, limits={"saves_per_second": 10})
    with run_daemon(access=access) as daemon, connect(daemon) as channel:
        stub = CheckpointServiceStub(channel)
        batch = BatchSaveRequest(saves=[save(number, f"t{number}") for number in range(40)])
        stub.BatchSave(batch, metadata=AUTHORIZED, timeout=30)
        _, pause_s = refused(lambda: stub.Save(save(99), metadata=AUTHORIZED, timeout=30), "saves_per_second")
        assert 1 < pause_s <= 4


def test_calls_on_a_stream_have_the_limits_of_others(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """Each call of RunCalls is refused by itself, and the stream is none of the streams."""
    access = limited(tmp_path, limits={"saves_per_second": 4, "streams": 1})
    with run_daemon(access=access) as daemon, connect(daemon) as channel:
        CheckpointServiceStub(channel).Save(save(0), metadata=AUTHORIZED, timeout=30)
        watch = hang(channel, 1)[0]
        next(watch)
        calls = [StreamedCall(call=number, save=save(number, f"t{number}")) for number in range(1, 9)]
        sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stream = CallServiceStub(channel).RunCalls(iter(sent.get, None), metadata=AUTHORIZED, timeout=30)
        sent.put(RunCallsRequest(calls=calls))
        answers = list[CallAnswer]()
        while len(answers) < len(calls):
            answers += next(stream).answers
        sent.put(None)
        refusals = [told(each.refused.SerializeToString()) for each in answers if each.HasField("refused")]
        assert 2 <= len(refusals) <= 5
        assert {(reason, facts["limit"]) for reason, facts, _ in refusals} == {("QUOTA_EXCEEDED", "saves_per_second")}
        assert len({pause_s for *_, pause_s in refusals}) == len(refusals)  # they do not come again together
        watch.cancel()


def test_a_stream_of_calls_takes_no_place(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """Programs keep one open while they make no call: others of the principal read."""
    with run_daemon(access=limited(tmp_path, limits={"calls": 1, "streams": 1})) as daemon, connect(daemon) as channel:
        waiting = [queue.SimpleQueue[Any]() for _ in range(2)]
        for number, sent in enumerate(waiting):
            stream = CallServiceStub(channel).RunCalls(iter(sent.get, None), metadata=AUTHORIZED, timeout=30)
            sent.put(RunCallsRequest(calls=[StreamedCall(call=1, save=save(number, f"t{number}"))]))
            assert next(stream).answers
        assert CheckpointServiceStub(channel).Hydrate(HydrateRequest(thread="t1"), metadata=AUTHORIZED, timeout=30)
        for sent in waiting:
            sent.put(None)


def test_the_python_client_waits_for_its_pace(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """Saves, also those of a writer and of many tasks, are slower and do not fail. If the time is too short, the error
    has a type."""
    access = limited(tmp_path, limits={"saves_per_second": 10})
    with run_daemon(access=access) as daemon:
        began_s = time.monotonic()
        with Client(daemon.target, token=TOKEN) as client:
            for number in range(15):
                client.thread("t").append("m", number)
            thread = client.thread("w")
            state = thread.hydrate()
            with thread.writer() as writer:
                for number in range(15):
                    state.slots["n"] = number
                    writer.send(state)
        assert asyncio.run(many(daemon)) == 10
        assert time.monotonic() - began_s > 40 / 10 - 1.5
        with Client(daemon.target, token=TOKEN, retry_timeout=0.01) as hasty:
            with pytest.raises(RateExceeded) as error:
                [hasty.thread("h").append("m", number) for number in range(200)]
            assert (error.value.limit, error.value.principal, error.value.maximum) == ("saves_per_second", "agent", 10)


async def many(daemon: Daemon) -> int:
    async with AsyncClient(daemon.target, token=TOKEN) as client:
        await asyncio.gather(*(client.thread(f"many{number}").append("m", number) for number in range(10)))
        return sum((await client.count_threads()).values()) - 2


def test_a_principal_has_no_call_more_than_it_may(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """Calls that wait are under way. Those that store, and those that free something, have places of their own."""
    access = limited(tmp_path, limits={"calls": 2})
    with run_daemon(access=access) as daemon, ExitStack() as stack:
        channel = stack.enter_context(connect(daemon))
        with Client(daemon.target, token=OPERATOR) as operator:
            operator.thread("t").append("m", 1)
            stub = stack.enter_context(waiting_calls(channel, 2))
            with pytest.raises(grpc.RpcError) as error:
                stub.GetThread(GetThreadRequest(thread="t"), metadata=AUTHORIZED, timeout=30)
            _, facts, _ = quota_of(error.value)
            assert (facts["limit"], facts["used"]) == ("other_calls", "2")
            for number in range(5):
                CheckpointServiceStub(channel).Save(save(number, "other"), metadata=AUTHORIZED, timeout=30)
            stub.DeleteThread(DeleteThreadRequest(thread="other"), metadata=AUTHORIZED, timeout=30)
            assert operator.thread("t").hydrate().version == 1


class waiting_calls:  # noqa: N801
    """Calls that wait for a lease which somebody else has."""

    def __init__(self, channel: Any, count: int) -> None:
        self._channel, self._count, self._calls = channel, count, dict[int, Any]()

    def __enter__(self) -> ThreadServiceStub:
        from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
        from stateward.v1.lease_service_pb2_grpc import LeaseServiceStub

        stub = LeaseServiceStub(self._channel)
        first = AcquireLeaseRequest(thread="t")
        first.holder.name, first.holder.incarnation, first.options.request_id = "a", "1", "first"
        first.term.seconds = 300
        stub.AcquireLease(first, metadata=AUTHORIZED, timeout=30)
        threads = ThreadServiceStub(self._channel)

        def are_waiting() -> bool:
            """Whether all of them have their places. One that came while this question had one is sent again."""
            for number in range(self._count):
                if number not in self._calls or self._calls[number].done():
                    request = AcquireLeaseRequest()
                    request.CopyFrom(first)
                    request.holder.name, request.options.request_id = f"b{number}", f"next {number}"
                    request.wait.seconds = 120
                    self._calls[number] = stub.AcquireLease.future(request, metadata=AUTHORIZED, timeout=150)
            try:
                threads.GetThread(GetThreadRequest(thread="t"), metadata=AUTHORIZED, timeout=30)
            except grpc.RpcError:
                return True
            return False

        eventually(are_waiting)
        return threads

    def __exit__(self, *error: object) -> None:
        for call in self._calls.values():
            call.cancel()


def test_limits_change_while_calls_are_under_way(tmp_path: Path, connect: Callable[[Daemon], Any]) -> None:
    """What is under way counts for the new limit, and is not ended by it; without a limit all passes again."""
    access = limited(tmp_path, limits={"streams": 3})
    with run_daemon(access=access) as daemon, connect(daemon) as channel:
        with Client(daemon.target, token=OPERATOR) as operator:
            operator.thread("t").append("m", 1)
            watches = hang(channel, 2)
            for each in watches:
                next(each)
            limited(tmp_path, limits={"streams": 1})
            eventually(lambda: is_refused(channel))
            facts, _ = refused(lambda: next(hang(channel, 1)[0]), "streams")
            assert (facts["maximum"], facts["used"]) == ("1", "2")
            operator.thread("t").append("m", 2)
            assert next(watches[0])
            limited(tmp_path)
            eventually(lambda: not is_refused(channel))
        for each in watches:
            each.cancel()


def is_refused(channel: Any) -> bool:
    watch = hang(channel, 1)[0]
    try:
        next(watch)
    except grpc.RpcError:
        return True
    finally:
        watch.cancel()
    return False


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\nlimits={calls=0}", "limits.calls is no number"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\nlimits={saves=1}", "limits.saves is not known"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\nlimits=3", "limits is no table"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\n[[namespace]]\nname='x'", "'x' has no limit"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\n[[namespace]]\nbytes=1", "name is required"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\n[[namespace]]\nname='x'\nbytes='10 GB'", "is no size"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\n[[namespace]]\nname='x'\nthreads=true", "threads is no"),
        ("[[principal]]\nname='a'\nuid=1\ngrants=['read */*']\nnamespace=1", "'namespace' is not known"),
    ],
)  # fmt: skip
def test_a_wrong_limit_keeps_the_daemon_from_starting(tmp_path: Path, text: str, says: str) -> None:
    """The message names the place and what it should be."""
    from stateward_sidecar.errors import StartError
    from stateward_sidecar.service.admission.accessfile import read_access_file

    (tmp_path / "access.toml").write_text(text)
    with pytest.raises(StartError) as error:
        read_access_file(tmp_path / "access.toml")
    assert says in error.value.message


def test_the_file_of_the_page_is_read(tmp_path: Path, repository: Path) -> None:
    """docs/operations.md shows a file with limits."""
    from stateward_sidecar.service.admission.accessfile import read_access_file
    from stateward_sidecar.service.admission.limits import PrincipalLimits
    from stateward_sidecar.store.thread.usage import NamespaceLimit

    page = (repository / "docs/operations.md").read_text()
    block = next(each for each in page.split("```toml\n") if "limits =" in each).split("```")[0]
    (tmp_path / "access.toml").write_text(block)
    found = read_access_file(tmp_path / "access.toml")
    assert [each.limits for each in found.principals] == [PrincipalLimits(100, 10, 50)]
    assert found.namespaces == (NamespaceLimit("team-*", 10 << 30, 1000),)

"""The danger: a message to an agent that is lost, comes twice, answers another question, or goes unused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import eventually, fleet
from tests.daemon.store import findings, opened
from tests.daemon.wire import Wire, appends, refusal_of, refused
from tests.faults.rig import Made, copy, read_rows
from tests.messages import to_write
from tests.service.conftest import THREAD, Place

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, WORK_STATUS_WAITING
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.state_pb2 import BlobRef, Value
from stateward.v1.thread_service_pb2 import AttachRequest, ForkThreadRequest, ListThreadsRequest, WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.items.signals import list_signals

TIMEOUT_S = 20.0


class Mail:
    """Sends to one thread, and lists what waits there."""

    def __init__(self, wire: Wire, namespace: str = "", thread: str = THREAD) -> None:
        self.wire, self.at = wire, {"namespace": namespace, "thread": thread}
        self.stub: Any = wire.signals

    def request(self, name: str = "note", **fields: Any) -> SendSignalRequest:
        return to_write(SendSignalRequest, **{**self.at, "name": name, "request_id": os.urandom(8).hex(), **fields})

    def send(self, name: str = "note", **fields: Any) -> Signal:
        asked = self.request(name, **fields)
        sent: Signal = self.stub.SendSignal(asked, timeout=TIMEOUT_S, wait_for_ready=True).signal
        return sent

    def refused(self, name: str = "note", **fields: Any) -> Any:
        return refused(self.stub.SendSignal, self.request(name, **fields))

    def names(self) -> list[str]:
        found, request = list[str](), ListSignalsRequest(**self.at)
        while True:
            page = self.stub.ListSignals(request, timeout=TIMEOUT_S, wait_for_ready=True)
            found += [each.name for each in page.signals]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def save(self, **fields: Any) -> int:
        return self.wire.save(to_write(SaveRequest, **{**self.at, "diff": appends("more"), **fields})).version

    def take(self) -> None:
        request = AttachRequest(**self.at, mode="ATTACH_MODE_TAKE_OVER")
        self.wire.threads.Attach(request, timeout=TIMEOUT_S)

    def ask(self, wait_id: str, **fields: Any) -> int:
        return self.save(status=WORK_STATUS_WAITING, wait_id=wait_id, question={"prompt": "ok?"}, **fields)


@pytest.fixture
def mail(place: Place) -> Mail:
    return Mail(place.wire, place.namespace)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Daemon, Mail]]:
    """A daemon that may be killed, with a thread."""
    with run_daemon(tmp_path / "data", sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        mail = Mail(wire)
        mail.save(expected_version=0)
        yield daemon, mail
        wire.close()


def test_a_kill_loses_none(own: tuple[Daemon, Mail]) -> None:
    """What was answered is there after kill -9, in order, and a retry is still answered as the first time."""
    daemon, mail = own
    asked = [mail.request(f"{number}", payload=Value(data=b"%d" % number), sender="ana") for number in range(5)]
    first = [mail.stub.SendSignal(each) for each in asked]
    daemon.kill()
    daemon.start()
    assert mail.names() == ["0", "1", "2", "3", "4"]
    again = [mail.stub.SendSignal(each, wait_for_ready=True) for each in asked]
    assert [each.signal for each in again] == [each.signal for each in first]
    assert all(each.receipt.replayed for each in again)
    shown = mail.wire.checkpoints.Hydrate(HydrateRequest(**mail.at, include_signals=True)).signals
    assert list(shown) == [each.signal for each in first]
    assert mail.wire.thread("", THREAD).pending_signals == 5
    assert mail.wire.findings() == []


@pytest.mark.parametrize(
    ("where", "nth", "is_done"),
    [
        (">store.kinds.signal:drop_signals", 1, False),  # the row is gone in a transaction that never ends
        ("<storage.writer:Writer._finish", 3, True),  # committed, and nobody was told
    ],
)
def test_a_save_and_its_acknowledgement_are_one(tmp_path: Path, where: str, nth: int, is_done: bool) -> None:
    """A daemon that dies in a save which acknowledges has done both afterwards, or neither."""
    short = Path("/tmp", f"sw-{os.getpid()}-{is_done:d}")
    short.mkdir(mode=0o700)
    daemon = FaultyDaemon(short, tmp_path / "data", log_level="warning", sweep_interval=0)
    daemon.start_faulty(where, nth)
    try:
        mail = Mail(Wire(daemon.target))
        mail.save(expected_version=0)
        sent = mail.send("cancel")
        with suppress(grpc.RpcError):
            mail.save(expected_version=1, ack_signals=[sent.signal_id])
        daemon.wait_until_dead()
        daemon.start()
        assert mail.names() == ([] if is_done else ["cancel"])
        assert mail.wire.thread("", THREAD).version == (2 if is_done else 1)
        assert mail.wire.findings() == []
        mail.wire.close()
    finally:
        daemon.kill()


def test_a_retry_is_one_signal(mail: Mail) -> None:
    """The same request id adds nothing; with another body it is refused."""
    request = mail.request("a")
    first, second = mail.stub.SendSignal(request), mail.stub.SendSignal(request)
    assert first.signal == second.signal
    assert (first.receipt.replayed, second.receipt.replayed) == (False, True)
    assert mail.refused("b", request_id=request.options.request_id).reason == "REQUEST_ID_REUSED"
    assert mail.names() == ["a"]


def test_an_answer_to_an_old_question_is_stale(mail: Mail) -> None:
    """An answer reaches only what is asked now, once: not the question before, not a second time, not after all."""
    assert mail.refused("answer", wait_id="w1").reason == "STALE_ANSWER"
    mail.ask("w1", expected_version=2)
    mail.ask("w2", expected_version=3)
    stale = mail.refused("answer", wait_id="w1")
    assert (stale.reason, stale.metadata["wait_id"]) == ("STALE_ANSWER", "w2")
    assert mail.send("answer", wait_id="w2", sender="ana").wait_id == "w2"
    again = mail.refused("reject", wait_id="w2")
    assert (again.reason, again.metadata["answered"]) == ("STALE_ANSWER", "true")
    assert "'ana'" in again.message
    mail.save(expected_version=4)
    assert mail.refused("answer", wait_id="w2").reason == "STALE_ANSWER"
    assert mail.names() == ["answer"]


def test_a_retry_of_an_answer_is_never_stale(mail: Mail) -> None:
    """Who did not hear that the answer was taken asks again, and is told so, also when the agent went on."""
    mail.ask("w1", expected_version=2)
    request = mail.request("answer", wait_id="w1")
    first = mail.stub.SendSignal(request).signal
    mail.save(expected_version=3, ack_signals=[first.signal_id])
    assert mail.stub.SendSignal(request).receipt.replayed
    assert mail.names() == []


def test_unknown_acknowledgements_pass(mail: Mail) -> None:
    """A save acknowledges what is there, and what is not there (any more) hinders it in nothing."""
    kept, gone = mail.send("kept"), mail.send("gone")
    ids = [gone.signal_id, gone.signal_id, "00" * 8]
    assert mail.save(expected_version=2, ack_signals=ids) == 3
    assert mail.save(expected_version=3, ack_signals=ids) == 4
    assert mail.names() == [kept.name]


def test_a_flood_is_stopped(mail: Mail) -> None:
    """Of 1,100 signals 1,024 wait, in order; the others are refused, and there is room again after a save."""
    asked = [mail.stub.SendSignal.future(mail.request(f"{number}")) for number in range(1100)]
    taken, reasons = [], set()
    for each in asked:
        try:
            taken.append(each.result().signal)
        except grpc.RpcError as error:
            reasons.add(refusal_of(error).reason)
    assert (len(taken), reasons) == (1024, {"QUOTA_EXCEEDED"})
    assert mail.refused().reason == "QUOTA_EXCEEDED"
    assert mail.names() == [each.name for each in sorted(taken, key=lambda each: each.sequence)]
    mail.save(expected_version=2, ack_signals=[each.signal_id for each in taken])
    assert mail.send("room").name == "room"
    assert mail.names() == ["room"]


def test_large_signals_have_a_limit_together(mail: Mail) -> None:
    """32 payloads of 512 KiB wait; one more byte does not, and there is room again after a save."""
    taken = [mail.send(payload=Value(data=bytes(512 << 10))) for _ in range(32)]
    refusal = mail.refused(payload=Value(data=b"x"))
    assert refusal.reason == "QUOTA_EXCEEDED"
    assert "16,777,217 bytes" in refusal.message
    assert mail.send("empty").name == "empty"
    mail.save(expected_version=2, ack_signals=[taken[0].signal_id])
    assert mail.send("room", payload=Value(data=bytes(512 << 10))).name == "room"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"payload": Value(data=b"x" * ((512 << 10) + 1))}, "payload"),
        ({"payload": Value(blob=BlobRef(sha256=b"x" * 32, size_bytes=1))}, "payload"),
        ({"name": ""}, "name"),
        ({"name": "n" * 257}, "name"),
        ({"sender": "s" * 257}, "sender"),
        ({"wait_id": "w" * 1025}, "wait_id"),
        ({"request_id": ""}, "options.request_id"),
        ({"thread": ""}, "thread"),
    ],
)
def test_what_is_too_large_is_refused_by_name(mail: Mail, fields: dict[str, Any], field: str) -> None:
    """A payload above 512 KiB, a blob, a name that is empty or too long: nothing is written, and the field is named."""
    refusal = mail.refused(**{"name": "a", **fields})
    assert refusal.reason == "INVALID_FIELD"
    assert refusal.field.startswith(field)
    assert mail.names() == []


def test_the_largest_payload_comes_as_it_was_sent(mail: Mail) -> None:
    """512 KiB of any bytes."""
    data = os.urandom(512 << 10)
    mail.send(payload=Value(media_type="x/y", data=data))
    (found,) = mail.stub.ListSignals(ListSignalsRequest(**mail.at)).signals
    assert (found.payload.media_type, found.payload.data) == ("x/y", data)


def test_nobody_listens_to_a_thread_that_is_not_there(mail: Mail) -> None:
    """A typo in a name makes no thread."""
    assert mail.refused(thread="typo").reason == "THREAD_NOT_FOUND"


def test_a_lease_stops_no_signal(mail: Mail) -> None:
    """While somebody holds the lease, signals come in, and only the holder's saves acknowledge."""
    holder = {"name": "agent", "incarnation": "1"}
    lease = mail.wire.leases.AcquireLease(
        AcquireLeaseRequest(**mail.at, holder=holder, options=WriteOptions(request_id="l"))
    )
    sent = mail.send("cancel")
    save = SaveRequest(
        **mail.at, options=WriteOptions(expected_version=2), diff=appends("x"), ack_signals=[sent.signal_id]
    )
    assert refused(mail.wire.checkpoints.Save, save).reason == "LEASE_HELD"
    assert mail.names() == ["cancel"]
    save.options.lease_token = lease.lease.token
    mail.wire.save(save)
    assert mail.names() == []


def test_a_fork_has_none(mail: Mail) -> None:
    """What was said to a thread was not said to its copy, be it of one version or whole."""
    mail.send("cancel")
    for name, whole in (("one", False), ("all", True)):
        request = ForkThreadRequest(
            **mail.at, new_thread=name, all_versions=whole, options=WriteOptions(request_id=name)
        )
        mail.wire.threads.ForkThread(request, timeout=TIMEOUT_S)
        assert Mail(mail.wire, mail.at["namespace"], name).names() == []
        assert mail.wire.thread(mail.at["namespace"], name).pending_signals == 0
    assert mail.names() == ["cancel"]
    assert mail.wire.findings(mail.at["namespace"]) == []


def test_a_watch_tells_of_each(mail: Mail) -> None:
    """Thread and namespace watches tell a signal as it was kept, and a lease as it was granted."""
    streams = [
        mail.wire.threads.Watch(WatchRequest(namespace=mail.at["namespace"], thread=thread), timeout=TIMEOUT_S)
        for thread in (THREAD, "-")
    ]
    for each in streams:
        next(each)
    sent = mail.send("cancel", payload=Value(data=b"now"), sender="ana")
    holder = {"name": "agent", "incarnation": "1"}
    mail.wire.leases.AcquireLease(
        AcquireLeaseRequest(**mail.at, holder=holder, options=WriteOptions(request_id="l"))
    )
    for each in streams:
        events = list(next(each).events)
        if len(events) < 2:
            events += next(each).events
        each.cancel()
        assert events[0].signal == sent
        assert events[0].sequence == sent.sequence
        assert events[1].lease.holder.name == "agent"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """Two sidecars that share an archive."""
    with fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made.machine("first"), made.machine("second")


def test_signals_travel(machines: tuple[Daemon, Daemon]) -> None:
    """What was sent to a machine that is lost waits on the next one, is acknowledged there, and is gone everywhere."""
    first, _ = machines
    here, there = (Mail(Wire(each.target), thread="travels") for each in machines)
    here.save(expected_version=0)
    sent = [here.send(name, durability=DURABILITY_ARCHIVED) for name in ("one", "two")]
    assert there.names() == ["one", "two"]  # as it is read of what another sidecar holds
    first.kill()
    there.take()
    assert there.names() == ["one", "two"]
    assert there.send("three").sequence > sent[-1].sequence
    there.save(expected_version=1, ack_signals=[sent[0].signal_id], durability=DURABILITY_ARCHIVED)
    assert there.names() == ["two", "three"]
    first.start()
    assert here.names() == ["two", "three"]
    assert there.wire.findings() == []
    here.wire.close()
    there.wire.close()


def test_an_orphan_keeps_its_own(machines: tuple[Daemon, Daemon]) -> None:
    """A signal that only a replaced machine had is with what that one kept aside, and never in the live thread."""
    here, there = (Mail(Wire(each.target), thread="taken") for each in machines)
    here.save(expected_version=0)
    here.send("both", durability=DURABILITY_ARCHIVED)
    there.take()
    there.save(expected_version=1, durability=DURABILITY_ARCHIVED)
    here.send("lost")

    def orphan() -> list[str]:
        found = here.wire.threads.ListThreads(ListThreadsRequest(name_prefix="taken@"), timeout=TIMEOUT_S).threads
        return [each.thread for each in found]

    eventually(orphan)
    (name,) = orphan()
    assert Mail(here.wire, thread=name).names() == ["both", "lost"]
    assert here.names() == there.names() == ["both"]
    here.wire.close()
    there.wire.close()


def test_a_damaged_signal_is_found(own: tuple[Daemon, Mail], tmp_path: Path) -> None:
    """The row of a signal that is gone, came back after its acknowledgement, or is another one's: never believed."""
    daemon, mail = own
    done, kept, other = mail.send("done"), mail.send("kept"), mail.send("other")
    before = {key: row for key, row in read_rows(daemon.data_dir).items() if key[:1] == b"T" and key[5:6] == b"I"}
    keys = {int.from_bytes(key[-8:], "big"): key for key in before}
    assert set(keys) == {done.sequence, kept.sequence, other.sequence}
    mail.save(expected_version=1, ack_signals=[done.signal_id])
    daemon.stop()
    made = Made(daemon.data_dir, bytes.fromhex(daemon.key_file.read_text().strip()), {})
    damages: dict[str, dict[bytes, bytes | None]] = {
        "none": {},
        "lost": {keys[kept.sequence]: None},
        "older": {keys[done.sequence]: before[keys[done.sequence]]},
        "another's": {keys[kept.sequence]: before[keys[other.sequence]]},
        "flipped": {keys[kept.sequence]: before[keys[kept.sequence]][:-1] + b"\0"},
    }
    for name, changes in damages.items():
        with opened(copy(made, tmp_path / "copy", changes), key=made.key, settles=False) as store:
            assert bool(findings(store)) == (name != "none"), name
            with store.context.engine.read() as txn, suppress(Corrupt):
                found = list_signals(store.threads.get(txn, "default", THREAD).signals, 0, 1 << 30)[0]
                assert name == "none"
                assert [each.name for each in found] == ["kept", "other"]

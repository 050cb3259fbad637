"""The danger: a writer's stream writes a frame twice, or leaves a hole, when its daemon is killed, has a full disk or
moves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import fleet
from tests.daemon.wire import Wire, appends
from tests.messages import reason_of, to_write
from tests.service.agents import Agent, messages, new_id
from tests.service.conftest import THREAD

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ATTACH_MODE_TAKE_OVER, AttachRequest, DetachRequest


@pytest.fixture(scope="module")
def mortal() -> Iterator[Daemon]:
    """A daemon that is killed and stopped."""
    with run_daemon(sweep_interval=0) as running:
        yield running


@pytest.mark.usefixtures("hints")
def test_a_killed_daemon_loses_no_answer_and_writes_nothing_twice(mortal: Daemon) -> None:
    """Killed with frames under way: what was answered is there, what is sent again is there once, in order."""
    wire = Wire(mortal.target)
    name = f"killed-{new_id()}"
    one = Agent(wire, "", "one", name)
    stream = one.open()
    for number in range(200):
        stream.send(expected_version=number)
    answered = stream.answers(20)
    mortal.kill()
    mortal.start()
    wire.close()
    one.wire = wire = Wire(mortal.target)
    kept = wire.thread("", name).version
    assert answered == list(range(1, 21))
    assert kept >= 20
    again = one.open(request_id=stream.request_id)
    assert (again.token, again.opened.version) == (stream.token, kept)
    for save in stream.sent[20:]:
        again.resend(save)
    assert again.answers(180) == list(range(21, 201))
    assert messages(wire, one) == [str(number + 1) for number in range(200)]
    again.end()
    wire.close()


def test_a_restart_gives_the_full_term_again(mortal: Daemon) -> None:
    """Nobody but the holder gets in right after a restart, and tokens go on growing."""
    wire = Wire(mortal.target)
    one, two = Agent(wire, "", "one", "term"), Agent(wire, "", "two", "term")
    token = one.take(term=4)
    time.sleep(2)
    mortal.kill()
    mortal.start()
    wire.close()
    two.wire = wire = Wire(mortal.target)
    begun = time.monotonic()
    assert wire.described("", "term").lease.remaining.ToMilliseconds() > 2100  # without a new term < 2000
    assert two.take(wait={"seconds": 30}) > token
    assert time.monotonic() - begun > 0.7
    wire.close()


@pytest.mark.usefixtures("hints")
def test_a_stop_does_not_wait_for_writers(mortal: Daemon) -> None:
    """What was taken is answered; open streams, and calls that wait for a lease, end with SHUTTING_DOWN at once."""
    wire = Wire(mortal.target)
    name, ends = f"stop-{new_id()}", []
    one, two = Agent(wire, "", "one", name), Agent(wire, "", "two", name)
    stream = one.open()
    waiting = threading.Thread(target=lambda: ends.append(two.refused(wait={"seconds": 60})))
    waiting.start()
    for number in range(50):
        stream.send(expected_version=number)
    assert stream.answers(1) == [1]
    begun = time.monotonic()
    mortal.stop()
    assert time.monotonic() - begun < 5
    waiting.join()
    found: list[Any] = [1]
    assert stream.read_to_the_end(found).reason == "SHUTTING_DOWN"
    assert ends[0].reason == "SHUTTING_DOWN"
    mortal.start()
    wire.close()
    wire = Wire(mortal.target)
    versions = [each for each in found if isinstance(each, int)]
    assert versions == list(range(1, len(versions) + 1))
    assert set(found[len(versions) :]) <= {"SHUTTING_DOWN", "WRITER_ABORTED"}
    assert wire.thread("", name).version >= len(versions)
    wire.close()


def test_a_full_disk_makes_no_hole() -> None:
    """Frames refused with DISK_FULL: not even a small one after them is written; after a reset, small ones are."""
    with run_daemon(map_size="4MiB", sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        stream = Agent(wire, "", "one", "full").open()
        for _ in range(120):
            stream.send(diff=appends(os.urandom(40_000).hex()))
            stream.send(diff=appends("small"))
        found = stream.answers(240)
        written = [each for each in found if isinstance(each, int)]
        assert written == list(range(1, len(written) + 1))
        assert 0 < len(written) < 240
        assert found[len(written)] == "DISK_FULL"
        assert set(found[len(written) + 1 :]) == {"WRITER_ABORTED"}
        stream.reset()
        assert stream.next().reset.version == len(written)
        assert wire.findings() == []
        wire.close()


def test_tokens_grow_across_machines(tmp_path: Path) -> None:
    """The lease goes with its thread: held on the next machine too, and every token is larger than all before it."""
    with fleet(tmp_path) as machines:
        a, b = machines.machine("a"), machines.machine("b")
        wire_a, wire_b = Wire(a.target), Wire(b.target)
        stream = Agent(wire_a, "", "one", "moves").open()
        for number in range(3):
            stream.send(expected_version=number, durability=DURABILITY_ARCHIVED)
        archived = [stream.next().saved.save for _ in range(3)]
        assert [each.receipt.durability for each in archived] == [DURABILITY_ARCHIVED] * 3
        a.kill()
        one, two = Agent(wire_b, "", "one", "moves"), Agent(wire_b, "", "two", "moves")
        with machines.client(b) as client:
            client.thread("moves").archive.attach(take_over=True)
        assert two.refused().reason == "LEASE_HELD"
        next_one = one.open()  # the agent of before, in a new process
        assert next_one.token > stream.token
        assert next_one.token >> 32 > stream.token >> 32
        next_one.resend(archived_again(stream.sent[2], next_one.token))
        next_one.send(lease_token=stream.token)
        assert next_one.answers(2) == [3, "LEASE_HELD"]
        next_one.end()
        assert two.take() > next_one.token
        wire_a.close()
        wire_b.close()


def archived_again(save: SaveRequest, token: int) -> SaveRequest:
    """The same save under another lease."""
    again = SaveRequest()
    again.CopyFrom(save)
    again.options.lease_token = token
    return again


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_frame_that_was_applied_elsewhere_is_no_conflict(tmp_path: Path, gives_up: bool) -> None:
    """It expects more than a replaced owner has: HEAD is asked, as for a call. The thread is another's, or free again
    and the frame is answered as the first time; frames that were sent behind it are told to wait for a reset."""
    with fleet(tmp_path, archive_lease="30") as machines:
        first, second = (Wire(machines.machine(name).target) for name in ("first", "second"))
        stream = Agent(first, "default", "ada").open()
        for _ in range(3):
            stream.send(durability=DURABILITY_ARCHIVED)
        assert stream.answers(3) == [1, 2, 3]
        place = {"namespace": "default", "thread": THREAD}
        second.threads.Attach(AttachRequest(**place, mode=ATTACH_MODE_TAKE_OVER), timeout=20)
        other = Agent(second, "default", "bob")
        applied = to_write(
            SaveRequest, **place, diff=appends("once"), request_id="once", expected_version=3,
            lease_token=other.take(take_over=True), durability=DURABILITY_ARCHIVED,
        )  # fmt: skip
        assert second.save(applied).version == 4
        further = {**place, "diff": appends("twice"), "request_id": "twice", "lease_token": applied.options.lease_token}
        twice = to_write(SaveRequest, **further, expected_version=4, durability=DURABILITY_ARCHIVED)
        assert second.save(twice).version == 5
        if gives_up:
            second.threads.Detach(DetachRequest(**place), timeout=20)
        again = SaveRequest()
        again.CopyFrom(twice)
        again.options.lease_token = stream.token
        stream.resend(again)
        stream.send()
        answered, aborted = stream.next(), stream.next()
        if gives_up:
            assert (answered.saved.save.version, answered.saved.save.receipt.replayed) == (5, True)
        else:
            assert reason_of(answered.refused.status) == "NOT_OWNER"
        # Behind a frame that was written again, it is the lease that is gone.
        assert reason_of(aborted.refused.status) == "WRITER_ABORTED" or (
            gives_up and reason_of(aborted.refused.status) == "LEASE_HELD"
        )
        stream.send()  # this sidecar knows by now that the thread is another's
        assert reason_of(stream.next().refused.status) == "WRITER_ABORTED"
        first.close()
        second.close()

"""The danger: a full disk leaves half a write, refuses the deletions that would make room, or keeps the daemon from
starting."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.wire import Wire, refusal_of

from stateward._operations.threads import numbers_of
from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, HydrateRequest, SaveRequest
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.effect_service_pb2 import BeginEffectRequest, RenewEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import (
    DeleteThreadRequest,
    ForkThreadRequest,
    GetThreadRequest,
    ListThreadsRequest,
    PruneThreadRequest,
)
from stateward.v1.write_pb2 import WriteOptions

SAVE_BYTES = 20_000
RESUME_TRIES = 200


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """A file system of 8 MiB."""
    directory = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        directory.rmdir()
        pytest.skip("file systems cannot be mounted here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)
    directory.rmdir()


@pytest.fixture(params=["map", "disk"])
def small(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon with little room: a map of 4 MiB, or a disk of 8 MiB."""
    if request.param == "map":
        with run_daemon(map_size="4MiB", sweep_interval=0) as daemon:
            yield daemon
        return
    directory = request.getfixturevalue("tmpfs")
    with run_daemon(directory / "data", sweep_interval=0) as daemon:
        yield daemon


def save(thread: str, version: int, data: bytes) -> SaveRequest:
    edit = Edit(set_slot=SetSlot(slot="data", value=Value(data=data)))
    return SaveRequest(
        thread=thread, options=WriteOptions(request_id=f"{thread} {version}", expected_version=version),
        diff=Diff(edits=[edit])
    )


class Filler:
    """Fills a daemon and remembers what was answered."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.saved: dict[str, list[bytes]] = {}

    def save(self, thread: str) -> str:
        """One more version; returns the reason it was refused for, or an empty text."""
        data = os.urandom(SAVE_BYTES)
        try:
            self.wire.save(save(thread, len(self.saved.get(thread, ())), data))
        except grpc.RpcError as error:
            found = refusal_of(error)
            assert found.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            return found.reason
        self.saved.setdefault(thread, []).append(data)
        return ""

    def fill(self) -> None:
        """Until nothing more goes in, neither into a thread that is there nor into a new one."""
        for number in range(2000):
            if self.save(f"t{number % 5}"):
                break
        else:
            raise AssertionError("it never got full")
        assert self.save("new") == "DISK_FULL"
        assert self.save("t1") == "DISK_FULL"

    def restart(self, daemon: Daemon) -> None:
        """Kills the daemon and starts it again on what it left."""
        self.wire.close()
        daemon.kill()
        daemon.start()
        self.wire = Wire(daemon.target)

    def check(self, *, pruned: str = "") -> None:
        """Everything that was answered is there."""
        for thread, contents in self.saved.items():
            versions = [len(contents)] if thread == pruned else range(1, len(contents) + 1)
            for version in versions:
                request = HydrateRequest(thread=thread)
                request.version.version = version
                assert self.wire.hydrate(request).slots["data"].data == contents[version - 1]
        assert self.wire.findings() == []

    def resume(self) -> None:
        """Saves again; the rows of what went are cleared in the background, so that may take a moment."""
        for _ in range(RESUME_TRIES):
            if not self.save("t1"):
                return
            threading.Event().wait(0.02)
        raise AssertionError("there is room, and nothing can be saved")


@pytest.fixture
def full(small: Daemon) -> Iterator[tuple[Daemon, Filler]]:
    filler = Filler(Wire(small.target))
    filler.fill()
    yield small, filler
    filler.wire.close()


def test_reads_go_on_and_nothing_of_a_refused_write_stays(full: tuple[Daemon, Filler]) -> None:
    """DISK_FULL for saves, batches, forks; versions read as they were, lists and Verify work, nothing is half there."""
    daemon, filler = full
    batch = BatchSaveRequest(saves=[save("b1", 0, os.urandom(SAVE_BYTES)), save("b2", 0, os.urandom(SAVE_BYTES))])
    for call, request in (
        (filler.wire.checkpoints.BatchSave, batch),
        (filler.wire.threads.ForkThread, ForkThreadRequest(thread="t1", new_thread="f1", all_versions=True)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=20)
        assert refusal_of(caught.value).reason == "DISK_FULL"
    filler.check()
    listed = filler.wire.threads.ListThreads(ListThreadsRequest()).threads
    assert sorted(thread.thread for thread in listed) == sorted(filler.saved)
    assert daemon.pid


def test_a_deletion_makes_room(full: tuple[Daemon, Filler]) -> None:
    """DeleteThread works on a full disk, its room is used again, and nothing that was answered is lost by a restart."""
    daemon, filler = full
    filler.wire.threads.DeleteThread(DeleteThreadRequest(thread="t0"), timeout=20)
    del filler.saved["t0"]
    with pytest.raises(grpc.RpcError) as caught:
        filler.wire.threads.GetThread(GetThreadRequest(thread="t0"))
    assert refusal_of(caught.value).reason == "THREAD_NOT_FOUND"
    filler.resume()
    filler.check()
    filler.restart(daemon)
    filler.check()
    filler.resume()


def test_a_prune_makes_room(full: tuple[Daemon, Filler]) -> None:
    """PruneThread works on a full disk: the head stays as it was, and there is room again."""
    daemon, filler = full
    answer = filler.wire.threads.PruneThread(PruneThreadRequest(thread="t2", keep_latest_per_branch=1), timeout=20)
    assert len(list(numbers_of(answer.pruned))) == len(filler.saved["t2"]) - 1
    filler.check(pruned="t2")
    filler.resume()
    filler.restart(daemon)
    filler.check(pruned="t2")


def test_a_restart_on_a_full_disk_works(full: tuple[Daemon, Filler]) -> None:
    """Killed and started again with no room left, the daemon reads everything, still says DISK_FULL, still deletes."""
    daemon, filler = full
    filler.restart(daemon)
    filler.check()
    assert filler.save("t1") == "DISK_FULL"
    filler.wire.threads.DeleteThread(DeleteThreadRequest(thread="t3"), timeout=20)
    del filler.saved["t3"]
    filler.resume()
    filler.check()


def test_a_retry_is_answered_on_a_full_disk(full: tuple[Daemon, Filler]) -> None:
    """A save or batch that was answered before gets its first answer: it writes nothing, so it needs no room."""
    _, filler = full
    version = len(filler.saved["t1"])
    again = save("t1", version - 1, filler.saved["t1"][-1])
    answer = filler.wire.checkpoints.Save(again, timeout=20)
    assert (answer.version, answer.receipt.replayed) == (version, True)
    batch = filler.wire.checkpoints.BatchSave(BatchSaveRequest(saves=[again]), timeout=20)
    assert [(each.version, each.receipt.replayed) for each in batch.saves] == [(version, True)]
    other = save("t1", version - 1, b"x" * SAVE_BYTES)
    with pytest.raises(grpc.RpcError) as caught:
        filler.wire.checkpoints.Save(other, timeout=20)
    assert refusal_of(caught.value).reason == "REQUEST_ID_REUSED"


def test_a_large_write_does_not_stop_small_ones(small: Daemon) -> None:
    """A save that cannot fit is refused alone: small ones that travel with it are taken."""
    wire = Wire(small.target)
    large = wire.checkpoints.Save.future(save("large", 0, os.urandom(12 << 20)), timeout=30)
    others = [wire.checkpoints.Save.future(save(f"small-{number}", 0, b"x"), timeout=30) for number in range(20)]
    assert [call.code() for call in others] == [grpc.StatusCode.OK] * 20
    assert large.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wire.findings() == []
    wire.close()


def test_a_claim_is_renewed(small: Daemon) -> None:
    """A tool that works while the disk is full keeps its claim: its renewals write nothing."""
    wire = Wire(small.target)
    holder = Holder(name="h", incarnation="1")
    begin = BeginEffectRequest(thread="pays", key="pay", holder=holder, options=WriteOptions(request_id="1"))
    token = wire.effects.BeginEffect(begin).claim_token
    Filler(wire).fill()
    renewal = RenewEffectRequest(thread="pays", key="pay", claim_token=token)
    assert wire.effects.RenewEffect(renewal).effect.claim_token == token
    wire.close()

"""The danger: a namespace fills the disk of all, or a limit costs an acknowledged write, a read or a deletion."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.daemon.process import eventually, fleet, write_long
from tests.metrics.scraped import ANY_PORT, scrape
from tests.start.quotas import LIMITED, OPERATOR, TOKEN, limited

from stateward import Client
from stateward.admin import Verdict
from stateward.errors import QuotaExceeded
from stateward.testing import Daemon, run_daemon
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest, ThreadPart
from stateward.v1.backup_service_pb2_grpc import BackupServiceStub
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.effect_service_pb2_grpc import EffectServiceStub
from stateward.v1.record_service_pb2 import PutRecordsRequest
from stateward.v1.record_service_pb2_grpc import RecordServiceStub

WIRES = ("grpc", "frames")
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)


@contextmanager
def running(access: Path, data: Path | None = None, **flags: Any) -> Iterator[Daemon]:
    with run_daemon(data, access=access, sweep_interval=0, **flags) as daemon:
        yield daemon


def client_of(daemon: Daemon, namespace: str = LIMITED) -> Client:
    return Client(daemon.target, token=TOKEN, namespace=namespace)


def refused(act: Callable[[], object], limit: str) -> QuotaExceeded:
    """An act fails because of a limit, at once."""
    with pytest.raises(QuotaExceeded) as error:
        act()
    assert (error.value.limit, error.value.retryable) == (limit, False)
    return error.value


@pytest.mark.parametrize("wire", WIRES)
def test_a_namespace_has_no_thread_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Every way to make a thread is refused at the limit; the threads that are there go on, and a deletion makes room,
    also after a kill."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    access = limited(tmp_path, namespaces={LIMITED: {"threads": 3}})
    with running(access, tmp_path / "data") as daemon:
        with client_of(daemon) as client:
            for number in range(3):
                client.thread(f"t{number}").append("m", number)
            new = client.thread("new")
            error = refused(lambda: new.append("m", 1), "threads")
            assert (error.namespace, error.maximum, error.used) == (LIMITED, 3, 3)
            refused(lambda: client.thread("t0").fork("new"), "threads")
            refused(lambda: new.records.put("k", 1), "threads")
            refused(lambda: new.blobs.write(b"x"), "threads")
            refused(lambda: new.effects.run("e", lambda: 1), "threads")
            refused(lambda: new.lease().__enter__(), "threads")
            client.thread("t0").append("m", 2)
        with client_of(daemon, "free") as other:
            for number in range(5):
                other.thread(f"t{number}").append("m", number)
        daemon.kill()
        daemon.start()
        with client_of(daemon) as client:
            refused(lambda: client.thread("new").append("m", 1), "threads")
            client.thread("t1").delete()
            client.thread("new").append("m", 1)
            refused(lambda: client.thread("newer").append("m", 1), "threads")


def test_held_threads_count_while_they_are_locked(tmp_path: Path) -> None:
    """After a start, which opens none, and their deletion makes room without their key."""
    access, key = limited(tmp_path, namespaces={LIMITED: {"threads": 3, "bytes": "1MiB"}}), b"k" * 32
    with running(access, tmp_path / "data") as daemon:
        with client_of(daemon) as client:
            for number in range(3):
                client.thread(f"t{number}", session_key=key).append("m", os.urandom(100_000).hex())
            (used,) = [each.stored_bytes for each in client.held_threads()][:1]
            assert used > 100_000
        daemon.kill()
        daemon.start()
        with client_of(daemon) as client:
            refused(lambda: client.thread("new").append("m", 1), "threads")
            client.thread("t0").delete()
            client.thread("new").append("m", 1)
            refused(lambda: client.thread("new").append("m", os.urandom(880_000).hex()), "bytes")
            client.thread("t1").delete()
            client.thread("new").append("m", os.urandom(880_000).hex())


def test_writes_that_are_committed_together_are_counted_together(tmp_path: Path) -> None:
    """Many clients, and a batch, make threads at once: as many as the limit allows are made."""
    access = limited(tmp_path, namespaces={LIMITED: {"threads": 5}})
    with running(access) as daemon, client_of(daemon) as client:

        def make(number: int) -> bool:
            try:
                client.thread(f"t{number}").append("m", 1)
            except QuotaExceeded:
                return False
            return True

        with ThreadPoolExecutor(8) as crowd:
            assert sum(crowd.map(make, range(4))) == 4
            states = [(client.thread(f"u{number}"), client.thread(f"u{number}").hydrate()) for number in range(8)]
            for _, state in states:
                state.slots["n"] = 1
            refused(lambda: client.save_all([thread.prepare(state) for thread, state in states]), "threads")
            made = sum(client.count_threads().values())
            assert 4 <= made <= 5
            assert sum(crowd.map(make, range(10, 30))) == 5 - made
        assert sum(client.count_threads().values()) == 5


@pytest.mark.parametrize("wire", WIRES)
def test_a_full_namespace_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    """At the limit of bytes nothing is stored; reads, answers, renewals, results of tools and deletions go on, and make
    room. The bytes are those that each thread shows."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    access = limited(tmp_path, namespaces={LIMITED: {"bytes": "100KiB"}})
    with running(access) as daemon, client_of(daemon) as client:
        waiting, leased, tool = client.thread("waiting"), client.thread("leased"), client.thread("tool")
        waiting.ask(waiting.hydrate(), "Go on?")
        filler = client.thread("filler")
        with leased.lease(term=1.0):
            outcome = None

            def fill() -> str:
                nonlocal outcome
                for size in (8_000, 1):
                    with suppress(QuotaExceeded):
                        while True:
                            filler.append("m", os.urandom(size).hex())
                outcome = refused(lambda: filler.append("m", os.urandom(500).hex()), "bytes")
                return more.hex()

            more = os.urandom(30_000)
            assert tool.effects.run("fill", fill) == more.hex()  # its claim is from before, its result from after
            assert outcome is not None
            stored = sum(info.stored_bytes for info in client.threads())
            assert (100 << 10) - 2_000 < (outcome.used or 0) <= 200 << 10  # with a snapshot
            assert stored > (outcome.used or 0)
            refused(lambda: filler.append("m", more.hex()), "bytes")
            refused(lambda: filler.records.put("k", more.hex()), "bytes")
            refused(lambda: filler.blobs.write(more), "bytes")
            refused(lambda: [filler.effects.run(f"e{number}", str) for number in range(2000)], "bytes")
            refused(lambda: filler.fork("copy"), "bytes")
            time.sleep(1.5)  # the lease is renewed meanwhile
        assert filler.hydrate().version > 0
        waiting.answer("yes")
        filler.delete()
        client.thread("again").append("m", more.hex())


def test_what_is_deleted_and_pruned_makes_room(tmp_path: Path) -> None:
    """What pruning clears, and what a blob took, is given back."""
    access = limited(tmp_path, namespaces={LIMITED: {"bytes": "256KiB"}})
    with running(access, tmp_path / "data") as daemon, client_of(daemon) as client:
        thread = client.thread("t")
        for _ in range(12):
            state = thread.hydrate()
            state.slots["s"] = os.urandom(9_000).hex()
            thread.save(state)
        big = os.urandom(120_000)
        refused(lambda: [client.thread("u").append("m", big.hex()), client.thread("v").append("m", big.hex())], "bytes")
        thread.prune(keep_latest_per_branch=1)

        def has_room() -> bool:
            try:
                client.thread("v").append("m", big.hex()[:100_000])
            except QuotaExceeded:
                return False
            return True

        eventually(has_room)


def test_limits_are_shown_to_those_whom_they_concern(tmp_path: Path) -> None:
    """A client sees its own limits and those of its namespace, and not of one in which it may do nothing; an operator
    sees the fullest ones in the stats, in the metrics and from the doctor."""
    namespaces = {LIMITED: {"threads": 4, "bytes": "1GiB"}, "other": {"threads": 100}}
    limits = {"streams": 7, "saves_per_second": 1000}
    access = limited(tmp_path, limits=limits, namespaces=namespaces, agent=f"{LIMITED}/*")
    with running(access, metrics=ANY_PORT) as daemon:
        with client_of(daemon) as client:
            for number in range(4):
                client.thread(f"t{number}").append("m", number)
            refused(lambda: client.thread("t").append("m", 1), "threads")
            shown = {(each.limit, each.subject): (each.maximum, each.used) for each in client.server_info().limits}
            assert shown["threads", LIMITED] == (4, 4)
            assert shown["streams", "agent"] == (7, 0)
            assert {limit for limit, _ in shown} == {"threads", "bytes", "streams", "saves_per_second"}
        with client_of(daemon, "other") as client:
            assert {each.subject for each in client.server_info().limits} == {"agent"}
        with Client(daemon.target, token=OPERATOR, namespace="other") as operator:
            assert [each.limit for each in operator.server_info().limits] == ["threads"]
            stats = operator.stats()
            assert (stats.limits[0].limit, stats.limits[0].subject, stats.limits[0].used) == ("threads", LIMITED, 4)
            assert stats.limit_refusals == {"threads": 1}
            told = [each for each in operator.diagnose(probe_bucket=False).diagnoses if each.check == "quotas"]
            assert [each.verdict for each in told] == [Verdict.WARNING]
            assert f"namespace '{LIMITED}' takes 4 of 4 threads" in told[0].summary
        found = scrape(daemon)
        limited(tmp_path, limits={"streams": 7}, namespaces=namespaces, agent=f"{LIMITED}/t*")
        with client_of(daemon) as client:  # may not read every thread, so it does not learn how many there are
            eventually(lambda: [each.limit for each in client.server_info().limits] == ["streams"])
        assert found("stateward_limit_refusals_total", limit="threads") == 1
        assert found("stateward_limit_refusals_total", limit="streams") == 0
        assert found("stateward_fullest_namespace_ratio") == 1


def test_a_retry_gets_its_first_answer_in_a_full_namespace(tmp_path: Path) -> None:
    """A write that was acknowledged is never refused afterwards, of whichever kind it was."""
    access = limited(tmp_path, namespaces={"default": {"bytes": "20KiB", "threads": 1}})
    with running(access) as daemon, grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel:
        saves, records, effects = CheckpointServiceStub(channel), RecordServiceStub(channel), EffectServiceStub(channel)
        save, put = SaveRequest(thread="t"), PutRecordsRequest(thread="t")
        begin = BeginEffectRequest(thread="t", key="e")
        save.diff.edits.add().append.log = "m"
        save.diff.edits[0].append.entries.add(media_type="text/plain", data=b"x")
        put.writes.add(key="k").value.data = b"x"
        begin.holder.name, begin.holder.incarnation = "a", "1"
        calls = [(saves.Save, save), (records.PutRecords, put), (effects.BeginEffect, begin)]
        for number, (call, request) in enumerate(calls):
            request.options.request_id = f"request {number}"
            call(request, metadata=AUTHORIZED, timeout=30)
        with client_of(daemon, "default") as client:
            refused(lambda: client.thread("other").append("m", 1), "threads")
            refused(lambda: [client.thread("t").append("m", os.urandom(99).hex()) for _ in range(1000)], "bytes")
            for call, request in calls:
                assert call(request, metadata=AUTHORIZED, timeout=30).receipt.replayed
            refused(lambda: client.thread("t").append("m", os.urandom(99).hex()), "bytes")


def test_a_takeover_counts_and_is_not_refused(tmp_path: Path) -> None:
    """A machine takes the threads of a dead one, although they are more than it may have; it ships what it has. Then
    nothing more is stored there. A name that may not be made is not claimed in the bucket."""
    with fleet(tmp_path) as machines:
        first = machines.machine("first")
        with machines.client(first, namespace=LIMITED) as client:
            for number in range(3):
                client.thread(f"t{number}").append("m", os.urandom(5_000).hex(), durability="archived")
        first.kill()
        access = limited(tmp_path, namespaces={LIMITED: {"threads": 2, "bytes": "10KiB"}})
        second = machines.machine("second", access=str(access))
        with client_of(second) as client:
            for number in range(3):
                client.thread(f"t{number}").archive.attach(take_over=True)
            used = {each.limit: each.used for each in client.server_info().limits}
            assert used["threads"] == 3
            assert used["bytes"] == sum(info.stored_bytes for info in client.threads())
            objects = len(machines.objects())
            refused(lambda: client.thread("new").append("m", 1), "threads")
            assert len(machines.objects()) == objects
            thread = client.thread("t0")
            refused(lambda: thread.append("m", 1), "bytes")
            assert len(list(thread.log("m").read())) == 1
            thread.tags.set("still", at=1)
            assert thread.archive.wait(thread.hydrate().checkpoint) is not None
            for number in range(2):
                client.thread(f"t{number}").delete()
            assert {each.limit: each.used for each in client.server_info().limits}["threads"] == 1
            client.thread("new").append("m", "small", durability="archived")


def used_bytes(client: Client) -> int:
    return next(each.used for each in client.server_info().limits if each.limit == "bytes")


def kept_bytes(client: Client) -> int:
    return sum(info.stored_bytes for info in client.threads())


@contextmanager
def half_imported(daemon: Daemon, parts: list[ThreadPart], wire_cut: threading.Event) -> Iterator[Any]:
    """An import of which all but the end has come, until the event."""

    def messages() -> Iterator[ImportThreadRequest]:
        begin = ImportBegin(namespace=LIMITED, thread="copy")
        begin.options.request_id = "import"
        yield ImportThreadRequest(begin=begin)
        for part in parts[:-1]:
            yield ImportThreadRequest(parts=[part])
        assert wire_cut.wait(60)

    with grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel:
        call = BackupServiceStub(channel).ImportThread.future(messages(), metadata=AUTHORIZED, timeout=60)
        try:
            yield call
        finally:
            wire_cut.set()
            call.cancel()


@pytest.mark.parametrize("end", ["cut", "kill"])
def test_what_comes_in_counts_until_it_is_given_up(tmp_path: Path, end: str) -> None:
    """An import takes nearly all that is left. Meanwhile others have no room; when it breaks off, or the daemon is
    killed, they have it again."""
    access = limited(tmp_path, namespaces={LIMITED: {"bytes": "12MiB"}})
    with running(access, tmp_path / "data") as daemon:
        with Client(daemon.target, token=TOKEN, namespace="free") as free:
            for _ in range(30):
                free.thread("t").append("m", os.urandom(100_000).hex())
        with grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel:
            asked = ExportThreadRequest(namespace="free", thread="t")
            answers = BackupServiceStub(channel).ExportThread(asked, metadata=AUTHORIZED, timeout=60)
            parts = [part for answer in answers for part in answer.parts]
        more = os.urandom(10 << 20).hex()  # half as many bytes when it is compressed
        whole = Client(daemon.target, token=TOKEN, namespace=LIMITED, blob_threshold=1 << 30)
        with whole as client:
            client.thread("own").append("m", os.urandom(200_000).hex())
            before = kept_bytes(client)  # a snapshot may follow
            is_over = threading.Event()
            with half_imported(daemon, parts, is_over):
                eventually(lambda: used_bytes(client) > before + (2 << 20))
                assert [info.name for info in client.threads()] == ["own"]
                error = refused(lambda: client.thread("own").append("m", more), "bytes")
                assert (error.used or 0) > before + (2 << 20)
                if end == "kill":
                    daemon.kill()
                    daemon.start()
            eventually(lambda: used_bytes(client) == kept_bytes(client))
            client.thread("own").append("m", more)
            eventually(lambda: used_bytes(client) == kept_bytes(client))


def test_files_that_threads_share_count_for_each(tmp_path: Path) -> None:
    """A copy has the blobs and the segments of its source under other names. It keeps them when the source goes, so
    they count for it; one that has no room for them is not made."""
    access = limited(tmp_path, namespaces={LIMITED: {"bytes": "16MiB"}})
    with running(access, tmp_path / "data") as daemon, client_of(daemon) as client:
        source = client.thread("t")
        state = source.hydrate()
        state.slots["picture"] = source.blobs.write(os.urandom(2 << 20))
        source.save(state)
        for _ in range(4):
            source.append("m", os.urandom(400_000).hex())
        eventually(lambda: source.info().stored_bytes > 4 << 20)  # with segments
        size = source.info().stored_bytes
        for number, everything in enumerate((True, False)):
            copy = source.fork(f"c{number}", all_versions=everything)
            assert copy.info().stored_bytes > 3 << 20
            eventually(lambda: used_bytes(client) == kept_bytes(client))
        refused(lambda: source.fork("more", all_versions=True), "bytes")
        refused(lambda: source.fork("more"), "bytes")
        eventually(lambda: used_bytes(client) == kept_bytes(client))
        source.delete()
        eventually(lambda: used_bytes(client) == kept_bytes(client) > size // 2)
        assert len(client.thread("c0").hydrate().slots["picture"].read()) == 2 << 20
        with Client(daemon.target, token=OPERATOR, namespace=LIMITED) as operator:
            assert not [progress.finding for progress in operator.verify() if progress.finding is not None]


def test_a_copy_whose_history_is_elsewhere_counts_once(tmp_path: Path) -> None:
    """Its first attempt finds that a part is in the archive only. The machine fetches it, and copies anew."""
    with fleet(tmp_path) as machines:
        first = machines.machine("first")
        with machines.client(first, namespace=LIMITED) as client:
            write_long(client, "t", 30)
            blob = client.thread("t").blobs.write(os.urandom(200_000))
            client.thread("t").set_slot("picture", blob, durability="archived")
        first.kill()
        access = limited(tmp_path, namespaces={LIMITED: {"bytes": "64MiB"}})
        second = machines.machine("second", access=str(access))
        with client_of(second) as client:
            client.thread("t").archive.attach(take_over=True)
            copy = client.thread("t").fork("copy", all_versions=True)
            assert len(copy.hydrate().slots["picture"].read()) == 200_000
            eventually(lambda: used_bytes(client) == kept_bytes(client))

"""The danger: a bucket that throttles in the middle of a deletion keeps key and objects of a thread that is gone."""

from __future__ import annotations

import pytest
from tests.archive_faults.gate import HOLD_MAX_S, Gate
from tests.bucket.weed import s3_environment
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, errors
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.clock import Clock


def left_of_threads(machines: Fleet, url: str) -> list[str]:
    """The keys and objects of threads in the bucket, without HEADs."""
    bucket = open_bucket(machines.archive, s3_environment(url), Clock())
    names = [key for prefix in ("v1/t/", "v1/_keys/t/") for key, _ in bucket.list(prefix)]
    bucket.close()
    return [name for name in names if not name.endswith("/HEAD")]


def fail(client: Client, gate: Gate) -> None:
    """Deletes the thread, and the bucket takes the tombstone and nothing more. On a busy machine, attempts may fail
    before that."""
    gate.plan("delete key", *[("503", "before")] * 100_000)
    while not gate.count("delete key"):
        with pytest.raises(errors.ArchiveUnavailable):
            client.thread("job").delete()
    gate.plan("delete key")


def test_the_retry_deletes_what_is_left(fleet_on_s3: Fleet, gate: Gate) -> None:
    """The first answer is an error, and the next one comes when neither the key nor an object is there."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, retry_timeout=0)
    write_steps(client, "job", 12, size=6000, archived=True)
    assert len(left_of_threads(fleet_on_s3, gate.url)) > 1
    fail(client, gate)
    patient = fleet_on_s3.client(daemon)
    patient.thread("job").delete(missing_ok=True)
    assert left_of_threads(fleet_on_s3, gate.url) == []
    assert not patient.thread("job").delete(missing_ok=True)
    daemon.kill()
    fleet_on_s3.start(daemon)
    with pytest.raises(errors.ThreadNotFound):
        fleet_on_s3.client(daemon).thread("job").delete()


@pytest.mark.parametrize("who", ["the same sidecar", "another"])
def test_a_deletion_of_nothing_waits_for_one_under_way(fleet_on_s3: Fleet, gate: Gate, who: str) -> None:
    """The first deletion is answered, and the bucket is slow to delete its first object: who is told that there is no
    thread finds none of its objects, because this call deletes them."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 12, size=6000, archived=True)
    held = gate.hold("delete pack")
    assert client.thread("job").delete()
    assert held.arrived.wait(HOLD_MAX_S)
    if who == "another":
        client = fleet_on_s3.client(fleet_on_s3.machine_on("second", gate.url))
    with pytest.raises(errors.ThreadNotFound):
        client.thread("job").delete()
    assert left_of_threads(fleet_on_s3, gate.url) == []
    held.let_go()


def test_a_retry_that_nobody_waits_for_goes_on(fleet_on_s3: Fleet, gate: Gate) -> None:
    """The caller gives up while the retry deletes objects; they go all the same, once the bucket answers."""
    daemon = fleet_on_s3.machine_on("first", gate.url, patience_s=6)
    client = fleet_on_s3.client(daemon, retry_timeout=0)
    write_steps(client, "job", 12, size=6000, archived=True)
    fail(client, gate)
    held = [gate.hold("delete pack") for _ in range(32)]  # those of the read before the deletion, too
    hasty = fleet_on_s3.client(daemon, call_timeout=0.5, retry_timeout=0)
    with pytest.raises(errors.StatewardError):
        hasty.thread("job").delete()
    assert held[0].arrived.wait(HOLD_MAX_S)
    assert left_of_threads(fleet_on_s3, gate.url)
    for each in held:
        each.let_go()
    eventually(lambda: not left_of_threads(fleet_on_s3, gate.url), HOLD_MAX_S)
    with pytest.raises(errors.ThreadNotFound):
        client.thread("job").delete()

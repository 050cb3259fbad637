"""The danger: a bucket that throttles in the middle of a deletion keeps key and objects of a thread that is gone."""

from __future__ import annotations

import pytest
from tests.archive.rig import eventually, write_steps
from tests.archive_faults.gate import Gate
from tests.archive_faults.wires import Machines
from tests.bucket.weed import s3_environment

from stateward import errors
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.clock import Clock


def left_of_threads(machines: Machines, url: str) -> list[str]:
    """The keys and objects of threads in the bucket, without HEADs."""
    bucket = open_bucket(machines.archive, s3_environment(url), Clock())
    names = [key for prefix in ("v1/t/", "v1/_keys/t/") for key, _ in bucket.list(prefix)]
    bucket.close()
    return [name for name in names if not name.endswith("/HEAD")]


def test_the_retry_deletes_what_is_left(fleet_on_s3: Machines, gate: Gate) -> None:
    """The first answer is an error, and the next one comes when the key is gone. The objects go with it, or in the
    background if the first deletion was still under way and ends now."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, retry_timeout=0)
    write_steps(client, "job", 12, size=6000, archived=True)
    assert len(left_of_threads(fleet_on_s3, gate.url)) > 1
    gate.plan("delete key", *[("503", "before")] * 200)
    with pytest.raises(errors.ArchiveUnavailable):
        client.thread("job").delete()
    gate.plan("delete key")
    client.thread("job").delete(missing_ok=True)
    assert not any("/_keys/" in name for name in left_of_threads(fleet_on_s3, gate.url))
    eventually(lambda: not left_of_threads(fleet_on_s3, gate.url))
    assert not client.thread("job").delete(missing_ok=True)
    daemon.kill()
    fleet_on_s3.start(daemon)
    with pytest.raises(errors.ThreadNotFound):
        fleet_on_s3.client(daemon).thread("job").delete()

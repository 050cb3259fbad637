"""The danger: with an archive, giving the lease of an expired thread back is an error, and without one it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.inside import daemon_inside
from tests.daemon.wire import TIMEOUT_S, refused

from stateward.v1.lease_service_pb2 import ReleaseLeaseRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions


@pytest.mark.parametrize("has_archive", [False, True])
def test_the_lease_of_a_thread_that_is_gone(tmp_path: Path, has_archive: bool) -> None:
    """Nothing is given back. With a uid the caller means a thread that was there."""
    flags = {"archive": f"file://{tmp_path}/bucket"} if has_archive else {}
    with daemon_inside(tmp_path, **flags) as daemon:
        request = ReleaseLeaseRequest(thread="gone", options=WriteOptions(lease_token=5))
        answer = daemon.wire.leases.ReleaseLease(request, timeout=TIMEOUT_S)
        assert (answer.released, answer.receipt) == (False, Receipt())
        request.options.expected_uid = "ab" * 16
        assert refused(daemon.wire.leases.ReleaseLease, request).reason == "UID_MISMATCH"

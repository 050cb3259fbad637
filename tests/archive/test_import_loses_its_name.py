"""The danger: a restore claims a name, takes long, and is answered although another sidecar has the name by now."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, errors
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest
from stateward.v1.backup_service_pb2_grpc import BackupServiceStub
from stateward.v1.write_pb2 import WriteOptions


def save_when_free(client: Client, name: str) -> None:
    """Saves a thread as soon as its name is free."""
    end = time.monotonic() + 30
    while True:
        try:
            write_steps(client, name, 1, archived=True)
        except errors.NotOwner:
            assert time.monotonic() < end, "the name never gets free"
            time.sleep(0.1)
        else:
            return


def test_a_restore_under_a_lost_claim_is_refused(machines: Fleet) -> None:
    """Its stream pauses for longer than the lease, and another sidecar saves under the name meanwhile. Nothing is
    answered that is set aside afterwards."""
    first = machines.machine("first")
    here, there = machines.client(first), machines.client(machines.machine("second"))
    write_steps(here, "job", 3)
    with grpc.insecure_channel(first.target) as channel:
        backups = BackupServiceStub(channel)
        parts = [part for answer in backups.ExportThread(ExportThreadRequest(thread="job")) for part in answer.parts]

        def stream() -> Iterator[ImportThreadRequest]:
            begin = ImportBegin(namespace="default", thread="copy", options=WriteOptions(request_id="r"))
            yield ImportThreadRequest(begin=begin, parts=parts[:1])
            eventually(lambda: sum(key.endswith("/HEAD") for key in machines.objects()) == 2)  # the name is claimed
            save_when_free(there, "copy")
            yield ImportThreadRequest(parts=parts[1:])

        with pytest.raises(grpc.RpcError) as refused:
            backups.ImportThread(stream(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    write_steps(there, "copy", 1, archived=True)
    assert there.thread("copy").hydrate().slots["count"] == 2
    assert here.thread("copy").hydrate().slots["count"] == 2
    assert not [thread.name for thread in here.threads() if "@@" in thread.name]

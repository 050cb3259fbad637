"""The danger: a log that tells what is sealed at rest, or that cannot be matched with the call it is about."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from typing import Any

import grpc
import pytest
from tests.daemon.process import eventually
from tests.daemon.wire import Wire, appends, sets

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import GetCheckpointRequest, SaveRequest
from stateward.v1.write_pb2 import WriteOptions

SECRETS = ("secret-space", "secret-thread", "secret-log", "secret-value", "secret-label", "secret-request")


def lines(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in daemon.stderr.splitlines()]
    return [line for line in every if line["event"] == event]


def save(wire: Wire, request_id: str, size_bytes: int = 10) -> None:
    request = SaveRequest(
        namespace="secret-space", thread="secret-thread", diff=appends("secret-value" + os.urandom(size_bytes).hex()),
        options=WriteOptions(request_id=request_id), labels={"secret-label": "secret-value"},
    )  # fmt: skip
    wire.checkpoints.Save(request, timeout=20)


def test_each_call_at_debug() -> None:
    """One line for each call with method, code, time and request id; a name in the id is hashed, and nothing else is
    told."""
    given = uuid.uuid4().hex
    with run_daemon(log_level="debug", log_format="json") as daemon:
        wire = Wire(daemon.target)
        save(wire, given)
        save(wire, "secret-request")
        with pytest.raises(grpc.RpcError):
            wire.checkpoints.GetCheckpoint(GetCheckpointRequest(namespace="secret-space", thread="secret-other"))
        wire.close()
        eventually(lambda: len(lines(daemon, "call")) == 3)  # an error is sent before its call ends
        saves = [line for line in lines(daemon, "call") if line["method"].endswith("Save")]
        (read,) = [line for line in lines(daemon, "call") if line["method"].endswith("GetCheckpoint")]
        hashed = hashlib.sha256(b"secret-request").hexdigest()[:16]
        assert [line["request_id"] for line in saves] == [given, f"sha256:{hashed}"]
        assert all(line["code"] == "OK" and line["ms"] > 0 for line in saves)
        assert read["code"] == "NOT_FOUND"
        assert "request_id" not in read
        assert not [word for word in SECRETS if word in daemon.stderr]


def test_a_refused_call() -> None:
    """What an operator must see is logged at any level, with the id by which the client knows the call."""
    given = uuid.uuid4().hex
    with run_daemon(map_size="1MiB", sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        with pytest.raises(grpc.RpcError):
            save(wire, given, 1 << 20)
        wire.close()
        (line,) = lines(daemon, "a call was refused")
        assert (line["reason"], line["request_id"]) == ("DISK_FULL", given)
        assert lines(daemon, "call") == []
        assert not [word for word in SECRETS if word in daemon.stderr]


def test_lines_for_people() -> None:
    """Console is the same in lines of text."""
    with run_daemon(log_format="console", log_level="debug") as daemon:
        wire = Wire(daemon.target)
        wire.checkpoints.Save(
            SaveRequest(thread="t", diff=sets("goal", "Paris"), options=WriteOptions(request_id="a" * 32))
        )
        wire.close()
        (line,) = [line for line in daemon.stderr.splitlines() if " call " in line]
        assert f"request_id={'a' * 32}" in line
        assert "code=OK" in line

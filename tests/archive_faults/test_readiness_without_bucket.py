"""The danger: work that is sent to a sidecar whose bucket takes nothing, so that it dies with the machine."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, errors


def causes(client: Client) -> list[str]:
    return [why.partition(":")[0] for why in client.server_info().not_ready]


def test_a_bucket_that_refuses(fleet_on_s3: Fleet, gate: Gate) -> None:
    """Not ready from the first refused write on, over a restart, until a write is taken again."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 1, archived=True)
    assert causes(client) == []
    gate.refuse(403, "AccessDenied")
    write_steps(client, "job", 1)
    eventually(lambda: causes(client) == ["archive"])
    assert "refuses" in client.server_info().not_ready[0]
    daemon.kill()
    fleet_on_s3.start(daemon)
    eventually(lambda: causes(client) == ["archive"])
    gate.open()
    eventually(lambda: causes(client) == [])


@pytest.mark.slow
def test_a_bucket_that_is_away(fleet_on_s3: Fleet, gate: Gate) -> None:
    """One that commits to its disk stays ready; one that archives by default is not, because its saves fail."""
    patient = fleet_on_s3.client(fleet_on_s3.machine_on("patient", gate.url))
    daemon = fleet_on_s3.machine_on("strict", gate.url, default_durability="archived")
    strict = fleet_on_s3.client(daemon, call_timeout=2, retry_timeout=0)
    write_steps(patient, "job", 1, archived=True)
    write_steps(strict, "other", 1)
    gate.close()
    write_steps(patient, "job", 1)
    with suppress(errors.StatewardError):
        strict.thread("other").append("messages", "late")
    eventually(lambda: causes(strict) == ["archive"])
    assert causes(patient) == []
    gate.open()
    eventually(lambda: causes(strict) == [])


def test_a_right_that_comes_back_while_nobody_writes(fleet_on_s3: Fleet, gate: Gate) -> None:
    """The daemon tries a write by itself, so it is ready again although nothing waits to be archived."""
    daemon = fleet_on_s3.machine_on("first", gate.url, default_durability="archived")
    client = fleet_on_s3.client(daemon, call_timeout=5, retry_timeout=0)
    gate.refuse(403, "AccessDenied")
    with suppress(errors.StatewardError):
        client.thread("new").append("messages", "late")
    eventually(lambda: causes(client) == ["archive"])
    gate.open()
    eventually(lambda: causes(client) == [])
    assert [request.kind for request in gate.requests if "/_probe/" in request.path][-2:] == [
        "create other", "delete other",
    ]  # fmt: skip

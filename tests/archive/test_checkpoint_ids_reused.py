"""The danger: a checkpoint id that was used again leads to the version that had it before, and was pruned."""

from __future__ import annotations

import os

import pytest
from tests.archive.test_effects_gone_travel import prune
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_service_pb2 import GetCheckpointRequest
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import requests


def save(machine: Driven, checkpoint_id: str) -> int:
    request = append(os.urandom(400))
    request.checkpoint_id = checkpoint_id
    version = machine.put(request).version
    machine.ship_now()
    return int(version)


def version_of(machine: Driven, checkpoint_id: str) -> int:
    asked = GetCheckpointRequest(namespace=NAMESPACE, thread="job", version={"checkpoint_id": checkpoint_id})
    return int(run(machine.checkpoints.get_checkpoint(asked, CALLER)).checkpoint.version)


@pytest.mark.parametrize("later", [0, 8], ids=["newest", "old"])
def test_an_id_leads_to_its_newest_version(driven: Town, monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    """The owner forgot the pruned version; a pack in the archive has it, and another machine reads the pack last."""
    for module in (clear, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
        monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    first = driven.machine("first")
    for number in range(8):
        save(first, "twice" if number == 1 else f"{number}")
    prune(first, 2)
    save(first, "8")
    first.sweep()
    newest = save(first, "twice")
    for number in range(later):
        save(first, f"later {number}")
    assert version_of(first, "twice") == newest
    second = driven.machine("second")
    second.state()
    assert second.thread().floor_sequence
    second.archive.complete(NAMESPACE, "job")
    assert version_of(second, "twice") == newest
    assert second.findings() == []

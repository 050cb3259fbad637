"""The danger: a retention rule ends with the machine, and a thread that was taken over grows for ever."""

from __future__ import annotations

import os

import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.thread_service_pb2 import UpdateThreadRequest
from stateward_sidecar.store.journal import requests


def work(machine: Driven, count: int) -> None:
    for _ in range(count):
        machine.put(append(os.urandom(400)))
        machine.ship_now()


def test_a_rule_outlasts_its_machine(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner of a long thread has the newest part, and gets the rest of what it prunes."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", 4)
    first, second = driven.machine("first"), driven.machine("second")
    work(first, 24)
    request = UpdateThreadRequest(namespace=NAMESPACE, thread="job", update_mask={"paths": ["retention"]})
    request.update.retention.keep_last = 3
    first.update(request)
    first.ship_now()
    driven.end(first)
    second.state()
    second.archive.own(NAMESPACE, "job", take_over=True)
    work(second, 1)
    assert second.thread().floor_sequence
    second.sweep()
    assert second.thread().head.retained_versions == 3
    work(second, 2)
    second.sweep()
    assert second.thread().head.retained_versions == 3
    assert second.findings() == []


def test_a_rule_makes_no_orphan(driven: Town) -> None:
    """A machine comes back, and its sweep is the first to look at a thread that another machine has by now."""
    first, second = driven.machine("first"), driven.machine("second")
    work(first, 8)
    request = UpdateThreadRequest(namespace=NAMESPACE, thread="job", update_mask={"paths": ["retention"]})
    request.update.retention.keep_last = 3
    first.update(request)
    first.ship_now()
    first.write_rows()
    second.archive.own(NAMESPACE, "job", take_over=True)
    work(second, 1)
    first.restart()
    first.sweep()
    for number in first.outbox():
        first.ship(number)
    assert [thread.name for thread in first.threads()] == ["job"]
    second.sweep()
    assert second.thread().head.retained_versions == 3
    assert first.state().state == second.state().state
    assert first.findings() == second.findings() == []


def test_a_rule_of_an_idle_owner_makes_no_orphan(driven: Town) -> None:
    """Another machine took the thread while its owner was idle: the owner's sweep asks HEAD before it prunes."""
    first, second = driven.machine("first"), driven.machine("second")
    work(first, 8)
    request = UpdateThreadRequest(namespace=NAMESPACE, thread="job", update_mask={"paths": ["retention"]})
    request.update.retention.keep_last = 3
    first.update(request)
    first.ship_now()
    second.archive.own(NAMESPACE, "job", take_over=True)
    work(second, 1)
    first.sweep()
    for number in first.outbox():
        first.ship(number)
    assert [thread.name for thread in first.threads()] == ["job"]
    assert first.state().state == second.state().state

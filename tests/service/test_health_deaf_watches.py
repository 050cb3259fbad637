"""The danger: a watch of the health hears nothing more once another watch has ended, or takes places without end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.daemon.inside import WAIT_S, daemon_inside

from stateward_sidecar.service.serving import open_door

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ASKED = health_pb2.HealthCheckRequest(service="readiness")


def status_of(watch: Iterator[health_pb2.HealthCheckResponse]) -> int | None:
    """The first status; None = the watch was refused."""
    try:
        return next(watch).status
    except grpc.RpcError:
        return None


def test_a_watch_hears_all_after_another_has_ended(tmp_path: Path) -> None:
    """Of the same service: both ways it goes, and back."""
    with daemon_inside(tmp_path) as daemon, grpc.insecure_channel(daemon.settings.listen[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        first, second = (health.Watch(ASKED, timeout=WAIT_S) for _ in range(2))
        assert [next(each).status for each in (first, second)] == [SERVING, SERVING]
        first.cancel()
        with pytest.raises(grpc.RpcError):
            next(first)
        for is_ready, status in ((False, NOT_SERVING), (True, SERVING)):
            asyncio.run_coroutine_threadsafe(daemon.parts.server.set_ready(is_ready), daemon.loop).result(WAIT_S)
            assert next(second).status == status


def test_one_watch_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RESOURCE_EXHAUSTED. A check is answered all the same, and a place is free when a watch has ended."""
    monkeypatch.setattr(open_door, "WATCHES_MAX", 3)
    monkeypatch.setattr(open_door, "REFLECTIONS_MAX", 1)
    with daemon_inside(tmp_path) as daemon, grpc.insecure_channel(daemon.settings.listen[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(ASKED, timeout=WAIT_S) for _ in range(3)]
        assert [next(each).status for each in watches] == [SERVING] * 3
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(ASKED, timeout=WAIT_S))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert health.Check(ASKED, timeout=WAIT_S).status == SERVING
        watches.pop().cancel()
        assert any(status_of(health.Watch(ASKED, timeout=WAIT_S)) == SERVING for _ in range(1000))
        reflection, is_over = reflection_pb2_grpc.ServerReflectionStub(channel), threading.Event()

        def ask():  # type: ignore[no-untyped-def]
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            is_over.wait(WAIT_S)

        one = reflection.ServerReflectionInfo(ask())
        assert next(one).list_services_response.service
        with pytest.raises(grpc.RpcError) as refused:
            next(reflection.ServerReflectionInfo(ask()))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        is_over.set()

"""Asking a running daemon whether it is ready, or only whether it answers: for container probes."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stateward.v1.admin_service_pb2 import GetServerInfoRequest
from stateward.v1.admin_service_pb2_grpc import AdminServiceStub

TIMEOUT_S = 3.0


def ask_health(target: str, name: str) -> int:
    """Asks for readiness or liveness. Returns 0 if the answer is yes; else prints why not, and returns 1."""
    with grpc.insecure_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            print(f"not ready: {_explain(target, error)}", file=sys.stderr)
            return 1
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return 0
        for why in _find_reasons(channel) or ["it stops, or does not say why"]:
            print(f"not ready: {target}: {why}", file=sys.stderr)
    return 1


def _explain(target: str, error: grpc.RpcError) -> str:
    """Why nobody answered, in place of the texts of gRPC, which name the address several times."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{target}: the daemon does not answer within {TIMEOUT_S:.0f} s"
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        why = str(error.details()).rpartition("error: ")[2]
        return f"no daemon answers at {target} ({why}); --listen names the address of one that runs"
    return f"{target}: {error.details()}"


def _find_reasons(channel: grpc.Channel) -> list[str]:
    try:
        return list(AdminServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=TIMEOUT_S).not_ready)
    except grpc.RpcError:
        return []

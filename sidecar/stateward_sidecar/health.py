"""Asking a running daemon whether it is ready: for container probes."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def ask_health(target: str) -> int:
    """Returns 0 if the daemon is ready, else prints a line on standard error and returns 1."""
    with grpc.insecure_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            print(f"not ready: {target}: {error.details()}", file=sys.stderr)
            return 1
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        print(f"not ready: {target}", file=sys.stderr)
        return 1
    return 0

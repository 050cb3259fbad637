"""Asks the daemon on its socket whether it serves; exits 0 if it does. For containers, where probes run a command.

python check_health.py [TARGET]     TARGET: a gRPC address, by default STATEWARD_TARGET or the container's socket
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Shorter than the probes' own limit, so that the reason is printed before they give up. In seconds.
TIMEOUT_S = 3

target = (
    sys.argv[1] if len(sys.argv) > 1 else os.environ.get("STATEWARD_TARGET", "unix:///run/stateward/stateward.sock")
)
with grpc.insecure_channel(target) as channel:
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        sys.exit(f"{target}: {error.code().name}: {error.details()}")
if answer.status != health_pb2.HealthCheckResponse.SERVING:
    sys.exit(f"{target}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")

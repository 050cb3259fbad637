"""Asking a running daemon whether it is ready, or only whether it answers: for container probes.

A socket is asked first. At a port with TLS the daemon's own certificate is all that is trusted, unless
STATEWARD_TLS_CA names another, and is also shown if the daemon asks its clients for one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stateward.v1.admin_service_pb2 import GetServerInfoRequest
from stateward.v1.admin_service_pb2_grpc import AdminServiceStub
from stateward_sidecar.addresses import Port, parse_listen
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.certificates import certificate_files, read_certificates

TIMEOUT_S = 3.0
CA_VARIABLE = "STATEWARD_TLS_CA"


def ask_health(settings: Settings, name: str) -> int:
    """Asks for readiness or liveness. Returns 0 if the answer is yes; else prints why not, and returns 1. Raises
    StartError for files of TLS that cannot be used."""
    url = next((url for url in settings.listen if url.startswith("unix:")), settings.listen[0])
    place = parse_listen(url)
    target = place.target if isinstance(place, Port) else url
    has_tls = isinstance(place, Port) and place.has_tls
    with _open_channel(target, settings) if has_tls else grpc.insecure_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            print(f"not ready: {_explain(target, error, has_tls=has_tls)}", file=sys.stderr)
            return 1
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return 0
        for why in _find_reasons(channel) or ["it stops, or does not say why"]:
            print(f"not ready: {target}: {why}", file=sys.stderr)
    return 1


def _open_channel(target: str, settings: Settings) -> grpc.Channel:
    files = certificate_files(settings)
    if files is None:
        raise StartError("--health at a port with TLS needs --tls-cert and --tls-key, as the daemon does")
    found = read_certificates(files)
    named = os.environ.get(CA_VARIABLE)
    try:
        roots = Path(named).read_bytes() if named else found.chain
    except OSError as error:
        raise StartError(f"{CA_VARIABLE}: cannot read {named}: {error.strerror}") from None
    own = (found.key, found.chain) if files.client_ca is not None else ()
    # The address is this machine's own, and need not be in the certificate.
    options = [("grpc.ssl_target_name_override", found.names[0])] if found.names else []
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(roots, *own), options=options)


def _explain(target: str, error: grpc.RpcError, *, has_tls: bool) -> str:
    """Why nobody answered, in place of the texts of gRPC, which name the address several times."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{target}: the daemon does not answer within {TIMEOUT_S:.0f} s"
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        why = str(error.details()).rpartition("error: ")[2]
        advice = "--listen names the address of one that runs"
        if has_tls and "refused" not in why:
            advice = "--health shows --tls-cert, which may not be for clients: give the daemon a unix socket, too"
        return f"no daemon answers at {target} ({why}); {advice}"
    return f"{target}: {error.details()}"


def _find_reasons(channel: grpc.Channel) -> list[str]:
    try:
        return list(AdminServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=TIMEOUT_S).not_ready)
    except grpc.RpcError:
        return []

"""The ports of the daemon: whether they are allowed, and how long the certificate is valid."""

from __future__ import annotations

from datetime import UTC, datetime

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.addresses import check_listeners
from stateward_sidecar.doctor.diagnosis import failed, fine, skipped, warning
from stateward_sidecar.doctor.disk import tell_exposure
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import Settings, guards_of
from stateward_sidecar.storage.certificates import certificate_files, read_certificates
from stateward_sidecar.storage.exposure import TLS_KEY, find_exposure

LEFT_SHARE_MIN = 0.1


def check_ports(settings: Settings) -> Diagnosis:
    """Looks at the addresses of `--listen` and the files of TLS."""
    try:
        check_listeners(settings.listen, guards_of(settings))
        files = certificate_files(settings)
        found = read_certificates(files) if files is not None else None
    except StartError as error:
        return failed("ports", error.message, "Correct it: the next start fails with it.")
    if files is None or found is None:
        ports = [url for url in settings.listen if not url.startswith("unix:")]
        if ports:
            return fine("ports", f"no port has TLS: {' '.join(ports)} is plain text", ports=" ".join(ports))
        return skipped("ports", "the daemon listens on unix sockets only")
    if exposed := find_exposure(files.key, TLS_KEY):
        return tell_exposure("ports", exposed, allows_exposed=settings.allows_exposed)
    ends = f"{found.ends:%Y-%m-%d %H:%M} UTC"
    facts = {"path": files.certificate, "ends": found.ends.isoformat(), "names": " ".join(found.names)}
    if found.ends - datetime.now(UTC) < (found.ends - found.begins) * LEFT_SHARE_MIN:
        return warning(
            "ports", f"the certificate {files.certificate} expires soon, on {ends}",
            "Renew it in place: new connections have the new one, without a restart.", **facts,
        )  # fmt: skip
    if not found.names:
        return warning(
            "ports", f"the certificate {files.certificate} has no DNS name and no address",
            "Clients accept it for no target: make one with a subjectAltName.", **facts,
        )  # fmt: skip
    who = "clients must have a certificate" if files.client_ca is not None else "clients need no certificate"
    return fine("ports", f"the certificate of TLS is valid until {ends}; {who}", **facts)

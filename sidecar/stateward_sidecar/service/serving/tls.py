"""The daemon's TLS. gRPC asks for the certificates at each new connection, and gets those that the files hold then.

gRPC speaks TLS 1.2 and 1.3. `__main__` leaves it ciphers with authenticated encryption (AEAD) and forward secrecy only.
"""

from __future__ import annotations

import threading

import grpc

from stateward_sidecar import security
from stateward_sidecar.errors import StartError
from stateward_sidecar.security import CHANGED
from stateward_sidecar.storage.certificates import CertificateFiles, Certificates, read_certificates
from stateward_sidecar.telemetry import log


class Tls:
    """The certificates, as the files are now. gRPC's threads ask for them."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises StartError."""
        self._files = files
        self._stamp = files.stamp()
        self.certificates = read_certificates(files)
        # Of which files the log says already why they cannot be used.
        self._told: tuple[object, str] | None = None
        self._lock = threading.Lock()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns what a port is opened with."""
        is_mutual = self._files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self.certificates), self._fetch, require_client_authentication=is_mutual
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the certificates if they have changed; None = they have not."""
        with self._lock:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            try:
                self.certificates = read_certificates(self._files)
            except StartError as error:  # perhaps they are being replaced, one after the other
                # The next connection tries again: a certificate may begin to be valid without a change of its file.
                if self._told != (stamp, error.message):
                    log.error("the TLS files cannot be used; what they held before goes on", error=error.message)
                self._told = stamp, error.message
                return None
            self._stamp, self._told = stamp, None
            security.note(CHANGED, "read the TLS files again", ends=self.certificates.ends.isoformat())
            return _configuration(self.certificates)


def _configuration(found: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], root_certificates=found.client_ca)

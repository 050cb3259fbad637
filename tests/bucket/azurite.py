"""Azure's blob storage for tests: Azurite, Microsoft's emulator, on loopback and in memory.

`make azurite` installs it in `build/azurite`.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext

from tests.bucket.weed import free_ports

PROGRAM = Path(__file__).parents[2] / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
READY_WITHIN_S = 60.0
POLL_S = 0.1
ACCOUNT = "devstoreaccount1"
# Azurite's documented key, the same everywhere.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzuriteMissing(Exception):
    """The emulator is not there; the message says how to get it."""


@contextmanager
def running_azurite(
    directory: Path, *flags: str, scheme: str = "http", context: SSLContext | None = None
) -> Iterator[str]:
    """Runs Azurite with a container `stateward` until the block is left; gives its URL. Raises AzuriteMissing."""
    if not PROGRAM.exists():
        raise AzuriteMissing("no Azurite in build/azurite; run `make azurite`, which needs npm")
    (port,) = free_ports(1)
    command = [
        str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence",
        "--disableTelemetry", "--silent", *flags,
    ]  # fmt: skip
    with (directory / "azurite.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            url = f"{scheme}://127.0.0.1:{port}"
            _make_container(process, url, context, directory / "azurite.log")
            yield url
        finally:
            process.kill()
            process.wait()


def azurite_environment(url: str) -> dict[str, str]:
    """What points at Azurite, or at a proxy in front of it."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
    }  # fmt: skip


def _make_container(process: subprocess.Popen[bytes], url: str, context: SSLContext | None, log: Path) -> None:
    """Makes the container with a signed request, again until the server answers."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(_signed_request(url, "stateward"), timeout=10, context=context):
                return
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(POLL_S)
    raise RuntimeError(f"Azurite did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _signed_request(url: str, container: str) -> urllib.request.Request:
    """Returns "Create Container", signed with the shared key: method, ten empty headers, own headers, resource."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    signed += f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    mac = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac).decode()}"
    return urllib.request.Request(f"{url}/{ACCOUNT}/{container}?restype=container", method="PUT", headers=headers)

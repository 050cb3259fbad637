"""The object store of each cloud, and machines whose archive lies there."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.bucket.azurite import AzuriteMissing, running_azurite
from tests.bucket.conftest import REAL, STORES
from tests.bucket.conftest import azurite_url as azurite_url  # noqa: PLC0414  fixtures
from tests.bucket.conftest import gcs_front as gcs_front  # noqa: PLC0414
from tests.bucket.conftest import gcs_url as gcs_url  # noqa: PLC0414
from tests.bucket.conftest import weed_url as weed_url  # noqa: PLC0414
from tests.daemon.process import Fleet, fleet
from tests.stores.servers import Certificate, make_certificate

CLOUDS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a cloud comes from outside, and no proxy stands between."""
    for name in list(os.environ):
        if name.startswith(CLOUDS) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(params=REAL)
def kind(request: pytest.FixtureRequest) -> str:
    """Each store in turn."""
    name: str = request.param
    return name


@pytest.fixture
def archive(kind: str, request: pytest.FixtureRequest, alone: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty archive in the store; the environment points at it."""
    scheme, environment = STORES[kind]
    for name, value in environment(request.getfixturevalue(f"{kind}_url")).items():
        monkeypatch.setenv(name, value)
    return f"{scheme}://stateward/{secrets.token_hex(6)}"


@pytest.fixture
def machines_at(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes machines that share an archive."""
    with ExitStack() as stack:
        yield lambda archive, **flags: stack.enter_context(fleet(tmp_path, archive, **flags))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """What obstore opens meanwhile trusts the authority of the tests."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    return certificate


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first")
    return path


@pytest.fixture(scope="session")
def azurite_with_identity(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[str]:
    """Azurite over TLS, which takes tokens."""
    trust = ssl.create_default_context(cafile=str(certificate.authority))
    flags = ("--oauth", "basic", "--cert", str(certificate.chain), "--key", str(certificate.key))
    try:
        with running_azurite(tmp_path_factory.mktemp("oauth"), *flags, scheme="https", context=trust) as url:
            yield url
    except AzuriteMissing as error:
        pytest.skip(str(error))

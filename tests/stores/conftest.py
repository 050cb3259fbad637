"""The object store of each cloud, and machines whose archive lies there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.bucket.conftest import REAL, STORES
from tests.bucket.conftest import azurite_url as azurite_url  # noqa: PLC0414  fixtures
from tests.bucket.conftest import gcs_front as gcs_front  # noqa: PLC0414
from tests.bucket.conftest import gcs_url as gcs_url  # noqa: PLC0414
from tests.bucket.conftest import weed_url as weed_url  # noqa: PLC0414
from tests.daemon.process import Fleet, fleet

CLOUDS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a cloud comes from outside, and no proxy stands between."""
    import os

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

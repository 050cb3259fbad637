"""An authority, and a daemon at a port with mutual TLS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bucket.weed import free_ports
from tests.certificates import Authority, Certified


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sw-tls-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def ca(place: Path) -> Authority:
    return Authority(place)


@pytest.fixture
def own(ca: Authority) -> Certified:
    """The daemon's."""
    return ca.sign("daemon")


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]

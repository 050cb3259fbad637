"""Machines on a bucket in a directory, and machines on a real S3 server behind a gate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive_faults.gate import Gate, running_gate
from tests.bucket.conftest import weed_url
from tests.daemon.process import Fleet, fleet, new_archive

__all__ = ["weed_url"]


@pytest.fixture
def gate(weed_url: str) -> Iterator[Gate]:
    """What stands between daemons and the server."""
    with running_gate(weed_url) as running:
        yield running


@pytest.fixture
def fleet_on_s3(tmp_path: Path) -> Iterator[Fleet]:
    """Sidecars that share a prefix of the server."""
    with fleet(tmp_path, new_archive()) as made:
        yield made


@pytest.fixture
def fleet_on_disk(tmp_path: Path) -> Iterator[Fleet]:
    """Sidecars that share a bucket in a directory."""
    with fleet(tmp_path) as made:
        yield made

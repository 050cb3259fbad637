"""Every kind of bucket under one name. Each server is started once, and only if a test asks for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.bucket.azurite import AzuriteMissing, azurite_environment, running_azurite
from tests.bucket.gcs import FakeGcsMissing, gcs_environment, running_gcs
from tests.bucket.gcs_front import Front
from tests.bucket.weed import WeedMissing, find_weed, make_s3_bucket, running_weed, s3_environment

from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.directory import DirectoryBucket
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.clock import Clock

KINDS = ("memory", "directory", "retrying", "moto", "weed", "azurite", "gcs")
# The servers with everything that a bucket needs, each with its scheme and the variables that point at it.
REAL = ("weed", "azurite", "gcs")
STORES = {
    "moto": ("s3", s3_environment), "weed": ("s3", s3_environment), "azurite": ("az", azurite_environment),
    "gcs": ("gs", gcs_environment),
}  # fmt: skip


class NappingClock(Clock):
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def retrying(inner: Bucket, clock: NappingClock | None = None, patience: Patience | None = None) -> RetryingBucket:
    """Tries again without any time passing."""
    clock = clock or NappingClock()
    return RetryingBucket(inner, clock, patience, clock.sleep, random.Random(7))


@pytest.fixture(scope="session")
def weed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SeaweedFS's S3 endpoint."""
    try:
        find_weed()
    except WeedMissing as error:
        pytest.skip(str(error))
    with running_weed(tmp_path_factory.mktemp("weed")) as url:
        make_s3_bucket(url, "stateward")
        yield url


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The S3 endpoint of moto. One request at a time: it compares and writes in two steps."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    url = f"http://127.0.0.1:{server.server_port}"
    make_s3_bucket(url, "stateward")
    yield url
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(scope="session")
def azurite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Azurite's endpoint."""
    try:
        with running_azurite(tmp_path_factory.mktemp("azurite")) as url:
            yield url
    except AzuriteMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gcs_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Google's XML API."""
    try:
        with running_gcs(tmp_path_factory.mktemp("gcs")) as front:
            yield front
    except FakeGcsMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gcs_url(gcs_front: Front) -> str:
    """Google's endpoint."""
    return gcs_front.url


def open_store(kind: str, url: str, prefix: str, *options: float) -> ObjectStoreBucket:
    """The bucket of a server, at the server's URL or at a proxy's."""
    scheme, environment = STORES[kind]
    return ObjectStoreBucket(f"{scheme}://stateward/{prefix}", environment(url), *options)


@pytest.fixture
def make_bucket(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Bucket]:
    """Makes an empty bucket of a kind."""

    def make(kind: str) -> Bucket:
        if kind == "memory":
            return MemoryBucket()
        if kind == "directory":
            return DirectoryBucket(tmp_path / "bucket")
        if kind == "retrying":
            return retrying(MemoryBucket())
        url: str = request.getfixturevalue(f"{kind}_url")
        return open_store(kind, url, f"{random.randbytes(8).hex()}/p")

    return make


@pytest.fixture(params=KINDS)
def bucket(request: pytest.FixtureRequest, make_bucket: Callable[[str], Bucket]) -> Iterator[Bucket]:
    """Each kind in turn, empty."""
    made = make_bucket(request.param)
    yield made
    made.close()


def raise_once(error: Exception, method: str, times: int = 1) -> Callable[[str, str], None]:
    """A hook that raises at the first calls of one method."""
    left = [times]

    def hook(called: str, key: str) -> None:
        if called == method and left[0] > 0:
            left[0] -= 1
            raise error

    return hook

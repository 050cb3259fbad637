"""The danger: a real server of each cloud, and a network that breaks single requests before or after their effect."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import pytest
from tests.bucket.conftest import REAL, open_store
from tests.bucket.proxy import Proxy, running_proxy

from stateward_sidecar.archive.requests.places import SLICE_BYTES
from stateward_sidecar.bucket.base import Bucket, BucketUnavailable, ObjectChanged, ObjectExists, ObjectNotFound
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.clock import Clock

REQUEST_TIMEOUT_S = 0.6
PATIENCE = Patience(deadline_s=20.0, pause_min_s=0.01, pause_max_s=0.05)
WHEN = ("before", "after")
ANSWER_LOST = ("reset", "503", "hang", "truncate", "slow")

pytestmark = pytest.mark.slow


@pytest.fixture(params=REAL)
def kind_of_store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def store_url(kind_of_store: str, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{kind_of_store}_url")
    return url


@pytest.fixture
def proxy(store_url: str) -> Iterator[Proxy]:
    with running_proxy(store_url) as running:
        yield running


@pytest.fixture
def direct(kind_of_store: str, store_url: str) -> Bucket:
    """What the server really has."""
    return open_store(kind_of_store, store_url, "wire")


@pytest.fixture
def bucket(kind_of_store: str, proxy: Proxy) -> Bucket:
    """The same through the proxy, with retries."""
    return RetryingBucket(open_store(kind_of_store, proxy.url, "wire", REQUEST_TIMEOUT_S), Clock(), PATIENCE)


@pytest.fixture
def deletes(kind_of_store: str) -> str:
    """The method of a delete: Azure's is a batch."""
    return "POST" if kind_of_store == "azurite" else "DELETE"


@pytest.fixture
def key() -> str:
    return f"{secrets.token_hex(8)}/HEAD"


def body() -> bytes:
    """Never the same twice."""
    return secrets.token_bytes(3000)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", ANSWER_LOST)
def test_writes_get_through(
    proxy: Proxy, bucket: Bucket, direct: Bucket, key: str, kind: str, when: str, deletes: str
) -> None:
    """Each kind of write succeeds once, is never called a conflict with itself, and its etag is good for the next."""
    first, second, third = body(), body(), body()
    proxy.plan("PUT", (kind, when))
    etag = bucket.create(key, first)
    assert direct.get(key).data == first
    proxy.plan("PUT", (kind, when))
    etag = bucket.replace(key, second, etag)
    assert direct.get(key).data == second
    assert direct.replace(key, third, etag)
    proxy.plan("PUT", (kind, when))
    bucket.put(f"{key}.pack", first)
    assert direct.get(f"{key}.pack").data == first
    proxy.plan(deletes, (kind, when))
    bucket.delete(key)
    assert proxy.faults[deletes] == []
    with pytest.raises(ObjectNotFound):
        direct.get(key)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", ANSWER_LOST)
def test_reads_get_through(proxy: Proxy, bucket: Bucket, direct: Bucket, key: str, kind: str, when: str) -> None:
    """A read gives all bytes or is made again."""
    data = body()
    etag = direct.create(key, data)
    proxy.plan("GET", (kind, when), (kind, when))
    assert bucket.get(key).data == data
    assert bucket.get(key).etag == etag
    proxy.plan("GET", (kind, when))
    assert bucket.get_range(key, 100, 1000) == data[100:1100]


@pytest.mark.parametrize("read_back", ["reset", "503", "truncate", "flip", "slow"])
def test_read_back_is_broken_too(proxy: Proxy, bucket: Bucket, direct: Bucket, key: str, read_back: str) -> None:
    """The answer is lost, and then the first look at what became of it is lost or damaged as well."""
    first, second = body(), body()
    proxy.plan("PUT", ("reset", "after"))
    proxy.plan("GET", (read_back, "after"))
    etag = bucket.create(key, first)
    proxy.plan("PUT", ("503", "after"), ("reset", "after"))
    proxy.plan("GET", (read_back, "after"))
    bucket.replace(key, second, etag)
    assert direct.get(key).data == second


@pytest.mark.parametrize("kind", ["reset", "503"])
def test_anothers_write_stays_a_conflict(proxy: Proxy, bucket: Bucket, direct: Bucket, key: str, kind: str) -> None:
    """The request was lost, and somebody else was first: told so, and nothing is overwritten."""
    etag = direct.create(key, body())
    proxy.plan("PUT", (kind, "before"))
    with pytest.raises(ObjectExists):
        bucket.create(key, body())
    others = body()
    direct.replace(key, others, etag)
    proxy.plan("PUT", (kind, "before"))
    with pytest.raises(ObjectChanged):
        bucket.replace(key, body(), etag)
    assert direct.get(key).data == others


def test_counting_through_a_bad_network(proxy: Proxy, bucket: Bucket, direct: Bucket, key: str) -> None:
    """Four writers count while every other request breaks: each step is counted exactly once."""
    direct.create(key, b"0 start")
    proxy.plan("PUT", *[(kind, when) for kind in ("reset", "503", "truncate") for when in (*WHEN, "")] * 3)
    proxy.plan("GET", *[(kind, when) for kind in ("reset", "truncate", "503") for when in (*WHEN, "")] * 3)

    def count(writer: int) -> None:
        for step in range(5):
            mine = f"{writer}-{step}".encode()
            while True:
                found = bucket.get(key)
                names = found.data.split()
                if mine in names:  # an unclear conflict: it had landed, and others have written since
                    break
                try:
                    bucket.replace(key, b" ".join([b"%d" % (int(names[0]) + 1), *names[1:], mine]), found.etag)
                    break
                except ObjectChanged:
                    continue

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = direct.get(key).data.split()
    assert int(names[0]) == 20
    assert len(set(names[2:])) == len(names[2:]) == 20


def test_bucket_that_stays_away(kind_of_store: str, proxy: Proxy, key: str) -> None:
    """It gives up at the deadline, and says whether the write may have happened."""
    patience = Patience(deadline_s=0.3, pause_min_s=0.01, pause_max_s=0.05)
    bucket = RetryingBucket(open_store(kind_of_store, proxy.url, "wire"), Clock(), patience)
    proxy.plan("PUT", *[("reset", "before")] * 1000)
    with pytest.raises(BucketUnavailable) as unclear:
        bucket.create(key, body())
    assert unclear.value.is_unclear
    nobody = open_store(kind_of_store, "http://127.0.0.1:1", "wire")
    with pytest.raises(BucketUnavailable) as clear:
        RetryingBucket(nobody, Clock(), patience).create(key, body())
    assert not clear.value.is_unclear


def test_an_upload_is_one_request(proxy: Proxy, bucket: Bucket, direct: Bucket, key: str) -> None:
    """The largest object that the daemon writes goes in one request, so a kill leaves no unfinished upload."""
    data = secrets.token_bytes(SLICE_BYTES)
    bucket.put(key, data)
    assert proxy.seen == ["PUT"]
    assert direct.get(key, SLICE_BYTES).data == data

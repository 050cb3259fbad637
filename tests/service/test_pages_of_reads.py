"""The danger: pages of one read show two versions, leave something out, or follow a token that belongs to another
request."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.daemon.wire import appends, refused
from tests.service.conftest import THREAD, Place

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.state_pb2 import Log, State, Value

PAGE = 1024


@pytest.fixture
def large(place: Place) -> Place:
    """Version 3 has slots and entries smaller and larger than a page; version 4 appends to it."""
    rnd = random.Random(5)

    def value(size: int) -> Value:
        return Value(media_type="application/octet-stream", data=rnd.randbytes(size))

    whole = State(
        slots={"empty": value(0), "small": value(10), "large": value(5 * PAGE + 1)},
        logs={
            "messages": Log(entries=[value(size) for size in (0, 1, 2 * PAGE, 300, 300, 300, 3 * PAGE, 5)]),
            "none": Log(),
        },
    )
    place.wire.save(place.request(diff=None, state=whole))
    place.wire.save(place.request(expected_version=3))
    return place


def pages(call: Callable[..., Any], request: Any) -> list[Any]:
    found = []
    while True:
        found.append(call(request, timeout=20))
        if not found[-1].next_page_token:
            return found
        request.page_token = found[-1].next_page_token


def test_tiny_pages_join_to_the_whole(large: Place) -> None:
    """Pages of 1 KiB, with values cut into chunks, give the same state as one large page, and no page is far larger."""
    request = c.HydrateRequest(namespace=large.namespace, thread=THREAD, max_bytes=64 << 20)
    whole = large.wire.checkpoints.Hydrate(request).state
    request.max_bytes = PAGE
    answers = pages(large.wire.checkpoints.Hydrate, request)
    assert len(answers) > 12
    assert any(answer.HasField("chunk") for answer in answers)
    assert all(answer.state.ByteSize() + answer.chunk.ByteSize() <= 2 * PAGE for answer in answers)
    request.page_token = ""
    assert large.wire.hydrate(request) == whole


def test_pages_show_one_version_while_others_are_saved(large: Place) -> None:
    """Saves between two pages do not show in the later ones."""
    request = c.HydrateRequest(namespace=large.namespace, thread=THREAD, max_bytes=PAGE)
    before = large.state()
    versions = []
    number = 4

    def call(asked: c.HydrateRequest, timeout: float) -> c.HydrateResponse:
        nonlocal number
        large.wire.save(large.request(expected_version=number, diff=appends(f"after {number}")))
        number += 1
        answer = large.wire.checkpoints.Hydrate(asked, timeout=timeout)
        versions.append(answer.checkpoint.version)
        return answer

    first = large.wire.checkpoints.Hydrate(request, timeout=20)
    request.page_token = first.next_page_token
    pages(call, request)
    assert set(versions) == {4}
    at = c.HydrateRequest(namespace=large.namespace, thread=THREAD, version=VersionRef(version=4))
    assert large.wire.hydrate(at) == before


def test_a_page_of_a_version_pruned_meanwhile_is_refused(large: Place) -> None:
    """A page token of a version that went is VERSION_PRUNED, never pages of two versions."""
    at = {"namespace": large.namespace, "thread": THREAD}
    request = c.HydrateRequest(**at, version=VersionRef(version=3), max_bytes=PAGE)
    request.page_token = large.wire.checkpoints.Hydrate(request).next_page_token
    large.wire.threads.PruneThread(t.PruneThreadRequest(**at, keep_latest_per_branch=1))
    assert refused(large.wire.checkpoints.Hydrate, request).reason == "VERSION_PRUNED"


def paged(place: Place) -> list[tuple[str, Any]]:
    """Every call with pages, so that its first page is not the last."""
    at = {"namespace": place.namespace, "thread": THREAD}
    ref = VersionRef(version=1)
    difference = c.DiffCheckpointsRequest(**at, max_bytes=PAGE, base=ref)
    return [
        ("checkpoints.Hydrate", c.HydrateRequest(**at, max_bytes=PAGE)),
        ("checkpoints.DiffCheckpoints", difference),
        ("checkpoints.ListCheckpoints", c.ListCheckpointsRequest(**at, page_size=1)),
        ("checkpoints.ListCheckpoints", c.ListCheckpointsRequest(namespace=place.namespace, thread="-", page_size=1)),
        ("threads.ListThreads", t.ListThreadsRequest(namespace=place.namespace, page_size=1)),
    ]


def method(place: Place, path: str) -> Callable[..., Any]:
    service, name = path.split(".")
    found: Callable[..., Any] = getattr(getattr(place.wire, service), name)
    return found


@pytest.mark.parametrize("number", range(5))
def test_a_token_of_another_request_is_refused(large: Place, number: int) -> None:
    """Garbage, a changed byte, another thread, another filter, another call: INVALID_FIELD `page_token` each time."""
    large.wire.save(large.request(thread="other", expected_version=0))
    large.wire.save(large.request(thread="other", expected_version=1))
    path, request = paged(large)[number]
    call = method(large, path)
    token = call(request).next_page_token
    assert token
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    tokens = ["garbage", "é", "=", "A" * 40, token[:-1], token + "A"]
    for at in (0, len(raw) // 2, len(raw) - 1):
        changed = bytearray(raw)
        changed[at] ^= 1
        tokens.append(base64.urlsafe_b64encode(changed).decode().rstrip("="))
    tokens += [method(large, p)(r).next_page_token for n, (p, r) in enumerate(paged(large)) if n != number]
    for foreign in tokens:
        request.page_token = foreign
        found = refused(call, request)
        assert (foreign, found.reason, found.field) == (foreign, "INVALID_FIELD", "page_token")
    for field, value in (("thread", "other"), ("branch", "side"), ("namespace", large.namespace + "2")):
        if field in request.DESCRIPTOR.fields_by_name and not (field == "thread" and request.thread == "-"):
            asked = type(request)()
            asked.CopyFrom(request)
            setattr(asked, field, value)
            asked.page_token = token
            assert refused(call, asked).reason in ("INVALID_FIELD", "THREAD_NOT_FOUND")
    request.page_token = token
    call(request)  # the right one still works


def test_a_token_is_not_good_for_another_call_with_the_same_bytes(large: Place) -> None:
    """Hydrate and DiffCheckpoints have requests whose bytes may be equal; their tokens are told apart all the same."""
    at = {"namespace": large.namespace, "thread": THREAD, "max_bytes": PAGE}
    ref = VersionRef(version=3)
    hydrate = c.HydrateRequest(**at, version=ref)
    difference = c.DiffCheckpointsRequest(**at, base=ref)
    assert hydrate.SerializeToString() == difference.SerializeToString()
    difference.page_token = large.wire.checkpoints.Hydrate(hydrate).next_page_token
    found = refused(large.wire.checkpoints.DiffCheckpoints, difference)
    assert (found.reason, found.field) == ("INVALID_FIELD", "page_token")


def test_pages_of_a_list_hold_each_thing_once(large: Place) -> None:
    """Lists in pages of one show every version and every thread exactly once."""
    at = {"namespace": large.namespace}
    listed = pages(large.wire.checkpoints.ListCheckpoints, c.ListCheckpointsRequest(**at, thread=THREAD, page_size=1))
    assert [view.version for page in listed for view in page.checkpoints] == [4, 3, 2, 1]
    for number in range(5):
        large.wire.save(large.request(thread=f"t{number}", expected_version=0))
    listed = pages(large.wire.threads.ListThreads, t.ListThreadsRequest(**at, page_size=2))
    names = [view.thread for page in listed for view in page.threads]
    assert sorted(names) == sorted([THREAD, *(f"t{number}" for number in range(5))])


def test_a_page_of_versions_ends_by_bytes_too(place: Place) -> None:
    """Metadata of a few versions is megabytes: pages stay small, and show every version once."""
    metadata = Value(data=bytes(250 << 10))
    for version in range(2, 32):
        place.wire.save(place.request(expected_version=version, diff=appends("x"), metadata=metadata))
    request, seen, sizes = c.ListCheckpointsRequest(namespace=place.namespace, thread=THREAD, page_size=1000), [], []
    while True:
        page = place.wire.checkpoints.ListCheckpoints(request)
        seen += [checkpoint.version for checkpoint in page.checkpoints]
        sizes.append(page.ByteSize())
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == list(range(32, 0, -1))
    assert max(sizes) < 4 << 20 < sum(sizes)


def test_a_page_with_large_metadata_is_no_larger_than_clients_receive(place: Place) -> None:
    """Metadata is on every page, so it leaves less room for the state."""
    place.wire.save(place.request(expected_version=2, diff=appends(*("x" * 10_000 for _ in range(400)), log="large")))
    request = place.request(expected_version=3, diff=appends("last", log="large"))
    request.metadata.data = b"m" * 1_000_000
    place.wire.save(request)
    asked = c.HydrateRequest(namespace=place.namespace, thread=THREAD)
    found = pages(place.wire.checkpoints.Hydrate, asked)
    assert len(found) > 1
    assert max(page.ByteSize() for page in found) < 3.5 * (1 << 20)
    assert sum(len(page.state.logs["large"].entries) for page in found) == 401

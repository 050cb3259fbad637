"""The danger: somebody who can write to the bucket makes an object huge, and readers need that much memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.daemon.driven import NAMESPACE, append
from tests.daemon.town import Town

from stateward_sidecar.bucket.base import REPLACED_BYTES_MAX
from stateward_sidecar.errors import Corrupt, KeyUnavailable, ThreadNotFound

ENDINGS = ("HEAD", ".1", ".pack", ".snap", ".index", ".blob")


def swell(driven: Town, ending: str) -> None:
    """Makes all objects of a kind larger than any that is read."""
    objects = driven.bucket.objects
    for key in [key for key in objects if key.endswith(ending)]:
        objects[key] += bytes(REPLACED_BYTES_MAX + 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_object_is_read_further_than_it_may_be(driven: Town, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Of each kind of object a reader takes no more than such an object may have."""
    first = driven.machine("first")
    for version in range(30):
        first.put(append(os.urandom(300), after=version))
        first.ship_now()
    digest = first.write_blob("job", b"b" * 1000).blob.sha256
    first.ship_now()
    first.stop()
    objects = driven.bucket.objects
    assert any(key.endswith(ending) for key in objects), sorted(key[-12:] for key in objects)
    swell(driven, ending)
    bucket, read = driven.bucket, list[int]()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(key: str, *more: Any) -> Any:
            found = real(key, *more)
            read.append(len(found) if isinstance(found, bytes) else len(found.data))
            return found

        return call

    for method in ("get", "get_range"):
        monkeypatch.setattr(bucket, method, counted(getattr(bucket, method)))
    second = driven.machine("second")
    for act in (
        second.state,
        lambda: second.archive.complete(NAMESPACE, "job"),
        lambda: second.read_blob("job", digest),
    ):
        with suppress(Corrupt, KeyUnavailable, ThreadNotFound):
            act()
    assert max(read) <= REPLACED_BYTES_MAX

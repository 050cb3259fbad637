"""The danger: a copy is deleted on this disk while a blob of it is fetched, and the reader gets an internal error."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.archive.driven import Town, append
from tests.archive_model.sidecar import NAMESPACE

from stateward.v1.thread_service_pb2 import DeleteThreadRequest


def test_a_blob_whose_files_go_while_it_is_fetched_is_fetched_again(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is still in the archive, so the reader gets the bytes."""
    owner, reader, data = driven.machine("owner"), driven.machine("reader"), bytes(range(256)) * 20
    owner.put(append())
    owner.write_blob("job", data)
    owner.ship_now()
    reader.state()
    read, left = reader.wire.get_range, [1]

    def get_range(key: str, offset: int, length: int) -> bytes:
        found = read(key, offset, length)
        if key.endswith(".blob") and left.pop():
            left.append(0)
            reader.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job", local_only=True))
            reader.store.sweeper.sweep()
        elif key.endswith(".blob"):
            left.append(0)
        return found

    monkeypatch.setattr(reader.wire, "get_range", get_range)
    assert reader.read_blob("job", sha256(data).digest()) == data

"""The danger: bytes that can be read only once are sent again, and what the first attempt took is missing."""

from __future__ import annotations

import io
import os

import pytest

from stateward.models import Access

DATA = os.urandom(3_000_000)
SOURCES = {
    "iterator": lambda: iter([DATA[:1_000_000], DATA[1_000_000:2_000_000], DATA[2_000_000:]]),
    "file": lambda: io.BytesIO(DATA),
    "bytes": lambda: DATA,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_supervisor_takes_over_before_it_reads(pair, open_client, name, kind):
    """A client that may take over writes all bytes of a source, and never the rest of them."""
    first = open_client(pair.first.target).thread(name)
    first.append("l", 1, durability="archived")
    second = open_client(pair.second.target, take_over=True, retry_timeout=0).thread(name)
    blob = second.blobs.write(SOURCES[kind]())
    assert (blob.size_bytes, second.blobs.read(blob)) == (len(DATA), DATA)
    assert second.info().access is Access.OWNED


def test_a_supervisor_makes_a_thread_with_a_blob(pair, open_client, name):
    """Nothing need be taken over if there is no thread yet, nor if the daemon has no archive."""
    thread = open_client(pair.first.target, take_over=True).thread(name)
    blob = thread.blobs.write(iter([DATA]))
    assert thread.blobs.read(blob) == DATA

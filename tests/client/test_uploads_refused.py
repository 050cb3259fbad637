"""The danger: the daemon refuses an upload without reading the rest, and the client takes this for a broken connection.
It then sends everything again, or raises an error that says nothing."""

from __future__ import annotations

import pytest

from stateward.errors import InvalidField, ServerUnavailable, UidMismatch

pytestmark = pytest.mark.usefixtures("each_wire")

PIECE, TIMES = bytes(1_000_000), 6
CONTENT = PIECE * 20


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_the_reason_of_a_refusal_arrives(real_daemon, open_client, name, is_repeatable):
    """The error is the daemon's, however much of the blob is still to be sent."""
    thread = open_client(real_daemon.target, retry_timeout=0).thread(name)
    for _ in range(TIMES):
        with pytest.raises(InvalidField) as caught:
            thread.blobs.write(CONTENT if is_repeatable else iter([PIECE] * 20), media_type="m" * 300)
        assert caught.value.field == "begin.media_type"


def test_a_late_blob_is_told_why(real_daemon, open_client, name):
    """An upload for a thread that was deleted is refused as such."""
    client = open_client(real_daemon.target, retry_timeout=0)
    for number in range(TIMES):
        thread = client.thread(f"{name}-{number}")
        thread.append("l", 1)
        thread.hydrate()
        client.thread(thread.name).delete()
        with pytest.raises(UidMismatch):
            thread.blobs.write(iter([PIECE] * 20))


@pytest.mark.parametrize("error", [ServerUnavailable, TimeoutError, OSError])
def test_an_error_of_the_source_is_raised(real_daemon, open_client, name, error):
    """It comes unchanged, and nothing is waited for."""
    thread = open_client(real_daemon.target).thread(name)

    def source():
        yield PIECE
        raise error("the source is away")

    with pytest.raises(error, match="the source is away"):
        thread.blobs.write(source())

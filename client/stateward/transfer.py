"""A thread as a stream of parts, for copies between stores that share no keys: with its versions, blobs and effects.

upload = ThreadUpload(client, "copy", request_id)
for part in read_parts(client, "t"):
    upload.take(part)
upload.finish()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateward.v1 import backup_service_pb2 as backup

if TYPE_CHECKING:
    from stateward import Client

# About how large a message gets, but for a value that is larger.
MESSAGE_BYTES = 1 << 20


def read_parts(client: Client, name: str) -> Iterator[backup.ThreadPart]:
    """The parts of a thread as the daemon streams them."""
    from stateward._operations.streams import export  # noqa: PLC0415  reading files needs no client

    with client._session.open(export(client.namespace, name)) as stream:
        for message in stream:
            yield from message.parts


class ThreadUpload:
    """Parts on their way to the daemon. There is no thread before `finish` returns, and then all of it."""

    def __init__(self, client: Client, name: str, request_id: str) -> None:
        """Does not wait."""
        self._upload = client._session.connected().upload_parts("ImportThread")
        begin = backup.ImportBegin(namespace=client.namespace, thread=name, request_id=request_id)
        self._message = backup.ImportThreadRequest(begin=begin)
        self._size_bytes = 0

    def take(self, part: backup.ThreadPart) -> None:
        """Sends a part, at the latest with the next ones. Raises the error that the daemon answered meanwhile."""
        size_bytes = part.ByteSize()
        if self._size_bytes and self._size_bytes + size_bytes > MESSAGE_BYTES:
            self._send()
        self._message.parts.append(part)
        self._size_bytes += size_bytes

    def finish(self) -> backup.ImportThreadResponse:
        """Sends the rest; the thread is there when this returns."""
        self._send()
        answer: backup.ImportThreadResponse = self._upload.finish()
        return answer

    def cancel(self) -> None:
        """Leaves nothing. After `finish` it does nothing."""
        self._upload.cancel()

    def _send(self) -> None:
        self._upload.send(self._message)
        self._message, self._size_bytes = backup.ImportThreadRequest(), 0

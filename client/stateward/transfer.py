"""A thread, with its versions, blobs and effects, as a stream of parts: for copies between stores that share no keys.

upload = ThreadUpload(client, "copy", request_id)
for part in read_parts(client, "t"):
    upload.take(part)
upload.finish()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.write_pb2 import WriteOptions

if TYPE_CHECKING:
    from stateward import Client, Thread

MESSAGE_BYTES = 1 << 20
"""Size at which a message of several parts is sent. A message with one large part may be larger."""


def read_parts(client: Client, name: str) -> Iterator[backup.ThreadPart]:
    """Yields the parts of a thread in the order in which the daemon sends them."""
    from stateward._operations.streams import export  # noqa: PLC0415  not needed to read files

    with client._session.open(export(client.namespace, name)) as stream:
        for message in stream:
            yield from message.parts


def read_end(thread: Thread, log: str, version: int) -> int:
    """Returns the index that the next entry of a log gets, at a version. It is above 0 if the log was deleted."""
    from stateward._operations.logs import page_request, read_page  # noqa: PLC0415  not needed to read files

    request = page_request(thread._ref, log, 0, version)
    request.page_size = 1
    return thread._session.run(read_page(thread._ref, request)).end_index


class ThreadUpload:
    """Sends the parts of a thread to the daemon. The whole thread exists once `finish` has returned, and nothing of it
    before."""

    def __init__(self, client: Client, name: str, request_id: str) -> None:
        self._upload = client._session.connected().upload_parts("ImportThread")
        begin = backup.ImportBegin(namespace=client.namespace, thread=name, options=WriteOptions(request_id=request_id))
        self._message = backup.ImportThreadRequest(begin=begin)
        self._size_bytes = 0

    def take(self, part: backup.ThreadPart) -> None:
        """Sends a part, now or with later ones. Raises the daemon's error if it has refused the upload."""
        size_bytes = part.ByteSize()
        if self._size_bytes and self._size_bytes + size_bytes > MESSAGE_BYTES:
            self._send()
        self._message.parts.append(part)
        self._size_bytes += size_bytes

    def finish(self) -> backup.ImportThreadResponse:
        """Sends the last parts, and waits until the thread exists."""
        self._send()
        answer: backup.ImportThreadResponse = self._upload.finish()
        return answer

    def cancel(self) -> None:
        """Ends the upload without a thread. Does nothing after `finish`."""
        self._upload.cancel()

    def _send(self) -> None:
        self._upload.send(self._message)
        self._message, self._size_bytes = backup.ImportThreadRequest(), 0

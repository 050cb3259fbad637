"""Access tokens. With a token file, every call must carry one.

The file has one token a line. Two lines let clients change from the old token to the new one. The file is read again
when it changes, as a mounted Secret does. A token that is taken out of it opens nothing any more, and streams that were
opened with it end. A file that is gone or empty admits nobody, when it has been so for a second: some programs empty a
file before they write it. If the file cannot be read, or has a line that is no token, the tokens that it had stay
valid: calls that worked go on, and the log says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from stateward_sidecar.errors import StartError, Unauthenticated
from stateward_sidecar.storage.secretfiles import NoTokens, read_token_file, token_digest
from stateward_sidecar.telemetry import log

LOOK_S = 1.0
"""How often the file is looked at, at most; while a stream is open, so often."""
HEADER, SCHEME = "authorization", "bearer"
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(eq=False, slots=True)
class _Stream:
    """A call that may stay open for days."""

    digest: bytes
    """Of its token."""
    task: Any
    is_revoked: bool = False

    def revoke(self) -> None:
        """Ends the call."""
        if not self.is_revoked:
            self.is_revoked = True
            self.task.cancel()


class Tokens:
    """The valid tokens. Used on the event loop only."""

    def __init__(self, path: Path) -> None:
        """Raises StartError."""
        self._path = path
        self._stamp = _stamp(path)
        self._digests = read_token_file(path)
        self._looked_s = monotonic()
        # Whether the file had no token when it was looked at last.
        self._was_empty = False
        self._streams = set[_Stream]()
        self._timer: asyncio.TimerHandle | None = None

    def check(self, metadata: Metadata | None) -> bytes:
        """Returns the digest of a call's token. Raises Unauthenticated if its metadata have no valid one."""
        if monotonic() - self._looked_s >= LOOK_S:
            self._look()
        given = next((value for key, value in metadata or () if key == HEADER), "")
        scheme, _, token = (given if isinstance(given, str) else "").partition(" ")
        digest = token_digest(token.strip())
        if scheme.lower() != SCHEME or digest not in self._digests:
            what = "carries a token that is not valid" if given else "carries no token"
            raise Unauthenticated(
                f"the call {what}; this daemon asks for one: set STATEWARD_TOKEN_FILE, or send the metadata "
                "'authorization: Bearer TOKEN'"
            )
        return digest

    @contextmanager
    def holding(self, metadata: Metadata | None) -> Iterator[None]:
        """Surrounds a stream, within its task. Raises Unauthenticated at once, or when its token is taken away."""
        stream = _Stream(self.check(metadata), asyncio.current_task())
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)
        try:
            yield
        except asyncio.CancelledError:
            if not stream.is_revoked or stream.task.uncancel():
                raise
            raise Unauthenticated("the token of this stream was taken away; open it with a valid one") from None
        finally:
            self._streams.discard(stream)

    def _look_again(self) -> None:
        """Looks at the file although no call comes, as long as a stream is open."""
        self._timer = None
        self._look()
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look(self) -> None:
        self._looked_s = monotonic()
        stamp = _stamp(self._path)
        if stamp == self._stamp and not self._was_empty:
            return
        self._stamp = stamp
        try:
            found = read_token_file(self._path)
        except NoTokens as error:
            if self._was_empty and self._digests:
                log.error("no call is admitted any more", error=error.message)
                self._take(frozenset())
            self._was_empty = True
        except StartError as error:
            log.error("the token file cannot be used; the tokens that it had stay valid", error=error.message)
            self._was_empty = False
        else:
            log.info("read the token file again", tokens=len(found))
            self._was_empty = False
            self._take(found)

    def _take(self, digests: frozenset[bytes]) -> None:
        self._digests = digests
        for stream in [each for each in self._streams if each.digest not in digests]:
            stream.revoke()


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when the file does, or when another file takes its place; empty = it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

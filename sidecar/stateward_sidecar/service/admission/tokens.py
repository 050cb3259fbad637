"""Access tokens. With a token file, every call must carry one.

The file has one token a line. Two lines let clients change from the old token to the new one. The file is read again
when it changes, as a mounted Secret does. If it cannot be read any more, the tokens that it had stay valid: calls that
worked go on, and the log says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from stateward_sidecar.errors import StartError, Unauthenticated
from stateward_sidecar.storage.secretfiles import read_token_file, token_digest
from stateward_sidecar.telemetry import log

LOOK_S = 1.0
"""How often the file is looked at, at most."""
HEADER, SCHEME = "authorization", "bearer"
Metadata = Iterable[tuple[str, str | bytes]]


class Tokens:
    """The valid tokens. Used on the event loop only."""

    def __init__(self, path: Path) -> None:
        """Raises StartError."""
        self._path = path
        self._stamp = _stamp(path)
        self._digests = read_token_file(path)
        self._looked_s = monotonic()

    def check(self, metadata: Metadata | None) -> None:
        """Raises Unauthenticated if a call's metadata have no valid token."""
        if monotonic() - self._looked_s >= LOOK_S:
            self._look()
        given = next((value for key, value in metadata or () if key == HEADER), "")
        scheme, _, token = (given if isinstance(given, str) else "").partition(" ")
        if scheme.lower() != SCHEME or token_digest(token.strip()) not in self._digests:
            what = "carries a token that is not valid" if given else "carries no token"
            raise Unauthenticated(
                f"the call {what}; this daemon asks for one: set STATEWARD_TOKEN_FILE, or send the metadata "
                "'authorization: Bearer TOKEN'"
            )

    def _look(self) -> None:
        self._looked_s = monotonic()
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = read_token_file(self._path)
        except StartError as error:
            log.error("the token file cannot be used; the tokens that it had stay valid", error=error.message)
        else:
            log.info("read the token file again", tokens=len(self._digests))


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when the file does, or when another file takes its place; empty = it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

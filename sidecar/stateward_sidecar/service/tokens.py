"""The tokens of which every call must carry one, if the daemon has a token file.

The file has one token a line. Two lines let clients change from the old token to the new one. The file is read again
when it changes, as a mounted Secret does. If it cannot be read any more, the tokens that it had stay valid: calls that
worked go on, and the log says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from stateward_sidecar.errors import StartError, Unauthenticated
from stateward_sidecar.telemetry import log

CHARS_MIN, TOKENS_MAX = 16, 100
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
        self._digests = read_tokens(path)
        self._looked_s = monotonic()

    def check(self, metadata: Metadata | None) -> None:
        """Raises Unauthenticated if a call's metadata have no valid token."""
        if monotonic() - self._looked_s >= LOOK_S:
            self._look()
        given = next((value for key, value in metadata or () if key == HEADER), "")
        scheme, _, token = (given if isinstance(given, str) else "").partition(" ")
        # Digests are compared, so the time that it takes tells nothing about a valid token.
        if scheme.lower() != SCHEME or _digest(token.strip()) not in self._digests:
            what = "carries a token that is not valid" if given else "carries no token"
            raise Unauthenticated(
                f"the call {what}; this daemon asks for one: set STATEWARD_TOKEN_FILE, or send the metadata "
                "'authorization: Bearer TOKEN'"
            )

    def _look(self) -> None:
        self._looked_s = monotonic()
        try:
            if (stamp := _stamp(self._path)) == self._stamp:
                return
            self._digests, self._stamp = read_tokens(self._path), stamp
        except StartError as error:
            if self._stamp != ():
                log.error("the token file cannot be used; the tokens that it had stay valid", error=error.message)
            self._stamp = ()
        else:
            log.info("read the token file again", tokens=len(self._digests))


def read_tokens(path: Path) -> frozenset[bytes]:
    """Returns the digests of the tokens in a file. Raises StartError."""
    try:
        lines = path.read_text("ascii").split("\n")
    except OSError as error:
        raise StartError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"the token file {path} has characters that are not ASCII") from None
    tokens = [token for line in lines if (token := line.strip())]
    if not 0 < len(tokens) <= TOKENS_MAX:
        raise StartError(f"the token file {path} has {len(tokens)} tokens; give 1 to {TOKENS_MAX}, one a line")
    if any(len(token) < CHARS_MIN or not token.isprintable() or " " in token for token in tokens):
        raise StartError(
            f"the token file {path} has a token that is shorter than {CHARS_MIN} characters, or has a space in it; "
            "make one with: openssl rand -hex 32"
        )
    return frozenset(map(_digest, tokens))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when the file does, or when another file takes its place. Raises StartError."""
    try:
        found = path.stat()
    except OSError as error:
        raise StartError(f"cannot read the token file {path}: {error.strerror}") from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

"""The token that calls carry to a daemon that asks for one, and the metadata of a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Protocol

from stateward._operations.tracing import trace_metadata
from stateward.errors import Unauthenticated

VARIABLE = "STATEWARD_TOKEN_FILE"
_LOOK_S = 1.0
"""How often a file is read again, at most."""


class Token:
    """A token, given as it is or as a file that may change. Never shown."""

    def __init__(self, token: str = "", path: Path | None = None) -> None:
        """Raises ValueError for a token that cannot be sent, and Unauthenticated for a file without one."""
        self._path, self._read_s = path, monotonic()
        self._token = token if path is None else _read(path)
        if not isinstance(self._token, str):
            raise TypeError("token takes a text")
        if not _is_token(self._token):
            raise ValueError("token holds no token: printable ASCII without spaces is expected")

    def value(self) -> str:
        """The token. A file that cannot be read any more keeps the token that it had."""
        if self._path is not None and monotonic() - self._read_s >= _LOOK_S:
            self.renew()
        return self._token

    def renew(self) -> bool:
        """Reads the file again. Returns whether there is one: a token that is given as it is does not change."""
        if self._path is None:
            return False
        self._read_s = monotonic()
        with suppress(Unauthenticated):
            self._token = _read(self._path)
        return True


def _read(path: Path) -> str:
    """Returns the first token in a file. Raises Unauthenticated."""
    try:
        found = next((line.strip() for line in path.read_text().split("\n") if line.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Unauthenticated(f"{VARIABLE}: cannot read {path}: {why}") from None
    if not _is_token(found):
        raise Unauthenticated(f"{VARIABLE}: {path} holds no token: printable ASCII without spaces is expected")
    return found


def _is_token(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def resolve_token(token: str | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """The given token, else the first one in the file that STATEWARD_TOKEN_FILE names; None = there is none."""
    if token is not None:
        return Token(token)
    path = environment.get(VARIABLE)
    return Token(path=Path(path)) if path else None


Metadata = tuple[tuple[str, str | bytes], ...]
SESSION_KEY = "stateward-session-key-bin"


class Carried(Protocol):
    """What all calls of a connection carry."""

    @property
    def token(self) -> Token | None:
        """What a daemon asks for; None = nothing."""

    @property
    def session_key(self) -> bytes:
        """Of a held thread; empty = none."""


def token_metadata(carried: Carried) -> Metadata:
    """Returns the metadata that carry the token and the session key; empty if there is neither."""
    token: Metadata = () if carried.token is None else (("authorization", f"Bearer {carried.token.value()}"),)
    return (*token, (SESSION_KEY, carried.session_key)) if carried.session_key else token


def call_metadata(carried: Carried) -> Metadata | None:
    """Returns the metadata of a call: the token, the session key, and the caller's span. None = nothing."""
    spans = trace_metadata()
    if carried.token is None and not carried.session_key:
        return spans
    if carried.token is None and spans is None:
        return ((SESSION_KEY, carried.session_key),)
    return (*token_metadata(carried), *(spans or ()))

"""The token that calls carry to a daemon that asks for one, and the metadata of a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from stateward._operations.tracing import trace_metadata

VARIABLE = "STATEWARD_TOKEN_FILE"
_LOOK_S = 1.0
"""How often a file is read again, at most."""


class Token:
    """A token, given as it is or as a file that may change. Never shown."""

    def __init__(self, token: str = "", path: Path | None = None) -> None:
        """Raises ValueError for a token that cannot be sent, and OSError for a file that cannot be read."""
        self._path, self._token, self._read_s = path, _checked(token, "token") if path is None else "", 0.0
        self.value()

    def value(self) -> str:
        """The token. A file that cannot be read any more keeps the token that it had."""
        now = monotonic()
        if self._path is not None and (not self._token or now - self._read_s >= _LOOK_S):
            self._read_s = now
            try:
                lines = self._path.read_text().split("\n")
                self._token = _checked(next((line.strip() for line in lines if line.strip()), ""), str(self._path))
            except (OSError, ValueError):
                if not self._token:
                    raise
        return self._token


def _checked(token: str, what: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{what} holds no token: printable ASCII without spaces is expected")
    return token


def resolve_token(token: str | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """The given token, else the first one in the file that STATEWARD_TOKEN_FILE names; None = there is none."""
    if token is not None:
        return Token(token)
    path = environment.get(VARIABLE)
    return Token(path=Path(path)) if path else None


Metadata = tuple[tuple[str, str], ...]


def token_metadata(token: Token | None) -> Metadata:
    """Returns the metadata that carry the token; empty if there is none."""
    return () if token is None else (("authorization", f"Bearer {token.value()}"),)


def call_metadata(token: Token | None) -> Metadata | None:
    """Returns the metadata of a call: the token, and the caller's span. None = neither."""
    spans = trace_metadata()
    return spans if token is None else (*token_metadata(token), *(spans or ()))

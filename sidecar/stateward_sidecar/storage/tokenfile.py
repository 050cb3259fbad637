"""The token file: access tokens, one a line. Every call must carry one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stateward_sidecar.errors import StartError

CHARS_MIN, TOKENS_MAX = 16, 100


def read_token_file(path: Path) -> frozenset[bytes]:
    """Returns the digests of the tokens. Raises StartError, which says what to do."""
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
    return frozenset(map(token_digest, tokens))


def token_digest(token: str) -> bytes:
    """What is compared instead of a token, so that the time that it takes tells nothing about a valid one."""
    return hashlib.sha256(token.encode()).digest()

"""The files with secrets that people write: the key file and the token file.

The key file: 32 random bytes as 64 hex digits, read once at start.

The token file: access tokens, one a line. Every call must carry one.
"""

from __future__ import annotations

import binascii
import hashlib
import os
from pathlib import Path

from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.files import create_file, make_directory

KEY_BYTES = 32


def read_key_file(path: Path) -> bytes:
    """Returns the key. Raises StartError, which says what to do."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise StartError(
            f"the key file {path} does not exist; put it back, or name another with STATEWARD_KEY_FILE or "
            "--key-file"
        ) from None
    except OSError as error:
        raise StartError(f"cannot read the key file {path}: {error.strerror}") from None
    return parse_key(text, f"the key file {path}")


def parse_key(text: bytes, what: str) -> bytes:
    """Returns the key that a text gives in hex. Raises StartError, which names its place and does not quote it."""
    try:
        key = binascii.unhexlify(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StartError(f"{what} does not hold a key: 64 hex digits are expected")
    return key


def create_key_file(path: Path) -> bytes:
    """Makes a new key, readable by this user only. Keeps one that another process makes at the same time."""
    make_directory(path.parent)
    try:
        create_file(path, os.urandom(KEY_BYTES).hex().encode() + b"\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise StartError(f"cannot write the key file {path}: {error.strerror}") from None
    return read_key_file(path)


def fingerprint(key: bytes) -> str:
    """Identifies a key without revealing it: 16 hex digits."""
    return hashlib.sha256(b"stateward key fingerprint" + key).hexdigest()[:16]


CHARS_MIN, TOKENS_MAX = 16, 100


class NoTokens(StartError):
    """The token file is gone, or has no token."""


def read_token_file(path: Path) -> frozenset[bytes]:
    """Returns the digests of the tokens. Raises StartError, which says what to do."""
    try:
        lines = path.read_text("ascii").split("\n")
    except FileNotFoundError as error:
        raise NoTokens(f"cannot read the token file {path}: {error.strerror}") from None
    except OSError as error:
        raise StartError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"the token file {path} has characters that are not ASCII") from None
    tokens = [token for line in lines if (token := line.strip())]
    if not 0 < len(tokens) <= TOKENS_MAX:
        fault = StartError if tokens else NoTokens
        raise fault(f"the token file {path} has {len(tokens)} tokens; give 1 to {TOKENS_MAX}, one a line")
    if any(len(token) < CHARS_MIN or not token.isprintable() or " " in token for token in tokens):
        raise StartError(
            f"the token file {path} has a token that is shorter than {CHARS_MIN} characters, or has a space in it; "
            "make one with: openssl rand -hex 32"
        )
    return frozenset(map(token_digest, tokens))


def token_digest(token: str) -> bytes:
    """What is compared instead of a token, so that the time that it takes tells nothing about a valid one."""
    return hashlib.sha256(token.encode()).digest()

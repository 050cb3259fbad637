"""A wrapped key file: the key that a key file holds, encrypted by a key management service (KMS).

JSON, so that people can see what it is. Nothing in it is secret: only the service opens it. The service binds it to the
archive by ``context``, so that its log says which archive was opened, and a rule there can allow one archive only.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.files import create_file

FORMAT, FILE_BYTES_MAX = 1, 1 << 16
PROVIDERS = ("awskms", "vault")
CONTEXT_NAME = "stateward-archive"
_MARK = "stateward_wrapped_key"
_IDS = {"archive_id": 32, "key_id": 16}
"""Digits of each."""


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """What the file says."""

    provider: str
    key: str
    """The name of the key in the service: an ARN, or MOUNT/NAME."""
    archive_id: str
    """Of the archive that it opens, in hex."""
    key_id: str
    """The fingerprint of the key inside."""
    ciphertext: bytes

    @property
    def context(self) -> dict[str, str]:
        """What the service binds the ciphertext to."""
        return {CONTEXT_NAME: self.archive_id}


def is_wrapped(path: Path) -> bool:
    """Whether a file begins as a wrapped key file does. False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False


def read_wrapped(path: Path) -> WrappedKey:
    """Returns what a wrapped key file says. Raises StartError, which names the field."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise StartError(f"the wrapped key file {path} does not exist; put it back, or name another") from None
    except OSError as error:
        raise StartError(f"cannot read the wrapped key file {path}: {error.strerror}") from None
    try:
        found = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or _MARK not in found:
        raise StartError(f"{path} is not a wrapped key file; `stateward keys wrap` makes one")
    if found[_MARK] != FORMAT:
        raise StartError(f"the wrapped key file {path} has format {found[_MARK]!r}; this version reads format {FORMAT}")
    return _parse(path, found)


def _parse(path: Path, found: Mapping[str, Any]) -> WrappedKey:
    for name in ("provider", "key", "archive_id", "key_id", "ciphertext"):
        if not isinstance(found.get(name), str) or not found[name]:
            raise StartError(f"the wrapped key file {path} has no text in the field {name}")
    if found["provider"] not in PROVIDERS:
        raise StartError(f"the wrapped key file {path} has the provider {found['provider']!r}; known: awskms, vault")
    for name, digits in _IDS.items():
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", found[name]):
            raise StartError(f"the wrapped key file {path} has no {digits} hex digits in the field {name}")
    try:
        ciphertext = base64.b64decode(found["ciphertext"], validate=True)
    except (binascii.Error, ValueError):
        raise StartError(f"the wrapped key file {path} has no base64 in the field ciphertext") from None
    return WrappedKey(found["provider"], found["key"], found["archive_id"], found["key_id"], ciphertext)


def write_wrapped(path: Path, wrapped: WrappedKey) -> None:
    """Writes a new file, for this user only and durably. Raises StartError; never replaces a file."""
    text = json.dumps({
        _MARK: FORMAT, "provider": wrapped.provider, "key": wrapped.key, "archive_id": wrapped.archive_id,
        "key_id": wrapped.key_id, "ciphertext": base64.b64encode(wrapped.ciphertext).decode(),
    }, indent=2)  # fmt: skip
    try:
        create_file(path, text.encode() + b"\n")
    except FileExistsError:
        raise StartError(f"{path} exists already, and may hold the key to data; give another name") from None
    except FileNotFoundError:
        raise StartError(f"the directory {path.parent} does not exist; make it first") from None
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from None

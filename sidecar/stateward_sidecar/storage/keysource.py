"""Where the daemon's key comes from (``--key``): 32 bytes, opened once at start, and then in memory only.

    file:PATH            a key file, or a wrapped key file
    env:NAME             a variable of the environment
    command:PROGRAM …    what a program prints, which is started without a shell
    awskms:PATH          a wrapped key file that AWS KMS opens
    vault:PATH           a wrapped key file that Vault or OpenBao opens

A service that does not answer is asked again, with pauses. After the start nobody is asked, so an outage of the service
stops no agent.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import KeySource
from stateward_sidecar.storage.kms import KeyRefused, KeyUnreachable, find_kms
from stateward_sidecar.storage.secretfiles import KEY_BYTES, fingerprint, parse_key, read_key_file
from stateward_sidecar.storage.wrappedkey import CONTEXT_NAME, WrappedKey, is_wrapped, read_wrapped
from stateward_sidecar.telemetry import log

PATIENCE_S, PAUSE_MIN_S, PAUSE_MAX_S = 50.0, 0.5, 8.0
COMMAND_S = 30.0
OUTPUT_BYTES_MAX = 4096
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a daemon."""

    data: bytes = field(repr=False)
    archive_id: str = ""
    """The only archive that it may open, in hex; empty = any."""


def open_key(
    source: KeySource, *, patience_s: float = PATIENCE_S, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Key:  # fmt: skip
    """Returns the key, and waits for a service that is away. Raises StartError."""
    deadline, pause_s = now() + patience_s, PAUSE_MIN_S
    while True:
        try:
            return _open_once(source)
        except KeyUnreachable as error:
            if now() + pause_s > deadline:
                raise StartError(f"KEY_UNAVAILABLE: {error.message}; the data stay closed until it does") from None
            log.warning("cannot open the key yet; trying again", error=error.message, pause_s=pause_s)
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _open_once(source: KeySource) -> Key:
    if source.path is not None:
        return _open_file(source, source.path)
    if source.kind == "env":
        return Key(_read_variable(source.value))
    return Key(_run_command(source.value))


def _open_file(source: KeySource, path: Path) -> Key:
    if source.kind == "file" and not is_wrapped(path):
        return Key(read_key_file(path))
    wrapped = read_wrapped(path)
    if source.kind not in ("file", wrapped.provider):
        right = f"{wrapped.provider}:{path}"
        raise KeyRefused(f"--key {source.kind}:{path}: {wrapped.provider} has wrapped this key; write {right}")
    return Key(unwrap(wrapped, path), wrapped.archive_id)


def unwrap(wrapped: WrappedKey, path: Path) -> bytes:
    """Returns the key of a wrapped key file. Raises KeyRefused, KeyUnreachable."""
    key = find_kms(wrapped.provider).open(wrapped)
    if len(key) != KEY_BYTES or fingerprint(key) != wrapped.key_id:
        raise KeyRefused(f"the key in {path} is not the one that its key_id names: the file was changed")
    return key


def wrap_key(provider: str, name: str, key: bytes, archive_id: str = "") -> WrappedKey:
    """Lets a service wrap a key with the key of this name; without ``archive_id`` for an archive that is still to be
    made. Raises KeyRefused, KeyUnreachable."""
    archive_id = archive_id or secrets.token_hex(16)
    full_name, ciphertext = find_kms(provider).wrap(name, key, {CONTEXT_NAME: archive_id})
    return WrappedKey(provider, full_name, archive_id, fingerprint(key), ciphertext)


def rewrap_key(wrapped: WrappedKey, name: str) -> WrappedKey | None:
    """Lets the service of a wrapped key wrap it with its key of this name, for the same archive, without giving the key
    out; None if it does not. Raises KeyUnreachable, and KeyRefused if its package is missing."""
    kms = find_kms(wrapped.provider)
    try:
        found = kms.rewrap(wrapped, name)
    except KeyRefused:  # who may not rewrap may have the right to decrypt and encrypt
        return None
    return replace(wrapped, key=found[0], ciphertext=found[1]) if found is not None else None


def _read_variable(name: str) -> bytes:
    # Programs that the daemon starts do not get it.
    text = _taken.setdefault(name, os.environ.pop(name, ""))
    if not text:
        raise KeyRefused(f"--key env:{name}: the variable is not set")
    return parse_key(text.encode(), f"the variable {name}")


_taken: dict[str, str] = {}


def _run_command(line: str) -> bytes:
    try:
        command = shlex.split(line)
    except ValueError as error:
        raise KeyRefused(f"--key command:…: {error}") from None
    program = command[0]
    try:
        done = subprocess.run(  # noqa: S603  the operator's own program
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise KeyUnreachable(f"{program} printed no key in {COMMAND_S:g} s") from None
    except OSError as error:
        raise KeyRefused(f"--key command:…: cannot start {program}: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = "".join(filter(str.isprintable, said[-1]))[:_SHOWN_CHARS] if said else "it says nothing"
        raise KeyUnreachable(f"{program} ended with {done.returncode}: {why}")
    return parse_key(done.stdout[:OUTPUT_BYTES_MAX], f"what {program} prints")

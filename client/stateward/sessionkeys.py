"""Session keys of held threads, from where only their user gets them."""

from __future__ import annotations

import os
import secrets
from typing import Any

from stateward._operations.holding import SESSION_KEY_MAX, SESSION_KEY_MIN
from stateward._version import install_command

KEY_BYTES = 32
REQUEST_S = 10.0


def session_key_from_vault(
    user_token: str,
    path: str,
    *,
    address: str | None = None,
    role: str | None = None,
    login: str = "jwt",
    mount: str = "secret",
    field: str = "session_key",
    make: bool = True,
    timeout: float = REQUEST_S,
) -> bytes:
    """Returns the session key that Vault or OpenBao keeps for a user, for `client.thread(name, session_key=…)`.

    `user_token` is a token of Vault that the user has. With `role` it is the JWT with which the user logs in, as that
    role of the method at `login`. Their policy decides who gets which key: let each user read and create only a `path`
    of their own.

    The key lies in the field `field` of the secret at `path`, as hex digits, in an engine of the kind KV 2 at `mount`.
    If there has never been a secret, one with 32 random bytes is made; with `make=False` it is an error. Two clients
    that make it at the same moment get the same key. Whoever deletes the secret, or makes another one, loses the
    threads.

    `address` is where Vault is (None = `$VAULT_ADDR`), whose certificate is checked as `$VAULT_CACERT` says. The
    function waits for Vault, so with asyncio call it in a thread.

    Raises ImportError without the extra `vault`, ValueError if the secret has no key, and what hvac raises, such as
    `hvac.exceptions.Forbidden`, and `hvac.exceptions.InvalidPath` for a secret that was deleted or is not to be made.
    """
    try:
        import hvac  # noqa: PLC0415  may be missing
        from hvac import exceptions  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f"session_key_from_vault needs {error.name}; run: {install_command('vault')}") from None
    where = address or os.environ.get("VAULT_ADDR")
    if not where:
        raise ValueError("address is missing, and VAULT_ADDR is not set")
    check = os.environ.get("VAULT_CACERT") or os.environ.get("VAULT_CAPATH") or True
    namespace = os.environ.get("VAULT_NAMESPACE") or None
    client = hvac.Client(
        url=where, token="" if role else user_token, namespace=namespace, verify=check, timeout=timeout
    )
    if role:
        client.auth.jwt.jwt_login(role=role, jwt=user_token, path=login)
    engine = client.secrets.kv.v2
    try:
        return _read(engine, path, mount, field)
    except exceptions.InvalidPath:
        if not make:
            raise
    made = {field: secrets.token_hex(KEY_BYTES)}
    try:
        engine.create_or_update_secret(path=path, secret=made, cas=0, mount_point=mount)
    except exceptions.InvalidRequest:  # somebody else made it, or it was deleted: then this raises InvalidPath
        return _read(engine, path, mount, field)
    return bytes.fromhex(made[field])


def _read(engine: Any, path: str, mount: str, field: str) -> bytes:
    found = engine.read_secret_version(path=path, mount_point=mount, raise_on_deleted_version=True)["data"]["data"]
    try:
        key = bytes.fromhex(found[field])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the secret at {path!r} has no session key in the field {field!r}") from None
    if not SESSION_KEY_MIN <= len(key) <= SESSION_KEY_MAX:
        raise ValueError(f"the session key at {path!r} has {len(key)} bytes instead of 16 to 64")
    return key

"""The danger: a user gets the session key of another one from the vault, gets another key than yesterday, or loses it
without a word."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.keys.conftest import Service

from stateward import Client, session_key_from_vault
from stateward.errors import Locked
from stateward.testing import run_daemon

POLICY = 'path "secret/data/stateward/{user}" {{ capabilities = ["create", "update", "read"] }}'


@pytest.fixture
def tokens(vault: Service) -> dict[str, str]:
    """Of two users, who may each read and make a secret of their own."""
    import hvac

    root = hvac.Client(vault.url, token="root")
    made = {}
    for user in ("ana", "ben"):
        root.sys.create_or_update_policy(user, POLICY.format(user=user))
        made[user] = root.auth.token.create(policies=[user])["auth"]["client_token"]
    return made


def test_only_their_user_opens_a_thread(tmp_path: Path, vault: Service, tokens: dict[str, str]) -> None:
    """The key is made once, is the same from then on, and another user's token gets none."""
    import hvac

    key = session_key_from_vault(tokens["ana"], "stateward/ana", address=vault.url)
    assert len(key) == 32
    assert session_key_from_vault(tokens["ana"], "stateward/ana", address=vault.url) == key
    with pytest.raises(hvac.exceptions.Forbidden) as refused:
        session_key_from_vault(tokens["ben"], "stateward/ana", address=vault.url)
    assert tokens["ben"] not in repr(refused.value)
    other = session_key_from_vault(tokens["ben"], "stateward/ben", address=vault.url)
    with run_daemon(tmp_path / "data") as daemon, Client(daemon.target) as client:
        client.thread("diary", session_key=key).append("m", "x")
        with pytest.raises(Locked):
            client.thread("diary", session_key=other).hydrate()
        again = session_key_from_vault(tokens["ana"], "stateward/ana", address=vault.url)
        assert list(client.thread("diary", session_key=again).hydrate().logs["m"]) == ["x"]


def test_many_clients_make_it_at_once(vault: Service) -> None:
    """They get one key."""
    path = f"many/{os.urandom(4).hex()}"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: session_key_from_vault("root", path, address=vault.url), range(16)))
    assert len(set(made)) == 1


def test_what_is_gone_is_told(vault: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that was deleted is not made anew, because the threads would be lost; one without a key is an error."""
    import hvac

    monkeypatch.setenv("VAULT_ADDR", vault.url)
    root = hvac.Client(vault.url, token="root").secrets.kv.v2
    with pytest.raises(hvac.exceptions.InvalidPath):
        session_key_from_vault("root", "gone/never", make=False)
    session_key_from_vault("root", "gone/x")
    root.delete_latest_version_of_secret("gone/x", mount_point="secret")
    with pytest.raises(hvac.exceptions.InvalidPath):
        session_key_from_vault("root", "gone/x")
    for wrong in ({"other": "aa"}, {"session_key": "no hex"}, {"session_key": "aa" * 15}, {"session_key": 5}):
        root.create_or_update_secret("gone/y", secret=wrong, mount_point="secret")
        with pytest.raises(ValueError, match="session key"):
            session_key_from_vault("root", "gone/y")
    monkeypatch.delenv("VAULT_ADDR")
    with pytest.raises(ValueError, match="VAULT_ADDR"):
        session_key_from_vault("root", "gone/x")
    monkeypatch.setitem(sys.modules, "hvac", None)
    with pytest.raises(ImportError, match=r"hvac.*\[vault\]"):
        session_key_from_vault("root", "gone/x")


def test_a_login_by_jwt(vault: Service) -> None:
    """A user of an identity provider needs no token of the vault; a role binds a path to them."""
    import time

    import hvac
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()  # fmt: skip
    root: Any = hvac.Client(vault.url, token="root")
    root.sys.enable_auth_method("jwt", path="users")
    root.auth.jwt.configure(jwt_validation_pubkeys=[public], path="users")
    root.sys.create_or_update_policy("eve", POLICY.format(user="eve"))
    root.auth.jwt.create_role(
        "agents", role_type="jwt", allowed_redirect_uris=[], user_claim="sub", bound_audiences=["vault"],
        token_policies=["eve"], path="users",
    )  # fmt: skip
    now = int(time.time())
    token = jwt.encode({"sub": "eve", "aud": "vault", "iat": now, "exp": now + 600}, key, "ES256")
    made = session_key_from_vault(token, "stateward/eve", address=vault.url, role="agents", login="users")
    assert session_key_from_vault("root", "stateward/eve", address=vault.url) == made

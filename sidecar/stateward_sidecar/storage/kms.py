"""Key management services: what each does with a key of 32 bytes. Its package is loaded only for those who use it.

    awskms    AWS KMS, by boto3: Encrypt, Decrypt and ReEncrypt, with the context as encryption context
    vault     the transit engine of Vault and OpenBao, by hvac: encrypt and decrypt, with the context as associated data
              (its rewrap knows no associated data, and refuses such a ciphertext; OpenBao 2.7)

The credentials are those that each service's own programs take from the environment.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateward._version import install_command
from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.wrappedkey import WrappedKey

REQUEST_S = 5.0
_SERVICE_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# Answers of AWS with a 4xx status that say "later".
_LATER = {"ThrottlingException", "Throttling", "LimitExceededException", "RequestLimitExceeded", "RequestTimeout"}


class KeyRefused(StartError):
    """The service does not open the key, or cannot be asked. To wait does not help."""


class KeyUnreachable(StartError):
    """The service does not answer, or says that it cannot now. It is asked again."""


@dataclass(frozen=True, slots=True)
class Kms:
    """A service. Each verb raises KeyRefused and KeyUnreachable."""

    wrap: Callable[[str, bytes, Mapping[str, str]], tuple[str, bytes]]
    """Encrypts a key with the service's key of this name, for a context. Returns the key's full name, and the
    ciphertext."""
    open: Callable[[WrappedKey], bytes]
    """Decrypts the key of a wrapped key file."""
    rewrap: Callable[[WrappedKey, str], tuple[str, bytes] | None]
    """Encrypts the key of a wrapped key file with the service's key of this name, for the same context, in the service:
    nobody sees the key. Returns what ``wrap`` returns; None if the service has no way from the one key to the other."""


def find_kms(provider: str) -> Kms:
    """Returns a service. Raises KeyRefused if its package is missing."""
    return _KINDS[provider]()


def _missing(service: str, error: ImportError, extra: str) -> KeyRefused:
    command = install_command(extra)
    return KeyRefused(f"a key of {service} needs a package that is missing ({error.name}); run: {command}")


# -- AWS --------------------------------------------------------------------------------------------------------------


def _aws() -> Kms:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
    except ImportError as error:
        raise _missing("AWS KMS", error, "aws") from None

    def call(key: str, verb: str, **parameters: object) -> Any:
        settings = Config(
            connect_timeout=REQUEST_S, read_timeout=REQUEST_S, retries={"total_max_attempts": 1},
            region_name=_region(key),
        )  # fmt: skip
        try:
            return getattr(boto3.Session().client("kms", config=settings), verb)(**parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "unknown"))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            told = f"AWS KMS answers {code} for the key {key}"
            if 400 <= status < 500 and code not in _LATER:
                raise KeyRefused(f"{told}; is its policy right, and is it the key that wrapped this file?") from None
            raise KeyUnreachable(told) from None
        except (NoCredentialsError, NoRegionError) as error:
            raise KeyRefused(f"AWS KMS cannot be asked: {error}") from None
        except BotoCoreError as error:
            raise KeyUnreachable(f"AWS KMS does not answer: {type(error).__name__}") from None
        except ValueError as error:  # such as an endpoint that is no URL
            raise KeyRefused(f"AWS KMS cannot be asked: {error}") from None

    def wrap(key: str, plain: bytes, context: Mapping[str, str]) -> tuple[str, bytes]:
        found = call(key, "encrypt", KeyId=key, Plaintext=plain, EncryptionContext=dict(context))
        return str(found["KeyId"]), bytes(found["CiphertextBlob"])

    def unwrap(wrapped: WrappedKey) -> bytes:
        found = call(
            wrapped.key, "decrypt", KeyId=wrapped.key, CiphertextBlob=wrapped.ciphertext,
            EncryptionContext=wrapped.context,
        )  # fmt: skip
        return bytes(found["Plaintext"])

    def rewrap(wrapped: WrappedKey, key: str) -> tuple[str, bytes] | None:
        if (_region(key) or boto3.Session().region_name) != _region(wrapped.key):
            return None  # a request stays in its region
        found = call(
            wrapped.key, "re_encrypt", SourceKeyId=wrapped.key, CiphertextBlob=wrapped.ciphertext,
            DestinationKeyId=key, SourceEncryptionContext=wrapped.context,
            DestinationEncryptionContext=wrapped.context,
        )  # fmt: skip
        return str(found["KeyId"]), bytes(found["CiphertextBlob"])

    return Kms(wrap, unwrap, rewrap)


def _region(key: str) -> str | None:
    """The region in a key's ARN; None = that of the environment."""
    parts = key.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 5 and parts[3] else None


# -- Vault ------------------------------------------------------------------------------------------------------------


def _vault() -> Kms:
    try:
        import hvac
        from hvac import exceptions
        from requests.exceptions import RequestException
    except ImportError as error:
        raise _missing("Vault", error, "vault") from None
    later = (
        exceptions.VaultDown, exceptions.InternalServerError, exceptions.BadGateway, exceptions.RateLimitExceeded,
        exceptions.VaultNotInitialized,
    )  # fmt: skip

    def call(key: str, verb: str, context: Mapping[str, str], **parameters: object) -> Any:
        mount, _, name = key.rpartition("/")
        try:
            transit = _log_in(hvac).secrets.transit
            return getattr(transit, verb)(
                name=name, mount_point=mount or "transit", associated_data=_text(_canonical(context)), **parameters
            )["data"]
        except RequestException as error:
            raise KeyUnreachable(f"Vault does not answer: {type(error).__name__}") from None
        except later as error:
            raise KeyUnreachable(f"Vault cannot open a key now: {type(error).__name__}") from None
        except exceptions.VaultError as error:
            why = "; ".join(map(str, error.errors or ())) or type(error).__name__
            raise KeyRefused(f"Vault refuses for the key {key}: {' '.join(why.split())}") from None

    def wrap(key: str, plain: bytes, context: Mapping[str, str]) -> tuple[str, bytes]:
        found = call(key, "encrypt_data", context, plaintext=_text(plain))
        return key, str(found["ciphertext"]).encode()

    def unwrap(wrapped: WrappedKey) -> bytes:
        text = wrapped.ciphertext.decode("ascii", "replace")
        found = call(wrapped.key, "decrypt_data", wrapped.context, ciphertext=text)
        return base64.b64decode(found["plaintext"])

    def rewrap(wrapped: WrappedKey, key: str) -> None:
        del wrapped, key

    return Kms(wrap, unwrap, rewrap)


def _log_in(hvac: Any) -> Any:
    """Returns a client by Vault's own variables; with ``STATEWARD_VAULT_LOGIN=MOUNT/ROLE`` by a token of Kubernetes."""
    given = os.environ
    if not given.get("VAULT_ADDR"):
        raise KeyRefused("VAULT_ADDR is not set: it says where Vault is, such as https://vault.example.com:8200")
    client = hvac.Client(
        url=given["VAULT_ADDR"], namespace=given.get("VAULT_NAMESPACE") or None,
        verify=given.get("VAULT_CACERT") or given.get("VAULT_CAPATH") or True, timeout=REQUEST_S,
    )  # fmt: skip
    login = given.get("STATEWARD_VAULT_LOGIN")
    if login:
        mount, _, role = login.rpartition("/")
        file = Path(given.get("STATEWARD_VAULT_JWT_FILE") or _SERVICE_TOKEN)
        try:
            jwt = file.read_text().strip()
        except OSError as error:
            raise KeyRefused(f"cannot read the token for Vault in {file}: {error.strerror}") from None
        client.auth.kubernetes.login(role=role, jwt=jwt, mount_point=mount or "kubernetes")
    elif not client.token:
        raise KeyRefused("Vault asks for a token: set VAULT_TOKEN, or STATEWARD_VAULT_LOGIN=MOUNT/ROLE")
    return client


def _canonical(context: Mapping[str, str]) -> bytes:
    return json.dumps(context, sort_keys=True, separators=(",", ":")).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_KINDS = {"awskms": _aws, "vault": _vault}

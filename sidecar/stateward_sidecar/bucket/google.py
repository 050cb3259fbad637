"""How to reach Google Cloud Storage, and the credential files that obstore cannot read.

obstore reads files of the types `service_account` and `authorized_user`, and asks the metadata server. All other types
(`external_account`: workload identity federation; `impersonated_service_account`) are read by google-auth, which the
extra `google` installs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateward._version import install_command
from stateward_sidecar.bucket.access import Access, counts_as_http, first_set, is_http, options
from stateward_sidecar.bucket.base import BucketMisconfigured

_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_KEY_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_OPTIONS = {
    "GOOGLE_BASE_URL": "google_base_url", "STORAGE_EMULATOR_HOST": "google_base_url",
    "GOOGLE_BEARER_TOKEN": "google_bearer_token", "GOOGLE_SERVICE_ACCOUNT": "google_service_account",
    "GOOGLE_SERVICE_ACCOUNT_PATH": "google_service_account", "GOOGLE_SERVICE_ACCOUNT_KEY": "google_service_account_key",
    "GOOGLE_APPLICATION_CREDENTIALS": "google_application_credentials",
}  # fmt: skip
_ENDPOINTS = ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST")
_READ_BY_OBSTORE = {"service_account", "authorized_user"}
_WELL_KNOWN = Path(".config/gcloud/application_default_credentials.json")


def google_access(environment: Mapping[str, str]) -> Access:
    """Returns how to reach Google Cloud Storage. Raises BucketMisconfigured, which names the variable."""
    return replace(_access(environment), endpoint=first_set(environment, _ENDPOINTS))


def _access(environment: Mapping[str, str]) -> Access:
    config = options(environment, _OPTIONS)
    allows_http = counts_as_http(environment, _ENDPOINTS)
    if "google_bearer_token" in config:
        return Access(config, allows_http, "GOOGLE_BEARER_TOKEN: such a token lives for an hour at most")
    for name in _KEY_FILES:
        if path := environment.get(name, "").strip():
            content = _read(name, Path(path))
            base = content.get("gcs_base_url")  # obstore takes it from such a file
            allows_http |= isinstance(base, str) and is_http(f"gcs_base_url in the file of {name}", base)
            return Access(config, allows_http, f"{name} and the rights of the account in it")
    if "google_service_account_key" in config:
        _parse("GOOGLE_SERVICE_ACCOUNT_KEY", config["google_service_account_key"])
        return Access(config, allows_http, "GOOGLE_SERVICE_ACCOUNT_KEY and the rights of the account in it")
    return _default_access(environment, config, allows_http=allows_http)


def _default_access(environment: Mapping[str, str], config: dict[str, str], *, allows_http: bool) -> Access:
    """Application default credentials: the file that a variable names, the one of gcloud, or the metadata server."""
    name, path = _FILE, Path(environment.get(_FILE, "").strip())
    if not environment.get(_FILE, "").strip():
        path = Path(environment.get("HOME", "/")) / _WELL_KNOWN
        name = f"{path}, which gcloud keeps (or set {_FILE})"
        if not _is_file(path):
            return Access(
                config, allows_http,
                f"the service account of this machine or pod, or set {_FILE} to the path of a credential file",
            )  # fmt: skip
    info = _read(name, path)
    if info.get("type") in _READ_BY_OBSTORE:
        config["google_application_credentials"] = str(path)
        return Access(config, allows_http, f"{name} and the rights of the account in it")
    config.pop("google_application_credentials", None)
    credentials = f"{name}: whom its provider trusts, and the rights of the account in it"
    return Access(config, allows_http, credentials, _provider(name, path, info))


def _provider(name: str, path: Path, info: dict[str, Any]) -> Callable[[], Any]:
    """Returns what gets tokens by a file that obstore cannot read."""
    try:
        from stateward_sidecar.bucket.google_auth import token_provider
    except ImportError:
        raise BucketMisconfigured(
            f"{name}: credentials of the type {info.get('type')} need google-auth: {install_command('google')}; or "
            "use the key of a service account, or Workload Identity of GKE, which need nothing"
        ) from None
    try:
        return token_provider(info)
    except ValueError as error:
        raise BucketMisconfigured(f"{name}: {path} cannot be used: {error}") from error


def _is_file(path: Path) -> bool:
    """Whether there is a file. A directory that may not be read has none for this process."""
    try:
        return path.is_file()
    except OSError:
        return False


def _read(name: str, path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BucketMisconfigured(f"{name}: the credential file {path} cannot be read: {_why(error)}") from None
    return _parse(name, text)


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise BucketMisconfigured(f"{name} has no JSON of Google's credentials: download the file again")
    return content


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is no text"

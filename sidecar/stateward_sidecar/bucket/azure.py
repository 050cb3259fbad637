"""How to reach Azure: obstore's names, those of Azure's own tools, and the connection string."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from stateward_sidecar.bucket.access import Access, is_http, options
from stateward_sidecar.bucket.base import BucketMisconfigured

# From each variable to obstore's option; of two variables for one option the first counts.
_OPTIONS = {
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name", "AZURE_STORAGE_ACCOUNT": "account_name",
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key", "AZURE_STORAGE_ACCESS_KEY": "account_key",
    "AZURE_STORAGE_KEY": "account_key", "AZURE_STORAGE_SAS_TOKEN": "sas_key", "AZURE_STORAGE_SAS_KEY": "sas_key",
    "AZURE_STORAGE_ENDPOINT": "endpoint", "AZURE_ENDPOINT": "endpoint", "AZURE_STORAGE_SERVICE_ENDPOINT": "endpoint",
    "AZURE_CLIENT_ID": "client_id", "AZURE_STORAGE_CLIENT_ID": "client_id", "AZURE_TENANT_ID": "tenant_id",
    "AZURE_CLIENT_SECRET": "client_secret", "AZURE_STORAGE_CLIENT_SECRET": "client_secret",
    "AZURE_FEDERATED_TOKEN_FILE": "federated_token_file", "AZURE_AUTHORITY_HOST": "authority_host",
    "AZURE_STORAGE_USE_EMULATOR": "use_emulator",
}  # fmt: skip
_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
# The parts of a connection string, as the variables that say the same.
_PARTS = {
    "accountname": "AZURE_STORAGE_ACCOUNT_NAME", "accountkey": "AZURE_STORAGE_ACCOUNT_KEY",
    "sharedaccesssignature": "AZURE_STORAGE_SAS_TOKEN", "blobendpoint": "AZURE_STORAGE_ENDPOINT",
    "usedevelopmentstorage": "AZURE_STORAGE_USE_EMULATOR",
}  # fmt: skip
_ACCOUNT_MISSING = (
    "az:// needs AZURE_STORAGE_ACCOUNT_NAME: set it to the name of the storage account that has the container"
)
_PUBLIC = "core.windows.net"


def azure_access(environment: Mapping[str, str]) -> Access:
    """Returns how to reach Azure. Raises BucketMisconfigured, which names the variable."""
    variables = _connected(environment)
    config = options(variables, _OPTIONS)
    is_emulated = config.get("use_emulator", "").lower() in ("1", "true", "yes", "on")
    if not is_emulated:
        if "account_name" not in config:
            raise BucketMisconfigured(_ACCOUNT_MISSING)
        _check_secrets(variables, config)
    allows_http = is_emulated
    for option in ("endpoint", "authority_host"):
        if value := config.get(option):
            allows_http |= is_http(_name_of(variables, option), value)
    endpoint = _name_of(variables, "endpoint") if "endpoint" in config else ""
    return Access(config, allows_http, credentials=_credentials(variables, config), endpoint=endpoint)


def _connected(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables, with those that the connection string says. It counts less than a variable of its own."""
    text = environment.get(_CONNECTION, "").strip()
    if not text:
        return dict(environment)
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    said = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if not said.keys() & {"accountname", "blobendpoint", "usedevelopmentstorage"}:
        raise BucketMisconfigured(f"{_CONNECTION} names no account: it holds AccountName=… or BlobEndpoint=…")
    found = {variable: said[part] for part, variable in _PARTS.items() if said.get(part)}
    suffix = said.get("endpointsuffix", _PUBLIC)
    if "blobendpoint" in said and "accountname" not in said:  # https://account.blob…, or http://host:port/account
        parts = urlsplit(said["blobendpoint"])
        found["AZURE_STORAGE_ACCOUNT_NAME"] = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    elif "accountname" in said and "blobendpoint" not in said and suffix != _PUBLIC:
        scheme = said.get("defaultendpointsprotocol", "https")
        found["AZURE_STORAGE_ENDPOINT"] = f"{scheme}://{said['accountname']}.blob.{suffix}"
    set_options = options(environment, _OPTIONS)
    kept = {name: value for name, value in found.items() if _OPTIONS[name] not in set_options}
    return {**environment, **kept}


def _check_secrets(variables: Mapping[str, str], config: Mapping[str, str]) -> None:
    if key := config.get("account_key"):
        try:
            base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            name = _name_of(variables, "account_key")
            raise BucketMisconfigured(f"{name} is no Base64: copy the whole key of the storage account") from None
    if (token := config.get("sas_key")) and "sig" not in dict(parse_qsl(token.removeprefix("?"))):
        name = _name_of(variables, "sas_key")
        raise BucketMisconfigured(f"{name} is no shared access signature: write it as sv=…&sp=…&sig=…")
    if config.get("federated_token_file") and not (config.get("client_id") and config.get("tenant_id")):
        raise BucketMisconfigured("AZURE_FEDERATED_TOKEN_FILE needs AZURE_CLIENT_ID and AZURE_TENANT_ID as well")
    if config.get("client_secret") and not (config.get("client_id") and config.get("tenant_id")):
        raise BucketMisconfigured("AZURE_CLIENT_SECRET needs AZURE_CLIENT_ID and AZURE_TENANT_ID as well")


def _credentials(variables: Mapping[str, str], config: Mapping[str, str]) -> str:
    if config.get("account_key"):
        return f"{_name_of(variables, 'account_key')}, and that the account allows access by key"
    if config.get("federated_token_file"):
        return (
            "AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE, the identity's federated credential (issuer "
            "and subject), and its role Storage Blob Data Contributor"
        )
    if config.get("client_secret"):
        return "AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_CLIENT_SECRET, and the role Storage Blob Data Contributor"
    if config.get("sas_key"):
        return f"{_name_of(variables, 'sas_key')}: its permissions (racwdl) and its end"
    return (
        "the managed identity of this machine, or set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or "
        "AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE (what `az login` keeps is not read)"
    )


def _name_of(variables: Mapping[str, str], option: str) -> str:
    """Returns the variable that an option came from."""
    name = next(name for name, each in _OPTIONS.items() if each == option and variables.get(name, "").strip())
    return f"{name} (or its part of {_CONNECTION})" if variables.get(_CONNECTION) else name

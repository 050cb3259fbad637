"""Tokens by Google's credential files that obstore cannot read. Needs the extra `google`, and is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from google.auth import aws, external_account_authorized_user, identity_pool, impersonated_credentials, pluggable
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from obstore.auth.google import GoogleCredentialProvider

TOKEN_TIMEOUT_S = 10.0
_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_OF_AWS = "urn:ietf:params:aws:token-type:aws4_request"


def token_provider(info: dict[str, Any]) -> Callable[[], Any]:
    """Returns what obstore calls for each token. A source that the file names, such as a token file, is read each time.

    Raises ValueError if the content of the file cannot be used.
    """
    try:
        credentials = _load(info)
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    request: Any = partial(Request(), timeout=TOKEN_TIMEOUT_S)
    return GoogleCredentialProvider(credentials, request=request)


def _load(info: dict[str, Any]) -> Any:
    """Returns google-auth's credentials. Its own loader would first ask Google for a project, which nobody needs."""
    return _reader(info)(info)


def _reader(info: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    kind = info.get("type")
    if kind == "impersonated_service_account":
        read: Any = impersonated_credentials.Credentials.from_impersonated_service_account_info
    elif kind == "external_account_authorized_user":
        return external_account_authorized_user.Credentials.from_info
    elif kind != "external_account":
        raise ValueError(f"the type {kind} is unknown")
    elif info.get("subject_token_type") == _OF_AWS:
        read = aws.Credentials.from_info
    elif "executable" in info.get("credential_source", {}):
        read = pluggable.Credentials.from_info
    else:
        read = identity_pool.Credentials.from_info
    return partial(read, scopes=_SCOPES)

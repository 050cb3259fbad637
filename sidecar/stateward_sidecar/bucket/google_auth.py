"""Tokens by Google's credential files that obstore cannot read. Needs the extra `google`, and is imported only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from google.auth import aws, external_account_authorized_user, identity_pool, impersonated_credentials, pluggable
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.auth.transport.requests import Request
from obstore.auth.google import GoogleCredentialProvider

TOKEN_TIMEOUT_S = 10.0
# What a token service says of credentials: RFC 6749 (5.2), RFC 8693 (2.2.2), and Google's own interfaces.
_REFUSALS = {
    "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
    "invalid_scope", "invalid_target", "access_denied",
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION",
}  # fmt: skip
_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_OF_AWS = "urn:ietf:params:aws:token-type:aws4_request"


class TokenRefused(Exception):
    """The token service refused the credentials. `answers.py` reads the name of the class."""


def token_provider(info: dict[str, Any]) -> Callable[[], Any]:
    """Returns what obstore calls for each token. A source that the file names, such as a token file, is read each time.

    Raises ValueError if the content of the file cannot be used.
    """
    try:
        credentials = _load(info)
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    request: Any = partial(Request(), timeout=TOKEN_TIMEOUT_S)
    provider = GoogleCredentialProvider(credentials, request=request)

    def provide() -> Any:
        try:
            return provider()
        except GoogleAuthError as error:
            if _is_refusal(error):
                raise TokenRefused(str(error)) from error
            raise

    return provide


def _is_refusal(error: GoogleAuthError) -> bool:
    """Whether waiting does not help. google-auth raises the same classes for an outage and for a refusal, so the answer
    of the service decides. It is the last argument of the error."""
    if error.retryable:
        return False
    if isinstance(error, DefaultCredentialsError):  # the file, or the token in it, has another form
        return True
    if len(error.args) < 2:
        return isinstance(error, RefreshError)  # no service answered: a token file is missing, a program failed
    try:
        said = json.loads(error.args[-1])["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return (said.get("status") if isinstance(said, dict) else said) in _REFUSALS


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

"""What the environment says about a store: obstore's options, and in words where the credentials come from.

obstore reads most variables by itself. This module reads them first, because some names that a cloud's own tools know
are ignored there, because plain http must be allowed, and because an error must name the variable to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stateward_sidecar.bucket.base import BucketMisconfigured


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a store.

    ``config``: obstore's options. ``allows_http``: an endpoint that counts is plain http. ``credentials``: where they
    come from, as words that continue "check …". ``provider``: obstore's ``credential_provider``; None = obstore finds
    them.
    """

    config: dict[str, str] = field(default_factory=dict)
    allows_http: bool = False
    credentials: str = ""
    provider: Callable[[], Any] | None = None
    agent: str = ""  # URL without query of what gives keys to a pod or task; empty = not asked
    endpoint: str = ""  # the variable that names the server; empty = the cloud's own


# From each variable to obstore's option; of two variables for one option the first counts.
_S3_OPTIONS = {
    "AWS_ENDPOINT_URL_S3": "aws_endpoint_url", "AWS_ENDPOINT_URL": "aws_endpoint_url",
    "AWS_ENDPOINT": "aws_endpoint_url", "AWS_REGION": "aws_region", "AWS_DEFAULT_REGION": "aws_region",
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key", "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "aws_virtual_hosted_style_request",
}  # fmt: skip
_AGENT_OF_ECS = "http://169.254.170.2"
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def s3_access(environment: Mapping[str, str]) -> Access:
    """Returns how to reach S3, or a store with its API. Raises BucketMisconfigured."""
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        given, missing = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")[:: 1 if key else -1]
        raise BucketMisconfigured(f"{given} is set without {missing}: set both, or neither")
    return Access(
        config={"disable_bulk_delete": "true"} | options(environment, _S3_OPTIONS),  # each store knows single deletes
        allows_http=counts_as_http(environment, _S3_ENDPOINTS),
        credentials=_s3_credentials(environment),
        agent=_agent(environment),
        endpoint=first_set(environment, _S3_ENDPOINTS),
    )


def _agent(environment: Mapping[str, str]) -> str:
    path = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "").strip()
    url = f"{_AGENT_OF_ECS}{path}" if path else environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "").strip()
    return url.partition("?")[0]


def _s3_credentials(environment: Mapping[str, str]) -> str:
    if environment.get("AWS_ACCESS_KEY_ID"):
        return "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if the key is a temporary one, AWS_SESSION_TOKEN"
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return "AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE, and whom the role trusts"
    for name in ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        if environment.get(name):
            return f"{name}, and the role of the task or pod"
    return (
        "the role of this machine, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the files in ~/.aws and "
        "AWS_PROFILE are not read)"
    )


def options(environment: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Returns obstore's options by the variables that are set and not empty."""
    found: dict[str, str] = {}
    for name, option in names.items():
        if value := environment.get(name, "").strip():
            found.setdefault(option, value)
    return found


def first_set(environment: Mapping[str, str], names: Iterable[str]) -> str:
    """Returns the first of these variables that is set and not empty, or nothing."""
    return next((name for name in names if environment.get(name, "").strip()), "")


def counts_as_http(environment: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether the first of these endpoints that is set, the one that counts, is plain http.

    Raises BucketMisconfigured if any of them is no URL.
    """
    found = [is_http(name, value) for name in names if (value := environment.get(name, "").strip())]
    return bool(found) and found[0]


def is_http(name: str, value: str) -> bool:
    """Whether this endpoint is plain http. Raises BucketMisconfigured, which names the variable, if it is no URL, or
    holds a password."""
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url, parts = False, None
    if parts is not None and "@" in parts.netloc:
        raise BucketMisconfigured(f"{name} must not hold a user or password: credentials have variables of their own")
    if not is_url or parts is None:
        raise BucketMisconfigured(f"{name} is no URL: write https://host, or http://host:port for plain http")
    return parts.scheme == "http"

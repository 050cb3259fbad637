"""What obstore's exceptions mean: from its class, or else from the server's status and code, to a BucketError.

obstore's exceptions have no fields. Its own words come first in the text, the server's answer after them. Microsoft's
answer to a delete is a part of a Blob Batch, of which obstore keeps the status and the sentence.
"""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from stateward_sidecar.bucket.base import (
    BucketDenied,
    BucketError,
    BucketFull,
    BucketMisconfigured,
    BucketRefused,
    BucketUnavailable,
    ObjectChanged,
    ObjectCold,
    ObjectExists,
    ObjectNotFound,
)

_STATUS = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_QUERY = re.compile(r"\?\S+")
_NEVER_SENT = "kind: Connect,"
# obstore asked for a token, and not for an object: of Entra, Google, a metadata server or AWS's STS ("REDACTED"); or it
# read a token file.
_OF_CREDENTIALS = re.compile(
    r"token request|token response|token file|POST REDACTED|/latest/(?:api/token|meta-data)|credential provider"
    r"|security-credentials|CONTAINER_CREDENTIALS|assum(?:e|ing) role",
    re.IGNORECASE,
)
_FILE_MISSING = re.compile(r"token file", re.IGNORECASE)
_WRITES = {"put", "create", "replace", "delete"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientAccountStorage"}
_COLD = {"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"}
_LATER = {
    "RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict", "ContainerBeingDeleted",
    "AccountBeingCreated", "ServerBusy", "OperationTimedOut",
}  # fmt: skip
# Some of these come as 400, 409 or 412, which would mean something else.
_DENIED = {
    "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed",
    "BlobImmutableDueToPolicy", "ContainerDisabled", "LeaseIdMissing", "LeaseIdMismatchWithBlobOperation",
    "UserProjectMissing",
}  # fmt: skip
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_NO_LOCATION = "incorrectly configured region"  # obstore, of a redirect that leads nowhere
PANIC = "PanicException"


def said(error: BaseException) -> str:
    """Returns the readable part of what obstore says, without queries: Azure's may hold a signature."""
    return _QUERY.sub("?…", str(error).partition("\n\nDebug source:")[0])[:500]


def translate(error: BaseException, key: str, url: str, method: str, credentials: str = "") -> BucketError:
    """Returns the bucket's error of a call that obstore ended with this exception.

    ``credentials``: where they come from, as words that continue "check …".
    """
    is_write = method in _WRITES
    text = str(error)
    status = int(found[1] or found[2]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    message = f"{url}: {said(error)}"
    if _OF_CREDENTIALS.search(text.partition("\n\nDebug source:")[0]):
        return _of_credentials(text, url, message, status, credentials)
    found_error = _by_code(code, url, message, status, key, credentials, is_write=is_write)
    if found_error is None and method == "delete" and status in (409, 412):
        # A delete has no condition, so these say that a policy or a lease keeps the object.
        return BucketDenied(f"{message}: a lease, or an immutability or retention policy, keeps it", status=status)
    return found_error or _by_status(error, text, message, status, key, method, credentials)


def _of_credentials(text: str, url: str, message: str, status: int, credentials: str) -> BucketError:
    """A token that was refused is denied. A token service that does not answer is away; nothing was written."""
    if _FILE_MISSING.search(text) or 300 <= status < 429 or 429 < status < 500:
        return BucketDenied(f"{url}: no token for the store: check {credentials}: {message}", status=status)
    return BucketUnavailable(f"{message}: no token for the store; check {credentials}", status=status)


def _by_code(
    code: str, url: str, message: str, status: int, key: str, credentials: str, *, is_write: bool
) -> BucketError | None:
    """Returns the error that the server's code names, whatever the status; None = no code, or one that says nothing."""
    if code in _NO_BUCKET:
        return BucketRefused(f"{url}: there is no such bucket", status=status)
    if code in _COLD:
        return ObjectCold(key)
    if code in _LATER:
        return BucketUnavailable(message, status=status, is_unclear=is_write and status >= 500)
    if code in _FULL:
        return BucketFull(message, status=status)
    if code in _DENIED:
        return BucketDenied(f"{message}: check {credentials}", status=status)
    if code in _REGION or _NO_LOCATION in message:
        return BucketMisconfigured(f"{url}: set AWS_REGION to the region of the bucket: {message}", status=status)
    return None


def _by_status(
    error: BaseException, text: str, message: str, status: int, key: str, method: str, credentials: str
) -> BucketError:
    is_write = method in _WRITES
    if status == 409 and method != "create":
        # With a status below 500 nothing was stored. S3 answers 409 while another write is under way. obstore calls
        # every 409 "already exists", which is right only for the answer to a create.
        return BucketUnavailable(message, status=status)
    if isinstance(error, FileNotFoundError):
        return BucketRefused(message, status=status) if is_write else ObjectNotFound(key)
    if isinstance(error, AlreadyExistsError) and method == "create":
        return ObjectExists(key)
    if isinstance(error, PreconditionError) and method == "replace":
        return ObjectChanged(key)
    if status == 507:
        return BucketFull(message, status=status)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return BucketDenied(f"{message}: check {credentials}", status=status)
    if status == 429:
        return BucketUnavailable(message, status=status)
    if type(error).__name__ == PANIC or "builder error" in text:
        return BucketMisconfigured(
            f"{message}: no request could be made; check the URL, the endpoint (plain http only if its variable says "
            f"http://), and {credentials}"
        )
    if isinstance(error, NotSupportedError | InvalidPathError) or 400 <= status < 500 or status == 501:
        return BucketRefused(message, status=status)
    return BucketUnavailable(message, status=status, is_unclear=is_write and _NEVER_SENT not in text)

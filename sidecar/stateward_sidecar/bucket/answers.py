"""What obstore's exceptions mean: from its class, or else from the server's status and code, to a BucketError.

obstore's exceptions have no fields. Its own words come first in the text, the server's answer after them. Microsoft's
answer to a delete is a part of a Blob Batch, of which obstore keeps the status and the sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from obstore.exceptions import (
    AlreadyExistsError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from stateward_sidecar.bucket.access import Access
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
_QUERY = re.compile(r"(/[^\s?]*)\?\S+|\?\S*=\S*")  # of a URL, or by itself
_USER = re.compile(r"://[^\s/@]+@")
_UNSENT = (
    ("dns error", "no such host"), ("ConnectionRefused", "the connection was refused"),
    ("TimedOut|timed out|Elapsed", "no connection in time"),
    ("Invalid|Certificate|Alert|UnknownIssuer|Peer|Tls", "TLS could not be agreed on"),
)  # fmt: skip
_NEVER_SENT = "kind: Connect,"
# obstore asked for a token, and not for an object: of Entra, Google or a metadata server; or it read a token file; or
# google-auth did.
_OF_CREDENTIALS = re.compile(
    r"token request|token response|token file|/latest/(?:api/token|meta-data/iam/)|credential provider", re.IGNORECASE
)
_OF_STS = "POST REDACTED"  # with s3://; Azure's requests with a shared access signature are redacted too
# Which of these do not end by waiting, although no status says so.
_FILE_MISSING, _FROM_PROVIDER, _REFUSED_BY_PROVIDER = "token file", "credential provider: ", "TokenRefused"
_HTTP_REFUSED = "builder error"
_WRITES = {"put", "create", "replace", "delete"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientAccountStorage"}
_COLD = {"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"}
_LATER = {
    "RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict", "ContainerBeingDeleted",
    "AccountBeingCreated", "ServerBusy", "OperationTimedOut",
}  # fmt: skip
# Request Timeout, Misdirected Request, Too Early, Too Many Requests: a later try may succeed, and nothing was stored.
_PASSING = {408, 421, 425, 429}
# Azure's metadata service while it is updated; Entra is asked by POST.
# https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token#error-handling
_PASSING_OF_METADATA, _FROM_METADATA = {404, 410}, "Error performing GET"
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
    """Returns the readable part of what obstore says, without the users and queries of URLs: they may hold a password
    or a signature."""
    text = str(error).partition("\n\nDebug source:")[0]
    return _QUERY.sub(r"\1?…", _USER.sub("://…@", text))[:500]


def translate(error: BaseException, key: str, url: str, method: str, access: Access) -> BucketError:
    """Returns the bucket's error of a call that obstore ended with this exception.

    ``access`` says where credentials and endpoint come from.
    """
    text = str(error)
    status = int(found[1] or found[2]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    answer = _Answer(error, text, status, code, key, url, method, access.credentials, access.endpoint)
    is_of_agent = bool(access.agent) and f"GET {access.agent}" in text
    if is_of_agent or _OF_CREDENTIALS.search(said(error)) or (url.startswith("s3:") and _OF_STS in said(error)):
        return _of_credentials(answer)
    return _by_code(answer) or _by_status(answer)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of a call that failed."""

    error: BaseException
    text: str
    status: int
    code: str
    key: str
    url: str
    method: str
    credentials: str
    endpoint: str

    @property
    def message(self) -> str:
        return f"{self.url}: {said(self.error)}"

    @property
    def is_write(self) -> bool:
        return self.method in _WRITES


def _of_credentials(answer: _Answer) -> BucketError:
    """A token that was refused is denied. A token service that does not answer is away; nothing was written."""
    said_here, status = said(answer.error), answer.status
    if _HTTP_REFUSED in said_here:
        return BucketMisconfigured(
            f"{answer.url}: a token service is only asked over https (AWS_ENDPOINT_URL_STS, AZURE_AUTHORITY_HOST): "
            f"check {answer.credentials}: {said_here}"
        )
    is_azures_metadata = answer.url.startswith("az:") and _FROM_METADATA in said_here
    passing = _PASSING | _PASSING_OF_METADATA if is_azures_metadata else _PASSING
    is_refused = 300 <= status < 500 and status not in passing
    if _FROM_PROVIDER in said_here:
        is_refused = _REFUSED_BY_PROVIDER in said_here
    if is_refused or _FILE_MISSING in said_here.lower():
        return BucketDenied(
            f"{answer.url}: no token for the store: check {answer.credentials}: {said_here}", status=status
        )
    # Without the status: the store has not answered 429.
    return BucketUnavailable(f"{answer.url}: no token for the store yet: {said_here}: check {answer.credentials}")


def _by_code(answer: _Answer) -> BucketError | None:
    """Returns the error that the server's code names, whatever the status; None = no code, or one that says nothing."""
    code, status, message = answer.code, answer.status, answer.message
    if code in _NO_BUCKET:
        return BucketRefused(f"{answer.url}: there is no such bucket", status=status)
    if code in _COLD:
        return ObjectCold(answer.key)
    if code in _LATER:
        # With a status below 500 nothing was stored.
        return BucketUnavailable(message, status=status, is_unclear=answer.is_write and status >= 500)
    if code in _FULL:
        return BucketFull(message, status=status)
    if code in _DENIED:
        return BucketDenied(f"{message}: check {answer.credentials}", status=status)
    if code in _REGION or _NO_LOCATION in message:
        where = "set AWS_REGION to the region of the bucket" if answer.url.startswith("s3:") else "check the endpoint"
        return BucketMisconfigured(f"{message}: {where}", status=status)
    return None


def _by_status(answer: _Answer) -> BucketError:
    error, status, message, method = answer.error, answer.status, answer.message, answer.method
    if method == "delete" and status in (409, 412):  # a delete has no condition
        return BucketDenied(f"{message}: a lease or a policy (immutability, retention) keeps the object", status=status)
    if status == 409 and method != "create":
        # S3 answers 409 while another write is under way, and has stored nothing. obstore calls every 409 "already
        # exists", which is right only for the answer to a create.
        return BucketUnavailable(message, status=status)
    if isinstance(error, FileNotFoundError):
        return BucketRefused(message, status=status) if answer.is_write else ObjectNotFound(answer.key)
    if isinstance(error, AlreadyExistsError) and method == "create":
        return ObjectExists(answer.key)
    if isinstance(error, PreconditionError) and method == "replace":
        return ObjectChanged(answer.key)
    if status == 507:
        return BucketFull(message, status=status)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return BucketDenied(f"{message}: check {answer.credentials}", status=status)
    if status in _PASSING:
        return BucketUnavailable(message, status=status)
    if type(error).__name__ == PANIC or _HTTP_REFUSED in message:
        return BucketMisconfigured(
            f"{message}: no request could be made; check the endpoint (plain http only if its variable says http://), "
            f"and {answer.credentials}"
        )
    if isinstance(error, NotSupportedError | InvalidPathError) or 400 <= status < 500 or status == 501:
        return BucketRefused(message, status=status)
    return _unanswered(answer)


def _unanswered(answer: _Answer) -> BucketError:
    """Returns the error of a request that was never sent, that was not answered, or after which the store failed."""
    message, status = answer.message, answer.status
    if isinstance(answer.error, NotImplementedError):  # by a variable that only obstore reads
        return BucketMisconfigured(f"{message}: unset AWS_CONDITIONAL_PUT, and other variables that switch things off")
    if _NEVER_SENT in answer.text:
        where = f": check {answer.endpoint}" if answer.endpoint else ""
        return BucketUnavailable(f"{message}: {_why_unsent(answer.text)}{where}")
    return BucketUnavailable(message, status=status, is_unclear=answer.is_write)


def _why_unsent(text: str) -> str:
    """Returns at which step a connection ended, by the source of the error that obstore writes down."""
    cause = text.rpartition(_NEVER_SENT)[2]
    return next((words for pattern, words in _UNSENT if re.search(pattern, cause)), "no connection")

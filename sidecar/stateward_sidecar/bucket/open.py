"""From the archive's URL to its bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from stateward_sidecar.bucket.base import Bucket, check_key
from stateward_sidecar.bucket.directory import DirectoryBucket
from stateward_sidecar.bucket.pacing import PacedBucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import StartError

_PLACES = {"s3": "s3://bucket/prefix", "gs": "gs://bucket/prefix", "az": "az://container/prefix"}
_EXAMPLES = "write file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


def open_bucket(
    url: str,
    environment: Mapping[str, str],
    clock: Clock,
    patience: Patience | None = None,
    *,
    must_exist: bool = False,
) -> Bucket:
    """Returns the bucket at this URL, with retries. Sends nothing to a remote bucket yet. Makes the directory of a
    local bucket unless `must_exist`.

    Raises StartError, which says what to write and never repeats a URL that may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StartError(f"the archive's URL cannot be read; {_EXAMPLES}") from None
    if "@" in parts.netloc:
        raise StartError(
            f"the archive's URL must not hold a user or password; credentials come from the environment; {_EXAMPLES}"
        )
    if parts.query or parts.fragment:
        raise StartError(f"the archive's URL must not contain ? or #; {_EXAMPLES}")
    if parts.scheme == "file":
        directory = _directory(parts, url)
        if must_exist and not directory.is_dir():
            raise StartError(f"--archive: there is no archive at {url}: no such directory")
        return RetryingBucket(DirectoryBucket(directory), clock, patience)
    if parts.scheme in _PLACES:
        # Imported here: obstore takes a tenth of the daemon's start, which is spared without an archive.
        from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

        store = ObjectStoreBucket(_place(parts, url), environment)
        return RetryingBucket(PacedBucket(store, clock), clock, patience)
    raise StartError(f"{url!r} is not the URL of an archive; {_EXAMPLES}")


def _directory(parts: SplitResult, url: str) -> Path:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.path.strip("/") == "":
        raise StartError(f"{url!r} names no directory; write file:///absolute/path, with three slashes")
    return Path(unquote(parts.path))


def _place(parts: SplitResult, url: str) -> str:
    prefix = parts.path.strip("/")
    if not parts.netloc:
        raise StartError(f"{url!r} names no bucket; write {_PLACES[parts.scheme]}")
    try:
        check_key(f"{prefix or 'none'}")
    except ValueError as error:
        raise StartError(f"{url!r} has no usable prefix ({error}); write {_PLACES[parts.scheme]}") from None
    return f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")

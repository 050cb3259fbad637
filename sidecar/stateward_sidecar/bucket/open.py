"""From the archive's URL to its bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from stateward_sidecar.bucket.base import Bucket, check_key
from stateward_sidecar.bucket.directory import DirectoryBucket
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
    """The bucket at this URL, which tries again where that helps. Nothing is asked of a remote one yet; the directory
    of a local one is made, but with `must_exist`.

    Raises StartError, saying what to write, and never repeats a URL that may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StartError(f"the archive's URL cannot be read; {_EXAMPLES}") from None
    if "@" in parts.netloc:
        raise StartError(
            f"the archive's URL takes no user or password; credentials come from the environment; {_EXAMPLES}"
        )
    if parts.query or parts.fragment:
        raise StartError(f"the archive's URL takes nothing after ? or #; {_EXAMPLES}")
    if parts.scheme == "file":
        directory = _directory(parts, url)
        if must_exist and not directory.is_dir():
            raise StartError(f"--archive: there is no archive at {url}: no such directory")
        return RetryingBucket(DirectoryBucket(directory), clock, patience)
    if parts.scheme in _PLACES:
        # Here and not above: obstore takes a tenth of the daemon's start, which one without an archive need not pay.
        from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

        return RetryingBucket(ObjectStoreBucket(_place(parts, url), environment), clock, patience)
    raise StartError(f"{url!r} is no archive; {_EXAMPLES}")


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

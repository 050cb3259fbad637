"""The bucket: whether it answers, keeps the promises that the archive relies on, and agrees about the time."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.bucket.base import (
    Bucket,
    BucketDenied,
    BucketError,
    BucketFull,
    BucketMisconfigured,
    BucketUnavailable,
    BucketUnfit,
)
from stateward_sidecar.bucket.probe import PREFIX, probe_bucket
from stateward_sidecar.clock import Clock
from stateward_sidecar.doctor.diagnosis import failed, fine, skipped, warning

# S3 refuses signatures that are a quarter of an hour off; expiry and retention count in seconds.
SKEW_S, SKEW_MAX_S = 60.0, 600.0
SLOW_S = 1.0
_ADVICE: dict[type[BucketError], str] = {
    BucketMisconfigured: "Correct the variable in the daemon's environment, and restart the daemon; docs/stores.md has "
    "the variables of each store.",
    BucketDenied: "Correct the credentials in the daemon's environment, or the bucket's policy: the daemon reads, "
    "writes, lists and deletes under the archive's prefix; docs/stores.md has the rights of each store.",
    BucketFull: "Free space in the bucket or raise its quota; until then only this disk has new versions.",
    BucketUnavailable: "Check the network, the endpoint and the bucket's own state; commits continue on this disk.",
    BucketUnfit: "Use another bucket, or another gateway in front of it: two machines could both own a thread.",
}
_CHECK_URL = "Check the archive's URL: scheme, name of the bucket or container, prefix."


def check_uploads(url: str) -> Diagnosis | None:
    """Says that uploads in parts that other programs left unfinished cannot be seen; None for a directory."""
    if url.startswith("file:"):
        return None
    return skipped(
        "uploads", "unfinished uploads in parts cannot be seen from here; the daemon begins none, and docs/stores.md "
        "has the lifecycle rule against those of other programs",
    )  # fmt: skip


def check_bucket(bucket: Bucket) -> list[Diagnosis]:
    """Probes the bucket with an object of its own, which it removes."""
    began = time.monotonic()
    try:
        probe_bucket(bucket)
    except BucketError as error:
        advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), _CHECK_URL)
        return [
            failed("bucket", error.message, advice, kind=type(error).__name__),
            skipped("clock", "no bucket answers"),
        ]
    took_s = time.monotonic() - began
    said = f"conditional writes are honoured; about a dozen requests took {took_s:.2f} s"
    is_slow = took_s > 10 * SLOW_S
    first = (
        warning("bucket", f"{said}: slow", "Use a bucket of this region; takeovers wait for it.", probe_s=took_s)
        if is_slow
        else fine("bucket", said, probe_s=took_s)
    )
    return [first, _compare_clocks(bucket)]


def _compare_clocks(bucket: Bucket) -> Diagnosis:
    key, clock = PREFIX + secrets.token_hex(16), Clock()
    try:
        before = clock.now_us() / 1e6
        bucket.create(key, secrets.token_bytes(16))
        after, written = clock.now_us() / 1e6, bucket.written_at(key)
    except BucketError as error:
        return skipped("clock", f"the bucket does not tell the time: {error.message}")
    finally:
        with suppress(BucketError):
            bucket.delete(key)
    if written is None:
        return skipped("clock", "the bucket does not tell the time")
    # The bucket tells whole seconds, of some moment between the two.
    skew_s = 0.0 if before - 1 <= written <= after + 1 else written - (after if written > after else before)
    if abs(skew_s) <= SKEW_S:
        return fine("clock", "the bucket's clock agrees with the daemon's", skew_s=skew_s)
    advice = "Set the machine's clock by NTP (chrony, systemd-timesyncd); then restart the daemon."
    kind = failed if abs(skew_s) > SKEW_MAX_S else warning
    return kind("clock", f"the bucket's clock is {skew_s:+.0f} s off the daemon's", advice, skew_s=skew_s)

"""A process that writes to a directory bucket and notes in a diary what was acknowledged, until it is killed.

python -m tests.bucket.writer <directory> <diary>
"""

from __future__ import annotations

import hashlib
import os
import sys
from itertools import count
from pathlib import Path

from stateward_sidecar.bucket.base import ObjectExists, ObjectNotFound
from stateward_sidecar.bucket.directory import DirectoryBucket

KEPT = 40
PADDING_BYTES = 50_000


def make_body(step: int) -> bytes:
    """A step, much padding, and a hash over both."""
    content = b"%d " % step + os.urandom(PADDING_BYTES)
    return content + hashlib.sha256(content).digest()


def check_body(body: bytes) -> int:
    """The step of a body that is whole."""
    content, digest = body[:-32], body[-32:]
    assert hashlib.sha256(content).digest() == digest, f"half an object of {len(body)} bytes"
    return int(content.split(b" ", 1)[0])


def main(directory: str, diary: str) -> None:
    """Goes on where the last life ended."""
    bucket = DirectoryBucket(Path(directory))
    try:
        head = bucket.get("thread/HEAD")
        etag, first = head.etag, check_body(head.data) + 1
    except ObjectNotFound:
        etag, first = bucket.create("thread/HEAD", make_body(0)), 1
    with open(diary, "ab", buffering=0) as notes:  # noqa: PTH123  (unbuffered)
        for step in count(first):
            try:
                bucket.create(f"thread/{step}.pack", make_body(step))
            except ObjectExists:  # made by the last life, whose HEAD does not know it
                check_body(bucket.get(f"thread/{step}.pack").data)
            etag = bucket.replace("thread/HEAD", make_body(step), etag)
            bucket.delete(f"thread/{step - KEPT}.pack" if step > KEPT else "thread/none")
            notes.write(b"%d\n" % step)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

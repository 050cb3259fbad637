"""Makes wrapped key files, for `stateward keys`: reads an order as JSON, and prints what was made as JSON.

    {"with": "awskms:alias/agents", "file": "/etc/stateward/key", "from": "", "archive": "", "archive_id": ""}

``from`` names the key file whose key is wrapped, plain or wrapped; empty = a new key. The archive may be named by its
URL, or by its id; neither = an archive that is still to be made, or that of ``from``. Exit code 1 with one line on
stderr says what is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward_sidecar import hardening
from stateward_sidecar.archive.requests.places import FORMAT_KEY
from stateward_sidecar.bucket.base import BucketError, ObjectNotFound
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.bucket.retrying import Patience
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import KeySource
from stateward_sidecar.storage.keysource import Key, open_key, wrap_key
from stateward_sidecar.storage.secretfiles import KEY_BYTES
from stateward_sidecar.storage.wrappedkey import PROVIDERS, write_wrapped

PATIENCE_S = 10.0


def main() -> None:
    """Runs one order."""
    hardening.begin()
    hardening.finish(is_debuggable=False)
    try:
        print(json.dumps(make(json.load(sys.stdin), os.environ)))
    except StartError as error:
        print(f"stateward keys: {error.message}", file=sys.stderr)
        sys.exit(1)


def make(order: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Writes a wrapped key file. Returns what is in it. Raises StartError."""
    provider, _, name = order["with"].partition(":")
    path = Path(order["file"])
    if provider not in PROVIDERS or not name:
        raise StartError("--with: write awskms:KEY, the key's ARN or alias, or vault:MOUNT/NAME")
    if path.exists():
        raise StartError(f"{path} exists already, and may hold the key to data; give another name")
    if order["from"]:
        key = open_key(KeySource("file", str(Path(order["from"]).absolute())), patience_s=PATIENCE_S)
    else:
        key = Key(os.urandom(KEY_BYTES))
    archive_id = order["archive_id"] or (_find_archive(order["archive"], environment) if order["archive"] else "")
    wrapped = wrap_key(provider, name, key.data, archive_id or key.archive_id)
    write_wrapped(path, wrapped)
    return {
        "file": str(path), "key_id": wrapped.key_id, "provider": provider, "key": wrapped.key,
        "archive_id": wrapped.archive_id,
    }  # fmt: skip


def _find_archive(url: str, environment: Mapping[str, str]) -> str:
    """Returns the id of an archive in hex; empty = there is none at this URL yet."""
    bucket = open_bucket(url, environment, Clock(), Patience(deadline_s=PATIENCE_S), must_exist=True)
    try:
        return ArchiveFormat.FromString(bucket.get(FORMAT_KEY).data).archive_id.hex()
    except ObjectNotFound:
        return ""
    except BucketError as error:
        raise StartError(f"--archive: {error.message}") from None
    except DecodeError:
        raise StartError("--archive: its _format object cannot be read") from None
    finally:
        bucket.close()


if __name__ == "__main__":
    main()

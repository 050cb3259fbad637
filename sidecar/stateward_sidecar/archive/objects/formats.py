"""The object `_format`: which archive this is, and which formats its users must know. In clear, with a seal.

    content   ArchiveFormat without its field `seal`
    object    content ‖ 0x32 0x20 ‖ HMAC-SHA256(root name key, lp("archive format", content))

The first sidecar makes it after the root, which seals it. Only a rotation replaces it.
"""

from __future__ import annotations

import hmac
import os

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward_sidecar.archive.objects.heads import FORMAT
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY
from stateward_sidecar.bucket.base import Object, ObjectExists
from stateward_sidecar.codec.seal import NameKey
from stateward_sidecar.errors import Corrupt, StartError
from stateward_sidecar.telemetry import log

ROTATED_FORMAT = FORMAT + 1
"""That of an archive with a key object that has two wraps; a version before it reads only the first one."""
ARCHIVE_ID_BYTES, SEAL_BYTES = 16, 32
_PURPOSE = b"archive format"
_FIELD = bytes((ArchiveFormat.SEAL_FIELD_NUMBER << 3 | 2, SEAL_BYTES))
_END_BYTES = len(_FIELD) + SEAL_BYTES


def pack_format(form: ArchiveFormat, names: NameKey) -> bytes:
    """Returns the bytes of the object. ``names``: the root name key."""
    data = _without_seal(form).SerializeToString()
    return data + _FIELD + names.sign(_PURPOSE, data)


def open_format(data: bytes, names: NameKey) -> ArchiveFormat:
    """The reverse of ``pack_format``. Raises Corrupt if the seal is not that of this archive's root."""
    content, end = data[:-_END_BYTES], data[-_END_BYTES:]
    if not hmac.compare_digest(end, _FIELD + names.sign(_PURPOSE, content)):
        raise Corrupt(
            f"{FORMAT_KEY} was changed without the archive's key, or is that of another archive; put it back from a "
            "copy of the bucket, or remove it and start a sidecar whose --data-dir has joined this archive once with "
            "--archive-put-back"
        )
    return read_format(content)


def read_format(data: bytes) -> ArchiveFormat:
    """Returns what the object says in clear, for those who do not know the root yet. Raises Corrupt."""
    try:
        return _without_seal(ArchiveFormat.FromString(data))
    except DecodeError:
        raise Corrupt(
            "the archive's _format object cannot be read: is this URL an archive of Stateward?"
        ) from None


def check_format(form: ArchiveFormat) -> None:
    """Raises StartError if this version must not use the archive."""
    needed = max(form.min_reader, form.min_writer)
    if needed > ROTATED_FORMAT:
        raise StartError(
            f"the archive needs a version of Stateward that knows format {needed}; this version knows format "
            f"{ROTATED_FORMAT}"
        )


def agree_on_format(
    wire: Wire, names: NameKey, found: Object | None, now_us: int, archive_id: bytes = b""
) -> ArchiveFormat:
    """Returns the archive's format object, which is ``found``, and creates it if there is none. ``archive_id``: the one
    that a new archive gets; empty = a random one.

    Raises StartError if this version must not use the archive, and Corrupt if somebody changed the object.
    """
    if found is None:
        made = ArchiveFormat(
            format=FORMAT, min_reader=FORMAT, min_writer=FORMAT, create_time_us=now_us,
            archive_id=archive_id or os.urandom(ARCHIVE_ID_BYTES),
        )  # fmt: skip
        try:
            wire.create(FORMAT_KEY, pack_format(made, names))
            log.info("there was no archive here, so a new one was made; --archive-must-exist refuses that")
            return made
        except ObjectExists:
            found = wire.get(FORMAT_KEY)
    form = open_format(found.data, names)
    check_format(form)
    return form


def is_same(known: ArchiveFormat, form: ArchiveFormat) -> bool:
    """Whether the object is what it was when a store learnt of it: an upgrade or a rotation raises the formats in it,
    and may add fields, and nothing else ever changes. The seal does not tell who puts an older object there."""
    raised, found = _without_seal(known), _without_seal(form)
    for name in ("format", "min_reader", "min_writer"):
        setattr(raised, name, max(getattr(known, name), getattr(form, name)))
    if form.format > known.format:
        found.DiscardUnknownFields()
    return raised.SerializeToString(deterministic=True) == found.SerializeToString(deterministic=True)


def _without_seal(form: ArchiveFormat) -> ArchiveFormat:
    bare = ArchiveFormat()
    bare.CopyFrom(form)
    bare.ClearField("seal")
    return bare

"""Operations that write and read blobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateward._operations.steps import Call, Download, Operation, ThreadRef, Upload
from stateward.blobs import Blob, Content
from stateward.errors import BlobNotFound, InvalidField, ThreadNotFound
from stateward.options import ThreadOptions
from stateward.state import State
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import blob_service_pb2 as blobs
from stateward.v1 import state_pb2

FEATURE = "blobs"


def write_blob(
    ref: ThreadRef, content: Content, media_type: str = "", create: ThreadOptions | None = None, uid: str = ""
) -> Operation[Blob]:
    """Writes bytes, unless the thread has them. Creates the thread with the options `create` if it does not exist, and
    no `uid` is expected of it."""
    begin = ref.about(blobs.BlobBegin, media_type=media_type, sha256=content.sha256, expected_uid=uid)
    if content.size_bytes is not None:
        begin.size_bytes = content.size_bytes
    if create is not None:
        begin.options.create.CopyFrom(create.to_proto())
        begin.options.create.SetInParent()
    answer = None
    if content.sha256 and (yield from _is_written(begin)):
        answer = yield from _announce(begin, content)
    written = (answer or (yield Upload("WriteBlob", begin, content=content))).blob
    return Blob(media_type, written.sha256, written.size_bytes, written.preview, ref.blobs)


def _announce(begin: blobs.BlobBegin, content: Content) -> Operation[blobs.WriteBlobResponse | None]:
    """Only announces a blob: the daemon then counts it as written now. Returns None if the daemon needs the bytes,
    because they were lost, or the blob was removed meanwhile."""
    try:
        found: blobs.WriteBlobResponse = yield Upload(
            "WriteBlob", begin, content=Content.nothing(content.size_bytes, content.sha256)
        )
    except InvalidField as error:
        if error.field != "begin.size_bytes":
            raise
        return None
    return found


def _is_written(begin: blobs.BlobBegin) -> Operation[bool]:
    request = blobs.StatBlobRequest(namespace=begin.namespace, thread=begin.thread, sha256=begin.sha256)
    try:
        yield Call("StatBlob", request)
    except (ThreadNotFound, BlobNotFound):
        return False
    return True


def write_blobs(
    ref: ThreadRef, found: Mapping[bytes, bytes], create: ThreadOptions | None, uid: str
) -> Operation[None]:
    """Writes the blobs of values, before the save that refers to them."""
    for data in found.values():
        yield from write_blob(ref, Content.of_bytes(data), create=create, uid=uid)


def learn_support(ref: ThreadRef) -> Operation[bool]:
    """Returns whether the daemon supports blobs. Asks once per client."""
    policy = ref.blobs.policy if ref.blobs is not None else None
    if policy is None:
        return False
    if policy.is_supported is None:
        info = yield Call("GetServerInfo", admin.GetServerInfoRequest())
        policy.is_supported = FEATURE in info.features
    return policy.is_supported


def fetch_blobs(ref: ThreadRef, state: State) -> Operation[State]:
    """Fetches the blobs that the state needs, so that its values can be read without waiting."""
    fetched: dict[bytes, bytes] = {}
    state._read_blobs_through(ref.blobs)
    for blob in state._blobs_to_fetch():
        if blob.sha256 not in fetched:
            fetched[blob.sha256] = yield Download("ReadBlob", read_request(ref, blob.sha256))
    state._keep_blobs(fetched)
    return state


def read_request(ref: ThreadRef, digest: bytes, offset: int = 0, length: int | None = None) -> blobs.ReadBlobRequest:
    """Builds the request for a range of a blob."""
    return ref.about(blobs.ReadBlobRequest, blob=state_pb2.BlobRef(sha256=digest), offset=offset, length=length)


def digest_of(blob: Any) -> bytes:
    """Returns the SHA-256 of a blob, given as a Blob, a BlobRef, or the SHA-256 itself."""
    if isinstance(blob, (bytes, bytearray)):
        return bytes(blob)
    if not isinstance(blob, (Blob, state_pb2.BlobRef)):
        raise TypeError(f"blob takes a Blob or its SHA-256, not {blob!r:.100}")
    return bytes(blob.sha256)

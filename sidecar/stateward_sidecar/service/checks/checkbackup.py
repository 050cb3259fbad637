"""Checks the parts of a thread that is restored, each on its own, like service/checks/check.py.

store/copies/incoming.py checks the contents of versions when it applies them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from stateward.v1.backup_service_pb2 import (
    BackupBlob,
    BackupEffect,
    BackupEnd,
    BackupRecord,
    BackupSignal,
    BackupThread,
    BackupVersion,
    ImportBegin,
    RequestMark,
    ThreadPart,
)
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_FAILED,
    EFFECT_STATE_IN_PROGRESS,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
)
from stateward.v1.record_pb2 import RecordWrite
from stateward_sidecar.codec.edits import MAX_MEDIA_TYPE_BYTES, MAX_PREVIEW_BYTES, check_name
from stateward_sidecar.errors import InvalidField, StatewardError
from stateward_sidecar.service.checks import check, checkparts, checkrecords
from stateward_sidecar.service.checks.checktrees import check_objects, check_workspace
from stateward_sidecar.store.blobs.blobwrite import BLOB_BYTES_MAX
from stateward_sidecar.store.thread.threads import bare_name, check_new

NUMBER_MAX = 1 << 62
MARK_BYTES = 8
HOLDERS_STATES = (EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_UNCERTAIN)
OVER = (EFFECT_STATE_DONE, EFFECT_STATE_FAILED)


def check_import(begin: ImportBegin) -> None:
    """Checks the first message of an import."""
    try:
        check.check_write(begin)
        check_new(begin.thread)
    except StatewardError as error:
        raise check.in_item(error, "begin") from None


def check_part(part: ThreadPart) -> None:
    """Checks one part. Raises InvalidField."""
    kind = part.WhichOneof("part")
    if kind in _CHECKS:
        try:
            _CHECKS[kind](getattr(part, kind))
        except StatewardError as error:
            raise check.in_item(error, f"parts.{kind}") from None


def _check_thread(thread: BackupThread) -> None:
    check.check_options(thread.options, "options")
    _check_times(thread, "create_time", "update_time", "oldest_time")
    if thread.HasField("forked_from"):
        check_name(bare_name(thread.forked_from.thread), "forked_from.thread")
        _check_number(thread.forked_from.version, "forked_from.version")
    _check_number(thread.token_floor, "token_floor")


def _check_blob(blob: BackupBlob) -> None:
    check.check_sha256(blob.blob.sha256, "blob.sha256")
    if not 0 <= blob.blob.size_bytes <= BLOB_BYTES_MAX:
        raise InvalidField("blob.size_bytes", f"{blob.blob.size_bytes} is not between 0 and {BLOB_BYTES_MAX}")
    if len(blob.blob.preview) > MAX_PREVIEW_BYTES:
        raise InvalidField("blob.preview", f"has {len(blob.blob.preview)} bytes, more than {MAX_PREVIEW_BYTES}")
    checkparts.check_text(blob.media_type, "media_type", MAX_MEDIA_TYPE_BYTES)


def _check_version(version: BackupVersion) -> None:
    shown = version.checkpoint
    _check_number(shown.version, "checkpoint.version")
    _check_number(shown.edit_bytes, "checkpoint.edit_bytes")
    if shown.branch:
        check_name(shown.branch, "checkpoint.branch")
    if shown.checkpoint_id:
        check_name(shown.checkpoint_id, "checkpoint.checkpoint_id")
    if shown.parent_checkpoint_id:
        check_name(shown.parent_checkpoint_id, "checkpoint.parent_checkpoint_id")
    save = SaveRequest(
        status=shown.status, status_detail=shown.status_detail, schema_version=shown.schema_version,
        wait_id=shown.wait_id, labels=shown.labels, metrics=shown.metrics, ack_signals=version.acked_signals,
        attributes=shown.attributes,
    )  # fmt: skip
    if shown.HasField("metadata"):
        save.metadata.CopyFrom(shown.metadata)
    if shown.HasField("question"):
        save.question.CopyFrom(shown.question)
    check.check_description(save)
    if shown.HasField("workspace"):
        save.workspace.CopyFrom(shown.workspace)
        try:
            check_workspace(save)
        except StatewardError as error:
            raise check.in_item(error, "checkpoint") from None
    _check_times(shown, "create_time")
    for name, index in version.retired_logs.items():
        check_name(name, "retired_logs")
        _check_number(index, f"retired_logs[{name!r}]")
    if version.retired_logs and not version.whole:
        raise InvalidField("retired_logs", "is allowed only with a whole state")
    _check_mark(version.request)


def _check_effect(part: BackupEffect) -> None:
    shown, effect = part.effect, part.effect.effect
    checkparts.check_effect(effect.anchor, effect.key, effect.name, effect.sort_key, "effect.effect.")
    if shown.state not in (EFFECT_STATE_NEW, *HOLDERS_STATES, *OVER):
        raise InvalidField("effect.state", f"{shown.state} is unknown")
    if effect.HasField("value"):
        if shown.state not in OVER:
            raise InvalidField("effect.effect.value", "is allowed only with DONE and FAILED")
        checkparts.check_inline(effect.value, "effect.effect.value")
    elif shown.state == EFFECT_STATE_DONE:
        raise InvalidField("effect.effect.value", "is required with DONE")
    if shown.HasField("holder"):
        checkparts.check_holder(shown.holder, "effect.holder")
    _check_number(shown.claim_token, "effect.claim_token")
    if not 0 <= shown.attempts < 1 << 30:
        raise InvalidField("effect.attempts", f"{shown.attempts} is not between 0 and 2^30")
    checkparts.check_short(shown.detail, "effect.detail", checkparts.DETAIL_BYTES_MAX)
    checkparts.check_short(part.idempotency_key, "idempotency_key")
    _check_times(shown, "begin_time", "end_time", prefix="effect.")


def _check_record(part: BackupRecord) -> None:
    record = part.record
    write = RecordWrite(key=record.key, attributes=record.attributes)
    if record.HasField("value"):
        write.value.CopyFrom(record.value)
    if record.HasField("ttl"):
        write.ttl.CopyFrom(record.ttl)
    checkrecords.check_write(write, "record")
    _check_number(record.revision, "record.revision")
    if not record.revision:
        raise InvalidField("record.revision", "is required")
    _check_times(record, "create_time", "update_time", prefix="record.")


def _check_signal(part: BackupSignal) -> None:
    signal = part.signal
    checkparts.check_short(signal.signal_id, "signal.signal_id", checkparts.INCARNATION_BYTES_MAX, required=True)
    checkparts.check_short(signal.name, "signal.name", required=True)
    checkparts.check_short(signal.sender, "signal.sender")
    checkparts.check_short(signal.wait_id, "signal.wait_id", checkparts.LABEL_VALUE_BYTES_MAX)
    checkparts.check_answered(signal.parts, "signal.parts")
    if signal.HasField("payload"):
        checkparts.check_inline(signal.payload, "signal.payload")
        if len(signal.payload.data) > checkparts.PAYLOAD_BYTES_MAX:
            raise InvalidField("signal.payload", f"has more than {checkparts.PAYLOAD_BYTES_MAX} bytes")
    _check_times(signal, "create_time", prefix="signal.")
    _check_mark(part.request)


def _check_end(end: BackupEnd) -> None:
    _check_number(end.last_version, "last_version")
    for branch in end.branches:
        check_name(branch.name, "branches")
    for tag in end.tags:
        check.check_tag(tag.name)
    if len({tag.name for tag in end.tags}) < len(end.tags):
        raise InvalidField("tags", "has a name twice")


def _check_mark(mark: RequestMark) -> None:
    for field in ("id_hash", "fingerprint"):
        if len(getattr(mark, field)) not in (0, MARK_BYTES):
            raise InvalidField(f"request.{field}", f"has {len(getattr(mark, field))} bytes, not {MARK_BYTES}")


def _check_number(number: int, field: str) -> None:
    if not 0 <= number < NUMBER_MAX:
        raise InvalidField(field, f"{number} is not between 0 and 2^62")


def _check_times(message: Message, *fields: str, prefix: str = "") -> None:
    for field in fields:
        check.check_time(getattr(message, field), prefix + field)


_CHECKS: dict[str, Callable[[Any], None]] = {
    "thread": _check_thread,
    "blob": _check_blob,
    "objects": lambda part: check_objects(part.objects, "objects"),
    "version": _check_version,
    "effect": _check_effect,
    "record": _check_record,
    "signal": _check_signal,
    "end": _check_end,
}

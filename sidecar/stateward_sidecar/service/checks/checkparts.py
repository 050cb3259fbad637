"""Checks what requests share: labels, numbers and attributes; effects, leases and signals.

Checks the small facts of versions and threads: labels, numbers and attributes, like service/checks/check.py.

Checks requests about effects, leases and signals, like service/checks/check.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from stateward.v1.checkpoint_pb2 import (
    WORK_STATUS_FAILED,
    WORK_STATUS_RUNNING,
    WORK_STATUS_WAITING,
    AttributeValue,
    WorkStatus,
)
from stateward.v1.checkpoint_service_pb2 import ON_MISMATCH_FORK, OnMismatch, SaveRequest
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_FAILED,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
    Effect,
)
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    CompleteEffectRequest,
    DeleteEffectsRequest,
    ListEffectsRequest,
    PutEffectsRequest,
    RenewEffectRequest,
)
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.signal_pb2 import QuestionPart
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.state_pb2 import Value
from stateward_sidecar.codec.edits import check_name, check_value
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.store.journal.telling import PARTS_MAX, QUESTION_BYTES_MAX
from stateward_sidecar.store.thread.thread import MAIN
from stateward_sidecar.store.versions.branches import fork_branch

LABELS_MAX = 64
LABEL_KEY_BYTES_MAX = 256
LABEL_VALUE_BYTES_MAX = 1024
ATTRIBUTES_MAX = 64
ATTRIBUTES_BYTES_MAX = 16 << 10
NUMBER_BYTES = 8
_UID = re.compile(r"[0-9a-f]{32}")


def check_facts(request: SaveRequest) -> None:
    """Checks those of a save."""
    if request.labels:
        check_labels(request.labels, "labels")
    if request.metrics:
        check_metrics(request.metrics)
    if request.attributes:
        check_attributes(request.attributes)


def check_text(text: str, field: str, bytes_max: int) -> None:
    """Checks the length of a text that may be empty."""
    if len(text) * 4 > bytes_max and len(text.encode()) > bytes_max:
        raise InvalidField(field, f"has {len(text.encode())} bytes, more than {bytes_max}")


def check_uid(uid: str, field: str) -> None:
    """Checks a uid, which may be empty."""
    if uid and not _UID.fullmatch(uid):
        raise InvalidField(field, "is not 32 hex digits")


def check_labels(labels: Mapping[str, str], field: str) -> None:
    """Checks labels, as given or as a filter."""
    if len(labels) > LABELS_MAX:
        raise InvalidField(field, f"has {len(labels)} labels, more than {LABELS_MAX}")
    for key, value in labels.items():
        check_name(key, f"{field} (a key)")
        check_text(key, f"{field}[{key[:32]!r}…] (the key)", LABEL_KEY_BYTES_MAX)
        check_text(value, f"{field}[{key!r}]", LABEL_VALUE_BYTES_MAX)


def check_metrics(metrics: Mapping[str, float]) -> None:
    """Checks the numbers of a checkpoint."""
    if len(metrics) > LABELS_MAX:
        raise InvalidField("metrics", f"has {len(metrics)} numbers, more than {LABELS_MAX}")
    for key, value in metrics.items():
        check_name(key, "metrics")
        if not math.isfinite(value):
            raise InvalidField(f"metrics[{key!r}]", f"{value} is not finite")


def check_attributes(attributes: Mapping[str, AttributeValue], field: str = "attributes") -> None:
    """Checks attributes, as given or as a filter."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidField(field, f"has {len(attributes)} attributes, more than {ATTRIBUTES_MAX}")
    size_bytes = 0
    for key, value in attributes.items():
        check_name(key, f"{field} (a key)")
        check_text(key, f"{field}[{key[:32]!r}…] (the key)", LABEL_KEY_BYTES_MAX)
        size_bytes += len(key.encode()) + check_attribute(value, f"{field}[{key!r}]")
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise InvalidField(field, f"have {size_bytes} bytes together, more than {ATTRIBUTES_BYTES_MAX}")


def check_attribute(value: AttributeValue, field: str) -> int:
    """Checks the value of an attribute. Returns its bytes for the sum."""
    kind = value.WhichOneof("value")
    if kind is None:
        raise InvalidField(field, "has no value: set string_value, int_value, double_value or bool_value")
    if kind == "double_value" and not math.isfinite(value.double_value):
        raise InvalidField(field, f"{value.double_value} is not finite")
    return len(value.string_value.encode()) if kind == "string_value" else NUMBER_BYTES


NAME_BYTES_MAX = 256
NUMBER_MAX = 1 << 62
NOT_IN_WRITER = frozenset({"on_mismatch", "fork_branch", "guard"})
PAYLOAD_BYTES_MAX = 512 << 10
SORT_BYTES_MAX = 1 << 10
EFFECTS_MAX, ACKS_MAX = 1000, 1024
INCARNATION_BYTES_MAX = 64
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DETAIL_BYTES_MAX = 4 << 10
CONFLICT_RULES = frozenset(Effect.ConflictRule.values())


def check_short(text: str, field: str, bytes_max: int = NAME_BYTES_MAX, *, required: bool = False) -> None:
    """Checks a text that may be empty, unless it is required."""
    if required:
        check_name(text, field)
    if len(text.encode()) > bytes_max:
        raise InvalidField(field, f"has {len(text.encode())} bytes, more than {bytes_max}")


def check_token(token: int, field: str, *, required: bool = False) -> None:
    """Checks a fencing token."""
    if token < 0 or (required and not token):
        raise InvalidField(field, f"{token} is not a token")


def check_conditions(request: SaveRequest) -> None:
    """Checks what a save says about another head than the expected one, and about a lease on another thread."""
    if request.on_mismatch or request.fork_branch:
        _check_mismatch(request)
    if request.HasField("guard"):
        _check_guard(request)


def _check_mismatch(request: SaveRequest) -> None:
    if request.on_mismatch not in OnMismatch.values():
        raise InvalidField("on_mismatch", f"{request.on_mismatch} is unknown")
    if request.on_mismatch != ON_MISMATCH_FORK:
        if request.fork_branch:
            raise InvalidField("fork_branch", "is allowed only if on_mismatch is FORK")
        return
    if not request.options.HasField("expected_version"):
        raise InvalidField("on_mismatch", "FORK needs options.expected_version")
    if not request.options.request_id and not request.checkpoint_id:
        needed = "FORK needs request_id or checkpoint_id: a retry would make another branch"
        raise InvalidField("options.request_id", needed)
    check_name(fork_branch(request, NUMBER_MAX), "fork_branch")
    if request.fork_branch == (request.branch or MAIN):
        raise InvalidField("fork_branch", f"{request.fork_branch!r} is the branch of the save")


def check_in_writer(request: SaveRequest) -> None:
    """Checks that a frame of a writer has no field that only calls may have."""
    for field, _ in request.ListFields():
        if field.name in NOT_IN_WRITER:
            raise InvalidField(f"save.{field.name}", "is not allowed in a writer")


def _check_guard(request: SaveRequest) -> None:
    check_name(request.guard.thread, "guard.thread")
    if request.guard.thread == request.thread:
        raise InvalidField("guard.thread", "is the thread of the save; its own token is options.lease_token")
    check_token(request.guard.token, "guard.token", required=True)
    check_uid(request.guard.expected_uid, "guard.expected_uid")


def check_inline(value: Value, field: str) -> None:
    """Checks a value that must not be a blob."""
    check_value(value, field)
    if value.WhichOneof("content") != "data":
        raise InvalidField(field, "must hold its bytes; a blob or a number is not allowed here")


def check_holder(holder: Holder, field: str) -> None:
    """Checks the holder of a lease or claim."""
    check_short(holder.name, f"{field}.name", required=True)
    check_short(holder.incarnation, f"{field}.incarnation", INCARNATION_BYTES_MAX, required=True)


def check_term(request: Message, field: str, max_us: int) -> None:
    """Checks a term that may be absent. It must be at least a second."""
    if request.HasField(field):
        check_span(getattr(request, field), field, SECOND_US, max_us)


def check_wait(request: Message, max_us: int = HOUR_US) -> None:
    """Checks a wait that may be absent."""
    if request.HasField("wait"):
        check_span(request.wait, "wait", 0, max_us)  # type: ignore[attr-defined]


def check_span(span: Duration, field: str, min_us: int, max_us: int) -> None:
    """Checks that a duration is between two limits in microseconds."""
    in_range = abs(span.seconds) <= max_us and abs(span.nanos) < 1_000_000_000
    if not in_range or not min_us <= span.ToMicroseconds() <= max_us:
        raise InvalidField(field, f"is not between {min_us / SECOND_US:.10g} s and {max_us / SECOND_US:.10g} s")


def check_effects(effects: Sequence[Effect]) -> None:
    """Checks the effects of a put or a save."""
    if len(effects) > EFFECTS_MAX:
        raise InvalidField("effects", f"are {len(effects)}, more than {EFFECTS_MAX}")
    seen = set()
    for index, effect in enumerate(effects):
        field = f"effects[{index}]"
        check_effect(effect.anchor, effect.key, effect.name, effect.sort_key, f"{field}.")
        if effect.on_conflict not in CONFLICT_RULES:
            raise InvalidField(f"{field}.on_conflict", f"{effect.on_conflict} is unknown")
        if not effect.HasField("value"):
            raise InvalidField(f"{field}.value", "is required")
        check_inline(effect.value, f"{field}.value")
        if (effect.anchor, effect.key) in seen:
            raise InvalidField(f"{field}.key", f"{effect.key!r} is in the request twice")
        seen.add((effect.anchor, effect.key))


def check_effect(anchor: str, key: str, name: str, sort_key: bytes, prefix: str = "") -> None:
    """Checks the fields that name an effect."""
    if anchor:
        check_name(anchor, f"{prefix}anchor")
    check_name(key, f"{prefix}key")
    check_short(name, f"{prefix}name", SORT_BYTES_MAX)
    if len(sort_key) > SORT_BYTES_MAX:
        raise InvalidField(f"{prefix}sort_key", f"has {len(sort_key)} bytes, more than {SORT_BYTES_MAX}")


def check_begin(request: BeginEffectRequest) -> None:
    """Checks a BeginEffect."""
    check_effect(request.anchor, request.key, request.name, request.sort_key)
    check_holder(request.holder, "holder")
    check_term(request, "term", 24 * HOUR_US)
    if request.HasField("max_age"):
        check_span(request.max_age, "max_age", 0, 1 << 62)


def check_complete(request: CompleteEffectRequest) -> None:
    """Checks a CompleteEffect."""
    check_effect(request.anchor, request.key, "", b"")
    check_token(request.claim_token, "claim_token", required=True)
    check_short(request.detail, "detail", DETAIL_BYTES_MAX)
    ends = (EFFECT_STATE_DONE, EFFECT_STATE_FAILED, EFFECT_STATE_UNCERTAIN, EFFECT_STATE_NEW)
    if request.state not in ends:
        raise InvalidField("state", "is required: DONE, FAILED, UNCERTAIN or NEW")
    if request.HasField("value"):
        if request.state not in (EFFECT_STATE_DONE, EFFECT_STATE_FAILED):
            raise InvalidField("value", "is allowed only with DONE and FAILED")
        check_inline(request.value, "value")
    elif request.state == EFFECT_STATE_DONE:
        raise InvalidField("value", "is required with DONE")


def check_renew(request: RenewEffectRequest) -> None:
    """Checks a RenewEffect."""
    check_effect(request.anchor, request.key, "", b"")
    check_token(request.claim_token, "claim_token", required=True)


def check_put(request: PutEffectsRequest) -> None:
    """Checks a PutEffects."""
    if not request.effects:
        raise InvalidField("effects", "is required")
    check_effects(request.effects)
    check_acks(request.ack_signals)
    if request.status:
        _check_told(request)
        return
    for field in ("status_detail", "wait_id", "question", "asker"):
        if request.HasField("question") if field == "question" else getattr(request, field):
            raise InvalidField("status", f"is required with {field}")


def _check_told(request: PutEffectsRequest) -> None:
    """Checks what a PutEffects says of the work."""
    if request.status not in WorkStatus.values():
        raise InvalidField("status", f"{request.status} is unknown")
    check_short(request.status_detail, "status_detail", DETAIL_BYTES_MAX)
    check_short(request.wait_id, "wait_id", 1024)
    check_short(request.asker, "asker", 1024)
    anchor = request.effects[0].anchor
    for index, effect in enumerate(request.effects):
        if not effect.anchor or effect.anchor != anchor:
            raise InvalidField(
                f"effects[{index}].anchor", "must name the version of which the status is told, in every effect"
            )
    if request.HasField("question"):
        if request.status != WORK_STATUS_WAITING:
            raise InvalidField("status", "must be WAITING with a question")
        check_question(request)
    if not request.asker:
        return
    if request.status in (WORK_STATUS_RUNNING, WORK_STATUS_FAILED):
        return
    if request.status != WORK_STATUS_WAITING:
        raise InvalidField("status", "must be WAITING, RUNNING or FAILED with an asker")
    if not request.question.parts:
        raise InvalidField("question.parts", "is required with an asker that waits")


def check_delete(request: DeleteEffectsRequest) -> None:
    """Checks a DeleteEffects."""
    what = request.WhichOneof("what")
    if what is None:
        raise InvalidField("what", "is required: set keys or all")
    keys = request.keys.keys
    if what == "keys" and not 1 <= len(keys) <= EFFECTS_MAX:
        raise InvalidField("keys.keys", f"are {len(keys)}, not 1 to {EFFECTS_MAX}")
    for index, key in enumerate(keys):
        check_name(key, f"keys.keys[{index}]")
    if request.anchor:
        check_name(request.anchor, "anchor")


def check_list(request: ListEffectsRequest) -> None:
    """Checks a ListEffects."""
    if request.skip_unreadable and request.key and request.HasField("anchor"):
        raise InvalidField("skip_unreadable", "is not allowed with the key of one effect")


def check_acquire(request: AcquireLeaseRequest) -> None:
    """Checks an AcquireLease."""
    check_holder(request.holder, "holder")
    check_term(request, "term", HOUR_US)
    check_wait(request)


def check_signal(request: SendSignalRequest) -> None:
    """Checks a SendSignal."""
    check_short(request.name, "name", required=True)
    check_short(request.sender, "sender")
    check_short(request.wait_id, "wait_id", 1024)
    if request.parts and not request.wait_id:
        raise InvalidField("wait_id", "is required with parts")
    check_answered(request.parts, "parts")
    if request.HasField("payload"):
        check_inline(request.payload, "payload")
        if len(request.payload.data) > PAYLOAD_BYTES_MAX:
            raise InvalidField("payload", f"has {len(request.payload.data)} bytes, more than {PAYLOAD_BYTES_MAX}")


def check_answered(parts: Sequence[str], field: str) -> None:
    """Checks the names of the parts that a signal answers."""
    if len(parts) > PARTS_MAX:
        raise InvalidField(field, f"are {len(parts)}, more than {PARTS_MAX}")
    for index, part in enumerate(parts):
        check_short(part, f"{field}[{index}]", 1024, required=True)


def check_question(request: SaveRequest | PutEffectsRequest) -> None:
    """Checks the question of a save, or one that is told with effects."""
    if not request.wait_id:
        raise InvalidField("wait_id", "is required with a question: an answer must name it")
    check_short(request.question.prompt, "question.prompt", QUESTION_BYTES_MAX)
    check_short(request.question.answer_schema, "question.answer_schema", QUESTION_BYTES_MAX)
    check_short(request.question.asked_by, "question.asked_by")
    if request.question.parts:
        _check_parts(request.question.parts)


def _check_parts(parts: Sequence[QuestionPart]) -> None:
    if len(parts) > PARTS_MAX:
        raise InvalidField("question.parts", f"are {len(parts)}, more than {PARTS_MAX}")
    names, size_bytes = set[str](), 0
    for index, part in enumerate(parts):
        field = f"question.parts[{index}]"
        check_short(part.name, f"{field}.name", 1024, required=True)
        check_short(part.asker, f"{field}.asker", 1024)
        check_short(part.wait_id, f"{field}.wait_id", 1024)
        if part.name in names:
            raise InvalidField(f"{field}.name", f"{part.name!r} is in the question twice")
        names.add(part.name)
        size_bytes += len(part.prompt.encode()) + len(part.answer_schema.encode())
    if size_bytes > QUESTION_BYTES_MAX:
        raise InvalidField("question.parts", f"have {size_bytes} bytes of text, more than {QUESTION_BYTES_MAX}")


def check_acks(ids: Iterable[str]) -> None:
    """Checks the signals that a save acknowledges."""
    for index, signal_id in enumerate(ids):
        if index >= ACKS_MAX:
            raise InvalidField("ack_signals", f"are more than {ACKS_MAX}")
        check_short(signal_id, f"ack_signals[{index}]", INCARNATION_BYTES_MAX, required=True)

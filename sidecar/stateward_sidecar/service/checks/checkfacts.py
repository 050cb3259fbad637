"""Checks the small facts of versions and threads: labels, numbers and attributes, like service/checks/check.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from stateward.v1.checkpoint_pb2 import AttributeValue
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import InvalidField

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

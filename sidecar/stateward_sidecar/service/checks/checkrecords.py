"""Checks requests about records, like service/checks/check.py."""

from __future__ import annotations

from collections.abc import Sequence

from stateward.v1.checkpoint_pb2 import AttributeFilter
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    GetRecordsRequest,
    ListRecordPrefixesRequest,
    ListRecordsRequest,
    PutRecordsRequest,
    RecordOrder,
)
from stateward_sidecar.errors import InvalidField, StateTooLarge
from stateward_sidecar.service.checks.checkparts import (
    LABEL_KEY_BYTES_MAX,
    SECOND_US,
    check_attribute,
    check_attributes,
    check_inline,
    check_span,
    check_text,
)
from stateward_sidecar.store.items.recordviews import EQUAL

WRITES_MAX, FILTERS_MAX, SKIP_MAX = 1000, 64, 100_000
KEY_BYTES_MAX, DELIMITER_BYTES_MAX = 1024, 16
VALUE_BYTES_MAX, VALUES_BYTES_MAX = 1_000_000, 16 << 20
TTL_MAX_US = 100 * 366 * 24 * 3600 * SECOND_US


def check_put(request: PutRecordsRequest) -> None:
    """Checks a PutRecords."""
    if not 1 <= len(request.writes) <= WRITES_MAX:
        raise InvalidField("writes", f"are {len(request.writes)}, not 1 to {WRITES_MAX}")
    size_bytes, seen = 0, set[str]()
    for index, write in enumerate(request.writes):
        field = f"writes[{index}]"
        check_write(write, field)
        if write.key in seen:
            raise InvalidField(f"{field}.key", f"{write.key!r} is in the request twice")
        seen.add(write.key)
        size_bytes += len(write.value.data)
    if size_bytes > VALUES_BYTES_MAX:
        raise StateTooLarge(
            size_bytes, VALUES_BYTES_MAX,
            f"the values of a PutRecords have {size_bytes} bytes together, more than the limit of {VALUES_BYTES_MAX}",
        )  # fmt: skip


def check_write(write: RecordWrite, field: str) -> None:
    """Checks a change of a record."""
    check_key(write.key, f"{field}.key")
    kind = write.WhichOneof("change")
    has_expectation = write.HasField("expected_revision")
    if kind is None:
        raise InvalidField(field, "needs one of value, delete and check")
    if kind != "value" and (write.attributes or write.HasField("ttl")):
        raise InvalidField(f"{field}.{kind}", "is not allowed with attributes or ttl")
    if has_expectation and write.expected_revision < 0:
        raise InvalidField(f"{field}.expected_revision", f"{write.expected_revision} is negative")
    if kind == "check" and not has_expectation:
        raise InvalidField(f"{field}.expected_revision", "is required with check")
    if kind == "delete" and has_expectation and not write.expected_revision:
        raise InvalidField(f"{field}.expected_revision", "must not be 0 with delete")
    if kind != "value":
        return
    check_inline(write.value, f"{field}.value")
    if len(write.value.data) > VALUE_BYTES_MAX:
        raise InvalidField(
            f"{field}.value",
            f"has {len(write.value.data)} bytes, more than {VALUE_BYTES_MAX}; use a blob or a state",
        )
    if write.HasField("ttl"):
        check_span(write.ttl, f"{field}.ttl", SECOND_US, TTL_MAX_US)
    if write.attributes:
        check_attributes(write.attributes, f"{field}.attributes")


def check_key(key: str, field: str) -> None:
    """Checks the key of a record. Any character is allowed, so that callers have separators that no name contains."""
    size_bytes = len(key.encode())
    if not 1 <= size_bytes <= KEY_BYTES_MAX:
        raise InvalidField(field, f"has {size_bytes} bytes of UTF-8; it must have 1 to {KEY_BYTES_MAX}")


def check_get(request: GetRecordsRequest) -> None:
    """Checks a GetRecords."""
    if not 1 <= len(request.keys) <= WRITES_MAX:
        raise InvalidField("keys", f"are {len(request.keys)}, not 1 to {WRITES_MAX}")
    seen = set[str]()
    for index, key in enumerate(request.keys):
        check_key(key, f"keys[{index}]")
        if key in seen:
            raise InvalidField(f"keys[{index}]", f"{key!r} is in the request twice")
        seen.add(key)


def check_list(request: ListRecordsRequest) -> None:
    """Checks a ListRecords."""
    check_text(request.prefix, "prefix", KEY_BYTES_MAX)
    if request.order not in RecordOrder.values():
        raise InvalidField("order", f"{request.order} is unknown")
    if not 0 <= request.skip <= SKIP_MAX:
        raise InvalidField("skip", f"{request.skip} is not between 0 and {SKIP_MAX}")
    check_filters(request.filters)


def check_filters(filters: Sequence[AttributeFilter]) -> None:
    """Checks conditions on attributes."""
    if len(filters) > FILTERS_MAX:
        raise InvalidField("filters", f"are {len(filters)}, more than {FILTERS_MAX}")
    for index, each in enumerate(filters):
        _check_filter(each, f"filters[{index}]")


def _check_filter(each: AttributeFilter, field: str) -> None:
    if not each.key:
        raise InvalidField(f"{field}.key", "is required")
    check_text(each.key, f"{field}.key", LABEL_KEY_BYTES_MAX)
    if each.operator not in AttributeFilter.Operator.values():
        raise InvalidField(f"{field}.operator", f"{each.operator} is unknown")
    if not each.HasField("value"):
        raise InvalidField(f"{field}.value", "is required")
    check_attribute(each.value, f"{field}.value")
    if each.value.WhichOneof("value") == "bool_value" and each.operator not in EQUAL:
        raise InvalidField(f"{field}.operator", "must be EQ or NE with bool_value")


def check_prefixes(request: ListRecordPrefixesRequest) -> None:
    """Checks a ListRecordPrefixes."""
    check_text(request.prefix, "prefix", KEY_BYTES_MAX)
    size_bytes = len(request.delimiter.encode())
    if not 1 <= size_bytes <= DELIMITER_BYTES_MAX:
        raise InvalidField("delimiter", f"has {size_bytes} bytes; it must have 1 to {DELIMITER_BYTES_MAX}")
    if request.max_depth < 0:
        raise InvalidField("max_depth", f"{request.max_depth} is negative")


def check_delete(request: DeleteRecordsRequest) -> None:
    """Checks a DeleteRecords."""
    what = request.WhichOneof("what")
    if what is None:
        raise InvalidField("what", "is required: set prefix or all")
    check_text(request.prefix, "prefix", KEY_BYTES_MAX)
    if what == "prefix" and not request.prefix:
        raise InvalidField("prefix", "is empty: set all to delete all records")
    if request.max_revision < 0:
        raise InvalidField("max_revision", f"{request.max_revision} is negative")

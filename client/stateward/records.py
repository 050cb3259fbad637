"""Records: small values with keys, which are replaced and not versioned.

    users = client.records("store/users")
    users.put("ana/food", {"likes": "pizza"}, ttl=3600, attributes={"kind": "taste"})
    for record in users.list("ana/", where={"kind": "taste"}):
        print(record.key, record.value)

A scope is a thread, which needs no version: its records are sealed, archived, backed up and taken over with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.empty_pb2 import Empty

from stateward import values
from stateward._frames import at_the_caller, ends_at_the_caller, hide_frames
from stateward.arguments import text, whole_number
from stateward.attributes import Attribute, write_attributes
from stateward.durations import DurationField
from stateward.fromproto import FromProto, read_fields
from stateward.v1 import checkpoint_pb2, record_pb2, state_pb2

OPERATORS = {
    "==": checkpoint_pb2.AttributeFilter.OPERATOR_EQ,
    "!=": checkpoint_pb2.AttributeFilter.OPERATOR_NE,
    ">": checkpoint_pb2.AttributeFilter.OPERATOR_GT,
    ">=": checkpoint_pb2.AttributeFilter.OPERATOR_GTE,
    "<": checkpoint_pb2.AttributeFilter.OPERATOR_LT,
    "<=": checkpoint_pb2.AttributeFilter.OPERATOR_LTE,
}
Where = Mapping[str, Attribute] | Iterable[tuple[str, str, Attribute]]
"""Conditions that a record must all meet: `{"kind": "taste"}`, or `[("score", ">=", 4), ("kind", "!=", "old")]`.
Numbers are compared as numbers, texts by their bytes. Values of different types are not equal. A record without the
attribute meets only "!="."""


@dataclass(frozen=True)
class Record:
    """A record as it is kept."""

    key: str
    revision: int
    """The revision of its last write. Later writes of the scope have higher revisions."""
    create_time: datetime
    update_time: datetime
    """When it was last written."""
    value_bytes: int
    """The size of the value as stored."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    ttl: timedelta | None = None
    """Time to live; None = it does not expire."""
    expire_time: datetime | None = None
    """When it expires; None = never."""
    stored_value: state_pb2.Value | None = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """The value; None if values were not requested."""
        try:
            return None if self.stored_value is None else values.decode(self.stored_value, f"records.{self.key}")
        except Exception as error:
            hide_frames(error)
            raise

    @classmethod
    def from_proto(cls, message: record_pb2.StoredRecord) -> Record:
        """Reads the message."""
        return read_fields(cls, message, stored_value=message.value if message.HasField("value") else None)


@ends_at_the_caller
@dataclass(frozen=True)
class Put:
    """Writes a record, for `Records.write`."""

    key: str
    value: Any
    expected: int | None = None
    """The revision that the record must have; 0 = it must not exist, None = any."""
    ttl: DurationField = DurationField()  # noqa: RUF009
    """It expires this long after it was written or refreshed; None = never."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def to_proto(self, path: str = "") -> record_pb2.RecordWrite:
        """Returns the message. `path` is the place of the value for errors; by default it names the key."""
        made = record_pb2.RecordWrite(
            key=text(self.key, "key"),
            value=values.encode(self.value, path or f"records.{self.key}"),
            expected_revision=_expected(self.expected),
            attributes=write_attributes(self.attributes),
        )
        if self.ttl is not None:
            made.ttl.FromTimedelta(self.ttl)
        return made


@dataclass(frozen=True)
class Delete:
    """Deletes a record, for `Records.write`. Does nothing if there is none, unless a revision is expected."""

    key: str
    expected: int | None = None
    """The revision that the record must have; None = any."""

    @at_the_caller
    def to_proto(self) -> record_pb2.RecordWrite:
        """Returns the message."""
        return record_pb2.RecordWrite(
            key=text(self.key, "key"), delete=Empty(), expected_revision=_expected(self.expected)
        )


@dataclass(frozen=True)
class Check:
    """Changes nothing, for `Records.write`: nothing is written unless this record has the expected revision."""

    key: str
    expected: int
    """The revision that the record must have; 0 = it must not exist."""

    @at_the_caller
    def to_proto(self) -> record_pb2.RecordWrite:
        """Returns the message."""
        return record_pb2.RecordWrite(
            key=text(self.key, "key"), check=Empty(), expected_revision=whole_number(self.expected, "expected")
        )


def _expected(revision: int | None) -> int | None:
    return None if revision is None else whole_number(revision, "expected")


RecordWrite = Put | Delete | Check


@dataclass(frozen=True)
class RecordsWritten(FromProto):
    """What a call wrote."""

    revision: int
    """The revision of all records that it wrote; 0 = it wrote none."""
    written: int
    """Number of records that it wrote."""
    deleted: int
    """Number of records that it deleted."""
    sequence: int = field(metadata={"proto": "receipt.sequence"})
    """Journal position: `thread.archive.wait(written.sequence)`."""


@dataclass(frozen=True)
class RecordPrefix(FromProto):
    """A beginning that several keys share, like a folder."""

    prefix: str
    records: int
    """Number of records under it."""


def to_protos(writes: Iterable[RecordWrite]) -> list[record_pb2.RecordWrite]:
    """Returns writes as messages. Raises TypeError and ValueError."""
    if isinstance(writes, str | bytes | Put | Delete | Check) or not isinstance(writes, Iterable):
        raise TypeError(f"writes takes a list of Put, Delete and Check, not {writes!r:.100}")
    made = []
    for each in writes:
        if not isinstance(each, Put | Delete | Check):
            raise TypeError(f"a write is a Put, a Delete or a Check, not {each!r:.100}")
        made.append(each.to_proto())
    return made


def write_filters(where: Where | None) -> list[checkpoint_pb2.AttributeFilter]:
    """Returns conditions for a request. Raises TypeError and ValueError."""
    if where is None:
        return []
    given: Any = [(key, "==", value) for key, value in where.items()] if isinstance(where, Mapping) else where
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"where takes a dict or a list of conditions, not {given!r:.100}")
    made = []
    for triple in given:
        if not isinstance(triple, tuple) or len(triple) != 3:
            raise TypeError(f"a condition is (key, operator, value), not {triple!r:.100}")
        key, name, value = triple
        if not isinstance(name, str) or name not in OPERATORS:
            raise ValueError(f"{name!r} is no operator; use one of {', '.join(OPERATORS)}")
        (written,) = write_attributes({key: value}).values()
        made.append(checkpoint_pb2.AttributeFilter(key=key, operator=OPERATORS[name], value=written))
    return made

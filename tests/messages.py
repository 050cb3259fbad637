"""Messages of the contract, made as tests like to write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from stateward.v1.write_pb2 import WriteOptions

M = TypeVar("M", bound=Message)
OPTIONS = frozenset(WriteOptions.DESCRIPTOR.fields_by_name)


def to_write(kind: Callable[..., M], **fields: Any) -> M:
    """Returns a request that writes; the fields that every write has come into its options."""
    common = {name: fields.pop(name) for name in OPTIONS & fields.keys()}
    if common:
        fields["options"] = WriteOptions(**common)
    return kind(**fields)


def reason_of(status: Status) -> str:
    """Returns the reason of an error that came as part of an answer."""
    reason: str = _info(status).reason
    return reason


def facts_of(status: Status) -> dict[str, str]:
    """Returns the facts of such an error."""
    return dict(_info(status).metadata)


def _info(status: Status) -> ErrorInfo:
    (found,) = [ErrorInfo.FromString(each.value) for each in status.details if each.Is(ErrorInfo.DESCRIPTOR)]
    return found

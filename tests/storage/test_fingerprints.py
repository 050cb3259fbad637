"""The danger: two requests are taken for one, or the retry of a restarted agent for another request."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import stateward.v1
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.journal.requests import MAY_CHANGE, MAY_CHANGE_BESIDE, fingerprint

PLAIN = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_ENUM: 1,
    FieldDescriptor.CPPTYPE_DOUBLE: 1.0,
}


def kinds() -> Iterator[type[Message]]:
    """The messages of the contract that have the options of a write."""
    for module in pkgutil.iter_modules(stateward.v1.__path__):
        if module.name.endswith("_service_pb2"):
            found = importlib.import_module(f"stateward.v1.{module.name}").DESCRIPTOR
            yield from (
                GetMessageClass(each)
                for each in found.message_types_by_name.values()
                if "options" in each.fields_by_name
                and each.fields_by_name["options"].message_type is WriteOptions.DESCRIPTOR
            )


def give(message: Any, field: FieldDescriptor) -> None:
    """Gives a field some content."""
    plain = b"x" if field.type == field.TYPE_BYTES else PLAIN.get(field.cpp_type, 1)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        if value.message_type is not None:
            getattr(message, field.name)["x"].SetInParent()
        else:
            getattr(message, field.name)["x"] = PLAIN.get(value.cpp_type, 1)
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.add() if field.is_repeated else part.SetInParent()
    elif field.is_repeated:
        getattr(message, field.name).append(plain)
    else:
        setattr(message, field.name, plain)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.DESCRIPTOR.name)
@pytest.mark.parametrize("is_large", [False, True])
def test_one_rule_for_all_requests(kind: type[Message], is_large: bool) -> None:
    """What a retry may change changes no fingerprint, every other field does, and the request stays as it is."""
    bare = fingerprint(kind(), is_large=is_large)
    for field in kind.DESCRIPTOR.fields:
        message = kind(options=WriteOptions())
        give(message, field)
        before = message.SerializeToString(deterministic=True)
        may_change = field.name in (*MAY_CHANGE_BESIDE, "options")  # options that are there and empty change nothing
        assert (fingerprint(message, is_large=is_large) == bare) == may_change, field.name
        assert message.SerializeToString(deterministic=True) == before
    for field in WriteOptions.DESCRIPTOR.fields:
        message = kind(options=WriteOptions())
        give(message.options, field)
        before = message.SerializeToString(deterministic=True)
        assert (fingerprint(message, is_large=is_large) == bare) == (field.name in MAY_CHANGE), field.name
        assert message.SerializeToString(deterministic=True) == before


def test_kinds_differ() -> None:
    """One request id of two verbs is not one request, even if both requests are empty."""
    found = [fingerprint(kind()) for kind in kinds()]
    assert len(set(found)) == len(found) > 10

"""The danger: an argument of the wrong kind ends in an error of the message library, which does not name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stateward import Check, Delete, Put

HUGE, SURROGATE = 1 << 70, "\ud800"
CASES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda r: r.put("k", 1, expected=HUGE), ValueError, "expected is 1180591620717411303424"),
    (lambda r: r.put("k", 1, expected=-1), ValueError, "expected"),
    (lambda r: r.put("k", 1, expected="1"), TypeError, "expected"),
    (lambda r: r.put("k", 1, expected=True), TypeError, "expected"),
    (lambda r: r.put(5, 1), TypeError, "key"),
    (lambda r: r.put(b"k", 1), TypeError, "key"),
    (lambda r: r.put(SURROGATE, 1), ValueError, "key"),
    (lambda r: r.put("k", 1, attributes={SURROGATE: 1}), ValueError, "key of an attribute"),
    (lambda r: r.put("k", 1, attributes={"a": SURROGATE}), ValueError, "attribute 'a'"),
    (lambda r: r.write("abc"), TypeError, "writes"),
    (lambda r: r.write(Put("a", 1)), TypeError, "writes"),
    (lambda r: r.write([object()]), TypeError, "Put, a Delete or a Check"),
    (lambda r: r.write([Check("a", HUGE)]), ValueError, "expected"),
    (lambda r: r.write([Check("a", None)]), TypeError, "expected"),
    (lambda r: r.write([Delete(5)]), TypeError, "key"),
    (lambda r: r.delete("a", expected=HUGE), ValueError, "expected"),
    (lambda r: r.get(5), TypeError, "key"),
    (lambda r: r.get(SURROGATE), ValueError, "key"),
    (lambda r: r.get_many(["a", 1]), TypeError, "key"),
    (lambda r: r.get_many(b"abc"), TypeError, "keys"),
    (lambda r: list(r.list(5)), TypeError, "prefix"),
    (lambda r: list(r.list(SURROGATE)), ValueError, "prefix"),
    (lambda r: list(r.list(skip=HUGE)), ValueError, "skip"),
    (lambda r: list(r.list(skip=1.5)), TypeError, "skip"),
    (lambda r: list(r.list(page_size=HUGE)), ValueError, "page_size"),
    (lambda r: list(r.list(where=5)), TypeError, "where"),
    (lambda r: list(r.list(where="abc")), TypeError, "where"),
    (lambda r: list(r.list(where=[("a", [], 1)])), ValueError, "operator"),
    (lambda r: list(r.prefixes(5)), TypeError, "delimiter"),
    (lambda r: list(r.prefixes(prefix=5)), TypeError, "prefix"),
    (lambda r: list(r.prefixes(max_depth=HUGE)), ValueError, "max_depth"),
    (lambda r: r.delete_prefix(5), TypeError, "prefix"),
]


def test_every_argument_of_records_is_named(client: Any) -> None:
    """Nothing is sent."""
    records = client.records("scope")
    for call, kind, name in CASES:
        with pytest.raises(kind, match=name):
            call(records)
    for scope, kind in ((5, TypeError), (SURROGATE, ValueError)):
        with pytest.raises(kind, match="scope"):
            client.records(scope)

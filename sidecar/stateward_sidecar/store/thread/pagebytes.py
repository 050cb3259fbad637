"""How many bytes a page of a list may have: the one rule for all lists.

The page of a list ends with the item that passes ``page_bytes``. If untaken answers leave no memory for a page, the
service makes it once more inside ``small_pages``, and its reader asks for the next page anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")
# A page and its largest item fit into the 4 MiB that gRPC's clients accept by default.
PAGE_BYTES = 3 << 20
SMALL_PAGE_BYTES = 32 << 10
_limit: ContextVar[int] = ContextVar("page_bytes", default=PAGE_BYTES)


def page_bytes(asked_bytes: int = 0) -> int:
    """Returns the size of a page. ``asked_bytes``: of the request; 0 = it asks for none."""
    limit = _limit.get()
    return min(asked_bytes, limit) if limit < PAGE_BYTES and asked_bytes else asked_bytes or limit


@contextmanager
def small_pages() -> Iterator[None]:
    """Makes the pages of a block small."""
    token = _limit.set(SMALL_PAGE_BYTES)
    try:
        yield
    finally:
        _limit.reset(token)


def with_pages(verb: Callable[..., T]) -> Callable[..., T]:
    """Returns a verb that another thread runs with the same size of pages."""
    return verb if _limit.get() == PAGE_BYTES else partial(copy_context().run, verb)

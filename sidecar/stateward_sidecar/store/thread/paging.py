"""Pages of lists: their tokens, and how many bytes they may have.

Page tokens. They are opaque, bound to their request, and only the daemon can make them.

A token is the sealed position, bound to the request. So it does not tell how many threads or entries lie before it,
which may be those of others. The key is derived from the root name key, so a token stays valid when the daemon starts
again.

How many bytes a page of a list may have: the one rule for all lists.

The page of a list ends with the item that passes ``page_bytes``. If untaken answers leave no memory for a page, the
service makes it once more inside ``small_pages``, and its reader asks for the next page anyway.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import Message

from stateward_sidecar.codec.seal import NONCE_BYTES, length_prefixed
from stateward_sidecar.errors import InvalidField


def bare(request: Message, *ignored: str) -> bytes:
    """Returns the bytes that a token is bound to: the request without its token and the ``ignored`` fields."""
    copy = type(request)()
    copy.CopyFrom(request)
    for field in ("page_token", *ignored):
        copy.ClearField(field)
    # Requests of two types may have the same bytes, so the name of the type is included.
    return length_prefixed(copy.DESCRIPTOR.full_name.encode(), copy.SerializeToString(deterministic=True))


class Tokens:
    """Makes and reads page tokens."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        """``key`` is called for each token, because a store that joins an archive may get another root key."""
        self._key = key

    def pack(self, request: bytes, position: bytes) -> str:
        """Returns the token for a position in the answer to ``request`` (the bytes from ``bare``)."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = AESGCM(self._key()).encrypt(nonce, position, request)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def unpack(self, request: bytes, token: str) -> bytes:
        """The reverse of ``pack``. Raises InvalidField if the token is not valid for this request."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            return AESGCM(self._key()).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], request)
        except (binascii.Error, ValueError, InvalidTag):
            raise InvalidField(
                "page_token",
                "does not belong to this request; send the token of the previous answer with all other fields "
                "unchanged, or start again without a token",
            ) from None


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

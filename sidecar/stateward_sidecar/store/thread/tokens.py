"""Page tokens. They are opaque, bound to their request, and only the daemon can make them.

A token is a keyed hash over request and position, and then the position. The key is derived from the root key, so a
token stays valid after a restart of the daemon.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable

from google.protobuf.message import Message

from stateward_sidecar.codec.seal import length_prefixed
from stateward_sidecar.errors import InvalidField

_MAC_BYTES = 12


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
        return base64.urlsafe_b64encode(self._mac(request, position) + position).decode().rstrip("=")

    def unpack(self, request: bytes, token: str) -> bytes:
        """The reverse of ``pack``. Raises InvalidField if the token is not valid for this request."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        position = data[_MAC_BYTES:]
        if len(data) < _MAC_BYTES or not hmac.compare_digest(data[:_MAC_BYTES], self._mac(request, position)):
            raise InvalidField(
                "page_token",
                "does not belong to this request; send the token of the previous answer with all other fields "
                "unchanged, or start again without a token",
            )
        return position

    def _mac(self, request: bytes, position: bytes) -> bytes:
        return hmac.digest(self._key(), length_prefixed(request, position), "sha256")[:_MAC_BYTES]

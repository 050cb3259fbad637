"""One machine's way to the bucket, on which requests are held back, counted or failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Between:
    """Asks ``before`` ahead of each request to the bucket: it may wait, or raise. Gets the method and the key."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket
        self.requests = 0
        self.before: Callable[[str, str], None] = lambda method, key: None

    def __getattr__(self, method: str) -> Any:
        request = getattr(self._bucket, method)
        if method == "close" or not callable(request):
            return request

        def call(key: str, *arguments: Any, **options: Any) -> Any:
            self.requests += 1
            self.before(method, key)
            return request(key, *arguments, **options)

        return call

"""Reads the list of threads so that none is left out because it is saved to meanwhile.

The list is sorted by the last change, and read page by page: a thread that is saved to moves to the first page, and so
away from the pages that are still to come. What changed since the list was begun is therefore read once more after its
last page, in passes, until one takes a single page or brings nothing that was not given yet.

Times count by the second, as in the daemon's order: within one it is by number, so that the newest change may stand on
a later page.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from stateward._operations.steps import Operation, read_pages
from stateward._operations.threads import read_threads
from stateward.fromproto import read_time
from stateward.models import ThreadInfo
from stateward.v1 import thread_service_pb2 as threads

PAGE_MAX = 1000
# Each pass reads what changed during the one before, which is soon a page; but a namespace may be busy without end.
PASSES_MAX = 10
AGAIN = "again"
SECOND = timedelta(seconds=1)


class ThreadList:
    """A list in the course of being read."""

    def __init__(self, request: threads.ListThreadsRequest) -> None:
        self._request = request
        self._given: set[str] = set()  # uids
        self._passes = 1
        self._newest: datetime | None = None  # second of the newest change when this pass began
        self._end: datetime | None = None  # what was made from here on was not there when the list was begun
        self._is_anything_new = False  # in this pass
        self._is_over = False

    @property
    def page_token(self) -> str:
        """Empty = the list is over."""
        return "" if self._is_over else self._request.page_token or AGAIN

    def next_page(self) -> Operation[list[ThreadInfo]]:
        """The next threads that were not given yet; may be none though more follow."""
        is_first = not self._request.page_token
        found = yield from read_threads(self._request)
        if is_first and self._passes == 1:
            if not found and self._request.page_token:
                # Filters pass over the newest threads, so that this page does not tell when the list was begun.
                found = yield from self._begin_after_a_look()
            self._newest = self._newest or _newest(found)
            self._end = self._newest + SECOND if self._newest else None
        self._newest = self._newest or _newest(found)
        new = [info for info in found if self._is_wanted(info)]
        self._given.update(info.uid for info in new)
        self._is_anything_new |= bool(new)
        if not self._request.page_token:
            # One page alone is read in one moment, and nothing moves within it.
            is_done = self._passes > 1 and not self._is_anything_new
            self._is_over = is_first or is_done or self._passes == PASSES_MAX
            self._begin_next_pass()
        return new

    def _begin_after_a_look(self) -> Operation[list[ThreadInfo]]:
        """The first page anew, after a look at the newest change of the whole namespace."""
        look = threads.ListThreadsRequest(namespace=self._request.namespace, page_size=1)
        self._newest = _newest((yield from read_threads(look)))
        self._request.page_token = ""
        return (yield from read_threads(self._request))

    def _is_wanted(self, info: ThreadInfo) -> bool:
        if self._passes == 1:
            return True
        return info.uid not in self._given and (self._end is None or info.create_time < self._end)

    def _begin_next_pass(self) -> None:
        request, since = self._request, self._newest
        if since is not None and (not request.HasField("updated_after") or since > read_time(request.updated_after)):
            request.updated_after.FromDatetime(since)
        request.page_size = PAGE_MAX
        self._passes += 1
        self._newest, self._is_anything_new = None, False


def read_all(request: threads.ListThreadsRequest) -> Operation[list[ThreadInfo]]:
    """The whole list."""
    return (yield from read_pages(ThreadList.next_page, ThreadList(request)))


def _newest(found: list[ThreadInfo]) -> datetime | None:
    return max(info.update_time for info in found).replace(microsecond=0) if found else None

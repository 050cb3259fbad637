"""Reads the list of threads without missing those that are saved to during the reading.

The list is sorted by the last change and read page by page. A thread that is saved to moves to the first page, away
from the pages that are still to come. After the last page, the client therefore reads the threads that changed since
the start, in passes, until a pass takes a single page or brings no new thread.

Times count in whole seconds, as in the daemon's order. Within a second the daemon sorts by number, so the newest change
may be on a later page.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from stateward._operations.steps import Operation
from stateward._operations.threads import read_threads, unreadable
from stateward.fromproto import read_time
from stateward.models import ThreadInfo
from stateward.v1 import thread_pb2
from stateward.v1 import thread_service_pb2 as threads

PAGE_MAX = 1000
# Each pass reads the changes of the pass before, soon a single page; but a namespace may never become quiet.
PASSES_MAX = 10
AGAIN = "again"
SECOND = timedelta(seconds=1)


class ThreadList:
    """A list that is being read."""

    def __init__(self, request: threads.ListThreadsRequest) -> None:
        self._request = request
        self._given: set[str] = set()  # uids
        self._passes = 1
        self._newest: datetime | None = None  # second of the newest change at the start of this pass
        self._end: datetime | None = None  # threads created from then on are not part of the list
        self._is_anything_new = False  # in this pass
        self.is_over = False
        self.unreadable: dict[str, thread_pb2.UnreadableThread] = {}

    @property
    def page_token(self) -> str:
        """Empty = the list has ended."""
        return "" if self.is_over and not self.unreadable else self._request.page_token or AGAIN

    def next_page(self) -> Operation[list[ThreadInfo]]:
        """Returns the next threads that were not returned yet; may be empty although more follow.

        Raises ThreadsUnreadable after the last page if the list lacks threads, because they cannot be opened.
        """
        if self.is_over:
            raise unreadable(self.unreadable.values())
        is_first = not self._request.page_token
        found = yield from read_threads(self._request, self.unreadable)
        if is_first and self._passes == 1:
            if not found and self._request.page_token:
                # Filters skip the newest threads, so this page does not show when the reading started.
                found = yield from self._begin_after_a_look()
            self._newest = self._newest or _newest(found)
            self._end = self._newest + SECOND if self._newest else None
        self._newest = self._newest or _newest(found)
        new = [info for info in found if self._is_wanted(info)]
        self._given.update(info.uid for info in new)
        self._is_anything_new |= bool(new)
        if not self._request.page_token:
            # A list of a single page is read at one moment, so no thread moves.
            is_done = self._passes > 1 and not self._is_anything_new
            self.is_over = is_first or is_done or self._passes == PASSES_MAX
            self._begin_next_pass()
        return new

    def _begin_after_a_look(self) -> Operation[list[ThreadInfo]]:
        """Reads the newest change of the whole namespace, then the first page again."""
        look = threads.ListThreadsRequest(namespace=self._request.namespace, page_size=1)
        self._newest = _newest((yield from read_threads(look)))
        self._request.page_token = ""
        return (yield from read_threads(self._request, self.unreadable))

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


def read_all(
    request: threads.ListThreadsRequest, into: dict[str, thread_pb2.UnreadableThread]
) -> Operation[list[ThreadInfo]]:
    """Reads the whole list. Adds threads that cannot be opened to `into`, by uid."""
    pages, found = ThreadList(request), list[ThreadInfo]()
    while not pages.is_over:
        found += yield from pages.next_page()
    into.update(pages.unreadable)
    return found


def _newest(found: list[ThreadInfo]) -> datetime | None:
    return max(info.update_time for info in found).replace(microsecond=0) if found else None

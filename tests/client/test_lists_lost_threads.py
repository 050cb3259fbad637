"""The danger: a list of threads that leaves out what was there the whole time, because it was saved to meanwhile."""

from __future__ import annotations

import itertools
import time

import pytest

from stateward import ThreadOptions
from stateward._operations.listing import PASSES_MAX, ThreadList
from stateward.v1.thread_pb2 import ThreadInfo
from stateward.v1.thread_service_pb2 import ListThreadsRequest, ListThreadsResponse

NAMES = {f"p{number}" for number in range(12)}


@pytest.fixture
def client(real_daemon, open_client, request):
    """A client of the real daemon, with a namespace of its own."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return open_client(real_daemon.target, namespace=f"{request.node.name[:40]}-{abs(hash(request.node.nodeid))}")


@pytest.fixture
def threads(client):
    """Twelve threads; those with an even number have a label. A change from now on moves them in the list."""
    for number in range(12):
        save(client, f"p{number}", create=ThreadOptions(labels={"even": str(number % 2 == 0)}))
    wait_for_the_next_second()
    return client


def wait_for_the_next_second():
    """The daemon's list is sorted by seconds of its own clock."""
    time.sleep(1.01 - time.time() % 1)


def save(client, name, **options):
    client.thread(name).append("l", 1, **options)


def listed(client, meanwhile, *, after=4, **filters):
    """The names in the order in which they come; `meanwhile` is called when so many came."""
    found = []
    for info in client.threads(**filters):
        found.append(info.name)
        if len(found) == after:
            meanwhile()
    return found


def test_saved_to_meanwhile(threads):
    """Threads that move to the first page come all the same, and each comes once."""

    def move():
        for name in NAMES:
            save(threads, name)

    found = listed(threads, move, page_size=4)
    assert sorted(found) == sorted(NAMES)


def test_moving_all_the_time(threads):
    """Also those that move while the list goes on; and the list ends."""
    names, found = itertools.cycle(sorted(NAMES)), []
    for info in threads.threads(page_size=2):
        found.append(info.name)
        save(threads, next(names))
        save(threads, next(names))
    assert sorted(found) == sorted(NAMES)


def test_filters_hold_for_what_moved(threads):
    """What comes late fits as the others do; what does not fit any more does not come."""
    even = sorted(name for name in NAMES if int(name[1:]) % 2 == 0)

    def move():
        for name in NAMES:
            save(threads, name)

    assert sorted(listed(threads, move, page_size=2, labels={"even": "True"})) == even
    found = []
    for info in threads.threads(page_size=4, status="running"):
        found.append(info.name)
        for name in NAMES - set(found) if len(found) == 4 else ():
            save(threads, name, status="failed")
    assert len(found) == 4


def told(number, made_s, changed_s):
    """A thread as a daemon lists it."""
    thread = ThreadInfo(thread=f"p{number}", uid=f"u{number}")
    thread.create_time.seconds, thread.update_time.seconds = made_s, changed_s
    return thread


def read(answers):
    """What a list gives that is answered so, page by page, and what it asked: (page token, updated_after)."""
    listing, found, asked = ThreadList(ListThreadsRequest(page_size=1)), [], []
    while listing.page_token:
        steps, answer = listing.next_page(), None
        try:
            while True:
                request = steps.send(answer).request
                asked.append((request.page_token, request.updated_after.seconds))
                answer = next(answers)
        except StopIteration as stop:
            found += [each.name for each in stop.value]
    return found, asked


def test_made_meanwhile():
    """What was not there when the list was begun does not come late: who makes threads while listing would not end."""
    found, asked = read(
        iter(
            [
                ListThreadsResponse(threads=[told(1, 100, 200)], next_page_token="a"),
                ListThreadsResponse(threads=[told(2, 100, 150)]),
                ListThreadsResponse(threads=[told(9, 230, 230), told(3, 100, 220), told(1, 100, 210)]),
            ]
        )
    )
    assert found == ["p1", "p2", "p3"]
    assert asked == [("", 0), ("a", 0), ("", 200)]


def test_first_page_without_a_thread():
    """Where filters pass over so many threads that the first page is empty, the list is begun again after a look at the
    newest thread of all, which says from when on it is read once more."""
    found, asked = read(
        iter(
            [
                ListThreadsResponse(next_page_token="a"),
                ListThreadsResponse(threads=[told(7, 300, 300)]),
                ListThreadsResponse(next_page_token="a"),
                ListThreadsResponse(threads=[told(1, 100, 150)]),
                ListThreadsResponse(threads=[told(2, 100, 305), told(9, 302, 302)]),
            ]
        )
    )
    assert found == ["p1", "p2"]
    assert asked == [("", 0), ("", 0), ("", 0), ("a", 0), ("", 300)]


def test_a_busy_namespace():
    """Where more and more moves, pages are read so many times and no more."""

    def answers():
        for number in itertools.count():
            yield ListThreadsResponse(
                threads=[told(number, 100, 200 + number)], next_page_token="" if number % 2 else "a"
            )

    found, asked = read(answers())
    assert len(found) == len(asked) == 2 * PASSES_MAX

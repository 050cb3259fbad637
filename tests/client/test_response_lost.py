"""The danger: a save whose answer was lost is made twice, or a client hangs or gives up after a restart of the daemon
or a fork."""

import sys
import threading
import time

import grpc
import pytest
from tests import warm

from stateward import Client
from stateward.errors import NotArchivedYet, ServerUnavailable, ShuttingDown


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_lost_answer_writes_once(fake, fake_client, code):
    """A save whose answer is lost is sent again with its request id, and is there once.

    A daemon that stops cancels the calls it had not taken yet.
    """
    fake.store.lost_code = code
    fake.store.lose_answers = 2
    thread = fake_client.thread("t")
    state = thread.hydrate()
    state.logs["l"].append(1)
    checkpoint = thread.save(state)
    assert (checkpoint.version, checkpoint.replayed, len(fake.store.saves)) == (1, True, 3)
    assert len({request.options.request_id for request in fake.store.saves}) == 1
    fake.store.lose_answers = 1
    assert thread.append("l", 2).version == 2
    assert list(thread.hydrate().logs["l"]) == [1, 2]


def test_retries_end(fake, open_client):
    """When the daemon stays away, the error comes after retry_timeout."""
    client = open_client(fake.target, retry_timeout=0.3)
    client.server_info()
    fake.store.fail_before = 10**6
    with pytest.raises(ShuttingDown):
        client.server_info()
    fake.store.fail_before = 0
    client.server_info()
    fake.store.fail_before = 2
    open_client(fake.target, retry_timeout=20).server_info()


@pytest.mark.parametrize("ask", [lambda client: client.server_info(), lambda client: next(client.verify())])
def test_daemon_that_refuses_the_first_calls(fake, open_client, ask):
    """A daemon that refuses the first call is there: the call is retried for retry_timeout, not for connect_timeout."""
    client = open_client(fake.target, connect_timeout=0.05, retry_timeout=20)
    fake.store.fail_before = 6
    assert ask(client) is not None


def test_no_daemon(open_client, tmp_path):
    """Without a daemon the first call ends after `timeout` with the command that starts one."""
    client = open_client("/tmp/sw-nobody-here.sock", connect_timeout=0.2)
    begun = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"stateward-sidecar --listen .*nobody-here\.sock"):
        client.thread("t").hydrate()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("ask", [lambda client: client.server_info(), lambda client: next(client.verify())])
def test_daemon_that_starts_later(fake, open_client, ask):
    """The first call waits for a daemon that is only being started, be it a stream or not."""
    fake.kill()
    client = open_client(fake.target, connect_timeout=10, retry_timeout=0)
    threading.Timer(0.3, fake.start).start()
    assert ask(client) is not None


def test_daemon_restarts(server, client):
    """Calls wait for a daemon that was killed and comes back, and a watch goes on with no gap and no duplicate."""
    thread = client.thread("t")
    thread.append("l", 0)
    with thread.watch() as events:
        thread.append("l", 1)
        assert next(events).sequence == 2
        server.kill()
        threading.Timer(0.5, server.start).start()
        thread.append("l", 2)
        thread.append("l", 3)
        assert [next(events).sequence for _ in range(2)] == [3, 4]
    with thread.watch() as events, client.watch() as of_all:  # no event seen yet: they still know where they began
        server.kill()
        server.start()
        thread.append("l", 4)
        assert next(events).sequence == next(of_all).sequence == 5
    assert list(thread.hydrate().logs["l"]) == [0, 1, 2, 3, 4]


def test_less_durable_than_asked(fake, fake_client):
    """NotArchivedYet carries the version, and the state continues from it."""
    fake.store.archive = True
    thread = fake_client.thread("t")
    state = thread.hydrate()
    state.slots["a"] = 1
    with pytest.raises(NotArchivedYet) as caught:
        thread.save(state, durability="archived")
    assert (caught.value.checkpoint.version, state.version) == (1, 1)


def test_pages_and_pieces(fake, fake_client):
    """A state that comes in pages and pieces is put together as it was."""
    thread = fake_client.thread("t")
    state = thread.hydrate()
    state.slots["big"], state.slots["small"] = b"x" * 1000 + b"y", 1
    state.logs["l"].extend([1, b"z" * 500, 2, b"w" * 300])
    state.logs["first"].extend([b"v" * 300, 3])
    thread.save(state)
    fake.checkpoints.page_bytes = 120
    found = thread.hydrate()
    assert not found.partial
    assert found.slots == state.slots
    assert found.logs["l"] == state.logs["l"]
    assert found.logs["first"] == state.logs["first"]


FORK = """
import os, sys
from stateward import Client
client = Client(sys.argv[1])
client.thread("t").append("l", "parent")
child = os.fork()
if child == 0:
    client.thread("t").append("l", "child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.thread("t").append("l", "parent again")
client.close()
"""

FORK_BESIDE_A_WATCH = """
import os, sys, threading
from stateward import Client
client = Client(sys.argv[1])
events = client.watch()
client.thread("t").append("l", "parent")
next(events)
child = os.fork()
if child == 0:
    client.thread("t").append("l", "child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert next(events).kind == "checkpoint"
client.close()
"""

FORK_BEFORE_A_LOOP = """
import asyncio, os, sys
from stateward import AsyncClient

client = AsyncClient(sys.argv[1], namespace="fork-asyncio")


async def append():
    return (await client.thread("t").append("log", os.getpid())).version


child = os.fork()
if child == 0:
    asyncio.run(append())
    os._exit(asyncio.run(append()) - 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert asyncio.run(append()) == 3
asyncio.run(client.close())
"""

LEFT_OPEN = """
import sys
from stateward import Client
client = Client(sys.argv[1])
client.thread("t").append("l", 1)
events = client.thread("t").watch(after_sequence=0)
next(events)
"""


@pytest.mark.parametrize(
    "script",
    [FORK, FORK_BESIDE_A_WATCH, FORK_BEFORE_A_LOOP, LEFT_OPEN],
    ids=["fork", "fork beside a watch", "fork before a loop", "left open"],
)
def test_processes(server, script):
    """A forked child reconnects, and a program that leaves a stream open still ends."""
    done = warm.run([sys.executable, "-c", script, server.target], timeout=30)
    assert done.returncode == 0, done.stderr


def test_close_ends_a_waiting_watch(fake):
    """Closing from another thread ends a watch that waits."""
    client = Client(fake.target)
    events = client.watch()
    threading.Timer(0.2, client.close).start()
    assert list(events) == []
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.server_info()

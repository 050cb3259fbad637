"""The danger: a process that was forked waits for ever, crashes, or ends what its parent holds.

gunicorn --preload, Celery's prefork pool and multiprocessing fork. Each script is a process of its own that forks. A
child works, or raises ForkedProcess or RuntimeError at once. Its parent goes on in every case.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests import warm

LIMIT_S = 180
HEAD = """
import asyncio, gc, os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from stateward import AsyncClient, Client, ForkedProcess
from stateward._io import forks

forks.QUIET_S = 30  # a busy machine may need long for a call
target, name, end = sys.argv[1:]
# What a child raises whose parent was not quiet: gRPC does not survive that, and frames do.
forked = "ForkedProcess" if os.environ["STATEWARD_WIRE"] == "grpc" else ""

uses = {}

def used(thread):
    '''Who calls, and how often by now: each has a thread of their own, beside the one of all.'''
    me = f"{thread}-{os.getpid()}-{threading.get_native_id()}"
    uses[me] = uses.get(me, 0) + 1
    return me, uses[me]

def use(client, thread=name):
    '''Calls. Each answer is one to a call of this process.'''
    client.thread(thread).append("l", os.getpid())
    me, times = used(thread)
    assert client.thread(me).append("l", me).version == times
    assert list(client.thread(me).hydrate().logs["l"]) == [me] * times

async def use_on_loop(client, thread=name):
    await client.thread(thread).append("l", os.getpid())
    me, times = used(thread)
    assert (await client.thread(me).append("l", me)).version == times
    assert list((await client.thread(me).hydrate()).logs["l"]) == [me] * times

def fork(child, expected=""):
    '''Forks. The child does its work, and exits as the test says. `expected`: the error that it must raise.'''
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        raised = ""
        try:
            child()
        except Exception as error:
            raised = type(error).__name__
            if raised == "ForkedProcess":
                assert "after the fork" in str(error), error
        ok = raised == expected or print("raised", repr(raised), file=sys.stderr, flush=True)
        if end == "exit":
            gc.collect()
            sys.exit(not ok)
        os._exit(not ok)
    until = time.monotonic() + 40
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise SystemExit("the child hangs")
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(found[1]) == 0, found
"""
SCRIPTS = {
    "used before": """
client = Client(target)
use(client)
fork(lambda: use(client))
fork(lambda: use(Client(target)))
fork(client.close)
use(client)
""",
    "used after": """
client = Client(target)
fork(lambda: use(client))
use(client)
fork(lambda: fork(lambda: use(client)))
""",
    "threads in calls": """
client, ended = Client(target), threading.Event()
use(client)
def work():
    while not ended.is_set():
        use(client, name + "-busy")
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for _ in range(3):
    fork(lambda: use(client))
ended.set()
for each in threads:
    each.join()
use(client)
""",
    "a thread in a long call": """
client, other = Client(target), Client(target)
forks.QUIET_S = 2
with client.lock(name):
    def wait():
        try:
            other.lock(name, wait=60).__enter__()
        except Exception:
            pass
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until = time.monotonic() + (20 if forked else 1)  # frames count none
    while not forks._here.calls and time.monotonic() < until:
        time.sleep(0.01)
    fork(lambda: use(client, name + "-other"), forked)
    fork(lambda: use(Client(target), name + "-other"), forked)
    use(client, name + "-other")
""",
    "an open stream": """
client = Client(target)
use(client)
events = client.watch()
reading = threading.Thread(target=lambda: [None for _ in events], daemon=True)
reading.start()
mine = client.watch()
fork(lambda: use(client))
fork(lambda: next(mine), "RuntimeError")
fork(mine.close)
use(client)
assert next(mine).kind == "checkpoint"
events.close()
mine.close()
""",
    "an open writer": """
client = Client(target)
use(client)
thread = client.thread(name)
with thread.writer() as writer:
    state = thread.hydrate()
    state.logs["l"].append(1)
    writer.save(state)
    fork(lambda: use(client, name + "-other"))
    fork(lambda: writer.save(state), "RuntimeError")
    fork(lambda: writer.__exit__(None, None, None))
    state.logs["l"].append(2)
    writer.save(state)
""",
    "a lease that is renewed": """
client = Client(target)
with client.lock(name, term=4) as lock:
    fork(lambda: use(client, name + "-other"))
    fork(lambda: lock.release())
    fork(lambda: lock.__exit__(None, None, None))
    time.sleep(5)
    lock.check()
""",
    "inside a tool": """
client = Client(target)
thread = client.thread(name)
def fork_and_pay():
    pid = os.fork()
    if pid == 0:
        raise ValueError("the child's error")
    assert os.waitpid(pid, 0)[1] == 0
    return "paid"
parent = os.getpid()
try:
    assert thread.effects.run("pay", fork_and_pay) == "paid"
except ValueError:
    os._exit(os.getpid() == parent)
(found,) = thread.effects.list()
assert found.value == "paid", found
""",
    "inside blocks": """
client = Client(target)
thread = client.thread(name)
thread.append("l", 0)
parent, state = os.getpid(), thread.hydrate()
try:
    with thread.autosave(state, after_each_step=False) as auto, thread.before("pay", key="p") as risky:
        state.logs["l"].append(1)
        pid = os.fork()
        if pid == 0:
            state.logs["l"].append("the child's")
            raise ValueError("the child's error")
        assert os.waitpid(pid, 0)[1] == 0
        risky.result = "paid"
except ValueError:
    os._exit(os.getpid() == parent)
assert [each.value for each in thread.effects.list()] == ["paid"]
assert list(thread.hydrate().logs["l"]) == [0, 1]
""",
    "asyncio used before": """
client, runner = AsyncClient(target), asyncio.Runner()
runner.run(use_on_loop(client))
fork(lambda: asyncio.run(use_on_loop(client)), forked)
fork(lambda: runner.run(use_on_loop(client)), "ForkedProcess")
fork(lambda: use(Client(target)), forked)
fork(lambda: asyncio.run(client.close()))
fork(lambda: fork(lambda: use(Client(target)), forked))
runner.run(use_on_loop(client))
runner.run(client.close())
runner.close()
""",
    "asyncio used and closed before": """
gc.disable()  # what refers to itself stays until somebody collects it
async def work():
    async with AsyncClient(target) as client:
        await use_on_loop(client)
        await asyncio.gather(*(use_on_loop(client, f"{name}-{n}") for n in range(20)))
asyncio.run(work())
fork(lambda: asyncio.run(work()))
fork(lambda: use(Client(target)))
asyncio.run(work())
""",
    "inside a running loop": """
async def work():
    async with AsyncClient(target) as client:
        await use_on_loop(client)
        calls = [asyncio.ensure_future(use_on_loop(client, f"{name}-{n}")) for n in range(20)]
        await asyncio.sleep(0)
        fork(lambda: use(Client(target)), forked)
        fork(lambda: [use(client) for client in [Client(target)] for _ in range(5)], forked)
        await asyncio.gather(*calls)
        await use_on_loop(client)
asyncio.run(work())
""",
    "a pool after asyncio": """
import multiprocessing
client = Client(target)
use(client)
async def before():
    async with AsyncClient(target) as client:
        await use_on_loop(client)
asyncio.run(before())
def work(number):
    try:
        use(client, f"{name}-{number}")
        asyncio.run(use_on_loop(AsyncClient(target), f"{name}-{number}"))
    except Exception as error:
        return type(error).__name__
    return ""
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert set(pool.map(work, range(9))) == {""}
use(client)
""",
    "a server with workers": """
client, ended = Client(target), threading.Event()
use(client)
def work(thread, count=8):
    for _ in range(count):
        use(client, thread)
def busy():
    while not ended.is_set():
        use(client, name + "-busy")
threads = [threading.Thread(target=busy) for _ in range(4)]
for each in threads:
    each.start()
def worker():
    asyncio.run(use_on_loop(AsyncClient(target)))
    workers = [threading.Thread(target=work, args=(f"{name}-{n}",)) for n in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
for _ in range(3):
    fork(worker)
ended.set()
for each in threads:
    each.join()
use(client)
""",
    "asyncio used after": """
client = AsyncClient(target)
fork(lambda: asyncio.run(use_on_loop(client)))
blocking = Client(target)
use(blocking)
fork(lambda: asyncio.run(use_on_loop(AsyncClient(target))))
asyncio.run(use_on_loop(client))
asyncio.run(client.close())
""",
    "multiprocessing": """
import multiprocessing
client = Client(target)
use(client)
def work():
    use(client)
for _ in range(2):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(40)
    assert child.exitcode == 0, child.exitcode
use(client)
""",
}


@pytest.fixture(params=["frames", "grpc"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWARD_WIRE", request.param)


@pytest.mark.parametrize("end", ["_exit", "exit"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda name: name.replace(" ", "-"))
def test_a_fork(real_daemon: Any, name: str, script: str, end: str, wire: str) -> None:
    """The child works or raises at once, ends at once, and leaves everything of its parent as it is."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    run(HEAD + SCRIPTS[script], real_daemon.target, name, end)


# The forms that programs have: blocking and asyncio clients, idle and in calls, and the servers that fork.
FORMS = (
    "used before", "asyncio used before", "threads in calls", "inside a running loop", "a pool after asyncio",
    "a server with workers",
)  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", FORMS, ids=lambda name: name.replace(" ", "-"))
def test_fifty_forks(real_daemon: Any, name: str, script: str, wire: str) -> None:
    """A hang or a crash may need many tries."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    for number in range(50):
        run(HEAD + SCRIPTS[script], real_daemon.target, f"{name}-{number}", "_exit")


def test_grpc_that_was_begun_before(real_daemon: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package has begun gRPC without support for forks: the child is told, and does not wait."""
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    monkeypatch.setenv(warm.COLD, "1")  # the script comes before all imports
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    begun = "import os\nos.environ['GRPC_ENABLE_FORK_SUPPORT'] = '0'\n"
    script = "client = Client(target)\nuse(client)\nfork(lambda: use(client), 'ForkedProcess')\nuse(client)\n"
    run(begun + HEAD + script, real_daemon.target, name, "_exit")


SAVERS = """
import multiprocessing
from stateward.langgraph import StatewardSaver
saver = StatewardSaver(target)
saver.list({"configurable": {"thread_id": name}})
list(saver.list({"configurable": {"thread_id": name}}))
fork(lambda: list(saver.list({"configurable": {"thread_id": name}})))
list(saver.list({"configurable": {"thread_id": name}}))
async def read():
    return await saver.aget_tuple({"configurable": {"thread_id": name}})
asyncio.run(read())
fork(lambda: list(saver.list({"configurable": {"thread_id": name}})), forked)
fork(lambda: asyncio.run(read()), forked)
list(saver.list({"configurable": {"thread_id": name}}))
"""


def test_a_saver(real_daemon: Any, name: str, wire: str) -> None:
    """LangGraph's saver has a client of both kinds: it works, or says why not."""
    pytest.importorskip("langgraph.checkpoint.base")
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    run(HEAD + SAVERS, real_daemon.target, name, "_exit")


def run(script: str, *arguments: str) -> None:
    done = warm.run([sys.executable, "-c", script, *arguments], timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]

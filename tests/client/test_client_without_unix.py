"""The danger: a client that cannot be imported, or does not call, on a system that is no Unix."""

from __future__ import annotations

import subprocess
import sys

from tests.bucket.weed import free_ports

from stateward.testing import run_daemon

# A Python that lacks what Windows lacks. The standard library is imported first: it is at home on this system.
PLAYED = """
import asyncio, multiprocessing, os, signal, socket, subprocess, sys, tempfile, grpc
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
del socket.AF_UNIX
for name in ("fork", "geteuid", "getuid", "killpg", "register_at_fork", "setsid", "O_CLOEXEC", "O_NOFOLLOW"):
    delattr(os, name)
sys.platform = "win32"
import stateward
with stateward.Client(sys.argv[1]) as client:
    thread = client.thread("windows")
    state = thread.hydrate()
    state.slots["system"] = sys.platform
    thread.save(state)
    receipt = thread.effects.run("pay", lambda: "paid")
    print(thread.hydrate().slots["system"], receipt)
"""


def test_a_blocking_client_calls_over_a_port() -> None:
    """It saves, reads and calls a tool once, without sockets of Unix, forks and users."""
    (port,) = free_ports(1)
    with run_daemon(listen=f"127.0.0.1:{port}", exposed_port=True):
        command = [sys.executable, "-c", PLAYED, f"127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["win32", "paid"], done.stderr

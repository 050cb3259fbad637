"""A writer that was replaced while it slept: it wakes up, goes on writing, and nothing of it lands.

    python examples/02_writer.py

An agent saves over a writer, which holds the lease of its thread. Its process is stopped in mid-flight (a paused
container, a machine that swaps), and a supervisor starts another agent, which takes the thread over and goes on from
the last version. Then the first one wakes up and believes that it still is the writer. Every frame carries the token of
its lease, and that is not the newest one any more: LeaseHeld.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from stateward import Client, LeaseHeld
from stateward.testing import run_daemon

THREAD = "booking-42"


def first(target: str) -> int:
    """The agent that sleeps: writes until it is told that it lost the thread."""
    with Client(target, holder="first") as client:
        thread = client.thread(THREAD)
        state = thread.hydrate()
        try:
            with thread.writer(term=30) as writer:
                while True:
                    state.logs["messages"].append({"by": "first", "token": writer.token})
                    writer.send(state)  # returns at once: the next step is on its way before this one is answered
                    if state.version % 10 == 0:
                        writer.flush()
                        print("flushed", flush=True)
        except LeaseHeld as error:
            print(f"LeaseHeld: {error}", flush=True)
    return 7


def second(client: Client) -> list[str]:
    """The agent that takes over: 20 steps, answered one by one. Returns who wrote, by version, when it is done."""
    thread = client.thread(THREAD)
    with thread.writer(take_over=True) as writer:
        state = thread.hydrate()
        print(f"the second one takes over at version {state.version}, with a token that is larger")
        for _ in range(20):
            state.logs["messages"].append({"by": "second", "token": writer.token})
            writer.save(state)
        return [message["by"] for message in state.logs["messages"]]


def main() -> int:
    """Runs both agents; 0 = nothing of the first landed after it was replaced."""
    with run_daemon() as daemon, Client(daemon.target, holder="second") as client:
        command = [sys.executable, __file__, daemon.target]
        sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert sleeper.stdout is not None
        try:
            for _ in range(3):
                sleeper.stdout.readline()  # it is well on its way
            sleeper.send_signal(signal.SIGSTOP)
            wrote = second(client)
            sleeper.send_signal(signal.SIGCONT)
            said = sleeper.communicate(timeout=20)[0].splitlines()[-1]
        finally:
            sleeper.kill()
            sleeper.wait()
        print(f"the first one wakes up: {said}")

        messages = list(client.thread(THREAD).hydrate().logs["messages"])
        begun = wrote.index("second")
        is_clean = [each["by"] for each in messages] == wrote and set(wrote[begun:]) == {"second"}
        tokens = [each["token"] for each in messages]
        print(f"{begun} steps of the first, then {len(messages) - begun} of the second, and none after that")
        held = is_clean and tokens == sorted(tokens) and said.startswith("LeaseHeld") and sleeper.returncode == 7
        return 0 if held else 1


if __name__ == "__main__":
    sys.exit(first(sys.argv[1]) if sys.argv[1:] else main())

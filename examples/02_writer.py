"""A writer that was replaced while it was stopped: it resumes and keeps writing, but no write is accepted.

    python examples/02_writer.py

An agent saves through a writer, which holds the lease of its thread. The agent's process stops in the middle of its
work, like a paused container or a machine that swaps. A supervisor starts a second agent, which takes the thread over
and continues from the last version. Then the first agent resumes and still believes that it is the writer. Each of its
saves has the token of its lease. The token is no longer the newest one, so the daemon answers LeaseHeld.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from stateward import Client, LeaseHeld
from stateward.testing import run_daemon

THREAD = "booking-42"


def first(target: str) -> int:
    """The agent that is stopped: writes until it gets LeaseHeld."""
    with Client(target, holder="first") as client:
        thread = client.thread(THREAD)
        state = thread.hydrate()
        try:
            with thread.writer(term=30) as writer:
                while True:
                    state.logs["messages"].append({"by": "first", "token": writer.token})
                    writer.send(state)  # returns at once: does not wait until the daemon has answered
                    if state.version % 10 == 0:
                        writer.flush()
                        print("flushed", flush=True)
        except LeaseHeld as error:
            print(f"LeaseHeld: {error}", flush=True)
    return 7


def second(client: Client) -> list[str]:
    """The agent that takes over: saves 20 steps and waits for each answer. Returns the writer of each message."""
    thread = client.thread(THREAD)
    with thread.writer(take_over=True) as writer:
        state = thread.hydrate()
        print(f"the second agent takes over at version {state.version}, with a larger token")
        for _ in range(20):
            state.logs["messages"].append({"by": "second", "token": writer.token})
            writer.save(state)
        return [message["by"] for message in state.logs["messages"]]


def main() -> int:
    """Runs both agents. Returns 0 if no save of the first agent was accepted after it was replaced."""
    with run_daemon() as daemon, Client(daemon.target, holder="second") as client:
        command = [sys.executable, __file__, daemon.target]
        sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert sleeper.stdout is not None
        try:
            for _ in range(3):
                sleeper.stdout.readline()  # the first agent has begun to write
            sleeper.send_signal(signal.SIGSTOP)
            wrote = second(client)
            sleeper.send_signal(signal.SIGCONT)
            said = sleeper.communicate(timeout=20)[0].splitlines()[-1]
        finally:
            sleeper.kill()
            sleeper.wait()
        print(f"the first agent wakes up: {said}")

        messages = list(client.thread(THREAD).hydrate().logs["messages"])
        begun = wrote.index("second")
        is_clean = [each["by"] for each in messages] == wrote and set(wrote[begun:]) == {"second"}
        tokens = [each["token"] for each in messages]
        print(f"{begun} steps of the first, then {len(messages) - begun} of the second, and none after that")
        held = is_clean and tokens == sorted(tokens) and said.startswith("LeaseHeld") and sleeper.returncode == 7
        return 0 if held else 1


if __name__ == "__main__":
    sys.exit(first(sys.argv[1]) if sys.argv[1:] else main())

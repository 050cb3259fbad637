"""A person decides: an agent asks on one machine, a person approves without a daemon, another machine continues.

    python examples/03_approval.py

The agent asks whether it may book, and ends. Its daemon gives the thread up and stops, and the machine's disk is lost.
The waiting thread is in the archive (here a directory, usually s3://…). `stateward waiting` and `stateward approve`
need only the archive's URL and key. On a new machine, `stateward run` notices the answer and starts the agent. The
agent finds its state and the answer, books, and acknowledges the answer in the same save.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from stateward import Client, Status
from stateward.testing import run_daemon

THREAD = "booking-42"


def agent() -> None:
    """The agent's program. It is started twice, and all that it knows is in its thread."""
    with Client() as client:
        thread = client.thread(os.environ["STATEWARD_THREAD"])
        state = thread.hydrate()
        if state.version == 0:
            state.slots["offer"] = {"hotel": "Lutetia", "price": 1200}
            thread.ask(
                state, "Book the Lutetia for 1,200 EUR?", {"type": "boolean"}, reason="costs money",
                durability="archived",
            )  # fmt: skip
            return
        answer = state.answer
        if answer is None:  # another signal started the agent: it keeps waiting
            return
        if answer.approved:
            state.slots["booked"] = {**state.slots["offer"], "approved by": answer.sender, "note": answer.payload}
        thread.save(state, status=Status.COMPLETED, durability="archived")  # acknowledges the answer


def stateward(*arguments: str) -> str:
    """Runs the `stateward` command and returns its output."""
    command = [sys.executable, "-m", "stateward.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    """Returns 0 if the answer was used on the second machine, exactly once."""
    with tempfile.TemporaryDirectory(prefix="sw-example-") as directory:
        return show(Path(directory))


def show(directory: Path) -> int:
    """Runs the example with the bucket and its key in this directory. Returns as `main` does."""
    key_file, archive = directory / "key", (directory / "bucket").as_uri()
    me = [sys.executable, str(Path(__file__).resolve()), "agent"]

    with run_daemon(key_file=key_file, archive=archive, owner_id="machine-a") as first:
        environment = {**os.environ, "STATEWARD_TARGET": first.target, "STATEWARD_THREAD": THREAD}
        subprocess.run(me, env=environment, check=True)
        first.stop()
    print("machine a: the agent asked and ended, the daemon stopped, the disk is gone")

    there = ["--archive", archive, "--key-file", str(key_file)]
    (question,) = json.loads(stateward("waiting", *there, "--json"))
    print(f"no daemon: {question['thread']} waits ({question['reason']}): {question['prompt']}")
    decided = stateward(
        "approve", THREAD, *there, "--as", "ana", "--note", "quiet room", "--wait-id", question["wait_id"]
    )
    print(f"no daemon: {decided.strip()}")

    with run_daemon(key_file=key_file, archive=archive, owner_id="machine-b") as second:
        run = ["--target", second.target, "run", "--on-signal", shlex.join(me), "--thread", THREAD, "--once"]
        stateward(*run)
        with second.client() as client:
            thread = client.thread(THREAD)
            state, left = thread.hydrate(), thread.signals.list()
        second.stop()
    booked = state.slots.get("booked", {})
    is_completed = state.checkpoint is not None and state.checkpoint.status == Status.COMPLETED
    print(f"machine b: version {state.version} is {'completed' if is_completed else 'not completed'}, booked: {booked}")
    is_right = is_completed and booked.get("approved by") == "ana" and state.version == 2 and not left
    print("the answer was used once, and is acknowledged" if is_right else "WRONG: the answer was not used once")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        agent()
    else:
        sys.exit(main())

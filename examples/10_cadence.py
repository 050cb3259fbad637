"""Cadence: when an agent's state is saved, and what happens to the state when the process or the machine stops.

    python examples/10_cadence.py

First, an agent with `autosave` and a sliding window over its messages gets SIGTERM in the middle of a step. The agent
finishes the step, makes its final save as PAUSED, and ends by the signal. A second process continues with the next
step. Each risky step is done once. Then a machine is drained, as before a node is removed: its daemon ships all threads
to the archive and gives them up, and the daemon of another machine continues at once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from typing import Any

from stateward import Client, Status, Window
from stateward.errors import ShuttingDown
from stateward.testing import run_daemon

STEPS, WINDOW = 12, 5
RISKY_STEPS, INTERRUPTED_STEP = (4, 9), 7


def summarise(old: str | None, entries: list[Any]) -> str:
    """A real agent asks a model here."""
    return f"{old or ''}[{entries[0]['step']}..{entries[-1]['step']}]"


def run_agent(target: str, *, is_first: bool) -> None:
    """Works through the steps, from the first that is not done."""
    with Client(target, holder="agent-1") as client:
        thread = client.thread("trip")
        state = thread.hydrate()
        window = Window("messages", keep_last=WINDOW, summarise=summarise)
        with thread.autosave(state, windows=[window], on_sigterm=True) as auto:
            for step in range(state.slots.get("done", 0) + 1, STEPS + 1):
                state.logs["messages"].append({"step": step, "content": "thinking"})
                if is_first and step == INTERRUPTED_STEP:
                    print("in the middle of step", step, flush=True)
                    sys.stdin.readline()  # SIGTERM comes here; the state is half changed
                if step in RISKY_STEPS:  # the second process comes to it once more
                    with auto.before("charge card", step=step) as risky:
                        if not risky.done:
                            print("charged with", risky.idempotency_key, flush=True)
                            risky.result = {"receipt": 7}
                state.slots["done"] = step
                auto.step(step=step, status="completed" if step == STEPS else None)


def interrupt_and_carry_on(client: Client) -> bool:
    """Runs one agent in two processes: the first gets SIGTERM. Returns whether everything is as expected."""
    command = [sys.executable, __file__, "agent", client.target]
    first = subprocess.Popen([*command, "first"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None
    assert first.stdout is not None
    lines = [first.stdout.readline(), first.stdout.readline()]
    first.send_signal(signal.SIGTERM)
    first.stdin.write("the tool has answered\n")
    first.stdin.close()
    code = first.wait()
    lines.append(first.stdout.read())
    first.stdout.close()
    thread = client.thread("trip")
    paused = thread.checkpoints.get()
    print(f"SIGTERM in step {INTERRUPTED_STEP}: ended by signal {-code}, saved as {paused.status!r} {paused.step}")

    second = subprocess.run([*command, "second"], capture_output=True, text=True, check=True)
    charged = "".join([*lines, second.stdout]).count("charged with")
    state, end = thread.hydrate(), thread.checkpoints.get()
    kept = [entry["step"] for entry in state.logs["messages"]]
    trimmed = [entry["step"] for entry in thread.log("messages").trimmed()]
    print(f"a second process ended at step {end.step}; the card was charged {charged} time(s)")
    print(f"in the window {kept}, summary {state.slots['summary']}, read back {trimmed}")
    return (
        (code, paused.status, paused.step) == (-signal.SIGTERM, Status.PAUSED, INTERRUPTED_STEP)
        and (end.step, charged) == (STEPS, 1)
        and trimmed + kept == list(range(1, STEPS + 1))
    )


def drain_a_machine(before: Client, after: Client) -> bool:
    """Drains the first of two daemons with one archive. Returns whether the second one continues the work."""
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        before.thread(name).append("messages", "from the old machine")
    result = before.drain(grace=20)  # the same as `stateward drain --grace 20s`
    print(f"drained: {result.detached_threads} given up, {result.dirty_threads} on this machine alone")
    try:
        before.thread(names[0]).append("messages", "too late")
    except ShuttingDown as error:
        print(f"the old daemon refuses work: {error}")
    versions = [after.thread(name).append("messages", "new").version for name in names]
    print(f"the new machine wrote versions {versions}, without waiting for the lease of one hour")
    return (result.dirty_threads, versions, after.thread("trip").hydrate().slots["done"]) == (0, [2] * 5, STEPS)


def main() -> int:
    """Runs both parts. Returns 0 if everything is as expected."""
    if sys.argv[1:2] == ["agent"]:
        run_agent(sys.argv[2], is_first=sys.argv[3] == "first")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        archive: dict[str, Any] = {"archive": f"file://{directory}/bucket", "archive_lease": 3600}
        with (
            run_daemon(**archive, owner_id="old") as old,
            Client(old.target, retry_timeout=0) as before,
        ):
            carried_on = interrupt_and_carry_on(before)
            with run_daemon(key_file=old.key_file, **archive, owner_id="new") as new, Client(new.target) as after:
                return 0 if drain_a_machine(before, after) and carried_on else 1


if __name__ == "__main__":
    sys.exit(main())

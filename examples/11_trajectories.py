"""Questions about many runs, and finished runs as training data.

    python examples/11_trajectories.py

24 agents run; most finish, some fail. The example asks which runs failed and where, and which tools were used most,
and exports the good and cheap runs as JSON Lines. Finished runs have a TTL: the daemon deletes them when it is over.
The same from a shell:

    stateward threads --count
    stateward failures --since 24h
    stateward tools --agent booking
    stateward export --trajectories --status completed --max-metric cost_usd=0.1 > runs.jsonl
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateward import Client, Status, ThreadOptions
from stateward.testing import run_daemon

RUNS = 24
STATEWARD = [sys.executable, "-m", "stateward.cli"]
TOOLS = ("search", "search", "book")


def run_agent(client: Client, number: int) -> None:
    """Runs one agent: three tool calls, then the end. Every eighth run fails at its last tool call."""
    thread = client.thread(f"booking-{number}")
    state = thread.hydrate()
    options = ThreadOptions(agent="booking", labels={"model": "small" if number % 2 else "large"})
    for step, tool in enumerate(TOOLS, 1):
        has_failed = number % 8 == 0 and tool == "book"
        call = {"id": f"call-{step}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        state.logs["messages"].append({"role": "assistant", "tool_calls": [call]})
        state.logs["messages"].append({"role": "tool", "tool_call_id": call["id"], "is_error": has_failed})
        if has_failed:
            thread.save(state, step=step, status="failed", status_detail="the hotel answered 503", create=options)
            return
        thread.save(state, step=step, create=options)
    state.slots["outcome"] = {"booked": True}
    cost = {"cost_usd": round(0.01 * number, 2)}
    thread.finish(state, step=4, metrics=cost, ttl=timedelta(days=30))  # COMPLETED; deleted after thirty days


def export(target: str, file: Path) -> list[dict[str, Any]]:
    """Returns the good and cheap runs, exported by the command that a training job would use."""
    choice = ["--status", "completed", "--max-metric", "cost_usd=0.1", "--output", str(file)]
    subprocess.run([*STATEWARD, "--target", target, "export", "--trajectories", *choice], check=True)
    return [json.loads(line) for line in file.read_text().splitlines()]


def ask(target: str, *question: str) -> list[dict[str, Any]]:
    """Runs a command with `--json` and returns its output."""
    command = [*STATEWARD, "--target", target, *question, "--json"]
    answer: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer


def main() -> int:
    """Runs the agents, asks, exports, and waits until a run expires. Returns 0 if everything is as expected."""
    with run_daemon(sweep_interval=0.2) as daemon, Client(daemon.target) as client:
        for number in range(RUNS):
            run_agent(client, number)

        counts = client.count_threads()
        print("by status:", {Status(status).name: count for status, count in counts.items()})
        failed = [info.name for info in client.threads(status="failed", step=3, updated_within=timedelta(hours=1))]
        last = ask(daemon.target, "failures", "--agent", "booking")[0]
        print(f"{len(failed)} failed at step 3; the last one at version {last['version']}, after {last['tool']!r}: "
              f"{last['status_detail']}")  # fmt: skip
        for use in ask(daemon.target, "tools", "--agent", "booking"):
            print(f"  {use['name']}: {use['calls']} calls in {use['threads']} threads, {use['errors']} failed")

        with tempfile.TemporaryDirectory() as directory:
            runs = export(daemon.target, Path(directory, "runs.jsonl"))
        print(f"{len(runs)} runs for training, {len(runs[0]['messages'])} messages in the first")

        client.thread("booking-1").update_options(ttl=timedelta(milliseconds=1))
        client.thread("booking-3").update_options(ttl=None)  # this one is never deleted
        with client.watch(after_cursor="") as events:
            while "booking-1" in {info.name for info in client.threads(status="completed")}:
                next(events)
        print("a finished run expired and was deleted")
        held = (
            counts == {Status.COMPLETED: 21, Status.FAILED: 3}
            and sorted(failed) == sorted(f"booking-{number}" for number in range(0, RUNS, 8))
            and sorted(run["metrics"]["cost_usd"] for run in runs) == [0.01 * n for n in (1, 2, 3, 4, 5, 6, 7, 9, 10)]
            and all(len(run["messages"]) == 6 and run["outcome"] == {"booked": True} for run in runs)
            and client.thread("booking-3").info().expire_time is None
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

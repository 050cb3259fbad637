"""The demo's agent, a process of its own: `python -m stateward.cli.demo.agent --target URL --thread NAME --steps N`.

The agent surveys one file at each step and saves. It keeps everything in its state, so it needs no code for crashes:
it hydrates, finds the last finished step, and takes the next file. Version 1 is the plan, version k + 1 is step k.

The agent reports each save on stdout, as one JSON object a line, after the daemon has answered the save.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from stateward.cli.demo.survey import (
    add_to_findings,
    add_to_totals,
    make_plan,
    no_findings,
    no_totals,
    report,
    survey_file,
)
from stateward.errors import StatewardError

if TYPE_CHECKING:
    from stateward import State

TOOL = "survey_file"
MESSAGES = "messages"


def begin(state: State, steps: int) -> None:
    """Makes the plan."""
    state.slots["plan"] = {"files": make_plan()[:steps]}
    state.slots["totals"], state.slots["findings"] = no_totals(), no_findings()
    state.logs[MESSAGES].append({"role": "user", "content": "Survey the source of the standard library."})


def next_file(state: State) -> str | None:
    """Returns the next file, from the state alone; None at the end."""
    files, done = state.slots["plan"]["files"], state.slots["totals"]["files"]
    return files[done] if done < len(files) else None


def take_step(state: State, name: str) -> None:
    """Calls the tool for one file, and puts the call, its result and the conclusions into the state."""
    step = state.slots["totals"]["files"] + 1
    call_id = f"call-{step}"
    call = {"id": call_id, "name": TOOL, "arguments": {"file": name}}
    facts = survey_file(name)
    state.logs[MESSAGES].append({"role": "assistant", "content": f"Next is {name}.", "tool_calls": [call]})
    state.logs[MESSAGES].append({"role": "tool", "tool_call_id": call_id, "content": facts})
    state.slots["totals"] = add_to_totals(state.slots["totals"], facts)
    state.slots["findings"] = add_to_findings(state.slots["findings"], facts)
    if next_file(state) is None:
        conclusion = report(state.slots["totals"], state.slots["findings"])
        state.logs[MESSAGES].append({"role": "assistant", "content": conclusion})


def surveyed_files(state: State) -> list[str]:
    """The files whose results are in the state, in order."""
    return [message["content"]["file"] for message in state.logs[MESSAGES] if message["role"] == "tool"]


def run(target: str, thread_name: str, steps: int, durability: str | None) -> None:
    """Continues the plan to its end. Each save has the durability that the supervisor chose."""
    from stateward import Client, Status  # noqa: PLC0415  the module's other functions need no daemon

    with Client(target) as client:
        thread = client.thread(thread_name)
        client.server_info()  # connects, so that the next line measures the hydrate and not the dialling
        started = time.perf_counter()
        state = thread.hydrate()
        tell(event="hydrated", version=state.version, seconds=time.perf_counter() - started)
        if state.version == 0:
            begin(state, steps)
            thread.save(state, step=0, durability=durability)
        while (name := next_file(state)) is not None:
            take_step(state, name)
            step = state.slots["totals"]["files"]
            status = Status.RUNNING if next_file(state) is not None else Status.COMPLETED
            started = time.perf_counter()
            checkpoint = thread.save(state, step=step, status=status, durability=durability)
            seconds = time.perf_counter() - started
            tell(event="saved", step=step, file=name, version=checkpoint.version, seconds=seconds)
    tell(event="done")


def tell(**what: Any) -> None:
    """Prints an event as one line of JSON."""
    print(json.dumps(what), flush=True)


def main() -> int:
    """Runs the agent from the command line."""
    parser = argparse.ArgumentParser(prog="stateward.cli.demo.agent", description="The agent of `stateward demo`.")
    parser.add_argument("--target", required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--durability", choices=["committed", "archived"])
    arguments = parser.parse_args()
    try:
        run(arguments.target, arguments.thread, arguments.steps, arguments.durability)
    except StatewardError as error:
        print(f"agent: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An agent with a plan, facts and decisions is killed during a paid tool call, and continues from its saved state.

    python examples/08_agent_schema.py

The agent saves its knowledge as typed messages of `stateward.agent.v1`. SIGKILL ends it right after a booking, before
it can save the outcome. The second process has only the state. `build_resume_context` turns the state into a prompt
within a budget of tokens. The model (here a function that gets only this text) finds the call with an unknown outcome
in the prompt. The agent looks the booking up by its idempotency key instead of booking again, and continues the plan.
It does not repeat the decision of the first process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from stateward import Client
from stateward.agent import AgentState, ModelParameters, build_resume_context
from stateward.testing import run_daemon


def think(prompt: str) -> tuple[str, str]:
    """Stands in for a model: all that it knows is the prompt."""
    if call := re.search(r"was begun, outcome unknown \(call (\w+)", prompt):
        return "look up", call[1]
    if step := re.search(r"- \[(?:pending|in progress)\] (\w+):", prompt):
        return step[1], ""
    return "finish", ""


def begin(agent: AgentState) -> None:
    """Sets the goal, the model and the plan in the first process."""
    agent.goal = "A room in Paris for three nights, below 500 €"
    agent.model = ModelParameters(name="a-model", version="2026-01", temperature=0.2, seed=7)
    agent.plan.add("Find hotels", id="find")
    agent.plan.add("Choose one", id="choose", depends_on=["find"])
    agent.plan.add("Book it", id="book", depends_on=["choose"])
    agent.plan.add("Write to the customer", id="write", depends_on=["book"])
    agent.messages.add("user", "A room in Paris please, three nights. I have 500 €.")


def run_agent(target: str, hotel: Path, *, dies: bool) -> None:
    """Runs the agent: think, act, save. `hotel` is the file with the hotel's bookings."""
    with Client(target, ephemeral=["scratch/"]) as client:
        thread = client.thread("trip-to-paris")
        agent = AgentState(thread.hydrate())
        agent.state.slots["scratch/browser"] = object()  # belongs to this process only, and is never saved
        if agent.goal is None:
            begin(agent)
        else:
            print(build_resume_context(agent.state, budget=400))
        for number in range(20):
            action, call_id = think(build_resume_context(agent.state, budget=400))
            match action:
                case "find":
                    agent.facts.add("Lutetia has a room for 480 €", source="https://lutetia.example", confidence=0.9)
                    agent.facts.add("Le Bristol has a room for 900 €", source="https://bristol.example")
                case "choose":
                    agent.decisions.add("Lutetia", reason="it is below 500 €", alternatives=["Le Bristol"])
                case "book":
                    call = agent.tool_calls.begin("book", {"hotel": "Lutetia"})
                    thread.save(agent.state, step=number)  # before the booking, so that a restart knows of the call
                    with hotel.open("a") as bookings:
                        bookings.write(f"{call.idempotency_key}\n")
                    if dies:
                        os.kill(os.getpid(), signal.SIGKILL)
                    agent.tool_calls.finish(call.id, "booked")
                case "look up":
                    call = agent.tool_calls.find(call_id)
                    happened = call.idempotency_key in hotel.read_text().split()
                    agent.tool_calls.finish(call_id, "booked, as the hotel says" if happened else None)
                    action = "book" if happened else ""
                case "write":
                    agent.messages.add("assistant", "You have a room at the Lutetia.")
                case "finish":
                    thread.save(agent.state, step=number, status="completed")
                    return
            if action in agent.plan:
                agent.plan.set_status(action, "done")
            thread.save(agent.state, step=number)


def main() -> int:
    """Runs an agent that is killed, and a second one. Returns 0 if there is one booking and the plan is done."""
    with tempfile.TemporaryDirectory() as folder, run_daemon() as daemon:
        hotel = Path(folder, "bookings")
        command = [sys.executable, __file__, daemon.target, str(hotel)]
        first = subprocess.run([*command, "dies"], check=False)
        second = subprocess.run(command, check=False)
        bookings = hotel.read_text().split()
        with Client(daemon.target) as client:
            agent = AgentState(client.thread("trip-to-paris").hydrate())
    print(f"the first agent ended with {first.returncode}, the second with {second.returncode}")
    print(f"{len(bookings)} booking, {len(agent.decisions)} decision, result: {agent.tool_calls.result(bookings[0])}")
    done = [step.id for step in agent.plan if step.status == 3]
    print(f"done: {', '.join(done)}; the state holds {', '.join(sorted(agent.state.slots))}")
    kept = "scratch/browser" not in agent.state.slots and len(agent.facts) == 2
    held = len(bookings) == len(agent.decisions) == 1 and done == ["find", "choose", "book", "write"]
    return 0 if first.returncode == -signal.SIGKILL and second.returncode == 0 and held and kept else 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_agent(sys.argv[1], Path(sys.argv[2]), dies="dies" in sys.argv)
    else:
        sys.exit(main())

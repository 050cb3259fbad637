"""Time travel: what would the run have done if it had known better at step 14?

    python examples/04_time_travel.py

An agent plans a trip in 20 steps and ends above its budget. The example goes back, branches from step 14 with a lower
budget, lets the same agent continue from there, and compares the two branches. The first run does not change: both
branches share steps 1 to 14, and every version of both can still be read. The same from a shell, while a daemon runs:

    stateward replay trip                                       shows the changes of every step
    stateward branch trip cheaper --at step:14 --set budget=300
    stateward diff trip main..cheaper
"""

from __future__ import annotations

import sys

from stateward import Client, State, Thread
from stateward.changes import SetSlot
from stateward.testing import run_daemon

STEPS = 20
# What the agent may book at each step from the 15th on: a good offer, and a cheap one.
OFFERS = {15: (180, 90), 16: (140, 60), 17: (90, 35), 18: (60, 25), 19: (40, 10), 20: (30, 5)}


def run_agent(thread: Thread, state: State) -> None:
    """Runs the steps that follow the last saved one. A real agent asks a model here."""
    for step in range((state.checkpoint.step or 0) + 1 if state.checkpoint else 1, STEPS + 1):
        if step in OFFERS:
            good, cheap = OFFERS[step]
            price = good if state.slots["budget"] >= 500 else cheap
            state.slots["spent"] += price
            state.logs["messages"].append({"role": "assistant", "content": f"Booked for {price}"})
        else:
            state.logs["messages"].append({"role": "assistant", "content": f"Compared offer {step}"})
        is_last = step == STEPS
        thread.save(state, step=step, status="completed" if is_last else "running", metrics={"steps": step})


def version_of_step(thread: Thread, step: int) -> int:
    """Returns the version of a step. The daemon counts versions, the agent counts steps; on main they are equal."""
    return next(each.version for each in thread.checkpoints.list(branch="main") if each.step == step)


def walk(thread: Thread) -> list[str]:
    """Returns one line for each slot that a step after the first version changed."""
    with thread.history() as line:
        return [
            f"  step {checkpoint.step:>2}: {change.slot} = {change.value}"
            for checkpoint, _, changes in line
            for change in changes
            if isinstance(change, SetSlot)
        ]


def main() -> int:
    """Runs the agent on both branches. Returns 0 if everything is as expected."""
    with run_daemon() as daemon, Client(daemon.target) as client:
        trip = client.thread("trip")
        state = trip.hydrate()
        state.slots.update({"goal": "Rome in May", "budget": 500, "spent": 0})
        run_agent(trip, state)
        print("the run on main:", *walk(trip), sep="\n")

        at = version_of_step(trip, 14)
        cheaper = trip.branch("cheaper", at=at)
        state = cheaper.hydrate()  # as it was after step 14
        was = (state.version, state.slots["budget"], len(state.logs["messages"]))
        state.slots["budget"] = 300
        cheaper.save(state, step=14, metadata={"why": "what if the budget were 300"})
        run_agent(cheaper, state)

        main_end, cheaper_end = trip.hydrate(), cheaper.hydrate()
        print(f"main ends at version {main_end.version}, having spent {main_end.slots['spent']}")
        print(f"cheaper ends at version {cheaper_end.version}, having spent {cheaper_end.slots['spent']}")
        print("the changes from main to cheaper:")
        for change in trip.diff(main_end.version, cheaper_end.version):
            print(f"  {change}"[:100])
        shared = [
            one == other for one, other in zip(main_end.logs["messages"], cheaper_end.logs["messages"], strict=True)
        ]
        print(f"the first {shared.index(False)} messages are shared")
        held = (
            was == (14, 500, 14)
            and (main_end.slots["spent"], cheaper_end.slots["spent"]) == (540, 225)
            and (main_end.version, cheaper_end.version) == (20, 27)
            and shared == [True] * 14 + [False] * 6
            and trip.hydrate(at=14).slots["budget"] == 500
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

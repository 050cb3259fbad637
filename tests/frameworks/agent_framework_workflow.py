"""A workflow of the Agent Framework in a process that kills itself before or after its n-th save.

    python -m tests.frameworks.agent_framework_workflow TARGET THREAD N before|after

It prints the workflow's output if it comes to its end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler

from stateward._operations.steps import Call
from stateward.agent_framework import StatewardCheckpointStorage

TYPES = ["tests.frameworks.agent_framework_workflow:Trip"]
ROUNDS = 6


@dataclass
class Trip:
    """What the executors send to each other."""

    places: list[str]


class Planner(Executor):
    """Adds a place, and keeps notes that grow."""

    def __init__(self) -> None:
        super().__init__(id="planner")
        self.notes: list[str] = []

    @handler
    async def plan(self, trip: Trip, ctx: WorkflowContext[Trip]) -> None:
        """One round."""
        self.notes.append(f"round {len(trip.places)}: " + "x" * 200)
        ctx.set_state("places", len(trip.places))
        await ctx.send_message(Trip([*trip.places, f"place-{len(trip.places)}"]))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What a checkpoint keeps of this executor."""
        return {"notes": self.notes}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """The reverse."""
        self.notes = state["notes"]


class Judge(Executor):
    """Ends after some rounds."""

    def __init__(self) -> None:
        super().__init__(id="judge")

    @handler
    async def judge(self, trip: Trip, ctx: WorkflowContext[Trip, str]) -> None:
        """Sends the trip back, or yields it."""
        if len(trip.places) < ROUNDS:
            await ctx.send_message(trip)
        else:
            await ctx.yield_output(",".join(trip.places))


def build(storage: Any) -> tuple[Workflow, Planner]:
    """The workflow, and its executor with notes."""
    planner, judge = Planner(), Judge()
    builder = WorkflowBuilder(name="trip", start_executor=planner, checkpoint_storage=storage)
    return builder.add_edge(planner, judge).add_edge(judge, planner).build(), planner


async def play(storage: Any, checkpoint_id: str | None = None) -> tuple[list[Any], list[str]]:
    """Runs from the beginning or from a checkpoint to the end. Returns outputs and notes."""
    workflow, planner = build(storage)
    if checkpoint_id is None:
        result = await workflow.run(Trip(["begin"]))
    else:
        result = await workflow.run(checkpoint_id=checkpoint_id)
    return result.get_outputs(), planner.notes


def aim(session: Any, nth: int, when: str) -> None:
    """Makes the n-th save the last thing that this process does."""
    perform, saves = session.perform, []

    async def aimed(step: Any) -> Any:
        is_save = isinstance(step, Call) and step.method == "Save"
        if is_save:
            saves.append(step)
        is_aimed = is_save and len(saves) == nth
        if is_aimed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await perform(step)
        if is_aimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    session.perform = aimed


async def main() -> None:
    """Runs the workflow."""
    target, thread, nth, when = sys.argv[1:]
    async with StatewardCheckpointStorage(thread, target=target, allowed_checkpoint_types=TYPES) as storage:
        aim(storage._client._session, int(nth), when)
        print(await play(storage))


if __name__ == "__main__":
    # Checkpoints name the classes by their module, which is not __main__ for who goes on from them.
    from tests.frameworks import agent_framework_workflow

    asyncio.run(agent_framework_workflow.main())

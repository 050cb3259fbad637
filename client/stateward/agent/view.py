"""A state seen as what an agent knows."""

from __future__ import annotations

from collections.abc import Iterable

from stateward.agent._entries import Decisions, Facts, Messages, ToolCalls
from stateward.agent._fields import read_slot, stamp, write_slot
from stateward.agent._items import Plan, Todos
from stateward.agent.v1.agent_pb2 import Goal, ModelParameters, PlanStep, Summary, Todo
from stateward.state import State


class AgentState:
    """Typed access to the slots and logs of a state that `stateward.agent.v1` describes.

    It holds nothing itself: what is set, appended or edited here is a change of `state`, and goes with its next save.
    As with every value of a state, an object that was read may be edited until that save, and is read again after it.

    Of a partial state, what was not read is never taken for what is not set: reading it is a ValueError that names the
    slot. A state does not know for what it was asked, so this also meets a slot that was asked for and is not set.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"AgentState({self.state!r})"

    @property
    def goal(self) -> Goal | None:
        """What is to be achieved; text may be assigned. None = not set."""
        return read_slot(self.state, "agent/goal", Goal)

    @goal.setter
    def goal(self, goal: Goal | str | None) -> None:
        write_slot(
            self.state, "agent/goal", Goal(text=goal, create_time=stamp(None)) if isinstance(goal, str) else goal
        )

    @property
    def summary(self) -> Summary | None:
        """What happened so far, in short; text may be assigned, and then covers all messages, where the state was read
        with them. None = not set."""
        return read_slot(self.state, "agent/summary", Summary)

    @summary.setter
    def summary(self, summary: Summary | str | None) -> None:
        if isinstance(summary, str):
            messages = self.state.logs["messages"]
            covered = messages.next_index if messages._readable else 0
            summary = Summary(text=summary, messages_before_index=covered, create_time=stamp(None))
        write_slot(self.state, "agent/summary", summary)

    @property
    def model(self) -> ModelParameters | None:
        """With what the agent thinks; None = not set."""
        return read_slot(self.state, "agent/model", ModelParameters)

    @model.setter
    def model(self, model: ModelParameters | None) -> None:
        write_slot(self.state, "agent/model", model)

    @property
    def plan(self) -> Plan:
        """The steps of the plan; a list of steps may be assigned."""
        return Plan(self.state)

    @plan.setter
    def plan(self, steps: Iterable[PlanStep]) -> None:
        Plan(self.state).replace(steps)

    @property
    def todos(self) -> Todos:
        """What is open besides; a list may be assigned."""
        return Todos(self.state)

    @todos.setter
    def todos(self, todos: Iterable[Todo]) -> None:
        Todos(self.state).replace(todos)

    @property
    def messages(self) -> Messages:
        """The conversation."""
        return Messages(self.state)

    @property
    def tool_calls(self) -> ToolCalls:
        """The calls of tools."""
        return ToolCalls(self.state)

    @property
    def decisions(self) -> Decisions:
        """What was decided, and why."""
        return Decisions(self.state)

    @property
    def facts(self) -> Facts:
        """What is held to be true."""
        return Facts(self.state)

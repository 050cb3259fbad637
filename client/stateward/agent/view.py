"""A typed view of an agent's state."""

from __future__ import annotations

from collections.abc import Iterable

from stateward.agent._entries import Decisions, Facts, Messages, ToolCalls
from stateward.agent._fields import read_slot, stamp, write_slot
from stateward.agent._items import Plan, Todos
from stateward.agent.v1.agent_pb2 import Goal, ModelParameters, PlanStep, Summary, Todo
from stateward.state import State


class AgentState:
    """Typed access to the slots and logs of a state that `stateward.agent.v1` describes.

    The view stores nothing itself: every change made here changes `state`, and is sent by its next save. As with every
    value of a state, an object may be edited until that save; read it again afterwards.

    In a partial state, an access to an unread slot raises ValueError, which names the slot: an unread slot is never
    treated as unset. A state does not know which slots were requested, so a requested slot that is not set also raises.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"AgentState({self.state!r})"

    @property
    def goal(self) -> Goal | None:
        """The goal; text may be assigned. None = not set."""
        return read_slot(self.state, "agent/goal", Goal)

    @goal.setter
    def goal(self, goal: Goal | str | None) -> None:
        write_slot(
            self.state, "agent/goal", Goal(text=goal, create_time=stamp(None)) if isinstance(goal, str) else goal
        )

    @property
    def summary(self) -> Summary | None:
        """A summary of the work so far; None = not set. Text may be assigned; it then covers all messages, if the state
        was read with them."""
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
        """The parameters of the agent's model; None = not set."""
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
        """Open items besides the plan; a list may be assigned."""
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
        """The tool calls."""
        return ToolCalls(self.state)

    @property
    def decisions(self) -> Decisions:
        """The decisions, with their reasons."""
        return Decisions(self.state)

    @property
    def facts(self) -> Facts:
        """The facts that the agent believes."""
        return Facts(self.state)

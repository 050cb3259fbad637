"""What an agent knows, in types: goal, plan, messages, tool calls, decisions, facts, to-dos, model, summary.

    from stateward.agent import AgentState, build_resume_context

    agent = AgentState(thread.hydrate())
    agent.goal = "A room in Paris, below 150 €"
    agent.plan.add("Find hotels")
    agent.decisions.add("Hotel Lutetia", reason="the only one below 150 €", alternatives=["Hotel Le Bristol"])
    thread.save(agent.state, step=1)                    # sends only the changes, as every save does

    prompt = build_resume_context(agent.state, budget=4000)     # after a restart

The message types are those of `stateward.agent.v1`, which defines the slot or log of each type for every language. They
are optional: a state may hold other slots and logs too. The daemon reads none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateward.agent.resume import build_resume_context as build_resume_context
    from stateward.agent.v1.agent_pb2 import Alternative as Alternative
    from stateward.agent.v1.agent_pb2 import ContentPart as ContentPart
    from stateward.agent.v1.agent_pb2 import Decision as Decision
    from stateward.agent.v1.agent_pb2 import Fact as Fact
    from stateward.agent.v1.agent_pb2 import Goal as Goal
    from stateward.agent.v1.agent_pb2 import Message as Message
    from stateward.agent.v1.agent_pb2 import ModelParameters as ModelParameters
    from stateward.agent.v1.agent_pb2 import PlanStep as PlanStep
    from stateward.agent.v1.agent_pb2 import Role as Role
    from stateward.agent.v1.agent_pb2 import StepStatus as StepStatus
    from stateward.agent.v1.agent_pb2 import Summary as Summary
    from stateward.agent.v1.agent_pb2 import Todo as Todo
    from stateward.agent.v1.agent_pb2 import ToolCall as ToolCall
    from stateward.agent.v1.agent_pb2 import ToolCallStatus as ToolCallStatus
    from stateward.agent.v1.agent_pb2 import ToolResult as ToolResult
    from stateward.agent.view import AgentState as AgentState

__all__ = [
    "AgentState",
    "Alternative",
    "ContentPart",
    "Decision",
    "Fact",
    "Goal",
    "Message",
    "ModelParameters",
    "PlanStep",
    "Role",
    "StepStatus",
    "Summary",
    "Todo",
    "ToolCall",
    "ToolCallStatus",
    "ToolResult",
    "build_resume_context",
]

_HOMES = {"AgentState": "stateward.agent.view", "build_resume_context": "stateward.agent.resume"}
_MESSAGES = "stateward.agent.v1.agent_pb2"


def __getattr__(name: str) -> Any:
    # As in the parent package: an import of the messages alone loads nothing else.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES.get(name, _MESSAGES)), name)
    return value


def __dir__() -> list[str]:
    return __all__

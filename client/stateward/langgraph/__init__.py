"""LangGraph on Stateward. Needs the extra `langgraph`.

`StatewardSaver` keeps the checkpoints of graphs, `StatewardStore` their long-term memory. `resume_command` gives the
answer of a person to a graph.
"""

from __future__ import annotations

from stateward.langgraph._types import TypeNotAllowed
from stateward.langgraph.resuming import aresume_command, resume_command
from stateward.langgraph.saver import StatewardSaver
from stateward.langgraph.store import StatewardStore

__all__ = ["StatewardSaver", "StatewardStore", "TypeNotAllowed", "aresume_command", "resume_command"]

"""LangGraph on Stateward. Needs the extra `langgraph`.

`StatewardSaver` keeps the checkpoints of graphs, `StatewardStore` their long-term memory.
"""

from __future__ import annotations

from stateward.langgraph._types import TypeNotAllowed
from stateward.langgraph.saver import StatewardSaver
from stateward.langgraph.store import StatewardStore

__all__ = ["StatewardSaver", "StatewardStore", "TypeNotAllowed"]

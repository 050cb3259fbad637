"""LangGraph on Stateward: `StatewardSaver` keeps the checkpoints of graphs. Needs the extra `langgraph`."""

from __future__ import annotations

from stateward.langgraph.saver import StatewardSaver

__all__ = ["StatewardSaver"]

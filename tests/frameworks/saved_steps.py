"""Waits in a node until the version of its step is there: LangGraph saves it at the same time as the node runs."""

from __future__ import annotations

import time

from langchain_core.runnables import RunnableConfig

from stateward.errors import ThreadNotFound
from stateward.langgraph import StatewardSaver

TIMEOUT_S = 120


def wait_for_version(saver: StatewardSaver, config: RunnableConfig) -> None:
    """A node is slower than the save before it, as usual: what it asks comes when the version is there."""
    step, end = config["metadata"]["langgraph_step"] - 1, time.monotonic() + TIMEOUT_S
    while not has_step(saver, config["configurable"]["thread_id"], step):
        assert time.monotonic() < end, f"step {step} was not saved"
        time.sleep(0.01)


def has_step(saver: StatewardSaver, thread_id: str, step: int) -> bool:
    try:
        newest = saver.thread(thread_id).info().step
    except ThreadNotFound:
        return False
    return newest is not None and newest >= step

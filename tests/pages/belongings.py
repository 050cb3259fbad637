"""Files that the pages name as the reader's own: an agent, a client, recorded runs, a database."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path


def write_agent(path: Path) -> None:
    """An agent that goes on from its answer, as a shell script."""
    path.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c '\n"
        "import os, stateward\n"
        'thread = stateward.Client().thread(os.environ["STATEWARD_THREAD"])\n'
        "thread.save(thread.hydrate())\n'\n"
    )
    path.chmod(0o755)


def write_client(path: Path) -> None:
    """A client with one of the procedures of docs/protocol.md."""
    root = Path(__file__).resolve().parents[2]
    path.write_text(
        f'#!/bin/sh\n[ "$1" = count/a-number ] || [ "${{1%%/*}}" = splice ] || exit 77\n'
        f'PYTHONPATH={root} exec {sys.executable} -m tests.conformance.with_client "$1"\n'
    )
    path.chmod(0o755)


def write_runs(path: Path) -> None:
    """A recorded run."""
    messages = [{"role": "user", "content": "A room"}, {"role": "assistant", "content": "Which dates?"}]
    path.write_bytes(gzip.compress(json.dumps({"run_id": "run-1", "messages": messages}).encode() + b"\n"))


def write_checkpoints(path: Path) -> None:
    """A database of LangGraph's SqliteSaver, with one checkpoint."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(path, check_same_thread=False)
    config = {"configurable": {"thread_id": "graph-1", "checkpoint_ns": ""}}
    SqliteSaver(connection).put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    connection.close()


def write_app(path: Path) -> None:
    """The program whose migrations the page tells to try."""
    steps = "migrations.step(1, 2)(lambda state: None)\n"
    path.write_text(f"from stateward import Migrations\n\nmigrations = Migrations(current=2)\n{steps}")


BELONGINGS: dict[str, Callable[[Path], None]] = {
    "agent.sh": write_agent, "my-client": write_client, "runs.jsonl.gz": write_runs, "app.py": write_app,
    "checkpoints.sqlite": write_checkpoints,
}  # fmt: skip
NAMED = {"app.py": "app:migrations"}


def lay_out(folder: Path, text: str) -> None:
    """Writes those that a page names."""
    for name, write in BELONGINGS.items():
        if NAMED.get(name, name) in text:
            write(folder / name)

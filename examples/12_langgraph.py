"""A person in a LangGraph graph: two nodes ask at once, the shell answers, and `stateward run` starts the graph again.

    pip install '.[langgraph,sidecar,cli]'
    python examples/12_langgraph.py

The graph knows Stateward as its saver only. `interrupt` in two parallel nodes makes one question with two parts:
`stateward waiting` lists it, `stateward answer --part` and `stateward approve` answer it. `stateward run --on-signal`
starts this program again for every answer, and `resume_command` gives the answer to the graph. The thread waits while
somebody has to answer, and is completed at the end.
"""

from __future__ import annotations

import json
import operator
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stateward import Status
from stateward.testing import run_daemon

try:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    from stateward.langgraph import StatewardSaver, resume_command
except ModuleNotFoundError as error:
    sys.exit(f"{error}; run in the clone: pip install '.[langgraph]'")

THREAD = "trip-1"


class Trip(TypedDict, total=False):
    """What the graph knows."""

    decided: Annotated[list[str], operator.add]
    booked: str


def hotel(state: Trip) -> Trip:  # noqa: ARG001  the name that LangGraph asks for
    """Asks whether the hotel may be booked."""
    return {"decided": ["hotel"] if interrupt("Book the Lutetia for 1,200 EUR?") else []}


def seat(state: Trip) -> Trip:  # noqa: ARG001
    """Asks where to sit."""
    return {"decided": [f"seat at the {interrupt('Window or aisle?')}"]}


def book(state: Trip) -> Trip:
    """The end, after both answers."""
    return {"booked": " and ".join(sorted(state["decided"]))}


def build(saver: StatewardSaver) -> Any:
    """The graph: two nodes that ask, and one that joins them."""
    builder = StateGraph(Trip)
    builder.add_node("hotel", hotel)
    builder.add_node("seat", seat)
    builder.add_node("book", book)
    builder.add_edge(START, "hotel")
    builder.add_edge(START, "seat")
    builder.add_edge(["hotel", "seat"], "book")
    builder.add_edge("book", END)
    return builder.compile(checkpointer=saver)


def agent() -> None:
    """The program that `stateward run` starts when somebody has answered."""
    thread = os.environ["STATEWARD_THREAD"]
    with StatewardSaver(namespace=os.environ["STATEWARD_NAMESPACE"]) as saver:
        command = resume_command(saver.thread(thread))
        if command is not None:  # else another signal started it
            build(saver).invoke(command, {"configurable": {"thread_id": thread}})


def main() -> int:
    """Returns 0 if both answers reached their nodes, each once."""
    with tempfile.TemporaryDirectory(prefix="sw-example-") as directory, run_daemon(Path(directory)) as daemon:
        me = shlex.join([sys.executable, str(Path(__file__).resolve()), "agent"])

        def stateward(*arguments: str) -> str:
            """Runs the `stateward` command and returns its output."""
            command = [sys.executable, "-m", "stateward.cli", "--target", daemon.target, *arguments]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

        with StatewardSaver(daemon.target) as saver:
            graph, config = build(saver), {"configurable": {"thread_id": THREAD}}
            graph.invoke({"decided": []}, config)
            (waits,) = json.loads(stateward("waiting", "--json"))
            parts = {part["prompt"]: part["name"] for part in waits["parts"]}
            print(f"{waits['thread']} waits: {' / '.join(parts)}")

            stateward("answer", THREAD, "window", "--part", parts["Window or aisle?"])
            stateward("run", "--on-signal", me, "--thread", THREAD, "--once")
            (waits,) = json.loads(stateward("waiting", "--json"))
            print(f"the seat is answered, and still open is: {waits['prompt']}")

            stateward("approve", THREAD, "--as", "ana")
            stateward("run", "--on-signal", me, "--thread", THREAD, "--once")
            booked, info = graph.get_state(config).values.get("booked"), saver.thread(THREAD).info()
            print(f"{info.name} is {'completed' if info.status == Status.COMPLETED else 'not over'}: {booked}")
    is_right = booked == "hotel and seat at the window" and not info.pending_signals
    print("each answer was used once, where it was asked for" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        agent()
    else:
        sys.exit(main())

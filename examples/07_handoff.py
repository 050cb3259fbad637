"""Handoff: an agent hands its work over, twenty others ask for it, and exactly one gets it.

    python examples/07_handoff.py --takers 20

A researcher collects facts, hands the rest of its plan over to "writer" and ends. Twenty writers, each a process of its
own, ask for the thread at the same time. One of them takes it over. This writer is killed before it does anything. It
starts again under the same name, gets the same handoff, and finishes the pending steps of the handoff.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from stateward import Client, HandoffTaken, State
from stateward.testing import run_daemon


def research(client: Client) -> None:
    """Runs the first agent."""
    thread = client.thread("report-7")
    state = thread.hydrate()
    state.slots["facts"] = ["rivers are longer than roads", "roads are straighter"]
    thread.hand_over(
        "writer",
        "Two facts were found and checked; the report is not begun.",
        pending_steps=["outline", "draft", "title"],
        dependencies=["facts"],
        state=state,
        step=1,
    )


def write(target: str, name: str, start: Barrier | None, answer: Connection) -> None:
    """Runs one writer. With `start` the writer takes part in the race, and is killed if it wins."""
    with Client(target, holder=name) as client:
        if start is not None:
            client.server_info()  # connected before the race begins
            start.wait()
        try:
            thread = client.take_handoff("report-7")
        except HandoffTaken as error:
            answer.send(f"taken by {error.taken_by}")
            return
        answer.send("won")
        if start is not None:
            os.kill(os.getpid(), signal.SIGKILL)  # the winner crashes
        for number, step in enumerate(thread.handoff.pending_steps, 2):

            def write(state: State, step: str = step) -> None:
                state.logs["report"].append(f"{step}, from {len(state.slots['facts'])} facts")

            thread.update(
                write,
                step=number,
                status="completed" if step == thread.handoff.pending_steps[-1] else "running",
            )


def race(target: str, takers: int) -> dict[str, str]:
    """Lets all writers ask at once. Returns the answer that each got."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["stateward._sync.client", "stateward.testing", "grpc._channel"])
    start, told = processes.Barrier(takers), {}
    for number in range(takers):
        here, there = processes.Pipe(duplex=False)
        agent = processes.Process(target=write, args=(target, f"writer-{number}", start, there))
        agent.start()
        there.close()
        told[f"writer-{number}"] = here, agent
    answers = {name: here.recv() for name, (here, _) in told.items()}
    for _, agent in told.values():
        agent.join()
    return answers


def main() -> int:
    """Runs the example. Returns 0 if one writer won and the work is done."""
    parser = argparse.ArgumentParser(description="Hand work to one of many agents.")
    parser.add_argument("--takers", type=int, default=20)
    takers = parser.parse_args().takers
    with run_daemon() as daemon:
        with Client(daemon.target, holder="researcher") as client:
            research(client)
        answers = race(daemon.target, takers)
        winners = [name for name, told in answers.items() if told == "won"]
        print(f"{takers} writers asked, {len(winners)} got it")
        losers_know = all(told in ("won", f"taken by {winners[0]}") for told in answers.values())

        again, there = multiprocessing.Pipe(duplex=False)
        write(daemon.target, winners[0], None, there)  # starts again after its crash, under the same name
        print("started again, it got the same work" if again.recv() == "won" else "it lost the work")

        with Client(daemon.target) as client:
            state = client.thread("report-7").hydrate()
            info = client.thread("report-7").info()
            print(*state.logs["report"], sep="; ")
        done = [line.partition(",")[0] for line in state.logs["report"]] == ["outline", "draft", "title"]
        return 0 if len(winners) == 1 and losers_know and done and info.step == 4 else 1


if __name__ == "__main__":
    sys.exit(main())

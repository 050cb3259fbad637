"""A board: several agents write to one state, and no write is lost.

    python examples/06_board.py --processes 8 --each 500

Each agent is a process of its own. It appends its findings to a shared log and counts them in a shared number, with
one write for each, and does not read the board first. In the middle, the example kills the daemon with SIGKILL and
starts it again. At the end every finding is in the log once, and the count is exact. The daemon merges these writes, so
none is refused because of another. A write that is repeated after a crash is applied once, because it has a request
id.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time

from stateward import ABSENT, Client, EditConflict
from stateward.testing import run_daemon


def work(target: str, agent: str, each: int) -> None:
    """Runs one agent."""
    with Client(target) as client:
        board = client.board("survey", agent=agent)
        for number in range(each):
            board.append("findings", {"agent": agent, "number": number})
            board.increment("found")
        board.private.post("done", each)  # in this agent's own area: agents/<agent>/done
        with contextlib.suppress(EditConflict):  # another agent was first
            board.post("first to finish", agent, expected=ABSENT)


def main() -> int:
    """Runs the agents. Returns 0 if no finding is lost and none is there twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--each", type=int, default=500)
    options = parser.parse_args()
    agents = [f"agent-{number}" for number in range(options.processes)]
    total = options.processes * options.each

    with run_daemon() as daemon:
        started = time.monotonic()
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["grpc"])  # imported once instead of by every process
        workers = [processes.Process(target=work, args=(daemon.target, agent, options.each)) for agent in agents]
        for worker in workers:
            worker.start()
        with Client(daemon.target) as client:
            board = client.board("survey")
            count = 0
            while count < total // 2:
                time.sleep(0.01)
                count = board.read("found").get("found", 0)
            daemon.kill()
            print(f"the daemon was killed at a count of {count:,} of {total:,}, and starts again")
            daemon.start()
            for worker in workers:
                worker.join()
            seconds = time.monotonic() - started

            found = [(entry.value["agent"], entry.value["number"]) for entry in board.log("findings").read()]
            shared = board.read("found", "first to finish")
            private = [client.board("survey", agent=agent).private.read("done").get("done") for agent in agents]
    count = shared["found"]
    print(f"{len(found):,} findings, {len(set(found)):,} of them different; counted {count:,} in {seconds:.1f} s")
    in_order = all([n for who, n in found if who == agent] == list(range(options.each)) for agent in agents)
    print(f"each agent's findings are in order: {in_order}; first to finish: {shared['first to finish']}")
    held = in_order and len(found) == len(set(found)) == count == total and private == [options.each] * len(agents)
    return 0 if held and all(worker.exitcode == 0 for worker in workers) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A program that opens the daemon of a data directory in many processes at once.

    python racing.py DATA_DIR PROCESSES ROUNDS IDLE_EXIT_S DIES

Each process opens, appends one line to the thread `race`, and writes the line to stdout when it is answered. With DIES
above 0, each process is killed after a random part of so many seconds. Errors go to stderr, and the exit code is 1.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback

import stateward
import stateward._sync.client
import stateward.opening.clients

PATIENCE_S = 200.0


def act(data_dir: str, line: str, idle_exit_s: float, dies_s: float) -> int:
    if dies_s:
        signal.setitimer(signal.ITIMER_REAL, random.SystemRandom().uniform(0.001, dies_s))  # and SIGALRM kills
    try:
        with stateward.open(data_dir=data_dir, idle_exit=idle_exit_s, connect_timeout=PATIENCE_S) as client:
            client.thread("race").append("lines", line)
            os.write(1, f"{line}\n".encode())
    except BaseException:  # noqa: BLE001  (told, and counted)
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def main() -> int:
    data_dir, processes, rounds, idle_exit_s, dies_s = sys.argv[1:]
    failed = False
    for turn in range(int(rounds)):
        reading, writing = os.pipe()
        children = []
        for number in range(int(processes)):
            child = os.fork()
            if not child:
                os.close(writing)
                os.read(reading, 1)  # until the parent closes the other end
                os._exit(act(data_dir, f"{turn}-{number}-{os.getpid()}", float(idle_exit_s), float(dies_s)))
            children.append(child)
        os.close(writing)
        os.close(reading)
        for child in children:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            failed |= code not in (0, -signal.SIGALRM)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

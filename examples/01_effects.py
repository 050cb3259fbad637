"""Effects: an agent that is killed around a paid tool call, and does not pay twice.

    python examples/01_effects.py --runs 30

In each run, an agent in a process of its own pays for one order. SIGKILL ends the agent at a random function call:
before it claims the payment, while the bank works, or after the payment but before that is recorded. The example
starts the agent again under the same name until it returns an answer. The bank is another process, and its ledger shows
the real payments:

    honours the key    the bank takes an idempotency key and pays once for each key      paid exactly once
    can be asked       the bank ignores the key, but can look up a payment by it         paid exactly once
    neither            nobody can know what a killed agent did: EffectUncertain          paid at most once
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import socketserver
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from stateward import NOT_HAPPENED, Client, EffectUncertain
from stateward.testing import run_daemon

KINDS = ("honours the key", "can be asked", "neither")
KILLS_MAX = 2  # for each agent; after that it may live
CALLS = 1300  # an agent calls about this many functions while it pays, and is killed at one of them
BANK_S = 0.003  # how long the bank takes before it pays, and again before it answers


# -- the agent ---------------------------------------------------------------------------------------------------------


def work(target: str, bank: str, kind: str, order: str, is_doomed: bool, answer: Connection) -> None:
    """Pays for an order. Knows of earlier attempts only from the daemon."""
    with Client(target, holder=f"agent of {order}") as client:
        thread = client.thread(order)
        state = thread.hydrate()
        if is_doomed:
            die_somewhere()
        try:
            if kind == "honours the key":
                receipt = thread.effects.run(
                    "pay", lambda key: ask(bank, "pay", order=order, key=key, honours=True), idempotent=True
                )
            elif kind == "can be asked":
                receipt = thread.effects.run(
                    "pay",
                    lambda key: ask(bank, "pay", order=order, key=key),
                    check=lambda key: ask(bank, "find", key=key) or NOT_HAPPENED,
                )
            else:
                receipt = thread.effects.run("pay", lambda: ask(bank, "pay", order=order))
        except EffectUncertain:
            answer.send("uncertain")  # a real agent asks a person
            return
        state.slots["receipt"] = receipt
        thread.save(state)
        answer.send(receipt)


def die_somewhere() -> None:
    """Kills this process after a random number of function calls."""
    left = random.randrange(CALLS)  # noqa: S311

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


# -- the bank ----------------------------------------------------------------------------------------------------------


def ask(bank: str, what: str, **fields: Any) -> Any:
    """Sends one request to the bank and returns the answer."""
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw") as lines:
        connection.connect(bank)
        print(json.dumps({"what": what, **fields}), file=lines, flush=True)
        return json.loads(lines.readline())


class Teller(socketserver.StreamRequestHandler):
    """Serves one request after the other, so that a lookup sees every payment that was requested before it."""

    ledger: ClassVar[list[dict[str, Any]]] = []

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return  # the agent was killed before it sent its request
        request = json.loads(line)
        key = request.get("key")
        paid: Any = None
        if request["what"] == "find" or request.get("honours"):
            paid = next((each for each in self.ledger if each["key"] == key), None)
        if request["what"] == "ledger":
            paid = self.ledger
        elif request["what"] == "pay" and paid is None:
            time.sleep(BANK_S)
            paid = {"receipt": len(self.ledger) + 1, "order": request["order"], "key": key}
            self.ledger.append(paid)
            time.sleep(BANK_S)
        with contextlib.suppress(BrokenPipeError):  # the agent was killed after it had paid
            self.wfile.write(json.dumps(paid).encode() + b"\n")


def run_bank(path: str) -> None:
    """Runs the bank; the target of its process."""
    with socketserver.UnixStreamServer(path, Teller) as server:
        server.serve_forever(poll_interval=0.01)


# -- the runs ----------------------------------------------------------------------------------------------------------


def run_agent(processes: Any, target: str, bank: str, order: str, kind: str) -> tuple[Any, int]:
    """Starts the agent until it answers. Returns the answer and the number of kills."""
    kills = 0
    while True:
        here, there = processes.Pipe(duplex=False)
        agent = processes.Process(target=work, args=(target, bank, kind, order, kills < KILLS_MAX, there))
        agent.start()
        there.close()
        with contextlib.suppress(EOFError):  # killed before it answered, perhaps after it had paid
            return here.recv(), kills
        agent.join()
        assert agent.exitcode == -signal.SIGKILL
        kills += 1


def judge(kind: str, answer: Any, paid: int) -> bool:
    """Whether the ledger keeps the promise for this kind of bank."""
    if answer == "uncertain":
        return kind == "neither" and paid <= 1
    return paid == 1


def main() -> int:
    """Runs and kills the agents. Returns 0 if no order was paid twice, and none is unpaid that must be paid."""
    parser = argparse.ArgumentParser(description="Kill agents around a paid tool call.")
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    # Agents are forked from a server that has done the imports: a start takes milliseconds and inherits no gRPC state.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["stateward._sync.client", "stateward.testing", "grpc._channel"])
    with tempfile.TemporaryDirectory() as directory:
        bank = str(Path(directory, "bank"))
        server = processes.Process(target=run_bank, args=(bank,), daemon=True)
        server.start()
        orders = {f"order-{number}": KINDS[number % len(KINDS)] for number in range(runs)}
        with run_daemon() as daemon:
            while not Path(bank).exists():
                time.sleep(0.01)
            answers = {order: run_agent(processes, daemon.target, bank, order, kind) for order, kind in orders.items()}
        paid = Counter(each["order"] for each in ask(bank, "ledger"))
        server.kill()
        server.join()

    wrong = [order for order, kind in orders.items() if not judge(kind, answers[order][0], paid[order])]
    for kind in KINDS:
        chosen = [order for order in orders if orders[order] == kind]
        unsure = sum(answers[order][0] == "uncertain" for order in chosen)
        print(
            f"{kind + ':':17} {len(chosen)} orders, {sum(answers[order][1] for order in chosen)} kills, "
            f"{sum(paid[order] for order in chosen)} payments, {sum(paid[order] > 1 for order in chosen)} paid twice, "
            f"{unsure} uncertain"
        )
    print(f"WRONG: {', '.join(wrong)}" if wrong else "every order was paid once; uncertain ones at most once")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

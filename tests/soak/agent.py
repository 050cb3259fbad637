"""A client process that replays recorded runs step by step, as an agent would, and keeps a ledger of it.

    python -m tests.soak.agent TARGET NUMBER SEED LEDGER THREADS

It hydrates, appends messages, changes slots and saves: by diff, by full state, by append without reading, in batches
over several threads, on side branches, with blobs, and waiting for the archive if there is one; between the steps it
tags, forks, prunes, moves heads, keeps records and results of tools, deletes and travels in time. Odd
numbers use AsyncClient. It may be killed at any moment: the next process reads the ledger, asks for what became of the
operation that was under way, hydrates the newest thread and carries on. It runs until its stdin ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.soak.asides import Asides
from tests.soak.desk import NAMESPACE, Desk, made_of
from tests.soak.ledger import hash_of, hash_state
from tests.soak.recovery import Recovery
from tests.soak.work import Work, load_work

from stateward import AsyncClient, Client, State
from stateward.errors import DeadlineExceeded, Exhausted, OutcomeUnknown

PATIENCE_S = 120.0
PAUSE_S = 0.02
BLOB_BYTES = 8 << 10  # larger values become blobs: some notes are
NAMES_AGAIN = 3  # so many names of an agent are used again after a deletion


class ReplayingAgent:
    """One agent. It has at most so many threads, and about as many forks."""

    def __init__(self, desk: Desk, threads_max: int) -> None:
        self.desk, self.threads_max = desk, threads_max
        self.recovery, self.asides = Recovery(desk), Asides(desk)

    def begin(self) -> tuple[str, Work]:
        """A new thread's name and work; the oldest threads go."""
        while len(self.desk.book.threads) >= self.threads_max:
            self.delete(next(iter(self.desk.book.threads)))
        number = self.desk.book.used
        again = f"{self.desk.number}-again-{number % NAMES_AGAIN}"
        is_free = again not in self.desk.book.threads
        return (again if is_free else f"{self.desk.number}-{number}"), self.desk.dice.choice(load_work())

    def carry_on(self) -> tuple[str, Work] | None:
        """The newest thread whose run is not at its end."""
        for name in reversed(self.desk.book.threads):
            state = self.desk.do(self.desk.client.thread(name).hydrate(must_exist=True))
            self.desk.check(self.desk.book.threads[name], state, self.desk.book.threads[name].head())
            if "fork" not in name and state.slots["status"] == "running":
                return name, next(work for work in load_work() if work.name == state.slots["book"]["run"])
        return None

    def run(self, name: str, work: Work, stop: threading.Event) -> None:
        """Saves every step that is not saved yet."""
        state = self.desk.do(self.desk.client.thread(name).hydrate())
        step = state.slots["book"]["step"] if state.version else 0
        while step < len(work.states) and not stop.is_set():
            notes = list(state.logs["notes"])
            change(state, work, step + 1)
            target = hash_state(
                work.slots(step + 1), {"messages": work.states[step]} | ({"notes": notes} if notes else {})
            )
            if self.save(name, state, target, step + 1):
                step += 1
            if self.desk.dice.random() < 0.3:
                self.asides.do_something(name)
                state = self.desk.do(self.desk.client.thread(name).hydrate())
            time.sleep(self.desk.dice.uniform(0, PAUSE_S))

    def save(self, name: str, state: State, target: str, step: int) -> bool:
        """By diff, by full state, or together with other threads."""
        parts = [self.desk.part(name, target)]
        prepared: list[tuple[str, State]] = [(name, state)]
        way = self.desk.dice.random()
        if way < 0.12:
            for other in self.desk.dice.sample(sorted(self.desk.book.threads), min(2, len(self.desk.book.threads))):
                if other != name:
                    also = self.desk.do(self.desk.client.thread(other).hydrate())
                    also.logs["notes"].append(f"together with {name} {step}")
                    prepared.append((other, also))
                    parts.append(self.desk.part(other, hash_of(also)))

        def send(key: str) -> dict[str, Any]:
            if len(prepared) == 1:
                made = [
                    self.desk.do(
                        self.desk.client.thread(name).save(state, step=step, request_id=key, overwrite=way > 0.8)
                    )
                ]
            else:
                saves = [
                    self.desk.client.thread(each).prepare(content, step=step, request_id=f"{key}.{place}")
                    for place, (each, content) in enumerate(prepared)
                ]
                made = self.desk.do(self.desk.client.save_all(saves))
            return {"made": [made_of(checkpoint) for checkpoint in made]}

        return self.desk.ask("save", send, parts=parts)

    def delete(self, name: str) -> None:
        def send(key: str) -> dict[str, Any]:
            self.desk.do(self.desk.client.thread(name).delete())
            return {}

        self.desk.ask("delete", send, thread=name)

    def work(self, stop: threading.Event) -> None:
        """Until told to stop. What the daemon could not answer in time is looked at, as after a crash."""
        is_new = True
        while not stop.is_set():
            try:
                if is_new:
                    self.recovery.recover()
                todo = self.carry_on() if is_new else None
                is_new = False
                self.run(*(todo or self.begin()), stop)
            except (DeadlineExceeded, OutcomeUnknown, Exhausted):
                is_new = True
            except Exception as error:  # noqa: BLE001  the conductor reports it
                self.desk.note(
                    "failed", "", error=f"{type(error).__name__}: {error}", pending=list(self.desk.book.pending)
                )
                time.sleep(1)
                is_new = True


def change(state: State, work: Work, step: int) -> None:
    """What the agent does to its state in one step."""
    messages, wanted = state.logs["messages"], work.states[step - 1]
    for at, before in enumerate(list(messages)):
        if before != wanted[at]:
            messages[at] = wanted[at]
    messages.extend(wanted[len(messages) :])
    for name, value in work.slots(step).items():
        if name not in state.slots or state.slots[name] != value:
            state.slots[name] = value


def main() -> None:
    """Runs until stdin ends."""
    target, number, seed, path, threads = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    options = {"namespace": NAMESPACE, "connect_timeout": PATIENCE_S, "retry_timeout": PATIENCE_S}
    options["blob_threshold"] = BLOB_BYTES
    rest = int(number), seed, Path(path)
    if int(number) % 2:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_work_async(loop, target, options, rest, int(threads), stop))
    else:
        with Client(target, **options) as client:
            ReplayingAgent(Desk(client, lambda answer: answer, *rest), int(threads)).work(stop)


async def _work_async(loop: Any, target: str, options: Any, rest: Any, threads: int, stop: threading.Event) -> None:
    """The agent itself is blocking code, on a thread; what it awaits runs on the loop."""

    def do(awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_wait(awaitable), loop).result()

    async with AsyncClient(target, **options) as client:
        await loop.run_in_executor(None, ReplayingAgent(Desk(client, do, *rest), threads).work, stop)


async def _wait(awaitable: Any) -> Any:
    return await awaitable


if __name__ == "__main__":
    main()

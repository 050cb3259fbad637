"""A new version of a program migrates a thousand threads to its schema while agents keep saving.

    python examples/09_migrations.py --threads 1000

Version 1 of the program stored a customer's name as one string. Version 2 stores it in two parts, and registers a
migration step. Every state that version 2 hydrates has the new schema. One run over the store migrates the threads that
no agent uses (`stateward migrate MODULE:NAME` does the same). Meanwhile another process keeps saving to some threads.
If a thread changes during its migration, the run tries it again, so that nothing is lost. Old versions stay readable.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

from stateward import Client, Migrations, State
from stateward.testing import run_daemon

migrations = Migrations(current="2")
BUSY = 20  # the number of threads that an agent saves to during the migration


@migrations.step("1", "2")
def split_the_name(state: State) -> None:
    """Splits "Ann Lee" into its parts, and turns the events into objects."""
    first, _, last = state.slots.pop("customer").partition(" ")
    state.slots["customer"] = {"first": first, "last": last}
    state.logs["events"] = [{"text": text} for text in state.logs["events"]]


def save_as_version_1(client: Client, names: list[str]) -> None:
    """Saves the threads as the old program did."""
    for at in range(0, len(names), 100):
        saves = []
        for name in names[at : at + 100]:
            state = State()
            state.slots["customer"] = f"Ann {name}"
            state.logs["events"].extend(["called", "ordered"])
            saves.append(client.thread(name).prepare(state, schema_version=1, step=1, status="paused"))
        client.save_all(saves)


def work(target: str, names: list[str], pipe: Connection) -> None:
    """Runs an agent of version 2: it saves to its threads in turn until it gets a message through the pipe."""
    saved = dict.fromkeys(names, 0)
    with Client(target, migrations=migrations) as client:
        while not pipe.poll():
            name = min(saved, key=lambda each: saved[each])

            def add(state: State, name: str = name) -> None:
                assert state.slots["customer"]["first"] == "Ann"  # the new schema, whichever is stored
                state.logs["events"].append({"text": f"work {saved[name]}"})

            client.thread(name).update(add)
            saved[name] += 1
            time.sleep(0.01)  # it thinks
            if sum(saved.values()) == 1:
                pipe.send("at work")
    pipe.send(saved)


def main() -> int:
    """Migrates while the agent works. Returns 0 if every thread has the new schema and nothing is lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1000)
    names = [f"order-{number}" for number in range(parser.parse_args().threads)]
    busy = names[:: max(len(names) // BUSY, 1)]

    with run_daemon() as daemon, Client(daemon.target) as client:
        save_as_version_1(client, names)
        dry = client.migrate(migrations, dry_run=True)
        print(f"a dry run would migrate {dry.migrated}, and finds {len(dry.failures)} failures")

        here, there = multiprocessing.Pipe()
        processes = multiprocessing.get_context("forkserver")
        agent = processes.Process(target=work, args=(daemon.target, busy, there))
        agent.start()
        here.recv()
        started = time.monotonic()
        report = client.migrate(migrations)
        seconds = time.monotonic() - started
        here.send("stop")
        saved: dict[str, int] = here.recv()
        agent.join()
        migrated = sum(report.migrated.values())
        print(
            f"{migrated:,} migrated in {seconds:.1f} s, {report.unchanged} already were, {len(report.failures)} failed"
        )
        print(f"meanwhile an agent saved {sum(saved.values()):,} times to {sum(map(bool, saved.values()))} of them")

        right = sum(is_right(client, name, saved.get(name, 0)) for name in names)
        again = client.migrate(migrations)
    print(f"{right:,} of {len(names):,} threads are right, now and at version 1; left to migrate: "
          f"{sum(again.migrated.values())}")  # fmt: skip
    held = dry.ok and report.ok and again.ok and not again.migrated and sum(saved.values()) > 0
    return 0 if held and migrated + report.unchanged == right == len(names) else 1


def is_right(client: Client, name: str, saved: int) -> bool:
    """Whether a thread has the new schema and all saved events, and its first version is unchanged."""
    thread = client.thread(name)
    now, first = thread.hydrate(), thread.hydrate(at=1)
    events = [{"text": text} for text in ("called", "ordered", *(f"work {number}" for number in range(saved)))]
    return (
        (now.schema_version, now.slots["customer"], list(now.logs["events"]))
        == (2, {"first": "Ann", "last": name}, events)
        and (first.schema_version, first.slots["customer"]) == (1, f"Ann {name}")
        and list(first.logs["events"]) == ["called", "ordered"]
    )


if __name__ == "__main__":
    sys.exit(main())

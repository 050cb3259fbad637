"""The danger: a run for training that lacks messages which nobody pruned, or says that it lacks them."""

import json
import random

from tests.cli.conftest import run


def write_program(thread, seed):
    """Writes a thread by a random program; returns the entries that its log ever had on the line of the head."""
    dice = random.Random(seed)
    line, current, following, count = dict[int, tuple[dict[int, str], int]](), dict[int, str](), 0, 0
    for _ in range(dice.randint(4, 14)):
        state = thread.hydrate()
        log, entries = state.logs["messages"], dict(current)
        live = range(log.first_index, log.next_index) if "messages" in state.logs else range(0)
        verb = dice.choice(["append"] * 5 + ["front", "back", "replace", "delete", "head"])
        if verb == "append" or not live:
            for _ in range(dice.randint(1, 3)):
                count += 1
                log.append(f"m{count}")
                entries[following] = f"m{count}"  # a log that was deleted goes on with the next index
                following += 1
        elif verb == "front":
            log.trim(before_index=live[0] + dice.randint(1, len(live)))
        elif verb == "back":
            following = live[0] + dice.randint(0, len(live) - 1)
            log.trim(from_index=following)
            entries = {index: value for index, value in entries.items() if index < following}
        elif verb == "replace":
            at, count = dice.randrange(len(live)), count + 1
            log[at] = entries[live[at]] = f"r{count}"
        elif verb == "delete":
            del state.logs["messages"]
        else:
            version = dice.choice(sorted(line))
            thread.branches.move("main", version)
            current, following = line[version]
            continue
        current = entries
        line[thread.save(state).version] = current, following
    thread.save(thread.hydrate(), status="completed")
    return [current[index] for index in sorted(current)]


def test_deleted_logs_are_no_pruned_entries(daemon, client, namespace):
    """A trajectory has each entry that the log ever had on its line, also those of a log that was deleted."""
    wanted = {f"s{seed}": write_program(client.thread(f"s{seed}"), seed) for seed in range(16)}
    answer = run("--target", daemon.target, "-n", namespace, "export", "--trajectories")
    found = {line["thread"]: line for line in map(json.loads, answer.out.splitlines())}
    assert {name: line["messages"] for name, line in found.items()} == wanted
    assert {line["messages_missing"] for line in found.values()} == {0}

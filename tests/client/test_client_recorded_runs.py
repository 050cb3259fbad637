"""The danger: a state of a real agent comes back other than it was saved, in a shape that made-up states do not
have."""

import gzip
import json

import pytest

from stateward import Client
from stateward.changes import Append, ReplaceEntry

RUNS = [
    ("swe-agent-step-states", 0),  # rewrites an older message at almost every step
    ("swe-smith", 0),
    ("tau-bench-airline", 17),
    ("openhands-events", 1),
]


@pytest.fixture(params=RUNS, ids=lambda run: run[0])
def states(request, repository):
    """The message lists of one run after each step."""
    name, number = request.param
    path = repository.parent / "shared" / "data" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"the recorded runs are not here ({path})")
    with gzip.open(path, "rt") as lines:
        run = [json.loads(line) for line in lines][number]
    if "states" in run:
        return [state["messages"] for state in run["states"]]
    return [run["messages"][: step + 1] for step in range(len(run["messages"]))]


@pytest.fixture
def thread(server, request):
    """A thread of a namespace of its own; one client is enough, as both share every operation."""
    with Client(server.target, namespace=f"runs{abs(hash(request.node.nodeid)) % 10**9}") as client:
        yield client.thread("run")


def test_every_version_comes_back(thread, states):
    """Appends and edits in place of older messages arrive; hydrating and replaying give each recorded prefix."""
    state = thread.hydrate()
    for step, messages in enumerate(states, 1):
        log = state.logs["messages"]
        for position, (old, new) in enumerate(zip(states[step - 2] if step > 1 else [], messages, strict=False)):
            if old != new:
                log[position].clear()
                log[position].update(new)
        log.extend(messages[len(log) :])
        assert thread.save(state, step=step).version == step
    for version, messages in enumerate(states, 1):
        assert thread.hydrate(at=version).logs["messages"] == messages
    first, *later = thread.history()
    replayed = list(first.state.logs["messages"])
    for entry, messages in zip(later, states[1:], strict=True):
        for change in entry.changes:
            match change:
                case Append(entries=entries):
                    replayed += entries
                case ReplaceEntry(index=index, value=value):
                    replayed[index] = value
        assert replayed == messages


def test_whole_lists_send_the_difference(thread, states):
    """An agent that keeps its own list and assigns it whole before each save sends what differs, and no more."""
    state = thread.hydrate()
    for step, messages in enumerate(states, 1):
        old = states[step - 2] if step > 1 else []
        changed = [new for position, new in enumerate(messages) if position >= len(old) or new != old[position]]
        state.logs["messages"] = messages
        sent = thread.save(state, step=step).edit_bytes
        assert sent <= sum(len(json.dumps(each)) + 64 for each in changed)
    for version, messages in enumerate(states, 1):
        assert thread.hydrate(at=version).logs["messages"] == messages


def test_whole_states_come_back(thread, states):
    """A client that reads nothing and saves its whole state each time gets the same versions."""
    for step, messages in enumerate(states[:20], 1):
        state = thread.hydrate()
        state.logs["messages"] = messages
        assert thread.save(state, step=step, overwrite=True).version == step
    for version, messages in enumerate(states[:20], 1):
        assert thread.hydrate(at=version).logs["messages"] == messages

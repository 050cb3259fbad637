"""The danger: some order of edits of a state saves something else than what the program sees."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.client.fake_store import apply_edits

from stateward import Log, State
from stateward.models import Checkpoint
from stateward.state import Origin
from stateward.v1 import checkpoint_pb2, state_pb2

ORIGIN = Origin("default", "t", "main")
NAMES = st.sampled_from(["a", "b"])
SMALL = st.integers(0, 6)
EDITS = st.one_of(
    st.tuples(st.sampled_from(["append", "before", "from", "keep", "replace", "edit", "assign"]), NAMES, SMALL),
    st.tuples(st.sampled_from(["set", "change"]), NAMES, SMALL),
    st.tuples(st.sampled_from(["pop", "clear", "delete log", "delete slot"]), NAMES, st.just(0)),
    st.tuples(st.sampled_from(["save", "save", "hydrate", "tail"]), NAMES, SMALL),
)


class World:
    """The state under test, what it should hold, and a stored copy that knows only the diffs."""

    def __init__(self):
        self.state, self.slots, self.logs = State(), {}, {}
        self.stored, self.retired, self.version = state_pb2.State(), {}, 0

    def save(self):
        for log in self.state._logs_without_numbers():
            found = self.stored.logs[log.name]
            log._renumber(found.first_index + len(found.entries))
        collected = self.state._collect()
        self.version += 1
        apply_edits(self.stored, self.retired, collected.diff, self.version)
        checkpoint = Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=self.version))
        self.state._rebase(collected, checkpoint, ORIGIN, whole=False)
        assert not self.state._collect().diff.edits

    def hydrate(self, last=None):
        checkpoint = Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=self.version)) if self.version else None
        logs = {}
        for name, log in self.stored.logs.items():
            skip = 0 if last is None else max(len(log.entries) - last, 0)
            logs[name] = Log(name, list(log.entries)[skip:], log.first_index + skip, tail=last is not None)
        slots = dict(self.stored.slots)
        retired = dict(self.retired) if last is None else {}
        self.state = State(
            slots=slots, logs=logs, checkpoint=checkpoint, partial=last is not None, retired_logs=retired, origin=ORIGIN
        )

    def check(self):
        assert {name: json.loads(value.data) for name, value in self.stored.slots.items()} == self.slots
        stored = {name: [json.loads(v.data) for v in log.entries] for name, log in self.stored.logs.items()}
        assert {name: log for name, log in stored.items() if log} == {n: log for n, log in self.logs.items() if log}


def edit(world, kind, name, n):  # noqa: C901  one case for each edit
    """Makes one edit of the state and of the model; an edit that does not fit is left out."""
    log, model = world.state.logs[name], world.logs.setdefault(name, [])
    hidden = len(model) - len(log)  # what a partial hydrate did not show
    if not log._readable and kind not in ("append", "set", "change", "delete slot"):
        return
    match kind:
        case "append":
            log.append({"n": n})
            model.append({"n": n})
        case "before":
            log.trim(before_index=min(log.first_index + n, log.next_index))
            del model[: hidden + n]  # what a partial hydrate did not show goes too
        case "from":
            log.trim(from_index=min(log.first_index + n, log.next_index))
            del model[hidden + n :]
        case "keep":
            log.trim(keep_last=n)
            del model[: max(len(model) - n, 0)]
        case "clear":
            log.clear()
            model.clear()
        case "pop" if len(log):
            assert log.pop() == model.pop()
        case "replace" if n < len(log):
            log[n] = {"n": "new"}
            model[hidden + n] = {"n": "new"}
        case "edit" if n < len(log):
            log[n]["n"] = "edited"
            model[hidden + n] = {"n": "edited"}
        case "assign":
            entries = [*list(log)[:n], {"n": n}]
            world.state.logs[name] = entries
            model[:] = entries
        case "delete log" if name in world.state.logs:
            del world.state.logs[name]
            model.clear()
        case "set":
            world.state.slots[name] = {"n": n, "pad": "x" * 5000 * (n % 2)}
            world.slots[name] = {"n": n, "pad": "x" * 5000 * (n % 2)}
        case "change" if name in world.slots:
            world.state.slots[name]["n"] = -n
            world.slots[name] = {**world.slots[name], "n": -n}
        case "delete slot" if name in world.slots:
            del world.state.slots[name]
            del world.slots[name]


@settings(max_examples=400)
@given(st.lists(EDITS, max_size=25))
@example([("append", "a", 0), ("tail", "a", 0), ("before", "a", 0)])
@example([("append", "a", 0), ("save", "a", 0), ("delete log", "a", 0), ("append", "a", 0), ("clear", "a", 0)])
@example(
    [
        ("append", "a", 0), ("save", "a", 0), ("delete log", "a", 0), ("save", "a", 0),
        ("append", "a", 0), ("delete log", "a", 0), ("append", "a", 0),
    ]
)  # fmt: skip
def test_saves_arrive_as_meant(edits):
    """Whatever is edited between saves, applying the diffs gives what the model holds."""
    world = World()
    for kind, name, n in [*edits, ("save", "a", 0)]:
        if kind in ("save", "hydrate", "tail"):
            world.save()
            world.check()
            if kind != "save":
                world.hydrate(n if kind == "tail" else None)
        else:
            edit(world, kind, name, n)
    for name, log in world.state.logs.items():
        found = world.stored.logs[name]
        assert not log._numbered or log.next_index == found.first_index + len(found.entries)

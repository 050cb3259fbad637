"""What the agents replay: recorded runs where they lie beside the repository, else made-up ones of the same shape."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.end_to_end.recorded import DATA, load_runs

STEPS_MAX = 90
STATE_BYTES_MAX = 400_000
WORDS = ("the", "agent", "reads", "a", "file", "and", "writes", "a", "test", "for", "what", "it", "found")


@dataclass(frozen=True)
class Work:
    """A run: the messages after each step."""

    name: str
    states: list[list[Any]] = field(repr=False)

    def slots(self, step: int) -> dict[str, Any]:
        """What an agent keeps beside its messages; it follows from them. 1 = the first step."""
        messages = self.states[step - 1]
        roles = [str(message.get("role")) for message in messages]
        return {
            "book": {"run": self.name, "step": step, "roles": {role: roles.count(role) for role in sorted(set(roles))}},
            "status": "done" if step == len(self.states) else "running",
            "plan": {"phase": step // 10, "notes": f"phase {step // 10} of {self.name} " * 30},
        }


def is_recorded() -> bool:
    """Whether there are recorded runs here."""
    return any(DATA.glob("*.jsonl.gz"))


@cache
def load_work() -> tuple[Work, ...]:
    """All runs, the long ones cut to what fits on a small disk."""
    if not is_recorded():
        return tuple(map(_make_up, range(30)))
    found = []
    for run in load_runs():
        count = len(run.states)
        while count and (count > STEPS_MAX or sum(map(len, run.encoded[count - 1])) > STATE_BYTES_MAX):
            count -= 1
        if count and all(isinstance(message, dict) for message in run.states[count - 1]):
            found.append(Work(run.name, run.states[:count]))
    return tuple(found)


def _make_up(number: int) -> Work:
    dice = random.Random(number)
    messages: list[Any] = []
    states = []
    for step in range(dice.randint(6, 60)):
        size = int(dice.lognormvariate(4.5, 1.3)) + 3
        role = ("user", "assistant", "tool")[min(step, 1 + step % 2)]
        messages = [*messages, {"role": role, "content": " ".join(dice.choices(WORDS, k=min(size, 4000)))}]
        if number % 5 == 0 and step > 6:  # as harnesses do that elide old tool outputs
            messages[step - 6] = {"role": messages[step - 6]["role"], "content": "Old environment output: omitted"}
        states.append(list(messages))
    return Work(f"made-up/{number}", states)

"""What is saved: messages of recorded agent runs where they lie beside the repository, else generated ones.

A state is a list of messages, each compact JSON. States are made of the messages of one long run in their order; what
is appended comes from other runs, a different message each time, so that no store meets the same bytes twice.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
MESSAGE_BYTES = (400, 600)
"""Length of an appended message. The median of the recorded coding runs is 483."""
SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}


@dataclass(frozen=True)
class Payload:
    """Runs, the longest last, and where they come from."""

    source: str
    runs: list[list[bytes]] = field(repr=False)

    def state(self, size_bytes: int) -> list[bytes]:
        """The messages of the largest run, one after the other, as far as they fit into a size."""
        chosen, left = list[bytes](), size_bytes
        for message in max(self.runs, key=lambda run: sum(map(len, run))):
            if len(message) + 1 <= left:
                chosen.append(message)
                left -= len(message) + 1
        return chosen

    def appended(self) -> Iterator[bytes]:
        """Messages of usual length from the other runs, for ever."""
        largest = max(self.runs, key=lambda run: sum(map(len, run)))
        low, high = MESSAGE_BYTES
        return itertools.cycle(
            message for run in self.runs if run is not largest for message in run if low <= len(message) <= high
        )

    def run_below(self, full_bytes: int) -> list[bytes]:
        """The run whose full states, all together, come nearest to a size from below; at least the smallest run."""
        fitting = [run for run in self.runs if sum_of_states(run) <= full_bytes]
        return max(fitting, key=sum_of_states) if fitting else min(self.runs, key=sum_of_states)


def sum_of_states(run: list[bytes]) -> int:
    """Bytes of all states of a run: one after each message."""
    return sum(len(message) * (len(run) - place) for place, message in enumerate(run))


def load_payload(data: Path = DATA) -> Payload:
    """Recorded runs, or generated ones of the same shape where there are none."""
    # The coding runs alone: they grow to a megabyte, and reading all the files takes seconds.
    file = data / "vorflux-coding.jsonl.gz"
    if file.exists():
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            runs = [[encode(message) for message in json.loads(line)["messages"]] for line in lines]
        return Payload(f"recorded ({file.name}, {len(runs)} runs)", runs)
    return Payload("generated", [_generate(seed, steps) for seed, steps in enumerate((60, 120, 240, 400, 900, 2400))])


def load_all_runs(data: Path = DATA) -> dict[str, list[list[bytes]]]:
    """Every recorded run by the name of its file; nothing where there are none."""
    found = dict[str, list[list[bytes]]]()
    for file in sorted(data.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            recorded = [json.loads(line) for line in lines]
        # One file holds whole states instead of messages.
        if runs := [[encode(each) for each in run["messages"]] for run in recorded if "messages" in run]:
            found[file.name.removesuffix(".jsonl.gz")] = runs
    return found


def encode(message: object) -> bytes:
    """Compact UTF-8 JSON, which is what the client stores."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _generate(seed: int, steps: int) -> list[bytes]:
    """Messages whose lengths spread about as recorded ones, and which compress about as well."""
    dice = random.Random(seed)
    words = [f"{random.Random(number).getrandbits(40):x}" for number in range(2000)]
    lengths = (40, 45, 50) if seed == 0 else (12, 25, 45, 45, 45, 90)
    return [
        encode({"role": "assistant", "content": " ".join(dice.choices(words, k=dice.choice(lengths)))})
        for _ in range(steps)
    ]

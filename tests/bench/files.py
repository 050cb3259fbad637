"""A directory as an agent has it: made anew for each run, and changed as an agent changes it."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

FILES_IN_DIRECTORY, DIRECTORIES_IN_PART = 12, 16
LINE_BYTES = 60
VOCABULARY = 4000
LARGE_ONE_IN, LARGE_TIMES = 200, 30
"""So many files are larger than others: they are cut into chunks."""


@dataclass(frozen=True)
class Size:
    """How much a directory holds."""

    files: int
    size_bytes: int

    @property
    def case(self) -> str:
        """Its name in tables."""
        return f"{self.files:,} files, {self.size_bytes / 1e6:,.0f} MB"


class Files:
    """A directory of generated text, which compresses about as source code does. No two files are equal."""

    def __init__(self, root: Path, size: Size, seed: int = 7) -> None:
        self.root, self.size = root, size
        self._dice = random.Random(seed)
        words = [f"{self._dice.getrandbits(self._dice.choice((16, 24, 32, 48))):x}" for _ in range(VOCABULARY)]
        # Some words are frequent, as in code.
        weights = [1 / (place + 10) for place in range(VOCABULARY)]
        self._lines = [
            " ".join(self._dice.choices(words, weights, k=LINE_BYTES // 8))[:LINE_BYTES].encode() + b"\n"
            for _ in range(40_000)
        ]
        self._numbers = itertools.count()
        self.paths = list[Path]()
        average = size.size_bytes / size.files / (1 + LARGE_TIMES / LARGE_ONE_IN)
        for number in range(size.files):
            place = number // FILES_IN_DIRECTORY
            folder = root / f"part{place // DIRECTORIES_IN_PART:03}" / f"unit{place % DIRECTORIES_IN_PART:02}"
            if number % FILES_IN_DIRECTORY == 0:
                folder.mkdir(parents=True)
            path = folder / f"module_{number:06}.py"
            length = self._dice.uniform(0.2, 1.8) * average * (LARGE_TIMES if number % LARGE_ONE_IN == 99 else 1)
            path.write_bytes(self._text(int(length)))
            self.paths.append(path)

    def change(self, count: int, lines: int = 3) -> None:
        """Replaces some lines in so many files."""
        for path in self._dice.sample(self.paths, count):
            text = path.read_bytes().splitlines(keepends=True)
            at = self._dice.randrange(max(len(text) - lines, 1))
            text[at : at + lines] = self._text(lines * LINE_BYTES).splitlines(keepends=True)
            path.write_bytes(b"".join(text))

    def add(self) -> None:
        """Makes one more file of usual length."""
        path = self.root / f"added_{next(self._numbers):06}.py"
        path.write_bytes(self._text(self.size.size_bytes // self.size.files))

    def _text(self, size_bytes: int) -> bytes:
        start = b"# %d\n" % next(self._numbers)
        lines = self._dice.choices(self._lines, k=max(size_bytes // (LINE_BYTES - 5), 1))
        return start + b"".join(lines)[: max(size_bytes - len(start), 1)]

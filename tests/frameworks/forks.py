"""Processes that begin with a framework imported, as forks of one that waits: loading it takes longer than the rest.

    python -m tests.frameworks.forks MODULE…

imports the modules, and reads lines of JSON. A line has the command of some processes that run at the same time, each
with the module whose `main` it calls and its arguments. The answer has their exit codes and what they printed. The
process that waits has neither threads nor connections.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.processes import running


class Forks:
    """The tests' end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one process to its end."""
        (ended,) = self.run_together([module, *arguments])
        return ended

    def run_together(self, *commands: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
        """Runs processes at the same time, and returns how they ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(commands), file=self._process.stdin, flush=True)
        return [subprocess.CompletedProcess(*each) for each in json.loads(self._process.stdout.readline())]


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """A process that waits with these modules of `tests.frameworks` imported."""
    command = [sys.executable, "-m", __name__, *(f"tests.frameworks.{module}" for module in modules)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process)


def main() -> None:
    """Forks processes until nobody asks any more."""
    for module in sys.argv[1:]:
        import_module(module)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    for line in sys.stdin:
        ended = []
        with tempfile.TemporaryDirectory() as place:
            begun = []
            for number, (module, *arguments) in enumerate(json.loads(line)):
                printed = [Path(place, f"{number}.{stream}") for stream in ("out", "err")]
                if not (pid := os.fork()):
                    _become(f"tests.frameworks.{module}", arguments, printed)
                begun.append((pid, [module, *arguments], printed))
            for pid, command, printed in begun:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                ended.append((command, code, *(file.read_text() for file in printed)))
        print(json.dumps(ended), flush=True)


def _become(module: str, arguments: list[str], printed: list[Path]) -> NoReturn:
    for descriptor, path in enumerate((Path(os.devnull), *printed)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [module, *arguments]
    code = 1
    try:
        ended = sys.modules[module].main()
        if inspect.iscoroutine(ended):
            asyncio.run(ended)
        code = 0
    except BaseException:  # noqa: BLE001  the program ends by it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

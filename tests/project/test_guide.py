"""The danger: a page whose code does not run, or that tells a command or an option which does not exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateward.cli.catalog import LONGER
from stateward.testing import Daemon, run_daemon

GROUPS = ("archive", "keys", "records")
PAGES = ("README.md", "docs/guide.md", "docs/frameworks.md")
# Pages for operators, without code.
OTHERS = ("docs/monitoring.md",)
COMMAND = re.compile(r"^    (stateward(?:-sidecar)?) (.+?)(?:  +.*| &)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_its_code_runs(repository: Path, daemon: Daemon, page: str, tmp_path: Path) -> None:
    """All Python blocks of a page are one program, and it ends well."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", (repository / page).read_text(), re.DOTALL)))
    assert "thread" in program.read_text()
    environ = {**os.environ, "STATEWARD_TARGET": daemon.target}
    done = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def commands(repository: Path) -> list[tuple[str, str]]:
    return sorted({found for page in (*PAGES, *OTHERS) for found in COMMAND.findall((repository / page).read_text())})


def test_its_commands_have_these_options(repository: Path) -> None:
    """The help of each command names every option that a page gives it."""
    found = commands(repository)
    assert len(found) > 20
    for program, line in found:
        words = line.split()
        options = [word for word in words if word.startswith("-")]
        names = (
            []
            if program == "stateward-sidecar"
            else words[: 2 if words[0] in GROUPS or tuple(words[:2]) in LONGER else 1]
        )
        module = "stateward_sidecar" if program == "stateward-sidecar" else "stateward.cli"
        done = subprocess.run(
            [sys.executable, "-m", module, *names, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{program} {line}: {done.stderr}"
        for option in options:
            assert re.search(rf"{re.escape(option)}\b", done.stdout), f"{program} {' '.join(names)} has no {option}"

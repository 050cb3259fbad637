"""The danger: a page that tells a command which does not exist, and a file that knows the machine it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

# Homes and work places of a machine, and addresses of package registries.
MACHINE_TRACES = re.compile(
    r"(?<![\w.:/$}-])/(?:root|work|home/\w+|Users/\w+)/|(?:extra-)?index-url|registry\.\w+\.\w+/|://[\w.-]*pypi"
)


@pytest.fixture(scope="module")
def files(repository: Path) -> list[Path]:
    """The text files that are tracked, or would be if everything were added now."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [repository / name for name in names]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:1024]]


def test_no_file_knows_the_machine(files: list[Path]) -> None:
    """No tracked file holds a path of somebody's machine or the address of a package registry."""
    traces = {
        f"{path}:{number}": line
        for path in files
        if path != Path(__file__).resolve() and MACHINE_TRACES.search(text := path.read_text(errors="replace"))
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_TRACES.search(line)
    }
    assert traces == {}


def test_pages_name_tasks_that_exist(repository: Path, files: list[Path]) -> None:
    """Each `make …` that a page or script tells a reader to run is a task of the Makefile."""
    tasks = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    pages = [path for path in files if path.suffix in {".md", ".yaml"}] + [repository / ".ci" / "run"]
    told = {(page.name, task) for page in pages for task in find_make_commands(page.read_text())}
    assert any(page == "README.md" for page, _ in told), "the README names no task"
    assert {(page, task) for page, task in told if task not in tasks} == set()


def find_make_commands(text: str) -> list[str]:
    """Returns the tasks of the make commands in code: between backquotes, or at the start of a line."""
    return re.findall(r"(?:`|^ *(?:exec |\$ )?)make ([a-z][a-z-]*)", text, re.MULTILINE)


def test_make_alone_lists_every_task(repository: Path) -> None:
    """`make` without a task prints each task with what it does, and does nothing else."""
    answer = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, check=True)
    tasks = re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^  make ([a-z-]+) +\S", answer.stdout, re.MULTILINE) == tasks

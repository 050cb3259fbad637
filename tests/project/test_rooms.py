"""The danger: a page that leads a newcomer to a file which is gone, or knows nothing of one that is new, and rooms that
need one another."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

FLAT = ("storage", "codec", "bucket", "metrics", "doctor")
ROOMS = ("service", "store", "archive")


def section_of(repository: Path, folder: str) -> str:
    """The part of the page that is about a folder of the daemon."""
    page = (repository / "docs/rooms.md").read_text()
    sections: list[str] = re.findall(
        rf"^### `{folder}/`.*?(?=^###)|^\| `{folder}/` .*?$", page, re.DOTALL | re.MULTILINE
    )
    assert len(sections) == 1
    return sections[0]


def files_of(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def check(text: str, files: set[str]) -> None:
    named = Counter(re.findall(r"`([a-z_]+)`", text))
    assert files - named.keys() == set()
    assert set(named) - files == set()
    assert [name for name, count in named.items() if count > 1] == []


@pytest.mark.parametrize("folder", FLAT)
def test_every_file_has_its_place(repository: Path, folder: str) -> None:
    """Each module of a folder of the daemon stands once in the part of the page that is about the folder."""
    check(section_of(repository, folder), files_of(repository / "sidecar/stateward_sidecar" / folder))


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_has_its_files(repository: Path, folder: str) -> None:
    """Each room of a folder has a row that names its modules, and the text before the table names the others."""
    section, path = section_of(repository, folder), repository / "sidecar/stateward_sidecar" / folder
    rows = {name: row for row, name in re.findall(r"^(\| `([a-z]+)/` .*)$", section, re.MULTILINE)}
    assert set(rows) == {each.name for each in path.iterdir() if any(each.glob("*.py"))}
    for name, row in rows.items():
        check(row.removeprefix(f"| `{name}/`"), files_of(path / name))
    check(section[: section.index("| room |")], files_of(path))


@pytest.mark.parametrize("folder", ROOMS)
def test_a_room_needs_only_those_above_it(repository: Path, folder: str) -> None:
    """The table is in the order of the imports, so that nothing is a circle, and a reader may begin at its top."""
    section, path = section_of(repository, folder), repository / "sidecar/stateward_sidecar" / folder
    # A module beside the rooms that needs none of them is below all.
    bare = {name for name in files_of(path) if f"stateward_sidecar.{folder}" not in (path / f"{name}.py").read_text()}
    order = re.findall(r"^\| `([a-z]+)/` ", section, re.MULTILINE)
    for number, room in enumerate(order):
        for file in (path / room).glob("*.py"):
            needed = set(re.findall(rf"^ *from stateward_sidecar\.{folder}\.?(\w*)", file.read_text(), re.MULTILINE))
            assert needed - bare <= set(order[: number + 1]), file


def test_the_numbers_of_kinds_are_in_their_room(repository: Path) -> None:
    """A verb names a kind by its object. So whoever adds a kind finds everything that a kind is asked for."""
    daemon = repository / "sidecar/stateward_sidecar"
    naming = {path.parent.name for path in daemon.rglob("*.py") if re.search(r"\bENTRY_KIND_", path.read_text())}
    assert naming == {"kinds"}
